// Where the time of a step goes: the strip of its phases over the run, and its key. Colour is never alone.

import { byId, make, rebuild, setText } from "./dom.js";
import { nearest, nothing } from "./plot.js";
import { SKIPS, percent, seconds, skipWords, steps } from "./words.js";

const WHOLE = 1000; // the phases of a row are thousandths of it
const MAX_BINS = 120; // more cannot be told apart
const REACH = 16; // steps: a device times some of them only, and what it says holds since the one before
const MARKS_AT = 1.06; // skipped steps stand above the strip
const TOP = 1.12;
const TICKS = [0, 0.25, 0.5, 0.75, 1].map((share) => [share, `${100 * share} %`]);

/** A picture of the phases: `named` are pairs of label and words, in the order of the cells of rows. */
export function phases(named, rows, other) {
  const known = (all) => binned(all.filter((row) => row.phases));
  const [bins, others] = [known(rows), known(other?.rows ?? [])];
  if (!bins.length) return nothing("no step was timed here");
  const layers = [
    ...named.map(([label], i) => ({ kind: "bars", colour: `--phase-${label}`, bars: bins.filter((bin) => bin.shares[i]).map((bin) => [bin.from, bin.end, under(bin, i), under(bin, i + 1)]) })),
    ...SKIPS.map((skip) => ({ kind: "marks", sign: skip.symbol, colour: skip.colour, points: rows.filter((row) => row[skip.name]).map((row) => [row.last_step, MARKS_AT]) })),
  ].filter((layer) => (layer.bars ?? layer.points).length);
  const beside = (bin) => {
    if (!others.length) return [];
    const there = others[nearest(others.map((o) => other.at(o.end)), other.place(bin.end))];
    return [`${other.label}: ${parts(named, there, percent).join(", ")}`];
  };
  const say = (bin) => [
    steps([bin.first, bin.end - 1]), `${seconds(bin.mean)} a step`,
    ...parts(named, bin, (share) => `${seconds(share * bin.mean)}, ${percent(share)}`), ...skipWords(bin), ...beside(bin),
  ];
  return { layers, y: { range: [0, TOP], ticks: TICKS }, stops: bins.map((bin) => ({ x: (bin.from + bin.end) / 2, y: null, say: () => say(bin) })) };
}

/** Each phase that a bin has, in words. */
function parts(named, bin, say) {
  return named.flatMap(([, words], i) => (bin.shares[i] ? [`${words} ${say(bin.shares[i])}`] : []));
}

/** How high the phases before the i-th one reach. */
function under(bin, i) {
  return bin.shares.slice(0, i).reduce((sum, share) => sum + share, 0);
}

/** Few enough columns to be seen; a row stays whole. Each goes on from the one before, if that is near. */
function binned(rows) {
  const size = Math.max(1, Math.ceil(rows.length / MAX_BINS));
  const bins = [];
  for (let i = 0; i < rows.length; i += size) {
    const bin = joined(rows.slice(i, i + size));
    const before = bins.at(-1)?.end;
    bins.push({ ...bin, from: before !== undefined && bin.first - before <= REACH ? before : bin.first });
  }
  return bins;
}

/** Rows in a row as one: the time of each phase in all of their steps together. */
function joined(rows) {
  const spent = [];
  const bin = { first: rows[0].first, end: rows.at(-1).last_step + 1 };
  let [all, timed] = [0, 0];
  for (const row of rows) {
    const weight = row.phased * row.steps;
    row.phases.forEach((part, i) => { spent[i] = (spent[i] ?? 0) + part * weight; });
    all += row.phases.reduce((sum, part) => sum + part, 0) * weight;
    timed += row.steps;
    for (const { name } of SKIPS) bin[name] = (bin[name] ?? 0) + row[name];
  }
  return { ...bin, shares: Array.from(spent, (part) => (part ?? 0) / all), mean: all / WHOLE / timed };
}

/** Show the newest of it in numbers, what was not seen, or nothing. */
export function showPhases({ sentence, key, notes }) {
  byId("phases-box").hidden = !key.length;
  setText(byId("phases-sentence"), sentence);
  rebuild(byId("phases-key"), key, () => key.map(([label, words, time, share]) => make("li", { "data-phase": label },
    make("span", { class: "swatch", "aria-hidden": "true" }), `${words} `, make("b", {}, time), ` ${share}`)));
  setText(byId("phases-notes"), notes.join(" "));
}
