// All items in two dimensions, on a canvas: wheel or buttons zoom, drag moves, click searches.

import * as api from "./api.js";
import { message } from "./cards.js";
import { count, make, show } from "./dom.js";
import { ask } from "./state.js";

const NEAR = 14; // pixels within which a point is meant
const MARGIN = 0.05;

export async function drawMap(state, { view, status, signal }) {
  status.textContent = "Drawing the map…";
  show(view, make("div", { class: "chart skeleton" }));
  const points = await api.map(state.index, signal);
  if (points.ids.length === 0) {
    status.textContent = "";
    return show(view, message("Nothing to draw", "This index is empty."));
  }
  const drawn = points.ids.length < points.total ? ` of ${points.total.toLocaleString("en")}` : "";
  status.textContent = `${count(points.ids.length, "item")}${drawn}: what lies close together is similar`;
  const canvas = make("canvas", {
    tabindex: 0,
    role: "application",
    "aria-label": "Map of the items. Arrow keys move, plus and minus zoom, Enter searches by the item in the middle.",
  });
  const tip = make("div", { class: "tip", hidden: true });
  const tool = (name, sign, run) =>
    make("button", { class: "button", type: "button", "aria-label": name, title: name, onclick: run }, sign);
  const map = new PointMap(state, points, canvas, tip);
  show(
    view,
    make(
      "div",
      { class: "chart" },
      canvas,
      tip,
      make(
        "div",
        { class: "tools" },
        tool("Zoom in", "+", () => map.zoom(1.5)),
        tool("Zoom out", "−", () => map.zoom(1 / 1.5)),
        tool("Show everything", "⤢", () => map.reset()),
      ),
    ),
  );
  map.start(signal);
}

class PointMap {
  constructor(state, points, canvas, tip) {
    this.state = state;
    this.points = points;
    this.canvas = canvas;
    this.tip = tip;
    this.chosen = new Set(state.labels.map((label) => points.names.indexOf(label)));
    this.middle = { x: 0.5, y: 0.5 };
    this.scale = 1;
    this.current = -1;
  }

  start(signal) {
    const { canvas } = this;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(), { signal });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.point(-1));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.point(-1));
  }

  get size() {
    const box = this.canvas.getBoundingClientRect();
    return { width: box.width, height: box.height };
  }

  // Positions of the index (0 to 1) to pixels of the canvas, and back.
  place(number) {
    const { width, height } = this.size;
    const x = (this.points.x[number] - this.middle.x) * (1 - 2 * MARGIN) * this.scale + 0.5;
    const y = (this.points.y[number] - this.middle.y) * (1 - 2 * MARGIN) * this.scale + 0.5;
    return { x: x * width, y: y * height };
  }

  back(x, y) {
    const { width, height } = this.size;
    const whole = (1 - 2 * MARGIN) * this.scale;
    return { x: (x / width - 0.5) / whole + this.middle.x, y: (y / height - 0.5) / whole + this.middle.y };
  }

  draw() {
    const { width, height } = this.size;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const radius = Math.max(2, Math.min(5, 90 / Math.sqrt(this.points.ids.length))) * Math.min(2, Math.sqrt(this.scale));
    for (let number = 0; number < this.points.ids.length; number += 1) {
      const label = this.points.labels[number];
      const { x, y } = this.place(number);
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
      pen.globalAlpha = this.chosen.size === 0 || this.chosen.has(label) ? 0.8 : 0.12;
      pen.fillStyle = label < 0 ? "gray" : `hsl(${(label * 137.508) % 360} 45% ${dark ? 65 : 48}%)`;
      pen.beginPath();
      pen.arc(x, y, radius, 0, 2 * Math.PI);
      pen.fill();
    }
    if (this.current >= 0) {
      const { x, y } = this.place(this.current);
      pen.globalAlpha = 1;
      pen.lineWidth = 3;
      pen.strokeStyle = dark ? "#fff" : "#000";
      pen.beginPath();
      pen.arc(x, y, radius + 4, 0, 2 * Math.PI);
      pen.stroke();
    }
  }

  nearest(x, y, within) {
    let best = -1;
    let least = within * within;
    for (let number = 0; number < this.points.ids.length; number += 1) {
      if (this.chosen.size && !this.chosen.has(this.points.labels[number])) continue;
      const at = this.place(number);
      const far = (at.x - x) ** 2 + (at.y - y) ** 2;
      if (far < least) [best, least] = [number, far];
    }
    return best;
  }

  point(number) {
    if (number === this.current) return;
    this.current = number;
    this.draw();
    this.tip.hidden = number < 0;
    if (number < 0) return;
    const label = this.points.labels[number];
    show(
      this.tip,
      make("img", { src: api.thumbnail(this.state.index, this.points.ids[number]), alt: "" }),
      make("div", {}, label < 0 ? `item ${this.points.ids[number]}` : this.points.names[label]),
    );
    const { x, y } = this.place(number);
    const { width, height } = this.size;
    this.tip.style.left = `${Math.min(Math.max(8, x + 16), width - 142)}px`;
    this.tip.style.top = `${Math.min(Math.max(8, y - 60), height - 150)}px`;
  }

  hover(event) {
    if (this.dragging || event.pointerType === "touch") return;
    const found = this.nearest(event.offsetX, event.offsetY, NEAR);
    this.canvas.style.cursor = found < 0 ? "grab" : "pointer";
    this.point(found);
  }

  press(event) {
    const from = { x: event.clientX, y: event.clientY, middle: { ...this.middle } };
    this.canvas.setPointerCapture(event.pointerId);
    this.dragging = false;
    const move = (next) => {
      if (Math.hypot(next.clientX - from.x, next.clientY - from.y) < 5 && !this.dragging) return;
      this.dragging = true;
      this.point(-1);
      const { width, height } = this.size;
      const whole = (1 - 2 * MARGIN) * this.scale;
      this.middle.x = from.middle.x - (next.clientX - from.x) / width / whole;
      this.middle.y = from.middle.y - (next.clientY - from.y) / height / whole;
      this.draw();
    };
    const stop = (last) => {
      this.canvas.removeEventListener("pointermove", move);
      if (!this.dragging && last.type === "pointerup") this.search(this.nearest(event.offsetX, event.offsetY, 2 * NEAR));
      this.dragging = false;
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", stop, { once: true });
    this.canvas.addEventListener("pointercancel", stop, { once: true });
  }

  search(number) {
    if (number >= 0) ask({ item: this.points.ids[number], of: this.state.index });
  }

  wheel(event) {
    event.preventDefault();
    this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
  }

  zoom(factor, x = this.size.width / 2, y = this.size.height / 2) {
    const before = this.back(x, y);
    this.scale = Math.min(60, Math.max(1, this.scale * factor));
    const after = this.back(x, y);
    this.middle.x += before.x - after.x;
    this.middle.y += before.y - after.y;
    if (this.scale === 1) this.middle = { x: 0.5, y: 0.5 };
    this.point(-1);
    this.draw();
  }

  reset() {
    this.scale = 1;
    this.zoom(1);
  }

  key(event) {
    const step = 0.08 / this.scale;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (event.key in moves) {
      this.middle.x += moves[event.key][0];
      this.middle.y += moves[event.key][1];
    } else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else if (event.key === "Enter") return this.search(this.current);
    else return;
    event.preventDefault();
    this.draw();
    this.current = -1;
    const { width, height } = this.size;
    this.point(this.nearest(width / 2, height / 2, Infinity));
  }
}
