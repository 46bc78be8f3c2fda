// The map of the model: modules down, samples across, the worst trouble in each cell, the culprit marked.

import { byId, make, rebuild, setText } from "./dom.js";
import { MapCourse } from "./map_course.js";
import { columnWidth, drawCells } from "./map_draw.js";
import { firstUnfolded, rowName, rowsOf, treeOf, wayTo } from "./map_tree.js";
import { label } from "./modules.js";
import { onNewLook } from "./plot.js";
import { number, steps } from "./words.js";

const REFRESH_MS = 4000;
const MAX_WAIT_MS = 20000; // for an answer; then the next round asks again
const ROW = 18; // px, as in map.css
const MAX_VIEW = 41 * ROW; // px of rows at a time; more are scrolled
const MANY = 8; // times the usual steps between two columns that make a gap in the picture
const TOLD = 6; // modules told in words before somebody asks for more
const WIDEST_OF_FEW = 120; // px of a column of which there are few, with names above them
const PRODUCTS = { forward: "forward", grad_input: "grad. of input", grad_weight: "grad. of weight" };
const ASKED_FOR = ["plan", "errors"]; // parts of a map that are there if the training was asked for them
const COLUMNS = {
  plan: "Each column is a product of the layer. A folded row shows the widest format of its modules.",
  errors: "Each column is an error budget. A folded row shows the least exact of its modules.",
};
const ROOT = "(root)"; // how the daemon calls the module without a name in an address

export class ModelMap {
  /** @param {(module: string) => void} onExplore called with the module that the user wants to try other scales on */
  constructor(onExplore) {
    this.onExplore = onExplore;
    this.wanted = null; // { run, rank, subject }
    this.sent = null; // the map as the daemon has sent it
    this.map = null; // what of it is shown: trouble by samples, the plan by products, or errors by budgets
    this.unfolded = null; // null: nobody has folded or unfolded anything yet
    this.active = ""; // key of the row that the keyboard is at
    this.selected = null; // the module whose course is shown
    this.rows = [];
    this.allTold = false;
    this.inView = false;
    this.hint = byId("map-cell").textContent; // of the page as it comes: how to read it
    this.course = new MapCourse(byId("map-charts"));
    new IntersectionObserver((entries) => {
      this.inView = entries.at(-1).isIntersecting;
      this.refresh();
    }).observe(byId("map"));
    setInterval(() => this.refresh(), REFRESH_MS);
    document.addEventListener("visibilitychange", () => this.refresh());
    onNewLook(() => this.draw());
    byId("map-scroll").addEventListener("scroll", () => requestAnimationFrame(() => this.draw()));
    byId("map-tree").addEventListener("keydown", (event) => this.key(event));
    byId("map-tree").addEventListener("click", (event) => this.click(event));
    byId("map-cells").addEventListener("click", (event) => this.choose(this.at(event).row));
    byId("map-cells").addEventListener("pointermove", (event) => this.point(this.at(event)));
    byId("map-cells").addEventListener("pointerleave", () => this.point({}));
    byId("map-shows").addEventListener("change", () => {
      this.take(this.sent);
      if (this.wanted) this.askCourse(this.wanted).catch(() => {});
    });
    byId("map-explore").addEventListener("click", () => this.onExplore(this.selected));
    byId("map-more").addEventListener("click", () => {
      this.allTold = true;
      this.tell();
    });
    byId("map-close").addEventListener("click", () => {
      this.select(null);
      byId("map-tree").focus();
    });
  }

  /** Show the map of a rank; `subject` names it and its start. */
  show(run, rank, subject) {
    if (this.wanted?.subject === subject) return;
    this.wanted = { run, rank, subject };
    Object.assign(this, { sent: null, map: null, etag: "", unfolded: null, active: "", selected: null, allTold: false });
    byId("map-body").hidden = true;
    byId("map-course").hidden = true;
    this.refresh();
  }

