// The exponents of one module over the samples of a run, beside the limits of their format. No state.

import { make } from "/static/dom.js";
import { number, powerOfTwo } from "/static/words.js";

const HEIGHT = 150;
const REACH = 16; // a limit that is so many exponents away from the data is not in the picture
const [LEFT, RIGHT, TOP, BOTTOM] = [38, 104, 8, 22];
const DASHES = { critical: "", warning: "3 3" };
const SVG = "http://www.w3.org/2000/svg";

/**
 * The figure of one topic: { title, format, ends, limits } as the daemon says, drawn `width` px wide; `columns` are the
 * first and the last step of each of the ends.
 */
export function courseFigure({ title, format, ends, limits }, columns, width) {
  const seen = ends.filter((end) => end !== null);
  const caption = make("figcaption", {}, title, " ", make("small", {}, format ? `limits of ${format}` : ""));
  if (!seen.length) return make("figure", {}, caption, make("p", { class: "note" }, "Not measured so far."));
  const data = [Math.min(...seen.map(([low]) => low)) - 1, Math.max(...seen.map(([, high]) => high))];
  const near = limits.filter(([, , at]) => at > data[0] - REACH && at < data[1] + REACH);
  const bottom = Math.min(data[0], ...near.map(([, , at]) => at)) - 1;
  const top = Math.max(data[1], ...near.map(([, , at]) => at)) + 1;
  const y = (exponent) => TOP + ((top - exponent) / (top - bottom)) * (HEIGHT - TOP - BOTTOM);
  const step = (width - LEFT - RIGHT) / ends.length;
  const words = `${title}: magnitudes from ${powerOfTwo(data[0])} to ${powerOfTwo(data[1])}`;
  const picture = draw("svg", { width, height: HEIGHT, role: "img", "aria-label": words });
  picture.append(
    ...ticks(bottom, top).flatMap((exponent) => [
      draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(exponent), y2: y(exponent) }),
      text(powerOfTwo(exponent), { class: "tick", x: LEFT - 5, y: y(exponent) + 4, "text-anchor": "end" }),
    ]),
    ...ends.flatMap((end, i) => (end === null ? [] : [
      draw("rect", { class: "band", x: LEFT + i * step, width: Math.max(1, step - (step > 4)), y: y(end[1]), height: Math.max(1, y(end[0] - 1) - y(end[1])) }),
    ])),
    text(`step ${number(columns[0][0])}`, { class: "tick", x: LEFT, y: HEIGHT - 5 }),
    text(number(columns.at(-1)[1]), { class: "tick", x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }),
    ...near.flatMap(([level, name, at]) => [
      draw("line", { class: "limit", "data-level": level, "stroke-dasharray": DASHES[level], x1: LEFT, x2: width - RIGHT, y1: y(at), y2: y(at) }),
      text(name, { class: "limit", "data-level": level, x: width - RIGHT + 5, y: y(at) + 4 }),
    ]),
  );
  const away = limits.length && !near.length ? [make("p", { class: "note" }, `No limit of ${format} is near.`)] : [];
  return make("figure", {}, caption, picture, ...away);
}

function ticks(bottom, top) {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2((top - bottom) / 5)));
  const found = [];
  for (let e = Math.ceil(bottom / step) * step; e <= top; e += step) found.push(e);
  return found;
}

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, content] of Object.entries(attributes)) element.setAttribute(name, content);
  return element;
}

function text(words, attributes) {
  const element = draw("text", attributes);
  element.append(words);
  return element;
}
