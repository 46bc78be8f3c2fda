// What each chart shows: from the rows of a rank to a picture. No state, no page.
//
// A second run is { rows, label, at }: it is drawn beside the first, on the same axes.

import { powers, ticks } from "./axes.js";
import { nearest, nothing } from "./plot.js";
import { SKIPS, number, percent, skipWords, steps, value } from "./words.js";

const ZERO_EXPONENT = -150; // a log axis has no place for 0: it stands below the smallest float32
const INFINITE_EXPONENT = 128; // and none for infinity, which stands above the largest
const SKIP_BINS = 60;
const MANY_TICKS = 8;
const TICKS = 4;

const LINE_AT_ONE = [
  { kind: "rule", y: 0, colour: "--critical", width: 1, dash: "5 4" },
  { kind: "text", left: 0, y: 0, dx: 4, dy: -5, colour: "--critical", words: "1: the scale reduces the loss below this" },
];

/** The panels by name: what a reader hears of each, and how it is made of the rows that are in view. */
export const PANELS = {
  scale: { name: "Loss scale", picture: scale },
  skips: { name: "Skipped steps", picture: skips },
  loss: { name: "Loss", picture: loss },
  time: { name: "Step time", picture: time },
};

function scale(all, other) {
  const known = (rows) => rows.filter((row) => row.scale !== null);
  const [rows, others] = [known(all), known(other?.rows ?? [])];
  if (!rows.length && !others.length) return nothing("no loss scaler");
  const say = (row) => `loss scale ${number(row.scale)}`;
  const drawn = [...rows, ...others];
  const low = Math.floor(Math.min(...drawn.map((row) => exponent(row.scale_low)))) - 1;
  const high = Math.ceil(Math.max(...drawn.map((row) => exponent(row.scale_high)))) + 1;
  const layers = [
    { kind: "band", stairs: true, colour: "--accent", opacity: 0.16, points: rows.map((row) => [row.last_step, exponent(row.scale_low), exponent(row.scale_high)]) },
    { kind: "line", stairs: true, colour: "--accent", width: 1, points: rows.map((row) => [row.last_step, exponent(row.scale_high)]) },
    { kind: "line", stairs: true, colour: "--accent", width: 2, points: rows.map((row) => [row.last_step, exponent(row.scale)]) },
    ...second(other, others, (row) => exponent(row.scale), true),
    ...SKIPS.map((skip) => ({
      kind: "marks", sign: skip.symbol, colour: skip.colour,
      points: rows.filter((row) => row[skip.name]).map((row) => [row.last_step, exponent(row.scale_low)]),
    })),
    ...(low < 0 ? LINE_AT_ONE : []),
  ];
  const stops = rows.map((row) => stop(row, exponent(row.scale), say, other, others, skipWords));
  return { layers, y: { range: [low, high], ticks: powers([low, high], MANY_TICKS) }, stops };
}

/** Where a scale stands on the log axis. */
function exponent(raw) {
  return Math.max(ZERO_EXPONENT, Math.min(INFINITE_EXPONENT, Math.log2(value(raw))));
}

function skips(rows, other) {
  if (!rows.length && !other?.rows.length) return nothing("no step yet");
  const [bins, others] = [binned(rows), binned(other?.rows ?? [])];
  const most = Math.max(0.01, ...[...bins, ...others].map(share)) * 1.08;
  const layers = SKIPS.map((skip) => ({
    kind: "bars", colour: skip.colour,
    bars: bins.filter((bin) => bin[skip.name]).map((bin) => [bin.first, bin.first + bin.width, under(bin, skip), under(bin, skip) + bin[skip.name] / bin.steps]),
  }));
  layers.push(...second(other, others.flatMap((bin) => [{ ...bin, last_step: bin.first }, bin]), share));
  const say = (bin) => (total(bin) ? `${percent(share(bin))} skipped` : "none skipped");
  return {
    layers, y: { range: [0, most], ticks: ticks([0, most], TICKS, (v) => (v ? percent(v) : "0")) },
    stops: bins.map((bin) => ({ ...stop(bin, null, say, other, others, skipWords), x: bin.first + bin.width / 2 })),
  };
}