  /** Ask the daemon for the map, if anybody sees it. */
  async refresh() {
    if (this.wanted === null || !this.inView || document.hidden || this.asking === this.wanted) return;
    const wanted = this.wanted;
    this.asking = wanted;
    try {
      const answer = await fetch(address(wanted), {
        headers: this.etag ? { "If-None-Match": this.etag } : {}, signal: AbortSignal.timeout(MAX_WAIT_MS),
      });
      if (answer.ok && wanted === this.wanted) {
        this.etag = answer.headers.get("ETag") ?? "";
        this.take(await answer.json());
        await this.askCourse(wanted);
      }
    } catch {
      // The daemon is away; the page says so at its top, and the next round asks again.
    } finally {
      if (this.asking === wanted) this.asking = null;
    }
  }

  take(sent) {
    this.sent = sent;
    const others = ASKED_FOR.filter((name) => sent[name] !== undefined);
    byId("map-shows").hidden = !others.length;
    for (const name of ASKED_FOR) byId("map-shows").querySelector(`[value=${name}]`).parentElement.hidden = !others.includes(name);
    const chosen = byId("map-shows").querySelector(":checked").value;
    const asked = others.includes(chosen) ? sent[chosen] : null;
    // What was asked for is drawn as samples are: other columns, other codes, and no culprit.
    const map = asked ? { ...sent, ...asked, culprit: undefined, islands: {}, asked: chosen } : sent;
    this.map = map;
    byId("map-about").hidden = asked === null;
    setText(byId("map-about"), asked === null ? "" : asked.sentence);
    const places = new Map(map.codes.map(({ letter }, place) => [letter, place]));
    this.tree = treeOf(map, places);
    this.islands = new Set(Object.keys(map.islands));
    const isTrouble = ({ reason }) => !["none", "quiet", "expected", "follows"].includes(reason);
    this.notable = asked ? Infinity : map.codes.findIndex(isTrouble);
    byId("map-body").hidden = !map.columns.length;
    setText(byId("map-sentence"), sent.sentence);
    showLegend(map);
    this.fold();
    this.tell();
  }

  /** Make the rows of what is folded and unfolded now. */
  fold() {
    const open = this.unfolded ?? firstUnfolded(this.tree, this.map.culprit?.module);
    this.open = open;
    this.rows = rowsOf(this.tree, open).map((row) => ({ ...row, ...this.summary(row.node, open.has(row.node.key)) }));
    if (!this.rows.some(({ node }) => node.key === this.active)) this.active = this.rows[0]?.node.key ?? "";
    this.draw();
  }

  /** What is said beside the name of a node, and the cells of its row. */
  summary(node, isOpen) {
    const { codes, legend, culprit } = this.map;
    const holds = node.nodes.length > 0;
    const cells = !holds || !isOpen ? node.cells : node.module >= 0 ? node.own : null;
    const worst = cells === null ? 0 : Math.max(0, ...cells);
    const trouble = legend.find(({ key }) => key === codes[worst].reason);
    const inside = (name, of) => (of.isGroup ? of.nodes.some((inner) => name === inner.key || inside(name, inner)) : name.startsWith(`${of.key}.`));
    const within = (name) => name === node.key || (holds && !isOpen && inside(name, node));
    return {
      cells,
      trouble: trouble.sign && trouble.key !== "expected" ? trouble : null,
      troubled: holds && !isOpen ? count(node, (place) => place >= this.notable) : 0,
      islands: [...this.islands].filter(within).length,
      isCulprit: culprit !== undefined && within(culprit.module),
      isFolded: holds && !isOpen,
      isOpen: holds && isOpen,
    };
  }

