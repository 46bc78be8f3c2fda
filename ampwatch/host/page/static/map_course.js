// The exponents of one module over the samples of a run, beside the limits of their format.

import { powers } from "./axes.js";
import { make, setText } from "./dom.js";
import { WIDE, inWords, lookOf, names, roomFor } from "./limits.js";
import { Plot } from "./plot.js";
import { number, powerOfTwo, steps } from "./words.js";

const REACH = 16; // a limit that is so many exponents away from the data is not in the picture
const GAP_FROM = 5; // px of a column from which there is a gap between two
const TICKS = 5;

/** The charts of one module: of its outputs, and of its gradients. */
export class MapCourse {
  /** @param {Element} box where they stand */
  constructor(box) {
    this.box = box;
    this.figures = [];
    this.course = null;
  }

  /** Show a course as the daemon says it: { columns, charts }. */
  show(course) {
    this.course = course;
    while (this.figures.length < course.charts.length) this.figures.push(this.figure());
    this.figures.forEach(({ figure }, i) => { figure.hidden = i >= course.charts.length; });
    this.draw();
  }

  figure() {
    const [title, limits, chart, note] = [make("span"), make("small"), make("div", { class: "chart" }), make("p", { class: "note" })];
    const figure = make("figure", {}, make("figcaption", {}, title, limits), chart, note);
    this.box.append(figure);
    return { figure, title, limits, chart, note, plot: new Plot(chart, "Magnitudes over the samples") };
  }

  draw() {
    this.course?.charts.forEach((chart, i) => this.drawOne(this.figures[i], chart));
  }

  drawOne(parts, { title, format, ends, limits }) {
    const seen = ends.filter((end) => end !== null);
    parts.chart.hidden = !seen.length;
    const width = parts.chart.clientWidth;
    const near = seen.length ? nearTo(seen, limits) : [];
    setText(parts.title, title);
    parts.chart.setAttribute("aria-label", `${title}: magnitudes over the samples`);
    setText(parts.limits, near.length ? `limits of ${format}${inWords(near, width > WIDE)}` : format);
    setText(parts.note, seen.length ? (limits.length && !near.length ? `No limit of ${format} is near.` : "") : "Not measured so far.");
    if (seen.length && width) parts.plot.draw(pictureOf(ends, near, this.course.columns, width));
  }
}

function nearTo(seen, limits) {
  const [low, high] = reach(seen);
  return limits.filter(([name, at]) => lookOf(name) && at > low - REACH && at < high + REACH).map(([name, at]) => ({ name, words: name, y: at }));
}

/** The exponents that a course reaches: a bin ends at its own and begins one below it. */
function reach(seen) {
  return [Math.min(...seen.map(([low]) => low)) - 1, Math.max(...seen.map(([, high]) => high))];
}

function pictureOf(ends, near, columns, width) {
  const [low, high] = reach(ends.filter((end) => end !== null));
  const range = [Math.min(low, ...near.map(({ y }) => y)) - 1, Math.max(high, ...near.map(({ y }) => y)) + 1];
  const gap = width / columns.length > GAP_FROM ? 0.1 : 0;
  const last = columns.length - 1;
  const outermost = [[0.5, `step ${number(columns[0][0])}`], [last + 0.5, number(columns[last][1])]];
  return {
    margin: { r: roomFor(near, width > WIDE) },
    x: { range: [0, columns.length], ticks: last ? outermost : outermost.slice(0, 1) },
    y: { range, ticks: powers(range, TICKS) },
    layers: [
      { kind: "bars", colour: "--heat-middle", bars: ends.flatMap((end, i) => (end === null ? [] : [[i + gap / 2, i + 1 - gap / 2, end[0] - 1, end[1]]])) },
      ...near.map(({ name, y }) => ({ kind: "rule", y, width: 1.5, ...lookOf(name) })),
      ...names(near, width > WIDE),
    ],
    stops: ends.map((end, i) => ({ x: i + 0.5, y: null, say: () => [steps(columns[i]), end === null ? "not measured" : `${powerOfTwo(end[0] - 1)} to ${powerOfTwo(end[1])}`] })),
  };
}
