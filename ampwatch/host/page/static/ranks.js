// The ranks of a run: a card for each of a few, a strip of cells for many. One of them is drawn below.

import { byId, make, rebuild, setAttribute, setText } from "./dom.js";
import { bring, stopAt, walk } from "./keys.js";
import { level } from "./view.js";
import { SYMBOLS, number, span } from "./words.js";

const MAX_CARDS = 16; // more do not fit on a screen beside what they are about
const CAUSE_SIGN = "➤"; // of the one rank whose end led to the others
const IN_GROUP = 8; // cells that stand together: a machine often has as many

export class Ranks {
  /** @param {(rank: string) => void} onSelect called with the rank that was chosen */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.list = byId("ranks");
    this.cells = new Map(); // of the strip, by the number of the rank
    this.pointed = null; // the rank that pointer or keyboard is at
    walk(this.list);
    this.list.addEventListener("click", (event) => {
      const key = keyAt(event.target);
      if (key !== undefined) this.onSelect(key);
    });
    for (const name of ["pointerover", "focusin"]) this.list.addEventListener(name, (event) => this.point(keyAt(event.target)));
    for (const name of ["pointerleave", "focusout"]) this.list.addEventListener(name, () => this.point(undefined));
  }

  /** Show the heartbeat of every rank. `now` is the daemon's clock. */
  show(run, selected, now) {
    const ranks = Object.entries(run.ranks);
    const front = ranks.reduce((most, [, rank]) => Math.max(most, rank.step ?? 0), 0);
    Object.assign(this, { run, selected, beatOf: (rank) => beat(rank, front, now) });
    const elsewhere = run.world_size - ranks.length;
    const absent = `; ${number(elsewhere)} of ${number(run.world_size)} ranks are not on this machine`;
    byId("ranks-box").hidden = run.world_size === 1; // the headline is about it
    setText(byId("ranks-title"), `Heartbeat${elsewhere > 0 ? absent : ""}`);
    const isStrip = ranks.length > MAX_CARDS;
    sentence(byId("ranks-counts"), ranks.length > 1 ? run.counts : "");
    sentence(byId("ranks-worst"), isStrip ? run.worst : ""); // a card says it itself
    if (this.list.classList.toggle("strip", isStrip)) this.showStrip(ranks);
    else this.showCards(ranks);
    this.showPointed();
  }

  showCards(ranks) {
    this.cells.clear();
    setAttribute(this.list, "role", "group");
    rebuild(this.list, ranks.map(([key, rank]) => [key, rank.level, rank.part]), () => ranks.map(([key, rank]) => {
      const beatOf = make("span", { class: "beat" });
      return make("button", { type: "button", "data-key": key }, make("span", { class: "name" }, `rank ${key}`), level(stateOf(rank), rank.level), beatOf);
    }));
    ranks.forEach(([key, rank], i) => {
      const card = this.list.children[i];
      setAttribute(card, "aria-pressed", String(key === this.selected));
      setText(card.querySelector(".beat"), this.beatOf(rank));
    });
  }

  /** Every second for hundreds of ranks: only the cells whose state has changed are touched. */
  showStrip(ranks) {
    setAttribute(this.list, "role", "listbox");
    rebuild(this.list, ["strip", ...ranks.map(([key]) => key)], () => this.strip(ranks.map(([key]) => key)));
    for (const [key, rank] of ranks) {
      const cell = this.cells.get(key);
      const told = `rank ${key}: ${stateOf(rank)}`;
      if (cell.getAttribute("aria-label") !== told) {
        cell.dataset.level = rank.level;
        cell.setAttribute("aria-label", told);
        cell.textContent = rank.part ? CAUSE_SIGN : SYMBOLS[rank.level];
      }
    }
    const selected = this.cells.get(this.selected);
    if (selected.getAttribute("aria-selected") === "true") return;
    this.list.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    selected.setAttribute("aria-selected", "true");
    bring(this.list, selected);
    if (!this.list.contains(document.activeElement)) stopAt(this.list, selected);
  }

  strip(keys) {
    this.cells.clear();
    const groups = new Map();
    for (const key of keys) {
      const first = Math.floor(key / IN_GROUP) * IN_GROUP;
      if (!groups.has(first)) groups.set(first, make("div", { class: "machine" }, make("span", { class: "from", "aria-hidden": "true" }, String(first))));
      const cell = make("button", { type: "button", role: "option", tabindex: "-1", "aria-selected": "false", "data-key": key });
      this.cells.set(key, cell);
      groups.get(first).append(cell);
    }
    return [...groups.values()];
  }

  point(key) {
    this.pointed = key ?? null;
    this.showPointed();
  }

  /** Say more of one cell: the one that is pointed at, or the one that is selected. */
  showPointed() {
    const line = byId("ranks-beat");
    line.hidden = !this.cells.size;
    if (line.hidden) return;
    const key = this.pointed in this.run.ranks ? this.pointed : this.selected;
    const rank = this.run.ranks[key];
    const words = `rank ${key}, ${stateOf(rank)}: ${this.beatOf(rank)}`;
    setText(line, words);
    if (key === this.pointed) setAttribute(this.cells.get(key), "title", words);
  }
}

/** The state of a rank, and its part in how its job ended. */
function stateOf({ level: word, part }) {
  return part ? `${word}, ${part}` : word;
}

function keyAt(target) {
  return target.closest("[data-key]")?.dataset.key;
}

function sentence(line, text) {
  line.hidden = !text;
  setText(line, text);
}

function beat(rank, front, now) {
  const age = `${span(now - rank.last_seen)} ago`;
  if (rank.step === undefined) return `no step yet, started ${age}`;
  const behind = front - rank.step;
  return `step ${number(rank.step)}, ${age}${behind > 1 ? `, ${number(behind)} behind` : ""}`;
}