  draw() {
    this.course.draw();
    if (this.map === null || !this.rows.length) return;
    const scroll = byId("map-scroll");
    const height = Math.min(MAX_VIEW, this.rows.length * ROW);
    scroll.style.height = `${height}px`;
    byId("map-space").style.height = `${this.rows.length * ROW}px`;
    const first = Math.floor(scroll.scrollTop / ROW);
    const shown = this.rows.slice(first, first + Math.ceil(height / ROW) + 1);
    rebuild(byId("map-tree"), [shown.map(({ node, cells, depth, ...row }) => [node.key, depth, row]), this.active, this.selected, first], () => (
      shown.map((row, i) => this.row(row, first + i))));
    const active = shown.findIndex(({ node }) => node.key === this.active);
    if (active < 0) byId("map-tree").removeAttribute("aria-activedescendant");
    else byId("map-tree").setAttribute("aria-activedescendant", `map-row-${first + active}`);
    this.width = byId("map-axis").clientWidth;
    drawCells(byId("map-cells"), shown, {
      codes: this.map.codes, columns: this.map.columns.length, width: this.width, widest: this.widest, rowHeight: ROW,
      shift: scroll.scrollTop - first * ROW, height, mark: this.mark(), breaks: this.map.asked ? [] : breaksOf(this.map.columns), colour: colours(),
    });
    this.axis();
  }

  /** The widest that a column may be. Unit: px. */
  get widest() {
    return this.map.asked ? WIDEST_OF_FEW : undefined;
  }

  /** The column in which the culprit was seen first; -1 if none is known. */
  mark() {
    const step = this.map.culprit?.step;
    return step === undefined ? -1 : this.map.columns.findIndex(([, last]) => last >= step);
  }

  axis() {
    const { columns, culprit } = this.map;
    const step = columnWidth(this.width, columns.length, this.widest);
    if (this.map.asked) {
      rebuild(byId("map-axis"), [columns, step], () => columns.map((name, i) => placed(make("span", {}, PRODUCTS[name] ?? name), i * step)));
      return;
    }
    const wanted = Math.max(1, Math.min(5, Math.floor((step * columns.length) / 90)));
    const mark = this.mark();
    const far = (column) => mark < 0 || Math.abs(column - mark) * step > 55;
    const ticks = [...new Set(Array.from({ length: wanted }, (_, i) => Math.round((i * (columns.length - 1)) / wanted)))].filter(far);
    rebuild(byId("map-axis"), [ticks, mark, step, columns], () => [
      ...ticks.map((column) => placed(make("span", {}, `${column === 0 ? "step " : ""}${number(columns[column][0])}`), column * step)),
      ...(mark < 0 ? [] : [placed(make("span", { class: "culprit" }, `▼ step ${number(culprit.step)}`), Math.max(0, mark * step - 5), mark * step > this.width - 90)]),
    ]);
  }

  row(row, index) {
    const { node, depth, trouble, troubled, islands, isCulprit, isFolded, isOpen } = row;
    const fold = isFolded ? "▸" : isOpen ? "▾" : "";
    const name = rowName(node, isFolded);
    const siblings = node.parent?.nodes ?? [node]; // also those that are out of view and not on the page
    const says = [
      isCulprit && (isFolded ? "holds the culprit" : "the culprit"), isFolded && `${number(node.size)} modules, folded`,
      trouble && trouble.word, troubled && `${number(troubled)} in trouble`, islands && "in float32",
    ].filter(Boolean).join(", ");
    const item = make("li", {
      role: "treeitem", id: `map-row-${index}`, "data-row": index, "aria-level": depth + 1, "aria-posinset": siblings.indexOf(node) + 1, "aria-setsize": siblings.length, "aria-label": `${label(node.key)}${says && `: ${says}`}`,
      "aria-selected": String(node.module >= 0 && this.map.modules[node.module] === this.selected),
      "data-active": String(node.key === this.active), "data-culprit": String(isCulprit), title: label(node.key),
      ...(fold ? { "aria-expanded": String(isOpen) } : {}),
    },
    make("span", { class: "fold" }, fold),
    make("span", { class: "name" }, isCulprit ? `➤ ${name}` : name),
    isFolded ? make("span", { class: "size" }, troubled ? `${number(troubled)} of ${number(node.size)}` : number(node.size)) : "",
    islands ? make("span", { class: "island" }, "f32") : "",
    make("span", { class: "sign", "data-reason": trouble?.key ?? "" }, trouble?.sign ?? ""));
    item.style.top = `${index * ROW}px`;
    item.style.setProperty("--depth", String(depth));
    return item;
  }

