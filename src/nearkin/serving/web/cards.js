// A grid of items: one tab stop, arrow keys inside, Enter searches.

import { thumbnail } from "./api.js";
import { icon, make } from "./dom.js";
import { ask } from "./state.js";

export function card(item, index) {
  const told = make("div", { class: "told" });
  if (item.label !== null) told.append(make("div", { class: "label" }, item.label));
  if (item.has_picture) told.append(make("div", { class: "name", title: item.name }, item.name.split("/").pop()));
  if (item.similarity !== undefined) told.append(score(item));
  return make(
    "button",
    {
      class: `card${item.same ? " same-card" : ""}`,
      type: "button",
      tabindex: -1,
      "aria-label": spoken(item),
      "data-name": item.name,
      "data-id": item.id,
      onclick: () => ask({ item: item.id, of: index }),
    },
    face(item, index),
    told,
  );
}

function face(item, index) {
  if (!item.has_picture) return make("div", { class: "thumb" }, make("p", {}, item.name));
  const place = make("div", { class: "thumb" });
  const image = make("img", { src: thumbnail(index, item.id), alt: "", loading: "lazy", decoding: "async" });
  image.addEventListener("error", () => place.replaceChildren(make("span", { class: "gone" }, "The picture is gone")));
  place.append(image);
  return place;
}

function score(item) {
  const mark = make("span", { class: `mark${item.same ? " same" : ""}` }, item.same ? icon("check", 4) : null);
  const filled = make("i");
  filled.style.width = `${Math.max(0, item.similarity) * 100}%`;
  const bar = make("span", { class: "bar-of" }, filled);
  return make("div", { class: "score" }, item.same === null ? null : mark, item.similarity.toFixed(3), bar);
}

function spoken(item) {
  const parts = [item.label ?? "", item.name];
  if (item.similarity !== undefined) parts.push(`similarity ${item.similarity.toFixed(3)}`);
  if (item.same === true) parts.push("above the threshold");
  if (item.same === false) parts.push("below the threshold");
  return parts.filter(Boolean).join(", ");
}

export function grid(children, name, kind = "grid") {
  const made = make("div", { class: kind, role: "group", "aria-label": name }, children);
  const first = made.querySelector(".card");
  if (first) first.tabIndex = 0;
  made.addEventListener("keydown", (event) => move(event, made));
  made.addEventListener("focusin", (event) => {
    made.querySelectorAll(".card").forEach((one) => (one.tabIndex = one === event.target ? 0 : -1));
  });
  return made;
}

function move(event, place) {
  const all = [...place.querySelectorAll(".card")];
  const here = all.indexOf(document.activeElement);
  if (here < 0) return;
  const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -here, End: all.length - 1 - here };
  let next = event.key in steps ? all[here + steps[event.key]] : undefined;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    next = above(all, here, event.key === "ArrowDown" ? 1 : -1);
  }
  if (next === undefined) return;
  event.preventDefault();
  next.focus();
}

// The card that is nearest in the next row: rows can be of different lengths.
function above(all, here, way) {
  const from = all[here].getBoundingClientRect();
  let row = null;
  let best;
  for (let place = here + way; place >= 0 && place < all.length; place += way) {
    const box = all[place].getBoundingClientRect();
    if ((box.top - from.top) * way < 5) continue;
    row ??= box.top;
    if (Math.abs(box.top - row) > 5) break;
    const far = Math.abs(box.left - from.left);
    if (best === undefined || far < best.far) best = { far, card: all[place] };
  }
  return best?.card;
}

export function skeletons(number) {
  const blocks = Array.from({ length: number }, () => make("div", { class: "skeleton" }));
  return make("div", { class: "grid", "aria-hidden": "true" }, blocks);
}

export function message(title, text, { wrong = false, action = null } = {}) {
  return make(
    "div",
    { class: `message${wrong ? " wrong" : ""}`, role: wrong ? "alert" : null },
    make("h2", {}, title),
    make("p", {}, text),
    action && make("button", { class: "button", type: "button", onclick: action.run }, action.name),
  );
}
