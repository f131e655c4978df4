// What is searched by: drop, paste, choose, type; then the picture with its region.

import { thumbnail } from "./api.js";
import { croppable } from "./crop.js";
import { icon, make, show } from "./dom.js";
import { ask, askByFile, go, hasQuery, uploaded } from "./state.js";

const place = document.getElementById("query");
const curtain = document.getElementById("drop");
let takes = "images";

export function drawQuery(state, about) {
  takes = about.takes;
  const head = make(
    "div",
    { class: "head" },
    make("h2", {}, "Query"),
    hasQuery(state) && make("button", { class: "link", type: "button", id: "clear", onclick: () => ask({}) }, "Clear"),
  );
  show(place, hasQuery(state) ? head : null, body(state, about));
}

function body(state, about) {
  if (takes === "texts" && state.item === null) return words(state);
  if (!hasQuery(state)) return takes === "images" ? invitation() : make("p", { class: "quiet" }, "Click an item to search by it.");
  const source = picture(state);
  if (source === null) return make("p", { class: "quiet" }, "The picture was not kept: drop it again.");
  if (takes !== "images") return make("p", { class: "quiet" }, "Searching by an item.");
  return [
    croppable(source, state.crop, (crop) => go({ crop })),
    make(
      "div",
      { class: "actions" },
      state.crop
        ? make("button", { class: "link", type: "button", id: "whole", onclick: () => go({ crop: null }) }, "Whole picture")
        : make("span", { class: "quiet small hint" }, "Drag to search by a region"),
      chooser("Another picture", "link"),
    ),
  ];

  function picture({ item, of, index, upload }) {
    if (item !== null) return thumbnail(of ?? index, item, 512);
    return uploaded(upload)?.address ?? null;
  }
}

function invitation() {
  return make(
    "div",
    { class: "place" },
    icon("picture", 1.5),
    make("p", {}, "Drop or paste a picture"),
    chooser("Choose a picture", "primary"),
    make("p", { class: "quiet small" }, "or click one of the results"),
  );
}

function chooser(name, kind) {
  const input = make("input", { type: "file", accept: "image/*", hidden: true, "aria-label": name });
  input.addEventListener("change", () => input.files.length && askByFile(input.files[0]));
  return [make("button", { class: kind, type: "button", onclick: () => input.click() }, name), input];
}

function words(state) {
  const area = make("textarea", { class: "words", placeholder: "Type a text to search by", "aria-label": "Text to search by" });
  area.value = state.text ?? "";
  const search = () => area.value.trim() && ask({ text: area.value.trim() });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      search();
    }
  });
  return [area, make("div", { class: "actions" }, make("button", { class: "primary", type: "button", onclick: search }, "Search"))];
}

// Anywhere on the page.

function fileOf(transfer) {
  return [...(transfer?.files ?? [])][0] ?? null;
}

let inside = 0;
addEventListener("dragenter", (event) => {
  if (takes !== "images" || ![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
  inside += 1;
  curtain.hidden = false;
});
addEventListener("dragleave", () => {
  inside = Math.max(0, inside - 1);
  curtain.hidden = inside === 0;
});
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  inside = 0;
  curtain.hidden = true;
  const file = fileOf(event.dataTransfer);
  if (file !== null && takes === "images") askByFile(file);
});
addEventListener("paste", (event) => {
  const file = fileOf(event.clipboardData);
  if (file !== null && takes === "images") {
    event.preventDefault();
    askByFile(file);
  }
});
