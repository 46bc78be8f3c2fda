// A chart as SVG: axes, layers, and a cursor that a pointer or the arrow keys move. It knows nothing of runs.
//
// What is drawn is a picture: { x, y, layers, stops, margin, remark }. An axis is { range, ticks }, a tick a
// pair of place and text; `x.at` says where on the axis a value of x stands, a layer may have an `at` of its
// own. A stop is a place that can be read: { x, y, say }, where `say` takes the height of the pointer. Colours
// are names of CSS variables, so that a theme needs no new picture; only heat has to be painted again.

import { make } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { l: 52, r: 12, t: 8, b: 30 };
const SHADES = 64;
const MANY_MARKS = 60;
const MIN_SWEEP = 6; // px; less is a click
const BRIM = 6; // px that marks may stand out of the picture

const SIGNS = {
  circle: (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
  diamond: (x, y, r) => `M${x} ${y - r}l${r} ${r} ${-r} ${r} ${-r} ${-r}z`,
  triangle: (x, y, r) => `M${x} ${y - r}l${r} ${1.8 * r} ${-2 * r} 0z`,
  cross: (x, y, r) => `M${x - r} ${y - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`,
};

const MOVES = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

export class Plot {
  /**
   * @param {Element} element where to draw
   * @param {string} name what a reader hears of it
   * @param {{onZoom: ?Function, onReset: Function, onSeen: Function}} wishes called with the ends of what was
   *   dragged over, when all is to be seen again, and when the chart comes into view; without onZoom nothing can be
   *   dragged over
   */
  constructor(element, name, { onZoom = null, onReset = () => {}, onSeen = () => {} } = {}) {
    Object.assign(this, { element, onZoom, onReset, picture: null, index: null, level: null, from: null, isSeen: true });
    new IntersectionObserver(([{ isIntersecting }]) => {
      const appears = isIntersecting && !this.isSeen;
      this.isSeen = isIntersecting;
      if (appears) onSeen();
    }).observe(element);
    element.plot = this; // what is drawn, for whoever asks by script
    // A reader hands the arrow keys to a slider, and says its new text: the values under the cursor.
    const role = { tabindex: "0", role: "slider", "aria-label": name, "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0" };
    for (const [attribute, content] of Object.entries(role)) element.setAttribute(attribute, content);
    this.parts = Object.fromEntries(["hair", "dot", "sweep", "tip"].map((part) => [part, make("div", { class: part, "aria-hidden": "true", hidden: "" })]));
    element.append(shape("svg"), ...Object.values(this.parts));
    const on = (type, listener) => element.addEventListener(type, listener);
    on("pointermove", (event) => this.follow(event));
    on("pointerleave", () => this.point(null));
    on("pointerdown", (event) => this.sweep(event));
    on("pointerup", (event) => this.swept(event));
    on("pointercancel", () => { this.from = null; this.parts.sweep.hidden = true; });
    on("dblclick", () => onReset());
    on("focus", () => { if (element.matches(":focus-visible")) this.point(this.index ?? Infinity); });
    on("blur", () => this.point(null));
    on("keydown", (event) => this.press(event));
  }

  draw(picture) {
    const { clientWidth: width, clientHeight: height } = this.element;
    const margin = { ...MARGIN, ...picture.margin };
    const box = { x: margin.l, y: margin.t, width: Math.max(1, width - margin.l - margin.r), height: Math.max(1, height - margin.t - margin.b) };
    const { at = (x) => x } = picture.x;
    Object.assign(this, { picture, box, x: place(picture.x.range, box.x, box.width), y: place(picture.y.range, box.y + box.height, -box.height) });
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const brim = { x: box.x - BRIM, y: box.y - BRIM, width: box.width + 2 * BRIM, height: box.height + 2 * BRIM };
    const inside = shape("svg", { ...brim, viewBox: `${brim.x} ${brim.y} ${brim.width} ${brim.height}` });
    inside.append(...picture.layers.filter(({ kind }) => kind !== "text").flatMap((layer) => this.layer(layer, layer.at ?? at)));
    svg.append(...this.axes(), inside, ...picture.layers.filter(({ kind }) => kind === "text").map((layer) => this.text(layer)));
    if (picture.remark) svg.append(text(box.x + box.width / 2, box.y + box.height / 2, picture.remark, { class: "remark", "text-anchor": "middle" }));
    this.element.querySelector("svg").replaceWith(svg);
    this.places = picture.stops.map((stop) => this.x(at(stop.x)));
    this.element.setAttribute("aria-valuemax", String(Math.max(0, this.places.length - 1)));
    if (this.index !== null) this.point(this.index);
  }

  axes() {
    const { box, picture } = this;
    const [right, foot] = [box.x + box.width, box.y + box.height];
    const shown = (ticks, at, low, high) => ticks.map(([v, ...rest]) => [at(v), ...rest]).filter(([p]) => p >= low - 0.5 && p <= high + 0.5);
    const heights = shown(picture.y.ticks, this.y, box.y, foot);
    const widths = shown(picture.x.ticks, this.x, box.x, right);
    return [
      shape("path", { class: "grid", d: heights.filter(([, , bare]) => !bare).map(([y]) => `M${box.x} ${y}H${right}`).join("") }),
      shape("path", { class: "grid", d: `M${box.x} ${foot}H${right}${widths.map(([x]) => `M${x} ${foot}v5`).join("")}` }),
      ...heights.map(([y, words]) => text(box.x - 7, y + 4, words, { "text-anchor": "end" })),
      ...widths.map(([x, words]) => text(Math.min(x, this.element.clientWidth - 3.5 * words.length), foot + 18, words, { "text-anchor": "middle" })),
      ...(picture.x.title ? [text(box.x + box.width / 2, foot + 36, picture.x.title, { "text-anchor": "middle" })] : []),
    ];
  }

  layer(layer, at) {
    const x = (v) => Math.round(10 * this.x(at(v))) / 10;
    const y = (v) => Math.round(10 * this.y(v)) / 10;
    const stroke = { fill: "none", stroke: `var(${layer.colour})`, "stroke-width": layer.width ?? 1.5, "stroke-dasharray": layer.dash ?? "" };
    const fill = { fill: `var(${layer.colour})`, "fill-opacity": layer.opacity ?? 1 };
    switch (layer.kind) {
      case "rule": return [shape("path", { ...stroke, d: layer.x === undefined
        ? `M${this.box.x} ${y(layer.y)}h${this.box.width}` : `M${x(layer.x)} ${this.box.y}v${this.box.height}` })];
      case "line": return [shape("path", { ...stroke, "stroke-linejoin": "round", d: course(layer.points, x, y, layer.stairs) })];
      case "band": {
        const low = layer.points.map(([v, bottom]) => [v, bottom]);
        const high = layer.points.map(([v, , top]) => [v, top]);
        const back = low.toReversed().map(([v, bottom], i, all) => (layer.stairs && i ? `V${y(bottom)}H${x(v)}` : `L${x(all[i][0])} ${y(bottom)}`)).join("");
        return [shape("path", { ...fill, d: layer.points.length ? `${course(high, x, y, layer.stairs)}${back}z` : "" })];
      }
      case "bars": return [shape("path", { ...fill, d: layer.bars.map(([from, to, bottom, top]) => {
        const [left, right] = [x(from), x(to)];
        return `M${left} ${y(bottom)}V${y(top)}H${Math.max(right, left + 1)}V${y(bottom)}z`;
      }).join("") })];
      case "marks": {
        const r = layer.points.length > MANY_MARKS ? 2.5 : 4.5;
        const isOpen = layer.sign === "circle" || layer.sign === "cross";
        return [shape("path", { ...(isOpen ? { ...stroke, "stroke-width": 2 } : fill), "data-sign": layer.sign, d: layer.points.map(([v, h]) => SIGNS[layer.sign](x(v), y(h), r)).join("") })];
      }
      default: return [this.heat(layer, x, y)];
    }
  }

  /** Shares as colours on a canvas, which is as sharp as the screen. */
  heat({ edges, rows }, x, y) {
    const { box } = this;
    const sharp = window.devicePixelRatio || 1;
    const canvas = make("canvas", { width: Math.round(box.width * sharp), height: Math.round(box.height * sharp) });
    const picture = canvas.getContext("2d");
    const ramps = new Map(); // a look at the style of the page takes longer than a row
    const columns = edges.map((edge) => Math.round((x(edge) - box.x) * sharp));
    for (const { from, to, shades, ramp } of rows) {
      const top = Math.round((y(to) - box.y) * sharp);
      const tall = Math.max(1, Math.round((y(from) - box.y) * sharp) - top);
      if (!ramps.has(ramp)) ramps.set(ramp, this.ramp(ramp));
      const colours = ramps.get(ramp);
      let begin = 0;
      // Neighbours of one shade are one rectangle: most of a picture is a few of them.
      for (let i = 1; i <= shades.length; i += 1) {
        const shade = step(shades[begin]);
        if (i < shades.length && step(shades[i]) === shade) continue;
        if (shade !== null && columns[i] > 0 && columns[begin] < canvas.width) {
          picture.fillStyle = colours[shade];
          picture.fillRect(columns[begin], top, Math.max(1, columns[i] - columns[begin]), tall);
        }
        begin = i;
      }
    }
    const frame = shape("foreignObject", { x: box.x, y: box.y, width: box.width, height: box.height });
    frame.append(canvas);
    return frame;
  }

  /** Colours from the first of some CSS variables to the last one. */
  ramp(names) {
    const ends = names.map((name) => {
      this.parts.tip.style.color = `var(${name})`;
      return getComputedStyle(this.parts.tip).color.match(/[\d.]+/g).map(Number);
    });
    this.parts.tip.style.color = "";
    return Array.from({ length: SHADES + 1 }, (_, i) => {
      const along = (i / SHADES) * (ends.length - 1);
      const first = Math.min(Math.floor(along), ends.length - 2);
      return `rgb(${[0, 1, 2].map((c) => Math.round(ends[first][c] + (along - first) * (ends[first + 1][c] - ends[first][c]))).join(" ")})`;
    });
  }

  /** Words in the picture, at fractions of it (`left`, `top`) where there is no place on an axis. */
  text({ words, x, y, left, top, colour = "--muted", anchor = "start", dx = 0, dy = 4 }) {
    const { box } = this;
    const across = left === undefined ? this.x(x) : box.x + left * box.width;
    const down = top === undefined ? this.y(y) : box.y + top * box.height;
    return text(across + dx, down + dy, words, { class: "words", "text-anchor": anchor, fill: `var(${colour})` });
  }

  /** Read the stop that is nearest to the pointer, and draw what it is dragged over. */
  follow(event) {
    if (!this.picture) return;
    const [x, y] = this.inside(event);
    if (this.from !== null) {
      const [left, right] = [Math.min(x, this.from), Math.max(x, this.from)];
      Object.assign(this.parts.sweep.style, { left: `${left}px`, width: `${right - left}px`, top: `${this.box.y}px`, height: `${this.box.height}px` });
      this.parts.sweep.hidden = right - left < MIN_SWEEP;
    }
    this.level = this.y.back(y);
    this.point(nearest(this.places, x));
  }

  inside(event) {
    const { left, top } = this.element.getBoundingClientRect();
    const { box } = this;
    return [Math.max(box.x, Math.min(box.x + box.width, event.clientX - left)), event.clientY - top];
  }

  sweep(event) {
    if (!this.onZoom || !this.picture || event.button !== 0) return;
    this.element.setPointerCapture(event.pointerId);
    [this.from] = this.inside(event);
  }

  swept(event) {
    if (this.from === null) return;
    const ends = [this.from, this.inside(event)[0]].sort((a, b) => a - b);
    this.from = null;
    this.parts.sweep.hidden = true;
    if (ends[1] - ends[0] >= MIN_SWEEP) this.onZoom(ends.map(this.x.back));
  }

  press(event) {
    if (!this.picture) return;
    const rise = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (event.key === "Escape") {
      this.point(null);
      this.onReset();
    } else if (rise !== undefined && this.picture.rungs) {
      const [low, high] = this.picture.y.range;
      this.level = Math.max(low, Math.min(high, (this.level ?? (low + high) / 2) + rise * this.picture.rungs));
      this.point(this.index ?? Infinity);
    } else if (event.key in MOVES) {
      const shown = this.shown();
      const old = Math.max(0, shown.indexOf(this.index ?? shown.at(-1)));
      this.point(shown[Math.max(0, Math.min(shown.length - 1, old + MOVES[event.key]))]);
    } else return;
    event.preventDefault();
  }

  /** Numbers of the stops that are in the picture. */
  shown() {
    const [left, right] = [this.box.x - 1, this.box.x + this.box.width + 1];
    return this.places.map((x, i) => i).filter((i) => this.places[i] >= left && this.places[i] <= right);
  }

  /** Put the cursor to a stop and say what is there; null takes it away. */
  point(index) {
    const { hair, dot, tip } = this.parts;
    this.index = index === null || !this.places?.length ? null : Math.min(index, this.places.length - 1);
    const x = this.places?.[this.index];
    const isOff = this.index === null || x < this.box.x - BRIM || x > this.box.x + this.box.width + BRIM;
    for (const part of [hair, dot, tip]) part.hidden = isOff;
    if (isOff) return;
    const stop = this.picture.stops[this.index];
    const words = stop.say(this.level);
    Object.assign(hair.style, { left: `${x}px`, top: `${this.box.y}px`, height: `${this.box.height}px` });
    const height = stop.y ?? (this.picture.rungs ? this.level : null);
    dot.hidden = height === null;
    if (!dot.hidden) Object.assign(dot.style, { left: `${x}px`, top: `${this.y(height)}px` });
    tip.replaceChildren(...words.map((line) => make("div", {}, line)));
    tip.hidden = !words.length;
    const isLeft = x < this.element.clientWidth / 2;
    Object.assign(tip.style, { left: isLeft ? `${x + 10}px` : "", right: isLeft ? "" : `${this.element.clientWidth - x + 10}px`, top: `${this.box.y}px` });
    this.element.setAttribute("aria-valuenow", String(this.index));
    this.element.setAttribute("aria-valuetext", words.join(", ") || "nothing here");
  }
}

/** A picture that has no axis, and says why: nothing was measured. */
export function nothing(remark) {
  return { layers: [], y: { range: [0, 1], ticks: [] }, stops: [], remark };
}

/** Call `draw` when charts look different without any news: in another theme of the system, in another width. */
export function onNewLook(draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const main = document.querySelector("main");
  let width = main.clientWidth;
  new ResizeObserver(() => {
    if (width === main.clientWidth) return;
    width = main.clientWidth;
    draw();
  }).observe(main);
}

/** The stop that is nearest to a place among those in order. */
export function nearest(places, place) {
  let [low, high] = [0, places.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (places[middle] < place) low = middle;
    else high = middle;
  }
  return high > 0 && places[high] - place < place - places[low] ? high : low;
}

/** Pixels of a value, and with `back` the value of a pixel. */
function place([low, high], begin, length) {
  const factor = length / (high - low || 1);
  return Object.assign((v) => begin + (v - low) * factor, { back: (pixel) => low + (pixel - begin) / factor });
}

/** A line through points, broken where there is no number; `stairs` keep their height up to the next point. */
function course(points, x, y, stairs) {
  let isDown = false;
  return points.map(([v, h]) => {
    const begins = !isDown;
    isDown = Number.isFinite(h);
    if (!isDown) return "";
    return begins ? `M${x(v)} ${y(h)}` : stairs ? `H${x(v)}V${y(h)}` : `L${x(v)} ${y(h)}`;
  }).join("");
}

function step(shade) {
  return shade === null ? null : Math.round(shade * SHADES);
}

function shape(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, content] of Object.entries(attributes)) element.setAttribute(name, content);
  return element;
}

function text(x, y, words, attributes) {
  const element = shape("text", { x, y, ...attributes });
  element.textContent = words;
  return element;
}
