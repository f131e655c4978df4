// The search view: what is near the query, in one index or in two; without a query, what is there.

import * as api from "./api.js";
import { card, grid, message, skeletons } from "./cards.js";
import { count, make, show } from "./dom.js";
import { ask, go, hasQuery, uploaded } from "./state.js";

const STEP = 24;

export async function drawResults(state, { view, status, indexes, results, signal }) {
  const names = [state.index, ...(state.compare && state.compare !== state.index ? [state.compare] : [])];
  const columns = names.map(() => make("section", { class: "column" }, skeletons(12)));
  show(view, make("div", { class: `columns${names.length > 1 ? " two" : ""}` }, columns));
  status.textContent = hasQuery(state) ? "Searching…" : "Loading…";
  const draw = hasQuery(state) ? drawHits : drawItems;
  const about = (name) => indexes.find((one) => one.name === name);
  const after = () => columns.length > 1 && markBoth(columns);
  const found = await Promise.all(
    names.map((name, place) => draw(state, about(name), columns[place], { titled: names.length > 1, results, signal, after })),
  );
  status.textContent = summary(state, found, names);
}

async function drawHits(state, about, place, options) {
  const { titled, results, signal, after, k = STEP } = options;
  const values = { k, where: api.where(state.labels), crop: state.crop };
  let answer;
  try {
    answer = await hits(state, about.name, values, signal);
  } catch (error) {
    if (error.name === "AbortError" || error.status === 401) throw error;
    show(place, failed(error, () => drawHits(state, about, place, options)));
    return null;
  }
  const cards = answer.hits.map((hit) => card(hit, about.name));
  const below = answer.hits.findIndex((hit) => hit.same === false);
  const told = `${below === 0 ? "nothing reaches" : "below"} the threshold ${answer.threshold?.toFixed(2)}`;
  if (below >= 0) cards.splice(below, 0, make("div", { class: "line" }, told));
  const more = answer.hits.length === k && k < results;
  const next = () => drawHits(state, about, place, { ...options, k: Math.min(results, k + STEP) });
  show(
    place,
    titled ? title(about, `${Math.round(answer.milliseconds)} ms`) : null,
    cards.length ? grid(cards, `Results in ${about.name}`) : nothing(state),
    more ? make("div", { class: "more" }, make("button", { class: "button", type: "button", onclick: next }, "Show more")) : null,
  );
  after();
  return answer;
}

function hits(state, index, values, signal) {
  if (state.item !== null) {
    const of = state.of && state.of !== index ? state.of : null;
    return api.similar(index, state.item, { ...values, of }, signal);
  }
  if (state.text !== null) return api.byText(index, state.text, values, signal);
  const upload = uploaded(state.upload);
  if (upload === undefined) throw new api.ApiError(0, "forgotten", "The page was loaded anew and the picture was not kept: drop it again.");
  return api.byUpload(index, upload.file, values, signal);
}

async function drawItems(state, about, place, options) {
  const { titled, signal, offset = 0, before = [] } = options;
  let answer;
  try {
    answer = await api.items(about.name, { where: api.where(state.labels), offset, limit: 2 * STEP }, signal);
  } catch (error) {
    if (error.name === "AbortError" || error.status === 401) throw error;
    show(place, failed(error, () => drawItems(state, about, place, options)));
    return null;
  }
  const all = [...before, ...answer.items];
  const next = () => drawItems(state, about, place, { ...options, offset: all.length, before: all });
  show(
    place,
    titled ? title(about, count(about.items, "item")) : null,
    all.length ? grid(all.map((item) => card(item, about.name)), `Items of ${about.name}`) : nothing(state),
    answer.more ? make("div", { class: "more" }, make("button", { class: "button", type: "button", onclick: next }, "Show more")) : null,
  );
  return { items: all, more: answer.more };
}

function title(about, told) {
  const threshold = about.threshold ? `same from ${about.threshold.similarity.toFixed(2)}` : "no threshold";
  return make("div", { class: "title" }, make("h2", {}, about.name), make("span", { class: "quiet small" }, `${threshold} · ${told}`));
}

function nothing(state) {
  if (state.labels.length === 0) return message("This index is empty", "Add pictures with nearkin index, then reload the page.");
  const action = { name: "Clear the filter", run: () => go({ labels: [] }) };
  return message("Nothing found", "No item has the labels that are chosen.", { action });
}

function failed(error, retry) {
  const again = error.status === 0 || error.status >= 500;
  const action = again && error.code !== "forgotten" ? { name: "Try again", run: retry } : { name: "Start over", run: () => ask({}) };
  const sentence = error.message.charAt(0).toUpperCase() + error.message.slice(1);
  return message("That did not work", sentence, { wrong: true, action });
}

function summary(state, found, names) {
  if (found.some((one) => one === null)) return "";
  const filter = state.labels.length ? ` with ${count(state.labels.length, "label")} chosen` : "";
  if (!hasQuery(state)) return found[0].items.length ? `Items of the index${filter}` : "";
  if (found.length > 1) {
    const first = new Set(found[0].hits.map((hit) => hit.name));
    const both = found[1].hits.filter((hit) => first.has(hit.name)).length;
    return `${names[0]} and ${names[1]} agree on ${both} of ${found[0].hits.length} results${filter}`;
  }
  const same = found[0].hits.filter((hit) => hit.same).length;
  const judged = found[0].threshold === null ? "" : `, ${same} above the threshold`;
  return `${count(found[0].hits.length, "result")}${judged}${filter} · ${Math.round(found[0].milliseconds)} ms`;
}

// What both indexes found is tinted, and lights up in both when one is pointed at.
function markBoth(columns) {
  const named = columns.map((place) => new Map([...place.querySelectorAll(".card")].map((one) => [one.dataset.name, one])));
  named[0].forEach((one, name) => {
    const other = named[1].get(name);
    if (other === undefined) return;
    for (const [self, twin] of [[one, other], [other, one]]) {
      self.classList.add("both");
      for (const event of ["mouseenter", "focus"]) self.addEventListener(event, () => twin.classList.add("lit"));
      for (const event of ["mouseleave", "blur"]) self.addEventListener(event, () => twin.classList.remove("lit"));
    }
  });
}
