// What ran in which dtype: the mix, its price, why float32, and the table of ops.

import { byId, make, rebuild, setText } from "./dom.js";
import { mixBar, mixKey, mixWords } from "./mix.js";
import { label } from "./modules.js";
import { named } from "./state.js";
import { number, percent, si } from "./words.js";

const TOTALS = ["flops", "share", "tensor_flops", "bytes"];

/** Columns of each table, in their order. */
const TABLES = {
  op: ["name", "ran_in", "calls", ...TOTALS, "why"],
  module: ["name", "mix", "calls", ...TOTALS, "casts", "cast_bytes", "why"],
  dtype: ["name", "calls", ...TOTALS, "casts", "cast_bytes", "why"],
};

const NAMES = { op: "Op", module: "Module", dtype: "Dtype" };

/** Title, explanation, and the text of a cell from its line and the FLOPs of all lines. */
const COLUMNS = {
  ran_in: { title: "Ran in", text: true, show: (line) => line.ran_in.replace(" -> ", " → "), hint: "What it computed in; of a cast, from what to what" },
  calls: { title: "Calls", show: (line) => size(line.calls), hint: "Ops in the newest iteration that was counted, casts left out" },
  flops: { title: "FLOPs", show: (line) => size(line.flops), hint: "Floating-point operations of matmuls, convolutions and attention" },
  share: { title: "Share", show: (line, whole) => (line.flops ? percent(line.flops / whole) : "–"), hint: "Of the FLOPs of the iteration" },
  tensor_flops: { title: "For tensor cores", show: (line) => (line.flops ? percent(line.tensor_flops / line.flops) : "–"), hint: "Share of the FLOPs in a dtype and with dimensions that tensor cores run at full speed" },
  bytes: { title: "Bytes", show: (line) => size(line.bytes, "B"), hint: "Read and written" },
  casts: { title: "Casts", show: (line) => size(line.casts), hint: "From one dtype to another: the price of mixed precision" },
  cast_bytes: { title: "Cast bytes", show: (line) => size(line.cast_bytes, "B"), hint: "What the casts have read and written" },
};

const size = (value, unit = "") => (value ? si(value, unit) : "–");

export class Precision {
  /** @param {() => void} onChange called when the user has chosen another table */
  constructor(onChange) {
    this.by = "op";
    byId("ops-by").addEventListener("change", (event) => {
      this.by = event.target.value;
      onChange();
    });
  }

  /** Show the ops of a rank; `columns` says what the cells of a line are. */
  show(columns, ops) {
    setText(byId("precision-sentence"), ops.sentence);
    byId("precision-box").hidden = !ops.tables;
    if (!ops.tables) return;
    this.showMix(ops);
    showFallbacks(ops.fallbacks);
    this.showTable(columns, ops);
  }

  showMix({ mix, casts_per_op: casts, cast_bytes: bytes }) {
    const told = byId("mix");
    rebuild(told, mix, () => (mix.length ? [mixBar(mix)] : []));
    rebuild(byId("mix-key"), mix, () => (mix.length
      ? [make("li", { class: "quiet" }, "Of all FLOPs:"), ...mixKey(mix)]
      : [make("li", { class: "quiet" }, "No op with FLOPs was counted.")]));
    const price = casts === undefined ? "" : `${number(Number(casts.toPrecision(2)))} casts to each op that multiplies, ${si(bytes, "B")} read and written by them in an iteration.`;
    setText(byId("casts"), price);
  }

  showTable(columns, { tables, left_out: leftOut }) {
    const lines = tables[this.by].map((cells) => named(columns, cells));
    const whole = lines.reduce((sum, line) => sum + line.flops, 0);
    const shown = TABLES[this.by];
    rebuild(document.querySelector("#ops thead tr"), this.by, () => shown.map((key) => this.head(key)));
    rebuild(document.querySelector("#ops tbody"), [this.by, tables[this.by]], () => lines.map(
      (line) => make("tr", {}, ...shown.map((key) => this.cell(key, line, whole))),
    ));
    setText(byId("ops-left-out"), leftOut[this.by] ? `${number(leftOut[this.by])} smaller rows are not shown.` : "");
  }

  head(key) {
    const { title, hint, text } = {
      name: { title: NAMES[this.by], text: true, hint: "" },
      mix: { title: "Mix", text: true, hint: "Dtypes by their share in the FLOPs; in the bytes where there are none" },
      why: { title: "Why float32", text: true, hint: "Why ops of the forward pass ran in float32 although autocast is used" },
    }[key] ?? COLUMNS[key];
    return make("th", { scope: "col", class: text ? "" : "count", ...(hint ? { title: hint } : {}) }, title);
  }

  cell(key, line, whole) {
    if (key === "name") return make("th", { scope: "row" }, make("code", {}, this.by === "module" ? label(line.name) : line.name || "unknown"));
    if (key === "mix") return mixCell(line);
    if (key === "why") return make("td", { class: "why" }, line.why.map(([calls, words]) => `${number(calls)} × ${words}`).join("; "));
    const { show, text } = COLUMNS[key];
    return make("td", { class: text ? "" : "count" }, show(line, whole));
  }
}

/** The dtypes of a module, by FLOPs; a norm has none, so what counts is what it moves. */
function mixCell({ mix, flops }) {
  const words = `${mixWords(mix)}${flops ? "" : " of the bytes"}`;
  return make("td", { class: "mix-cell" }, mixBar(mix, words), make("span", { class: "place" }, words));
}

function showFallbacks(fallbacks) {
  byId("fallbacks-box").hidden = !fallbacks.length;
  rebuild(document.querySelector("#fallbacks tbody"), fallbacks, () => fallbacks.map(([words, calls, flops]) => make("tr", {},
    make("th", { scope: "row" }, words),
    make("td", { class: "count" }, number(calls)),
    make("td", { class: "count" }, size(flops)))));
}