/** Where the bar of a class of skips begins: on those of the classes before it. */
function under(bin, skip) {
  return SKIPS.slice(0, SKIPS.indexOf(skip)).reduce((sum, { name }) => sum + bin[name] / bin.steps, 0);
}

function total(bin) {
  return SKIPS.reduce((sum, { name }) => sum + bin[name], 0);
}

function share(bin) {
  return total(bin) / bin.steps;
}

/** Few enough bars to be seen; a row stays whole. */
function binned(rows) {
  const across = rows.length ? rows.at(-1).last_step + 1 - rows[0].first : 1;
  const width = Math.max(1, Math.ceil(across / SKIP_BINS));
  const bins = new Map();
  for (const row of rows) {
    const first = Math.floor(row.first / width) * width;
    const bin = bins.get(first) ?? { first, width, steps: 0 };
    bin.steps += row.steps;
    bin.last_step = row.last_step;
    for (const { name } of SKIPS) bin[name] = (bin[name] ?? 0) + row[name];
    bins.set(first, bin);
  }
  return [...bins.values()];
}

function loss(all, other) {
  const known = (rows) => rows.filter((row) => row.loss !== null);
  const [rows, others] = [known(all), known(other?.rows ?? [])];
  if (!rows.length && !others.length) return nothing("no loss seen");
  const finite = [...rows, ...others].map((row) => value(row.loss)).filter(Number.isFinite);
  const [low, high] = finite.length ? [Math.min(...finite), Math.max(...finite)] : [0, 1]; // for the crosses
  const room = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
  const range = [low - room, high + room];
  const layers = [
    { kind: "line", colour: "--accent", points: rows.map((row) => [row.last_step, value(row.loss)]) },
    ...second(other, others, (row) => value(row.loss)),
    { kind: "marks", sign: "cross", colour: "--critical", points: rows.filter((row) => row.nonfinite_losses).map((row) => [row.last_step, low]) },
  ];
  const broken = (row) => (row.nonfinite_losses ? [`NaN or infinite in ${number(row.nonfinite_losses)}`] : []);
  const height = (row) => (Number.isFinite(value(row.loss)) ? value(row.loss) : null);
  const stops = rows.map((row) => stop(row, height(row), (r) => `loss ${number(r.loss)}`, other, others, broken));
  return { layers, y: { range, ticks: finite.length ? ticks(range, TICKS) : [] }, stops };
}

function time(all, other) {
  const known = (rows) => rows.filter((row) => row.seconds !== null);
  const [rows, others] = [known(all), known(other?.rows ?? [])];
  if (!rows.length && !others.length) return nothing("no step time yet");
  const most = Math.max(0, ...rows.map((row) => row.longest), ...others.map((row) => row.seconds));
  const [factor, unit] = most < 1 ? [1000, "ms"] : [1, "s"];
  const range = [0, most * factor * 1.05 || 1];
  const layers = [
    { kind: "line", colour: "--muted", width: 1, dash: "1.5 2.5", points: rows.map((row) => [row.last_step, row.longest * factor]) },
    { kind: "line", colour: "--accent", points: rows.map((row) => [row.last_step, row.seconds * factor]) },
    ...second(other, others, (row) => row.seconds * factor),
  ];
  const words = (seconds) => `${number(seconds * factor)} ${unit}`;
  const stops = rows.map((row) => stop(row, row.seconds * factor, (r) => `mean ${words(r.seconds)}, longest ${words(r.longest)}`, other, others));
  return { layers, y: { range, ticks: ticks(range, TICKS, (v) => `${number(v)} ${unit}`) }, stops };
}

/** The line of a second run. */
function second(other, rows, height, stairs = false) {
  if (!other) return [];
  return [{ kind: "line", stairs, colour: "--second", dash: "6 3", at: other.at, points: rows.map((row) => [row.last_step, height(row)]) }];
}

/** What is read of a row: which steps, what of them, and what of the second run at that place. */
function stop(row, y, say, other, others, more = () => []) {
  const beside = () => {
    if (!others.length) return [];
    const there = others[nearest(others.map((o) => other.at(o.last_step)), other.place(row.last_step))];
    return [`${other.label}: ${say(there)}`];
  };
  return { x: row.last_step, y, say: () => [steps([row.first, row.last_step]), say(row), ...more(row), ...beside()] };
}
