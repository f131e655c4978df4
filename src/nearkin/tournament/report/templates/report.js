"use strict";

const root = document.documentElement;

function remembered(key, value) {
  try {
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch { /* pages from disk may not be allowed to remember */ }
  return null;
}

function showTheme(theme) {
  if (theme) root.dataset.theme = theme;
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const button = document.getElementById("theme");
  button.textContent = dark ? "☀" : "☾";
  button.setAttribute("aria-label", dark ? "Light colours" : "Dark colours");
  return dark;
}

let dark = showTheme(remembered("nearkin-theme"));
document.getElementById("theme").addEventListener("click", () => {
  const theme = dark ? "light" : "dark";
  dark = showTheme(theme);
  remembered("nearkin-theme", theme);
});

function order(first, second, numeric, direction) {
  if (first === "" || second === "") return (first === "") - (second === "");  // empty cells stay last
  return direction * (numeric ? first - second : first.localeCompare(second));
}

function sortBy(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const numeric = header.classList.contains("number");
  const before = header.getAttribute("aria-sort");
  const first = header.dataset.first;
  const other = first === "ascending" ? "descending" : "ascending";
  const now = before === first ? other : first;
  const direction = now === "ascending" ? 1 : -1;
  const key = (row) => row.cells[column].dataset.sort;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => order(key(a), key(b), numeric, direction));
  table.tBodies[0].append(...rows);
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", now);
}

for (const button of document.querySelectorAll("table.sortable th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

function openAround(target) {
  for (let place = target; place; place = place.parentElement) {
    if (place instanceof HTMLDetailsElement) place.open = true;
  }
}

function followHash() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target) return;
  openAround(target);
  target.scrollIntoView();
}

addEventListener("hashchange", followHash);
if (location.hash) followHash();

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const details of closed) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of closed) details.open = false;
});
