// Labels with their counts; several may be chosen.

import { labels as fetchLabels } from "./api.js";
import { count, make, show } from "./dom.js";
import { go } from "./state.js";

const place = document.getElementById("filters");
const known = new Map(); // index → labels
const MOST = 300;
let typed = "";

export async function drawFilters(state) {
  if (!known.has(state.index)) known.set(state.index, (await fetchLabels(state.index)).labels);
  const all = known.get(state.index);
  if (all.length === 0) return show(place);
  const chosen = new Set(state.labels);
  const list = make("ul", { class: "labels" });
  const find = make("input", {
    class: "find",
    type: "search",
    id: "find",
    placeholder: "Filter labels   /",
    "aria-label": "Find a label",
    value: typed,
  });
  const draw = () => {
    typed = find.value;
    const wanted = typed.trim().toLowerCase();
    const found = all.filter((one) => one.label.toLowerCase().includes(wanted));
    found.sort((a, b) => chosen.has(b.label) - chosen.has(a.label));
    show(
      list,
      found.slice(0, MOST).map((one) => option(one, chosen)),
      found.length > MOST ? make("li", { class: "quiet small" }, `and ${count(found.length - MOST, "label")} more`) : null,
      found.length === 0 ? make("li", { class: "quiet small" }, "No label has this in its name") : null,
    );
  };
  find.addEventListener("input", draw);
  find.addEventListener("keydown", (event) => keys(event, find, list, draw));
  draw();
  const clear = make("button", { class: "link", type: "button", onclick: () => go({ labels: [] }) }, "Clear");
  const focused = document.activeElement?.id === "find";
  const open = place.querySelector("details")?.open ?? matchMedia("(min-width: 861px)").matches;
  const head = make(
    "summary",
    { class: "head" },
    make("h2", {}, chosen.size ? `Labels (${chosen.size})` : "Labels"),
    chosen.size ? clear : make("span", { class: "quiet small" }, all.length.toLocaleString("en")),
  );
  show(place, make("details", { open }, head, find, list));
  if (focused) find.focus();
}

function option({ label, count: number }, chosen) {
  const box = make("input", { type: "checkbox", checked: chosen.has(label) });
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(label);
    else chosen.delete(label);
    go({ labels: [...chosen].sort() });
  });
  const told = make("span", { title: label }, label);
  return make("li", {}, make("label", {}, box, told, make("small", {}, number.toLocaleString("en"))));
}

function keys(event, find, list, draw) {
  if (event.key === "Enter") list.querySelector("input")?.click();
  if (event.key === "ArrowDown") {
    event.preventDefault();
    list.querySelector("input")?.focus();
  }
  if (event.key === "Escape") {
    event.stopPropagation();
    if (find.value) {
      find.value = "";
      draw();
    } else find.blur();
  }
}
