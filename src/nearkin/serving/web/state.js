// What is looked at lives in the address after #, so that back, forward, reload and bookmarks work.

const listeners = [];
const uploads = new Map(); // pictures of this visit, by number; an address cannot hold them

export function read() {
  const values = new URLSearchParams(location.hash.slice(1));
  return {
    view: values.get("view") ?? "search",
    index: values.get("index"),
    compare: values.get("compare"),
    item: values.has("item") ? Number(values.get("item")) : null,
    of: values.get("of"),
    upload: values.has("upload") ? Number(values.get("upload")) : null,
    text: values.get("text"),
    crop: values.get("crop"),
    labels: values.getAll("label"),
  };
}

function hash(state) {
  const values = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (name === "labels") value.forEach((label) => values.append("label", label));
    else if (value !== null && value !== undefined && value !== "" && !(name === "view" && value === "search")) {
      values.set(name, value);
    }
  }
  return `#${values}`;
}

export const link = (changes) => hash({ ...read(), ...changes });

export function go(changes, { replace = false } = {}) {
  const next = link(changes);
  if (next === location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", next);
  tell();
}

export function subscribe(listener) {
  listeners.push(listener);
}

function tell() {
  listeners.forEach((listener) => listener(read()));
}

addEventListener("popstate", tell);

// A query is an upload, an item or a text; a new one forgets the others and the crop.
const NOTHING = { item: null, of: null, upload: null, text: null, crop: null, view: "search" };

export function ask(query) {
  go({ ...NOTHING, ...query });
}

export function askByFile(file) {
  const number = uploads.size + 1;
  uploads.set(number, { file, address: URL.createObjectURL(file) });
  ask({ upload: number });
}

export const uploaded = (number) => uploads.get(number);
export const hasQuery = (state) => state.item !== null || state.upload !== null || state.text !== null;