  /** The row and the column of the cells that a pointer is at. */
  at(event) {
    const box = byId("map-cells").getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top + byId("map-scroll").scrollTop) / ROW);
    return { row, column: Math.floor((event.clientX - box.left) / columnWidth(this.width, this.map.columns.length, this.widest)) };
  }

  /** Say what stands in a cell. */
  point({ row, column }) {
    const [shown, at] = [this.rows[row], this.map?.columns[column]];
    if (!shown || !at || shown.cells === null) {
      setText(byId("map-cell"), this.hint);
      return;
    }
    const { words } = this.map.codes[shown.cells[column]];
    const of = shown.isFolded ? `${label(shown.node.key)}, the worst of ${number(shown.node.size)} modules` : label(shown.node.key);
    const detail = shown.isFolded ? "" : this.detail(shown.node.key, column);
    setText(byId("map-cell"), `${of} · ${this.map.asked ? PRODUCTS[at] ?? at : steps(at)} · ${words}${detail}`);
  }

  /** What is known of a cell of what was asked for, besides its colour. */
  detail(module, column) {
    const detail = this.map.details?.[module]?.[column];
    return detail ? `, ${detail}` : "";
  }

  /** The cells of a module in words, if what was asked for is shown: what they say under a pointer. */
  cellsInWords(module) {
    const { asked, codes, columns, modules, rows } = this.map;
    const letters = asked ? rows[modules.indexOf(module)] : "";
    return columns.flatMap((name, column) => {
      const code = codes.find(({ letter }) => letters?.[column] === letter);
      return code && code.reason !== "none" ? [`${PRODUCTS[name] ?? name}: ${code.words}${this.detail(module, column)}`] : [];
    });
  }

  click(event) {
    const item = event.target.closest("li");
    if (item === null) return;
    this.choose(Number(item.dataset.row), event.target.closest(".fold") !== null);
  }

  /** Unfold or fold what holds others, select what is a module. */
  choose(index, onlyFold = false) {
    const row = this.rows[index];
    if (!row) return;
    this.active = row.node.key;
    if (row.isFolded || (row.isOpen && (onlyFold || row.node.module < 0))) this.toggle(row.node);
    else if (row.node.module >= 0) this.select(this.map.modules[row.node.module]);
    this.draw();
  }

  toggle(node) {
    this.unfolded = new Set(this.open);
    if (!this.unfolded.delete(node.key)) this.unfolded.add(node.key);
    this.fold();
  }

  key(event) {
    const index = this.rows.findIndex(({ node }) => node.key === this.active);
    const row = this.rows[index];
    if (!row) return;
    const moves = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: this.rows.length - 1, PageDown: index + 20, PageUp: index - 20 };
    if (event.key in moves) this.move(moves[event.key]);
    else if (event.key === "ArrowRight" && row.isFolded) this.toggle(row.node);
    else if (event.key === "ArrowRight" && row.isOpen) this.move(index + 1);
    else if (event.key === "ArrowLeft" && row.isOpen) this.toggle(row.node);
    else if (event.key === "ArrowLeft") this.move(this.rows.findIndex(({ node }) => node === row.node.parent));
    else if (event.key === "Enter" || event.key === " ") this.choose(index);
    else return;
    event.preventDefault();
  }

  /** Go to a row with the keyboard. */
  move(index) {
    const to = Math.max(0, Math.min(this.rows.length - 1, index));
    this.active = this.rows[to].node.key;
    const scroll = byId("map-scroll");
    scroll.scrollTop = Math.max((to + 1) * ROW - scroll.clientHeight, Math.min(to * ROW, scroll.scrollTop));
    this.draw();
  }

  /** Show the course of a module; null for none. */
  select(module) {
    this.selected = module;
    byId("map-course").hidden = module === null;
    this.draw();
    if (module !== null && this.wanted) this.askCourse(this.wanted).catch(() => {});
  }

  /** Unfold the way to a module, go there and select it. */
  reveal(module) {
    this.unfolded = new Set([...this.open, ...wayTo(this.tree, module).map(({ key }) => key)]);
    this.active = module;
    this.fold();
    this.move(this.rows.findIndex(({ node }) => node.key === module));
    this.select(module);
  }

  async askCourse(wanted) {
    const module = this.selected;
    if (module === null) return;
    const answer = await fetch(`${address(wanted)}&${new URLSearchParams({ module: module || ROOT })}`);
    const course = answer.ok ? await answer.json() : { words: ["No sample of this module is known."], charts: [] };
    if (module !== this.selected || wanted !== this.wanted) return;
    const island = this.sent.islands[module];
    const words = [...this.cellsInWords(module), ...course.words, ...(island ? [island] : [])];
    setText(byId("map-course-title"), label(module));
    rebuild(byId("map-words"), words, () => (words.length ? words : ["Nothing notable so far."]).map((line) => make("li", {}, line)));
    this.course.show(course);
  }

  /** The modules in trouble, in words: what the picture says, for those who do not see it. */
  tell() {
    const { worst, legend } = this.sent;
    const told = this.allTold ? worst.modules : worst.modules.slice(0, TOLD);
    const left = worst.modules.length - told.length + worst.more;
    byId("map-trouble").hidden = !told.length;
    rebuild(byId("map-worst"), told, () => told.map(([module, reason, words]) => {
      const { sign } = legend.find(({ key }) => key === reason);
      const button = make("button", { type: "button", class: "small", "data-key": module }, label(module));
      button.addEventListener("click", () => this.reveal(module));
      return make("li", {}, make("span", { class: "sign", "data-reason": reason, "aria-hidden": "true" }, sign), button, ` ${words}`);
    }));
    byId("map-more").hidden = this.allTold || !left;
    setText(byId("map-more"), `${number(left)} more`);
    byId("map-rest").hidden = !(this.allTold && worst.more);
    setText(byId("map-rest"), `and ${number(worst.more)} more`);
  }
}

