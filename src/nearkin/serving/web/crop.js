// A picture with a region that is dragged, or moved with the keyboard.

import { make } from "./dom.js";

const SMALLEST = 0.03; // of a side: less is a click, not a region
const STEP = 0.04;
const HELP =
  "Picture that is searched by. Drag to select a region. With the keyboard: Enter selects one, arrow keys move it, " +
  "Shift and arrow keys resize it, Enter searches by it, Escape removes it.";

export function croppable(source, crop, change) {
  const image = make("img", { src: source, alt: "The query", draggable: "false" });
  const box = make("div", { class: "crop", hidden: true });
  const place = make("div", { class: "asked", tabindex: 0, role: "group", "aria-label": HELP }, image, box);
  let shown = parse(crop);
  const draw = (region) => {
    shown = region;
    box.hidden = region === null;
    if (region === null) return;
    const drawn = drawnPart(image, place);
    box.style.left = `${drawn.left + region.x * drawn.width}px`;
    box.style.top = `${drawn.top + region.y * drawn.height}px`;
    box.style.width = `${region.width * drawn.width}px`;
    box.style.height = `${region.height * drawn.height}px`;
  };
  image.addEventListener("load", () => draw(shown));
  image.addEventListener("error", () => {
    place.replaceChildren(make("p", { class: "unshown" }, "The browser cannot show this file"));
    place.parentElement?.querySelector(".hint")?.remove();
  });
  new ResizeObserver(() => draw(shown)).observe(place);
  dragged(place, image, draw, (region) => change(region && format(region)), () => parse(crop));
  place.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      if (shown === null) draw({ x: 0.25, y: 0.25, width: 0.5, height: 0.5 });
      else change(format(shown));
    } else if (event.key === "Escape" && shown !== null) {
      event.stopPropagation();
      draw(null);
      change(null);
    } else if (event.key.startsWith("Arrow") && shown !== null) {
      event.preventDefault();
      draw(nudged(shown, event.key, event.shiftKey));
    }
  });
  return place;
}

function dragged(place, image, draw, done, before) {
  let start = null;
  let region = null;
  place.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    place.setPointerCapture(event.pointerId);
    start = position(event, image, place);
    region = null;
  });
  place.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const end = position(event, image, place);
    region = {
      x: Math.min(start.x, end.x),
      y: Math.min(start.y, end.y),
      width: Math.abs(end.x - start.x),
      height: Math.abs(end.y - start.y),
    };
    draw(region);
  });
  place.addEventListener("pointerup", () => {
    if (start === null) return;
    start = null;
    if (region !== null && region.width >= SMALLEST && region.height >= SMALLEST) done(region);
    else draw(before());
  });
  place.addEventListener("pointercancel", () => {
    start = null;
    draw(before());
  });
}

function nudged(region, key, resize) {
  const across = { ArrowLeft: -STEP, ArrowRight: STEP }[key] ?? 0;
  const down = { ArrowUp: -STEP, ArrowDown: STEP }[key] ?? 0;
  if (resize) {
    const width = clamp(region.width + across, 0.08, 1 - region.x);
    return { ...region, width, height: clamp(region.height + down, 0.08, 1 - region.y) };
  }
  const x = clamp(region.x + across, 0, 1 - region.width);
  return { ...region, x, y: clamp(region.y + down, 0, 1 - region.height) };
}

// Where the pixels are: the element may be wider or higher than its picture.
function drawnPart(image, place) {
  const outer = place.getBoundingClientRect();
  const box = image.getBoundingClientRect();
  const scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight) || 0;
  const width = image.naturalWidth * scale;
  const height = image.naturalHeight * scale;
  return {
    left: box.left - outer.left + (box.width - width) / 2,
    top: box.top - outer.top + (box.height - height) / 2,
    width,
    height,
  };
}

function position(event, image, place) {
  const drawn = drawnPart(image, place);
  const outer = place.getBoundingClientRect();
  return {
    x: clamp((event.clientX - outer.left - drawn.left) / drawn.width, 0, 1),
    y: clamp((event.clientY - outer.top - drawn.top) / drawn.height, 0, 1),
  };
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const format = (region) => [region.x, region.y, region.width, region.height].map((one) => one.toFixed(4)).join(",");

function parse(text) {
  if (!text) return null;
  const [x, y, width, height] = text.split(",").map(Number);
  return { x, y, width, height };
}
