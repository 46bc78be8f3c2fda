// The limits of a format in a chart of exponents: how each is drawn, and where its name stands. No state, no page.

export const WIDE = 620; // px; a narrower chart has no room for names beside it

const LOOKS = {
  overflow: { colour: "--critical", dash: "", said: "whole" },
  "smallest normal": { colour: "--warning", dash: "1.5 3", said: "dotted" },
  "flush to zero": { colour: "--critical", dash: "7 4", said: "dashed" },
};

/** How the line of a limit is drawn: its colour, its dashes, and these in a word. */
export function lookOf(name) {
  return LOOKS[name];
}

/** Room at the right of a chart for the names of limits: { name, words, y }; none where they are in its caption. */
export function roomFor(lines, isWide) {
  return isWide && lines.length ? 8 + 6.2 * Math.max(...lines.map(({ words }) => words.length)) : 12;
}

/** The name of each limit at the end of its line, where there is room beside the chart. */
export function names(lines, isWide) {
  if (!isWide) return [];
  return lines.map(({ name, words, y }) => ({ kind: "text", words, colour: lookOf(name).colour, left: 1, y, dx: 7 }));
}

/** The names of limits for a caption, where there is no room for them in the picture: they would lie on lines. */
export function inWords(lines, isWide) {
  if (isWide || !lines.length) return "";
  return `: ${lines.map(({ name, words }) => `${words} (${lookOf(name).said})`).join(", ")}`;
}
