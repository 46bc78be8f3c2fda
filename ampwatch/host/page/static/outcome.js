// What the what-if panel says, in sentences. No page.

import { cutAbove, isCut, knownFit, knownWindow } from "/static/caution.js";
import { cast, sum } from "/static/whatif.js";
import { bits, number, percent, powerOfTwo } from "/static/words.js";

/** What a format promises, with a sign of it. */
export function fitWords(subject, format) {
  const fits = knownFit(subject, format);
  const words = {
    fits: "✓ fits as it is",
    fits_scaled: `◐ fits with ${windowWords(knownWindow(subject, format))}`,
    too_wide: "✖ too narrow",
    cut: "? cut off: unknown",
    overflowed: "? overflowed: unknown",
    nonfinite: "– nothing finite to fit",
    nothing: "– only zeros to fit",
  }[fits];
  return { fits, words };
}

/** What was lost before it was measured cannot be counted, only warned of. */
export function warning(subject) {
  const { zeros, counts, nans, infs, flushed, before } = subject.histogram;
  const told = [];
  const share = percent(flushed / (zeros + sum(counts)));
  if (flushed && before !== null) {
    told.push(`About ${share} of the elements are zero now, flushed by the format: shown is what they were when they were measured at step ${number(before)}, before that.`);
  }
  if (isCut(subject.histogram)) {
    const more = subject.lossScale === null ? "scale the loss in the training" : "raise the scale in the training";
    told.push(`About ${share} of the elements were zero before they were measured, flushed by the format: ${more}, and look again.`);
  }
  if (cutAbove(subject)) {
    const those = [nans && `${number(nans)} NaN`, infs && `${number(infs)} infinite`].filter(Boolean).join(" and ");
    told.push(`${those} elements: overflowed before it was measured, ${at(subject, subject.measuredAt)}.`);
  }
  if (!isWhole(subject) && subject.histogram.amax) told.push("All this is about the elements that are left.");
  return told.length ? `▲ ${told.join(" ")}` : "";
}

/** What a cast would do, in one sentence. */
export function outcomeWords(subject, name, exponent) {
  const { histogram, formats } = subject;
  const { overflowLow, overflowHigh, underflow, nonzero, headroom } = cast(histogram, formats[name], exponent);
  if (!nonzero) return noneWords(subject);
  const those = whole(subject);
  const none = isWhole(subject) ? "nothing" : `none of ${those}`;
  const low = underflow ? `${percent(underflow / nonzero)} of ${those}` : none;
  const range = overflowLow === overflowHigh ? percent(overflowHigh / nonzero) : `${percent(overflowLow / nonzero)} to ${percent(overflowHigh / nonzero)}`;
  const room = cutAbove(subject) ? "" : ` (headroom ${bits(Math.log2(headroom))})`;
  const high = overflowHigh ? `${range} of ${those} would overflow` : `${none} would overflow${room}`;
  return `In ${name} ${at(subject, exponent)}, ${low} would be flushed to zero, and ${high}.`;
}

/** The elements that shares are of. */
export function whole(subject) {
  return isWhole(subject) ? "the non-zero elements" : "what is left";
}

/** Whether nothing was lost before it was measured. */
function isWhole(subject) {
  return !isCut(subject.histogram) && !cutAbove(subject);
}

/** Which scales would do, and what is not in the picture. */
export function notes(subject, name) {
  const { zeros, counts, flushed, before, amax } = subject.histogram;
  const told = amax ? [scalesWords(subject, name)] : [];
  if (zeros && (flushed === 0 || before !== null)) told.push(`${percent(zeros / (zeros + sum(counts)))} of all finite elements are zero already and not in the picture.`);
  return told.join(" ");
}

function noneWords(subject) {
  const { zeros, flushed } = subject.histogram;
  if (flushed) return "No non-zero elements are left: which scale would have kept them is not known.";
  if (flushed === null) return "Nothing but zeros was ever measured: whether the format has flushed them, or there never was a gradient, is not known. A larger scale in the training tells.";
  if (!cutAbove(subject)) return "There are no non-zero elements: no scale would change anything.";
  return zeros ? "Nothing finite was measured but zeros." : "Nothing finite was measured.";
}

function scalesWords(subject, name) {
  const { formats, tolerated } = subject;
  const format = formats[name];
  const { low, high } = knownWindow(subject, format);
  const flush = `flush at most ${percent(tolerated)} of ${whole(subject)} to zero`;
  if (cutAbove(subject)) {
    const bound = `The scale must be below ${powerOfTwo(subject.measuredAt)}, how far is not known`;
    return low === null ? `${bound}.` : `${bound}; ${powerOfTwo(low)} and above ${flush}.`;
  }
  if (low === null) {
    return `At ${powerOfTwo(high)} and below, none of ${whole(subject)} overflows; from which scale on enough of what was flushed would be kept is not known.`;
  }
  if (low <= high) return `${windowWords({ low, high })} ${flush}, and nothing overflows.`;
  return `No scale keeps both ends: at ${powerOfTwo(high)} and below the largest fit, at ${powerOfTwo(low)} and above the smallest; ${name} is too narrow for these values.`;
}

function windowWords({ low, high }) {
  if (low === null || high === null) return "any scale";
  return low === high ? powerOfTwo(low) : `${powerOfTwo(low)} to ${powerOfTwo(high)}`;
}

function at({ lossScale }, exponent) {
  return lossScale === null && exponent === 0 ? "without a loss scale" : `at scale ${powerOfTwo(exponent)}`;
}
