// The words, lists and tables of the page. Data becomes text only, never markup.

import { byId, make, rebuild, setText } from "/static/dom.js";
import { permalink } from "/static/links.js";
import { SKIPS, SYMBOLS, number, span } from "/static/words.js";

const NO_NEWS = "It ends by itself when nothing is left to watch: start training, or run `ampwatch daemon`."
  + " This page reconnects by itself and keeps what it has.";
const NO_TOKEN = "The daemon is its user's alone: open the address that `ampwatch url` prints.";

/** A state or severity: its sign and its word, in its colour. */
export function level(word) {
  return make("span", { class: "level", "data-level": word }, `${SYMBOLS[word]} ${word}`);
}

/** Show whether news arrive. */
export function showConnection({ live, heardAt, wantsToken }) {
  const connection = byId("connection");
  connection.dataset.state = live ? "live" : "gone";
  setText(connection, live ? "live" : "not connected");
  const gone = byId("gone");
  gone.hidden = live;
  if (live) return;
  const last = heardAt ? `last news ${span((Date.now() - heardAt) / 1000)} ago` : "no news yet";
  setText(gone, wantsToken ? `token wanted: ${last}. ${NO_TOKEN}` : `daemon gone: ${last}. ${NO_NEWS}`);
}

/** Show the state of a run in words, and say it aloud when it changes. */
export function showHeadline(name, run) {
  setText(byId("run-name"), name);
  const word = byId("run-level");
  word.dataset.level = run.level;
  setText(word, `${SYMBOLS[run.level]} ${run.level}`);
  setText(byId("run-sentence"), run.sentence);
  const advice = byId("run-advice");
  advice.hidden = !run.advice;
  setText(advice, run.advice && `What to change: ${run.advice}`);
  setText(document.querySelector("title"), `${SYMBOLS[run.level]} ${name} ${run.level} · ampwatch`);
  const announcement = byId("announcement");
  if (announcement.dataset.state === `${name} ${run.level}`) return;
  announcement.dataset.state = `${name} ${run.level}`;
  setText(announcement, `${name} ${run.level}: ${run.sentence}`);
}

/** Show the figures of a rank. */
export function showFigures(rank) {
  const cell = ([title, [figure, note]]) => make("div", {}, make("dt", {}, title),
    make("dd", { class: "figure" }, figure), make("dd", { class: "note" }, note));
  rebuild(byId("figures"), rank.figures, () => Object.entries(rank.figures).map(cell));
}

/** Say from where on the charts tell: a daemon that came late has not read the first steps. */
export function showHistory(series) {
  const first = Math.min(...Object.keys(series).map(Number));
  setText(byId("charts-title"), first > 0 && Number.isFinite(first) ? `History from step ${number(first)}` : "Since the start");
}

/** Show which marks stand for which skips. */
export function showLegend() {
  byId("legend").replaceChildren(...SKIPS.map((skip) => {
    const sign = make("span", { "aria-hidden": "true" }, skip.sign);
    sign.style.color = `var(${skip.colour})`;
    return make("li", {}, sign, ` ${skip.name}: ${skip.words}`);
  }));
}

/** Show the findings of a rank, worst first, each symptom under its root. */
export function showFindings(rank) {
  const any = Object.keys(rank.findings).length > 0;
  byId("findings").hidden = !any;
  byId("no-findings").hidden = any;
  const body = document.querySelector("#findings tbody");
  const { stories, findings } = rank; // the daemon says in which order: the same as in reports
  rebuild(body, [stories, findings], () => stories.map(([key, depth]) => findingRow(key, depth, findings)));
}

function findingRow(key, depth, findings) {
  const f = findings[key];
  const place = [f.place, f.op && `op ${f.op}`, f.dtype, f.phase, f.source].filter(Boolean).join(" · ");
  const evidence = Object.entries(f.evidence).map(([name, v]) => `${name} ${number(v)}`).join(", ");
  const what = make("td", { "data-title": "Finding" }, make("p", { class: "summary" }, f.summary));
  what.append(make("p", { class: "place" }, make("code", {}, f.kind), place && ` ${place}`));
  if (evidence) what.append(make("p", { class: "place" }, evidence));
  const cause = depth ? findings[f.caused_by] : undefined;
  if (cause) what.prepend(make("p", { class: "place" }, `↳ explained by ${cause.kind} (${cause.place})`));
  return make("tr", { "data-key": key, tabindex: "-1", "data-depth": Math.min(depth, 1), "data-current": f.current, "data-kind": f.kind },
    make("td", { "data-title": "Severity" }, level(f.severity)),
    what,
    make("td", { class: "count", "data-title": "Since step" }, number(f.first_step)),
    make("td", { class: "count", "data-title": "Last seen" }, number(f.last_step)),
    make("td", { class: "count", "data-title": "Steps" }, number(f.count)),
    make("td", { class: "advice", "data-title": "What to change" }, f.advice,
      make("p", { class: "place" }, ...(f.page ? [make("a", { href: f.page }, `More about ${f.kind}`), " · "] : []), permalink(key))));
}

/** Show what does not change about a rank. */
export function showFacts(rank) {
  const started = new Date(rank.started * 1000).toLocaleString();
  definitions(byId("facts"), { user: rank.user, host: rank.host, process: rank.pid, ampwatch: rank.version, started, ...rank.facts });
}

/** Show the rings that cannot be read, and why. */
export function showProblems(problems) {
  byId("problems-box").hidden = !Object.keys(problems).length;
  definitions(byId("problems"), problems);
}

function definitions(list, entries) {
  const line = ([term, text]) => make("div", {}, make("dt", {}, term), make("dd", {}, String(text)));
  rebuild(list, entries, () => Object.entries(entries).map(line));
}

/** Say what of the address is not there. */
export function showAmiss(sentences) {
  byId("amiss-box").hidden = !sentences.length;
  setText(byId("amiss"), sentences.join(" "));
}

/** Show the page for no run at all. */
export function showEmpty(empty) {
  byId("empty").hidden = !empty;
  byId("run").hidden = empty;
  if (empty) {
    byId("runs").hidden = true;
    setText(document.querySelector("title"), "no runs yet · ampwatch");
  }
}
