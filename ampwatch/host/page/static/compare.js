// Two ranks side by side, of one run or of two: what to compare with, their figures, their findings.

import { byId, make, rebuild, setText } from "./dom.js";
import { isWhole } from "./state.js";
import { level } from "./view.js";
import { count, number } from "./words.js";

export class Compare {
  /** @param {(name: string | null, rank: string | null) => void} onChoose called with what to compare with; null for nothing */
  constructor(onChoose) {
    this.other = null;
    byId("compare-run").addEventListener("change", (event) => onChoose(event.target.value || null, null));
    byId("compare-rank").addEventListener("change", (event) => onChoose(this.other.name, event.target.value));
    byId("compare-end").addEventListener("click", () => {
      onChoose(null, null);
      byId("compare-run").focus();
    });
  }

  /**
   * Show `shown` beside `other`, both with `name` and `rank`; `other` is null where nothing is compared.
   * `addressOf` writes the address of a finding of one of the two.
   */
  show(runs, shown, other, addressOf) {
    this.other = other;
    const names = Object.keys(runs).filter((name) => name !== shown.name || Object.keys(runs[name].ranks).length > 1);
    byId("compare").hidden = names.length === 0;
    choices(byId("compare-run"), ["", ...names], (name) => (name === "" ? "nothing" : name === shown.name ? `${name} (another rank)` : name), other?.name ?? "");
    const ranks = other ? Object.keys(runs[other.name].ranks).filter((rank) => other.name !== shown.name || rank !== shown.rank) : [];
    byId("compare-rank-box").hidden = ranks.length < 2;
    choices(byId("compare-rank"), ranks, (rank) => `rank ${rank}`, other?.rank ?? "");
    byId("compare-end").hidden = other === null;
    const isThere = other !== null && isWhole(runs[other.name].ranks[other.rank]);
    byId("compare-box").hidden = !isThere;
    if (!isThere) return;
    const two = [shown, other].map((one) => ({ ...one, ...runs[one.name].ranks[one.rank], words: titled(one) }));
    for (const [id, { words }] of [["compare-first", two[0]], ["compare-second", two[1]]]) setText(byId(id), words);
    showFigures(two);
    showFindings(two, addressOf);
  }
}

/** What a rank of a run is called. */
export function titled({ name, rank }) {
  return `${name}, rank ${rank}`;
}

function choices(select, values, words, chosen) {
  rebuild(select, values.map((value) => [value, words(value)]), () => values.map((value) => make("option", { value }, words(value))));
  if (select.value !== chosen) select.value = chosen;
}

function head(table, first, two) {
  rebuild(table.tHead.rows[0], [first, ...two.map(({ words }) => words)], () => [
    make("th", { scope: "col" }, first),
    ...two.map(({ words }, i) => make("th", { scope: "col", "data-course": i ? "second" : "first" }, words)),
  ]);
}

function showFigures(two) {
  const table = byId("compare-figures");
  head(table, "Now", two);
  const titles = [...new Set(two.flatMap(({ figures }) => Object.keys(figures)))];
  const rows = titles.map((title) => [title, ...two.map(({ figures }) => figures[title] ?? ["–", ""])]);
  rebuild(table.tBodies[0], rows, () => rows.map(([title, ...cells]) => make("tr", {},
    make("th", { scope: "row" }, title),
    ...cells.map(([figure, note]) => make("td", {}, figure, " ", make("span", { class: "place" }, note))))));
}

/** Which of the findings each of the two has: those of the first in their order, then the others. */
function showFindings(two, addressOf) {
  const keys = [...new Set(two.flatMap(({ stories }) => stories.map(([key]) => key)))];
  const table = byId("compare-findings");
  table.hidden = !keys.length;
  byId("compare-no-findings").hidden = keys.length > 0;
  head(table, "Finding", two);
  const said = keys.map((key) => [key, ...two.map((one) => one.findings[key] ?? null)]);
  rebuild(table.tBodies[0], [said, two.map(({ words }) => words)], () => said.map(([key, ...found]) => {
    const { kind, place } = found.find(Boolean);
    const what = make("th", { scope: "row" }, make("code", {}, kind), " ", make("span", { class: "place" }, place));
    return make("tr", {}, what, ...found.map((one, i) => (one ? foundCell(one, addressOf(two[i], key)) : make("td", { class: "absent" }, "not found"))));
  }));
}

function foundCell(one, address) {
  const words = `since step ${number(one.first_step)}, in ${count(one.count, "step")}${one.current ? "" : ", over"}`;
  return make("td", {}, level(one.severity), " ", make("a", { href: address }, words));
}
