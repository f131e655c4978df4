// Start: what is served, what the address says, and one drawing per change of it.

import * as api from "./api.js";
import { message } from "./cards.js";
import { drawClusters } from "./clusters.js";
import { make, show } from "./dom.js";
import { drawFilters } from "./filters.js";
import { drawMap } from "./map.js";
import { drawQuery } from "./query.js";
import { drawResults } from "./results.js";
import { ask, go, hasQuery, link, read, subscribe } from "./state.js";

const VIEWS = { search: drawResults, clusters: drawClusters, map: drawMap };
const at = (id) => document.getElementById(id);
const places = { view: at("view"), status: at("status") };
let served = null;
let running = null; // the drawing that a newer one ends

async function draw(state) {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const about = served.indexes.find((one) => one.name === state.index);
  if (about === undefined) return go({ index: served.indexes[0].name, compare: null }, { replace: true });
  document.body.dataset.view = state.view;
  drawBar(state);
  drawQuery(state, about);
  drawAbout(about);
  document.title = `${hasQuery(state) ? "Results" : about.name} – nearkin`;
  try {
    const labels = drawFilters(state);
    await (VIEWS[state.view] ?? drawResults)(state, { ...places, ...served, signal });
    await labels;
  } catch (error) {
    if (error.name !== "AbortError") report(error);
  }
}

function drawBar(state) {
  const options = (chosen, empty) => [
    ...(empty ? [make("option", { value: "" }, empty)] : []),
    ...served.indexes
      .filter((one) => !empty || one.name !== state.index)
      .map((one) => make("option", { value: one.name, selected: one.name === chosen }, one.name)),
  ];
  show(at("index"), options(state.index));
  show(at("compare"), options(state.compare, "Compare…"));
  at("comparing").hidden = served.indexes.length < 2 || state.view !== "search";
  for (const tab of document.querySelectorAll("[data-view]")) {
    tab.href = link({ view: tab.dataset.view });
    if (tab.dataset.view === state.view) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
}

function drawAbout(about) {
  const rate = (value) => `${(100 * value).toFixed(1)} %`;
  const facts = [["Items", about.items.toLocaleString("en")], ["Embedding", `${about.embedding_dim} × ${about.precision}`]];
  if (about.threshold) {
    facts.push(["Same from", about.threshold.similarity.toFixed(3)]);
    facts.push(["False accepts", rate(about.threshold.false_accept_rate)]);
    facts.push(["False rejects", rate(about.threshold.false_reject_rate)]);
  } else facts.push(["Threshold", "none"]);
  show(
    at("about"),
    make("div", { class: "head" }, make("h2", {}, "Index")),
    make("dl", {}, facts.map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
  );
}

function report(error) {
  places.status.textContent = "";
  if (error.status === 401) return askForKey();
  const action = { name: "Try again", run: () => location.reload() };
  show(places.view, message("That did not work", error.message, { wrong: true, action }));
}

function askForKey() {
  const dialog = at("key");
  if (dialog.open) return;
  dialog.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await api.session(at("key-value").value);
      location.reload();
    } catch (error) {
      at("key-error").textContent = error.message;
    }
  });
  dialog.showModal();
}

// Anywhere: / finds a label, Escape leaves the crop, then the query; arrow down enters the results.
function keys(event) {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const state = read();
  if (event.key === "/") {
    event.preventDefault();
    at("filters").querySelector("details")?.setAttribute("open", "");
    at("find")?.focus();
  } else if (event.key === "Escape") {
    if (state.crop) go({ crop: null });
    else if (hasQuery(state)) ask({});
  } else if (event.key === "ArrowDown" && (event.target === document.body || event.target === at("main"))) {
    const first = places.view.querySelector(".card");
    if (first) {
      event.preventDefault();
      first.focus();
    }
  }
}

async function start() {
  try {
    served = await api.indexes();
  } catch (error) {
    return report(error);
  }
  at("index").addEventListener("change", (event) => go({ index: event.target.value, compare: null, labels: [], ...forget() }));
  at("compare").addEventListener("change", (event) => go({ compare: event.target.value || null }));
  at("home").addEventListener("click", (event) => {
    event.preventDefault();
    ask({ labels: [], compare: null });
  });
  at("skip").addEventListener("click", (event) => {
    event.preventDefault();
    at("main").focus();
  });
  for (const tab of document.querySelectorAll("[data-view]")) {
    tab.addEventListener("click", (event) => {
      event.preventDefault();
      go({ view: tab.dataset.view });
    });
  }
  addEventListener("keydown", keys);
  subscribe((state) => draw(state).then(() => scrollTo({ top: 0 })));
  draw(read());
}

// An item of one index is not an item of another; uploads and texts stay.
function forget() {
  return read().item === null ? {} : { item: null, of: null, crop: null };
}

start();
