// The table of modules: sorted, filtered, one of them selected.

import { byId, make, rebuild, setText } from "./dom.js";
import { named } from "./state.js";
import { bits, number, percent, value } from "./words.js";

const size = (v) => (v !== 0 && Math.abs(value(v)) < 1e-3 ? value(v).toExponential(2) : number(Number(value(v).toPrecision(3))));

const collator = new Intl.Collator("en", { numeric: true });

/** Columns by their name in the state; `first` is where a first click sorts to. */
const COLUMNS = [
  { key: "name", title: "Module", first: 1, hint: "Qualified name in the model" },
  { key: "trouble", title: "Trouble", first: -1, hint: "Non-finite first, then what underflows, then what is near the limit, then updates that change nothing" },
  { key: "nonfinite", title: "NaN, inf", first: -1, show: number, hint: "NaN and infinite elements in the newest measurement of gradients, outputs, weights, updates and buffers" },
  { key: "lost", title: "Underflow share", first: -1, show: percent, hint: "Share of the gradient elements that became zero only because the dtype cannot hold them" },
  { key: "gradient_headroom", title: "Headroom", first: 1, show: bits, hint: "Doublings that the scaled gradient is away from overflow" },
  { key: "gradient_amax", title: "Gradient amax", first: -1, show: size, hint: "Largest magnitude of the unscaled gradient" },
  { key: "activation_headroom", title: "Output headroom", first: 1, show: bits, hint: "Doublings that the output is away from the limit of its own format" },
  { key: "activation_amax", title: "Output amax", first: -1, show: size, hint: "Largest magnitude of the output" },
  { key: "unchanged", title: "Updates lost", first: -1, show: percent, hint: "Share of the weights that a step does not change" },
  { key: "step", title: "Step", first: -1, show: number, hint: "Step of the newest measurement; a number of an older one has its step beside it" },
];

export class Modules {
  /** @param {(name: string) => void} onSelect called with the module that the user picks */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.sort = { key: "trouble", direction: -1 };
    this.filter = "";
    this.rows = []; // as they come
    this.sorted = [];
    this.selected = null;
    document.querySelector("#modules thead tr").append(...COLUMNS.map((column) => this.head(column)));
    document.querySelector("#modules tbody").addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row && !String(getSelection())) onSelect(this.shown[row.sectionRowIndex].name);
    });
    byId("modules-filter").addEventListener("input", (event) => {
      this.filter = event.target.value.trim().toLowerCase();
      this.draw();
    });
  }

  /**
   * Show the rows of all modules; `columns` says what their cells are, `troubles` what a reason for trouble is called.
   * A changed row is another array.
   */
  show(columns, modules, selected, troubles) {
    this.troubles = troubles;
    const entries = Object.entries(modules);
    const news = entries.length !== this.rows.length || entries.some(([, cells], i) => cells !== this.rows[i].cells);
    if (!news && selected === this.selected) return;
    this.selected = selected;
    if (news) {
      this.rows = entries.map(([name, cells]) => ({ name, cells, ...named(columns, cells) }));
      this.order();
    }
    this.draw();
  }

  order() {
    const { key, direction } = this.sort;
    this.sorted = this.rows.toSorted((a, b) => compare(a, b, key, direction) || compare(a, b, "name", 1));
  }

  draw() {
    const { key, direction } = this.sort;
    this.shown = this.sorted.filter(({ name }) => label(name).toLowerCase().includes(this.filter));
    const [found, all] = [this.shown.length, this.rows.length];
    setText(byId("modules-count"), found === all ? `${number(all)}` : `${number(found)} of ${number(all)}`);
    for (const head of document.querySelectorAll("#modules th")) {
      head.setAttribute("aria-sort", head.dataset.column !== key ? "none" : direction < 0 ? "descending" : "ascending");
    }
    const source = [this.selected, ...this.shown.map(({ cells, ...row }) => row)];
    rebuild(document.querySelector("#modules tbody"), source, () => this.shown.map((row) => this.row(row)));
  }

  head({ key, title, first, hint }) {
    const button = make("button", { type: "button", title: hint }, title);
    button.addEventListener("click", () => {
      this.sort = { key, direction: this.sort.key === key ? -this.sort.direction : first };
      this.order();
      this.draw();
    });
    return make("th", { scope: "col", "data-column": key, class: key === "name" || key === "trouble" ? "" : "count" }, button);
  }

  row(row) {
    const pressed = row.name === this.selected;
    const name = make("button", { type: "button", "data-key": row.name, "aria-pressed": String(pressed) }, label(row.name));
    const reason = this.troubles[row.why];
    const level = (of, text) => make("span", { class: "level", "data-level": of }, text);
    const trouble = make("td", {}, row.culprit ? level(row.culprit, "➤ culprit ") : "", reason ? level(reason.level, `${reason.sign} ${reason.word}`) : "");
    const cells = COLUMNS.slice(2).map(({ key, show }) => make("td", {
      class: "count", ...(row.why === key ? { "data-level": reason.level } : {}),
    }, row[key] === null ? "–" : show(row[key]), row[key] !== null && key in row.older ? make("small", {}, `step ${number(row.older[key])}`) : ""));
    return make("tr", { "data-selected": String(pressed) }, make("th", { scope: "row" }, name), trouble, ...cells);
  }
}

/** How a module is called on the page; the root has no name of its own. */
export function label(name) {
  return name || "(root module)";
}

/** Order of two rows by a column; what is not known comes last. */
function compare(a, b, key, direction) {
  if (a[key] === b[key]) return 0;
  if (a[key] === null || b[key] === null) return a[key] === null ? 1 : -1;
  if (key === "name") return direction * collator.compare(a.name, b.name);
  return direction * (value(a[key]) < value(b[key]) ? -1 : 1);
}
