// Where things stand on an axis, and where its ticks are: numbers, powers of two, steps, hours. No page.

import { day, number, powerOfTwo, timeOfDay } from "./words.js";

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const SPANS = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE), ...[1, 2, 3, 6, 12].map((n) => n * HOUR), ...[1, 2, 7, 14, 28].map((n) => n * DAY)];

/** Ticks at round numbers. */
export function ticks([low, high], count, words = number, least = 0) {
  const rough = Math.max((high - low) / count, least) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((n) => n * power >= rough * 0.999) * power;
  return every(step, low, high).map((n) => Number((n * step).toPrecision(12))).map((v) => [v, words(v)]);
}

/** Ticks at powers of two, of which the axis has the exponents. */
export function powers([low, high], count) {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2((high - low) / count)));
  return every(step, low, high).map((n) => [n * step, powerOfTwo(n * step)]);
}

function every(step, low, high) {
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - first + 1) }, (_, i) => first + i);
}

/** Steps as they are. */
export const bySteps = () => ({ at: (step) => step, step: (place) => place, ticks: (range, count) => ticks(range, count, number, 1) });

/**
 * Steps at the times at which they ended: of the clock, or since the first one where runs of different days are
 * compared. Between two rows the time goes evenly.
 */
export function byTime(rows, sinceStart) {
  const [first] = rows;
  const begin = first ? first.ended - (first.seconds ?? 0) * first.steps : 0;
  const origin = sinceStart ? begin : 0;
  const knots = [[first?.first ?? 0, begin - origin]];
  // A clock that was set back must not turn the axis around.
  for (const row of rows) knots.push([row.last_step + 1, Math.max(row.ended - origin, knots.at(-1)[1] + 1e-6)]);
  return { at: (step) => between(knots, step, 0, 1), step: (time) => between(knots, time, 1, 0), ticks: (range, count) => timeTicks(range, count, sinceStart) };
}

function between(knots, v, from, to) {
  let [low, high] = [0, knots.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (knots[middle][from] <= v) low = middle;
    else high = middle;
  }
  const [a, b] = [knots[low], knots[high]];
  const run = b[from] - a[from];
  return a[to] + (run > 0 ? ((v - a[from]) / run) * (b[to] - a[to]) : 0);
}

function timeTicks([low, high], count, sinceStart) {
  const step = SPANS.find((span) => span >= (high - low) / count) ?? DAY * Math.ceil((high - low) / count / DAY);
  // Whole hours of the place where somebody looks, not of Greenwich.
  const shift = sinceStart ? 0 : -MINUTE * new Date(high * 1000).getTimezoneOffset();
  return every(step, low + shift, high + shift).map((n) => n * step - shift).map((t) => [t, sinceStart ? elapsed(t, step) : clock(t, step)]);
}

function clock(time, step) {
  const date = new Date(time * 1000);
  const isMidnight = !(date.getHours() || date.getMinutes() || date.getSeconds());
  return isMidnight ? day(date) : timeOfDay(date, step < MINUTE);
}

function elapsed(time, step) {
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  if (step >= DAY) return `${number(time / DAY)} d`;
  if (step >= HOUR) return `${number(time / HOUR)} h`;
  return step >= MINUTE ? `${Math.floor(time / HOUR)}:${two((time % HOUR) / MINUTE)} h` : `${Math.floor(time / MINUTE)}:${two(time % MINUTE)} min`;
}
