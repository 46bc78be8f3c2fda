// What a cast would do to measured values: ampwatch/numerics/whatif.py, word by word. No page.
//
// A histogram is { first, counts, zeros, nans, infs, amax, amin, numel }: bin e counts the
// magnitudes above 2**(e - 1) and up to 2**e, and counts[0] is that of bin `first`.
// A format is { max, overflow_from, min_normal, min_subnormal }.

/** Where an element ends up, from the smallest to the largest. */
export const FATES = ["flushed", "subnormal", "normal", "overflows"];

/**
 * What becomes of the elements of each bin when they are multiplied by 2**shift and cast.
 * Those of the bin in which the format ends overflow only if the largest element does.
 */
export function fates(histogram, format, shift = 0) {
  const flushed = log2(format.min_subnormal) - 1 - shift;
  const subnormal = log2(format.min_normal) - shift;
  const normal = topBin(format) - shift - (overflows(histogram.amax, format, shift) ? 1 : 0);
  return histogram.counts.map((_, i) => {
    const exponent = histogram.first + i;
    if (exponent <= flushed) return "flushed";
    if (exponent <= subnormal) return "subnormal";
    return exponent <= normal ? "normal" : "overflows";
  });
}

/** What casting the elements times 2**shift does: counts, as CastOutcome in Python. */
export function cast(histogram, format, shift = 0) {
  const flushed = log2(format.min_subnormal) - 1 - shift;
  const underflow = upTo(histogram, flushed);
  const [overflowLow, overflowHigh] = overflow(histogram, format, shift);
  const { amax } = histogram;
  return {
    overflowLow,
    overflowHigh,
    underflow,
    subnormal: upTo(histogram, log2(format.min_normal) - shift) - underflow,
    nonzero: sum(histogram.counts),
    headroom: amax ? timesPowerOfTwo(format.max / amax, -shift) : Infinity,
  };
}

function overflow(histogram, format, shift) {
  const nonzero = sum(histogram.counts);
  if (!overflows(histogram.amax, format, shift)) return [0, 0];
  if (overflows(histogram.amin, format, shift)) return [nonzero, nonzero];
  const limit = topBin(format) - shift;
  const beyond = nonzero - upTo(histogram, limit);
  const low = beyond || isSubsample(histogram) ? beyond : 1;
  return [low, Math.max(low, nonzero - upTo(histogram, limit - 1))];
}

/**
 * The exponents of the smallest scale that loses at most `tolerated` and of the largest one
 * without overflow; null where nothing demands one.
 */
export function scaleWindow(histogram, format, tolerated) {
  const smallest = smallestKept(histogram, tolerated);
  const low = smallest === null ? null : log2(format.min_subnormal) - smallest;
  if (!histogram.amax) return { low, high: null };
  const [mantissa, exponent] = frexp(histogram.amax);
  const tooLarge = mantissa * 2 ** topBin(format) >= format.overflow_from ? 1 : 0;
  return { low, high: topBin(format) - exponent - tooLarge };
}

/** Whether the format would do: "fits", "fits_scaled" or "too_wide". */
export function fit(histogram, format, tolerated) {
  const { low, high } = scaleWindow(histogram, format, tolerated);
  if ((low === null || low <= 0) && (high === null || high >= 0)) return "fits";
  return low === null || high === null || low <= high ? "fits_scaled" : "too_wide";
}

/** The exponent of a power of two. */
export function log2(powerOfTwo) {
  return frexp(powerOfTwo)[1] - 1;
}

/** The bin that the largest number of the format is in. */
export function topBin(format) {
  return frexp(format.max)[1];
}

/** All elements of the bins. */
export function sum(counts) {
  return counts.reduce((total, count) => total + count, 0);
}

function smallestKept({ first, counts }, tolerated) {
  const nonzero = sum(counts);
  let lost = 0;
  for (let i = 0; i < counts.length; i += 1) {
    lost += counts[i];
    if (lost / nonzero > tolerated) return first + i;
  }
  return null;
}

function overflows(magnitude, format, shift) {
  return timesPowerOfTwo(magnitude, shift) >= format.overflow_from;
}

function upTo({ first, counts }, exponent) {
  return sum(counts.slice(0, Math.max(0, exponent - first + 1)));
}

function isSubsample({ counts, zeros, nans, infs, numel }) {
  return zeros + sum(counts) < numel - nans - infs;
}

/** Mantissa in [0.5, 1) and exponent of a positive number, as in Python. */
function frexp(value) {
  const lift = value < 2 ** -1000 ? 64 : 0; // subnormal numbers have no exponent of their own
  const bits = new DataView(new ArrayBuffer(8));
  bits.setFloat64(0, value * 2 ** lift);
  const head = bits.getUint16(0);
  bits.setUint16(0, (head & 0x000f) | (1022 << 4));
  return [bits.getFloat64(0), (head >> 4) - 1022 - lift];
}

/** value * 2**exponent, rounded once at most where 2**exponent alone would be 0 or infinite. */
function timesPowerOfTwo(value, exponent) {
  const step = Math.max(-1000, Math.min(1000, exponent));
  const scaled = value * 2 ** step;
  return step === exponent ? scaled : timesPowerOfTwo(scaled, exponent - step);
}
