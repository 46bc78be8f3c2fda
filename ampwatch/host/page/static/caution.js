// What-if with caution: what was lost before it was measured leaves no promise about that end. No page.
//
// A subject is { histogram (unscaled, with `flushed`: how many of its zeros were values once, null if
// that is not known, and `before`: null, or the step as of which those are in the histogram),
// formats (by name), format (name of the one it was measured in), measuredAt (exponent of the
// loss scale at that time), tolerated }.

import { fit, scaleWindow } from "/static/whatif.js";

/** Whether elements are missing at the low end that this format would not keep either. */
function cutBelow({ histogram, formats, format: measuredIn }, format) {
  return isCut(histogram) && format.min_subnormal >= formats[measuredIn].min_subnormal;
}

/** Whether elements were flushed of which it is not known what they were. */
export function isCut({ flushed, before }) {
  return flushed > 0 && before === null;
}

/** Whether elements are missing at the high end: how large they would have been, nobody knows. */
export function cutAbove({ histogram: { nans, infs } }) {
  return nans + infs > 0;
}

/** The exponents of the scales between which nothing is known to be lost; null where that is not known. */
export function knownWindow(subject, format) {
  const { low, high } = scaleWindow(subject.histogram, format, subject.tolerated);
  return {
    low: cutBelow(subject, format) ? null : low,
    high: cutAbove(subject) ? Math.min(high ?? Infinity, subject.measuredAt - 1) : high,
  };
}

/**
 * Whether the format would do: as `fit`, or why that is not known. What is missing can only
 * make a format too narrow that is not so for the rest.
 */
export function knownFit(subject, format) {
  const { histogram, tolerated } = subject;
  if (!histogram.amax && cutAbove(subject)) return histogram.zeros ? "overflowed" : "nonfinite";
  const known = fit(histogram, format, tolerated);
  if (known === "too_wide") return known;
  if (cutAbove(subject)) return "overflowed";
  if (cutBelow(subject, format)) return "cut";
  return histogram.amax ? known : "nothing";
}
