// Numbers, spans and states as people read them. The sentences come from the daemon.

/** Symbol of each state and severity: never by colour alone. */
export const SYMBOLS = {
  failing: "✖", broken: "✖", failed: "✖", stale: "◌", "needs attention": "▲", calibrating: "◔",
  starting: "◔", healthy: "✓", finished: "■", critical: "✖", warning: "▲", info: "ℹ",
};

/** Classes of skipped steps: words and sign for the legend, the sign in charts, CSS colour. */
export const SKIPS = [
  { name: "calibrating", words: "finding a first scale", sign: "○", symbol: "circle", colour: "--skip-calibrating" },
  { name: "probe", words: "just after a growth, expected", sign: "◆", symbol: "diamond", colour: "--skip-probe" },
  { name: "unprovoked", words: "no growth before it", sign: "▲", symbol: "triangle", colour: "--skip-unprovoked" },
  { name: "storm", words: "one after the other", sign: "✕", symbol: "cross", colour: "--skip-storm" },
];

/** How many steps of a row were skipped, by class; nothing if none was. */
export function skipWords(row) {
  const parts = SKIPS.filter((skip) => row[skip.name]).map((skip) => `${number(row[skip.name])} ${skip.name}`);
  return parts.length ? [`skipped: ${parts.join(", ")}`] : [];
}

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** 2 to the power of an integer, as text. */
export function powerOfTwo(exponent) {
  return "2" + [...String(exponent)].map((c) => SUPERSCRIPTS[c] ?? "⁻").join("");
}

/** A number from the state, where NaN and the infinities are strings. */
export function value(raw) {
  return typeof raw === "number" ? raw : raw === undefined ? NaN : Number(raw);
}

/** Digits grouped by narrow spaces; four significant ones if it is not whole. */
export function number(raw) {
  const v = value(raw);
  if (!Number.isFinite(v)) return String(v);
  if (Number.isInteger(v) && Math.abs(v) < 1e12) {
    return String(v).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  }
  return String(Number(v.toPrecision(4)));
}

/** The steps from a first to a last one. */
export function steps([first, last]) {
  return first === last ? `step ${number(first)}` : `steps ${number(first)} to ${number(last)}`;
}

/** A number of things, in the plural unless it is one. */
export function count(raw, noun) {
  return `${number(raw)} ${noun}${raw === 1 ? "" : "s"}`;
}

// Made once: making one takes longer than writing a hundred times with it.
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const TIME_WITH_SECONDS = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY_OF_YEAR = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

/** A time of day, with the day if it is not that of `now`. Both in s since the epoch. */
export function moment(seconds, now) {
  const then = new Date(seconds * 1000);
  const today = new Date(now * 1000);
  const time = TIME.format(then);
  if (then.toDateString() === today.toDateString()) return time;
  return `${(then.getFullYear() === today.getFullYear() ? DAY : DAY_OF_YEAR).format(then)} ${time}`;
}

/** A share in percent, two digits; everything and nothing are said only if it is so. */
export function percent(raw) {
  const p = 100 * value(raw);
  if (p > 0 && p < 0.0001) return "under 0.0001 %";
  if (p > 99.9 && p < 100) return "over 99.9 %";
  return `${Number(p.toPrecision(p < 10 ? 2 : 3))} %`;
}

const PREFIXES = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"];

/** Three significant digits and an SI prefix, as in "1.2 TB". */
export function si(raw, unit = "") {
  let v = value(raw);
  let power = 0;
  for (; v >= 999.5 && power < PREFIXES.length - 1; power += 1) v /= 1000;
  const suffix = PREFIXES[power] + unit;
  return `${Number(v.toPrecision(3))}${suffix && `\u202f${suffix}`}`;
}

/** A short time, in its own unit. */
export function seconds(raw) {
  const v = value(raw);
  if (v >= 120) return span(v);
  const [factor, unit] = v >= 0.9995 ? [1, "s"] : v >= 0.0009995 ? [1e3, "ms"] : [1e6, "µs"];
  return `${Number((v * factor).toPrecision(3))} ${unit}`;
}

/** Doublings, to one digit after the point. */
export function bits(raw) {
  return `${value(raw).toFixed(1)} bits`;
}

/** A time span in the largest unit of which there are at least two. */
export function span(seconds) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${number(Math.floor(seconds / size))} ${unit}`;
  }
  return seconds >= 1 ? `${Math.floor(seconds)} s` : "under 1 s";
}

/** The day of a date, as in "3 Nov". */
export function day(date) {
  return DAY.format(date);
}

/** The time of day of a date, as in "14:05". */
export function timeOfDay(date, withSeconds = false) {
  return (withSeconds ? TIME_WITH_SECONDS : TIME).format(date);
}
