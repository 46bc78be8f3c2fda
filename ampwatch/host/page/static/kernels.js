// On which units the time of kernels went, and how much of the ceiling was used.

import { byId, make, rebuild, setText } from "./dom.js";
import { bandBar } from "./mix.js";
import { named } from "./state.js";
import { number, percent, seconds } from "./words.js";

/** Units by their name in the state: the words, a sign of them, and how good that is. */
const UNITS = {
  tensor: { words: "tensor cores", sign: "✓", level: "healthy" },
  cuda: { words: "general-purpose cores", sign: "▲", level: "warning" },
  unknown: { words: "not known on which", sign: "?", level: "info" },
  other: { words: "multiplies no matrices", sign: "–", level: "finished" },
  cpu: { words: "CPU", sign: "–", level: "finished" },
};

/** Show the newest profiler window; `columns` says what the cells of a kernel are. */
export function showKernels(columns, kernels, ceiling) {
  setText(byId("kernels-sentence"), kernels.sentence);
  setText(byId("ceiling-sentence"), ceiling.sentence ?? "");
  const { share, totals = [], rows = [], remarks = [] } = kernels;
  rebuild(byId("tensor-band"), share, () => (share ? [bandBar(...share, kernels.sentence)] : []));
  byId("tensor-band-box").hidden = !share;
  setText(byId("tensor-band-words"), share ? bandWords(share) : "");
  rebuild(byId("kernel-remarks"), remarks, () => remarks.map((words) => make("li", {}, words)));
  rebuild(byId("ceiling-bar"), ceiling.share, () => (ceiling.share === undefined ? [] : [bandBar(Math.min(1, ceiling.share), Math.min(1, ceiling.share), ceiling.sentence)]));
  byId("ceiling-bar").hidden = ceiling.share === undefined;
  byId("kernels-card").hidden = !totals.length && !ceiling.sentence;
  showTotals(totals);
  showRows(rows.map((cells) => named(columns, cells)), kernels);
}

function bandWords([low, high]) {
  if (low === high) return `${percent(low)} on tensor cores`;
  return `${percent(low)} certainly on tensor cores; unknown for ${percent(high - low)}, by the names of the kernels`;
}

function unit(name) {
  const { words, sign, level } = UNITS[name];
  return make("span", { class: "level", "data-level": level }, `${sign} ${words}`);
}

function showTotals(totals) {
  byId("kernel-totals").hidden = !totals.length;
  const whole = totals.reduce((sum, [, , time]) => sum + time, 0);
  rebuild(document.querySelector("#kernel-totals tbody"), totals, () => totals.map(([name, dtype, time]) => make("tr", {},
    make("td", {}, unit(name)),
    make("td", {}, dtype || "not said"),
    make("td", { class: "count" }, seconds(time)),
    make("td", { class: "count" }, percent(time / whole)))));
}

/** Columns beside the name. A CPU runs ops, of which there is less to say than of kernels. */
const COLUMNS = [
  { title: "Ran on", gpu: true, show: (row) => unit(row.unit) },
  { title: "Dtype", show: (row) => row.dtype || "–" },
  { title: "Launched by", gpu: true, show: (row) => (row.op ? make("code", {}, row.op) : "–") },
  { title: "Time", count: true, show: (row) => seconds(row.seconds) },
  { title: "Share", count: true, show: (row, whole) => percent(row.seconds / whole) },
  { title: "Calls", count: true, show: (row) => number(row.calls) },
  { title: "What the name says", gpu: true, words: true, show: details },
];

function showRows(rows, { step, left_out: leftOut }) {
  byId("kernels-box").hidden = !rows.length;
  if (!rows.length) return;
  const whole = rows.reduce((sum, row) => sum + row.seconds, 0);
  setText(byId("kernels-of"), `step ${number(step)}${leftOut ? `; ${number(leftOut)} shorter ones are not shown` : ""}`);
  const onCpu = rows.every((row) => row.unit === "cpu");
  setText(byId("kernels-list-title"), `${onCpu ? "Ops" : "Kernels"} of the newest profiler window`);
  const shown = COLUMNS.filter(({ gpu }) => !(onCpu && gpu));
  rebuild(document.querySelector("#kernels thead tr"), onCpu, () => [{ title: onCpu ? "Op" : "Kernel" }, ...shown].map(
    ({ title, count }) => make("th", { scope: "col", class: count ? "count" : "" }, title),
  ));
  rebuild(document.querySelector("#kernels tbody"), rows, () => rows.map((row) => make("tr", {},
    make("th", { scope: "row" }, make("code", {}, row.name)),
    ...shown.map(({ show, count, words }) => make("td", { class: count ? "count" : words ? "words" : "" }, show(row, whole))))));
}

/** What else the name says: the library, what it was made for, what it assumes, and the rule. */
function details({ family, arch, align, rule }) {
  const parts = [family, arch && `for compute capability ${(arch / 10).toFixed(1)}`, align && `aligned to ${number(align)}`, rule !== family && `rule ${rule}`];
  return parts.filter(Boolean).join(", ");
}
