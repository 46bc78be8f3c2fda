// The runs to choose from: one row each, in the order that was chosen, found by a part of a name.

import { byId, make, setAttribute, setText } from "./dom.js";
import { bring, stopAt, walk } from "./keys.js";
import { level } from "./view.js";
import { count, moment, number, span } from "./words.js";

const ORDER = "ampwatch-runs-order"; // where the choice is remembered
const MIN_TO_SEARCH = 5; // fewer are read at once
const NARROW = matchMedia("(max-width: 900px)");
const ENDED = ["finished", "failed"];

export class Runs {
  /** @param {(name: string) => void} onSelect called with the run that was chosen */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.rows = new Map(); // by the name of the run
    this.order = localStorage.getItem(ORDER) === "newest" ? "newest" : "worst";
    this.list = byId("runs-list");
    this.box = byId("runs-box");
    walk(this.list);
    for (const button of document.querySelectorAll("[name=runs-order]")) {
      button.checked = button.value === this.order;
      button.addEventListener("change", () => this.sort(button.value));
    }
    byId("runs-search").addEventListener("input", () => this.draw());
    // Where there is room the list is always open; on a phone it is folded until it is wanted.
    const fold = () => { this.box.open = !NARROW.matches; };
    NARROW.addEventListener("change", fold);
    fold();
  }

  sort(order) {
    this.order = order;
    localStorage.setItem(ORDER, order);
    this.held = null;
    this.draw();
  }

  /** Show the runs; nothing to choose with one run. `now` is the daemon's clock. */
  show(runs, selected, now) {
    Object.assign(this, { runs, selected, now });
    this.draw();
  }

  draw() {
    if (!this.runs) return;
    const names = Object.keys(this.runs);
    byId("runs").hidden = names.length < 2;
    byId("runs-tools").hidden = names.length < MIN_TO_SEARCH;
    const about = new Map(names.map((name) => [name, aboutRun(this.runs[name])]));
    this.place(this.sorted(about));
    const found = this.search(about);
    for (const [name, row] of this.rows) this.fill(row, name, about.get(name));
    stopAt(this.list, this.list.contains(document.activeElement) ? document.activeElement : this.rows.get(this.selected));
    if (this.brought !== this.selected) bring(this.list, this.rows.get(this.selected));
    this.brought = this.selected;
    setText(byId("runs-count"), this.words(names.length, found));
    setText(byId("runs-summary"), `${count(names.length, "run")}, showing ${this.selected}`);
  }

  /** The names in their order. It stays as it is while the pointer is on the list: no row moves away from it. */
  sorted(about) {
    const newest = (a, b) => about.get(b).started - about.get(a).started;
    const worst = (a, b) => this.runs[a].badness - this.runs[b].badness;
    const byOrder = this.order === "newest" ? newest : (a, b) => worst(a, b) || newest(a, b);
    const held = this.list.matches(":hover") ? this.held : null;
    const at = (name) => held?.get(name) ?? Infinity;
    const names = [...about.keys()].sort((a, b) => (at(a) === at(b) ? byOrder(a, b) : at(a) - at(b)));
    this.held = new Map(names.map((name, i) => [name, i]));
    return names;
  }

  /** Put the rows into this order; what has its place already is not touched, and keeps the focus. */
  place(names) {
    for (const [name, row] of this.rows) {
      if (name in this.runs) continue;
      row.remove();
      this.rows.delete(name);
    }
    const there = this.list.children;
    names.forEach((name, i) => {
      const row = this.rows.get(name) ?? this.add(name);
      if (there[i] !== row) this.list.insertBefore(row, there[i] ?? null);
    });
  }

  add(name) {
    const row = make("button", { type: "button", role: "option", tabindex: "-1", "data-key": name },
      make("span", { class: "name" }, name), level("starting"), make("span", { class: "since" }));
    row.addEventListener("click", () => {
      if (NARROW.matches) {
        this.box.open = false;
        byId("runs-summary").focus();
      }
      this.onSelect(name);
    });
    this.rows.set(name, row);
    return row;
  }

  fill(row, name, about) {
    const run = this.runs[name];
    const [, word, since] = row.children;
    if (word.dataset.level !== run.level) word.replaceWith(level(run.level));
    const whose = this.whose(about);
    const from = moment(about.started, this.now);
    const when = about.hasEnded ? `${from}, ran ${span(about.lastSeen - about.started)}` : `since ${from}`;
    setText(since, [when, ...(about.ranks > 1 ? [count(about.ranks, "rank")] : []), ...whose].join(" · "));
    const title = [run.sentence, ...whose].join("\n");
    if (row.title !== title) row.title = title;
    setAttribute(row, "aria-selected", String(name === this.selected));
  }

  /** User and host of a run, where they tell runs apart. */
  whose({ users, hosts }) {
    const told = this.several.users ? [users.join(", ")] : [];
    if (this.several.hosts) told.push(hosts.length > 2 ? `${number(hosts.length)} hosts` : hosts.join(", "));
    return told;
  }

  /** Hide the runs that were not searched for; how many are left. */
  search(about) {
    const every = [...about.values()];
    this.several = {
      users: new Set(every.flatMap(({ users }) => users)).size > 1,
      hosts: new Set(every.flatMap(({ hosts }) => hosts)).size > 1,
    };
    const parts = byId("runs-tools").hidden ? [] : byId("runs-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const [name, { users, hosts }] of about) {
      const text = parts.length ? [name, ...users, ...hosts].join(" ").toLowerCase() : "";
      const isFound = parts.every((part) => text.includes(part));
      this.rows.get(name).hidden = !isFound;
      found += isFound;
    }
    this.list.hidden = found === 0;
    return found;
  }

  words(all, found) {
    if (found === all) return this.counted();
    if (found) return `${number(found)} of ${count(all, "run")}`;
    return `None of ${count(all, "run")} has this in its name, its user or its host.`;
  }

  /** How many runs are in which state, the worst first. */
  counted() {
    const levels = new Map();
    for (const { level: word, badness } of Object.values(this.runs)) {
      levels.set(word, { badness, runs: (levels.get(word)?.runs ?? 0) + 1 });
    }
    const told = [...levels].sort(([, a], [, b]) => a.badness - b.badness);
    return told.map(([word, { runs }]) => `${number(runs)} ${word}`).join(", ");
  }
}

/** What the ranks of a run say of it together. Times in s since the epoch. */
export function aboutRun(run) {
  const ranks = Object.values(run.ranks);
  return {
    ranks: run.world_size,
    users: run.users,
    hosts: run.hosts,
    started: ranks.reduce((first, rank) => Math.min(first, rank.started), Infinity),
    lastSeen: ranks.reduce((last, rank) => Math.max(last, rank.last_seen), 0),
    hasEnded: ranks.every((rank) => ENDED.includes(rank.state)),
  };
}

/** When a run began and how long ago that is, or for how long it ran. */
export function beganWhen({ started, lastSeen, hasEnded }, now) {
  const long = hasEnded ? `ran ${span(lastSeen - started)}` : `${span(now - started)} ago`;
  return `began ${moment(started, now)}, ${long}`;
}