/** The columns before which many more steps than usual were not measured. */
function breaksOf(columns) {
  const between = columns.slice(1).map(([first], i) => first - columns[i][0]);
  const usual = between.toSorted((a, b) => a - b)[Math.floor(between.length / 2)];
  return between.flatMap((steps, i) => (steps > MANY * usual ? [i + 1] : []));
}

/** How many of the modules of a node have a worst cell that `is` so. */
function count(node, is) {
  const own = node.module >= 0 && is(Math.max(0, ...node.own)) ? 1 : 0;
  return node.nodes.reduce((sum, inner) => sum + count(inner, is), own);
}

function address({ run, rank }) {
  return `map.json?${new URLSearchParams({ run, rank })}`;
}

function placed(element, left, toTheLeft = false) {
  element.style.left = `${left}px`;
  if (toTheLeft) element.style.transform = "translateX(-100%)";
  return element;
}

/** Look up colours of the theme in use. */
function colours() {
  const probe = make("span");
  byId("map").append(probe);
  const found = new Map();
  queueMicrotask(() => probe.remove());
  return (name) => {
    if (!found.has(name)) {
      probe.style.color = `var(${name})`;
      found.set(name, getComputedStyle(probe).color);
    }
    return found.get(name);
  };
}

function showLegend({ legend, culprit, islands, asked }) {
  const any = Object.keys(islands).length > 0;
  const columns = COLUMNS[asked] ?? "Each column is one or more samples. A gap between columns is many steps that were not measured.";
  rebuild(byId("map-legend"), [legend, culprit !== undefined, any], () => [
    ...legend.map(({ key, sign, word, meaning }) => make("li", {}, make("span", { class: "cell", "data-reason": key, "aria-hidden": "true" }),
      sign && !asked ? make("span", { class: "sign", "data-reason": key, "aria-hidden": "true" }, `${sign} `) : "", make("b", {}, word), ` ${meaning}`)),
    make("li", { class: "quiet" }, columns),
    ...(any ? [make("li", {}, make("span", { class: "island", "aria-hidden": "true" }, "f32"), make("b", {}, "float32 island"), " arithmetic in float32 although autocast is used")] : []),
    ...(culprit ? [make("li", {}, make("b", { class: "culprit" }, "➤ culprit"), ` ${culprit.words}`)] : []),
  ]);
}
