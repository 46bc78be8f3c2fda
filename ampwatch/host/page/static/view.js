// The words, lists and tables of the page. Data becomes text only, never markup.

import { byId, make, rebuild, setText } from "./dom.js";
import { permalink } from "./links.js";
import { SKIPS, SYMBOLS, number, span } from "./words.js";

const NO_NEWS = "It ends by itself when nothing is left to watch: start training, or run `ampwatch daemon`."
  + " This page reconnects by itself and keeps the last state.";
const NO_TOKEN = "Only the user of the daemon can read this page: open the address that `ampwatch url` prints.";

const TRIED = "✓ tried";

/** A state or severity: its sign and its word, or more of it in `words`, in its colour. */
export function level(words, word = words) {
  return make("span", { class: "level", "data-level": word }, `${SYMBOLS[word]} ${words}`);
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

/** Show the verdict on a run in four lines, and say it aloud when it changes. */
export function showHeadline(name, run) {
  const { state, cause, where, remedy, is_tried: isTried } = run.headline;
  setText(byId("run-name"), name);
  const word = byId("run-level");
  byId("headline").dataset.level = word.dataset.level = run.level;
  setText(word, `${SYMBOLS[run.level]} ${run.level}`);
  setText(byId("run-since"), state.slice(run.level.length)); // a state begins with its level
  setText(byId("run-cause"), cause);
  setText(byId("run-where"), where);
  byId("run-tried").hidden = !isTried;
  setText(byId("run-tried"), TRIED);
  setText(byId("run-advice"), remedy);
  setText(byId("run-sentence"), run.sentence);
  byId("run-all-advice").hidden = !run.advice;
  setText(byId("run-all-advice"), run.advice && `What to change: ${run.advice}`);
  setText(document.querySelector("title"), `${SYMBOLS[run.level]} ${name} ${run.level} · ampwatch`);
  const announcement = byId("announcement");
  if (announcement.dataset.state === `${name} ${run.level}`) return;
  announcement.dataset.state = `${name} ${run.level}`;
  setText(announcement, `${name} ${state}: ${cause}. ${remedy}`);
}

/** Link to the dashboard of a run, and to a silence for its alerts, where the operator has said where they are. */
export function showLinks(run) {
  const there = Object.entries(run.links).filter(([words]) => words !== "its page");
  byId("run-links").hidden = !there.length;
  rebuild(byId("run-links"), there, () => there.flatMap(([words, href], i) => [i ? " · " : "", make("a", { href }, words)]));
}

/** Show the figures of a rank that are known. */
export function showFigures(rank) {
  const known = Object.entries(rank.figures).filter(([, [, , isKnown]]) => isKnown);
  byId("figures").hidden = !known.length;
  rebuild(byId("figures"), known, () => known.map(([title, [figure, note]]) => (
    make("div", {}, make("dt", {}, title), make("dd", { class: "figure" }, figure), make("dd", { class: "note" }, note)))));
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

/** Show the findings of a rank, worst first: one line each, which unfolds; symptoms in their root. */
export function showFindings(rank, glossary) {
  const { stories, findings } = rank; // the daemon says in which order: the same as in reports
  const list = byId("findings");
  list.hidden = !stories.length;
  byId("no-findings").hidden = stories.length > 0;
  const unfolded = new Set([...list.querySelectorAll("details[open]")].map((row) => row.id));
  rebuild(list, [stories, findings], () => told(stories).map(([key, symptoms]) => {
    const rows = symptoms.map((one) => findingRow(one, findings, glossary, [], unfolded));
    return findingRow(key, findings, glossary, rows, unfolded);
  }));
}

/** Roots with the keys of what each explains. */
function told(stories) {
  const found = [];
  for (const [key, depth] of stories) {
    if (depth && found.length) found.at(-1)[1].push(key);
    else found.push([key, []]);
  }
  return found;
}

function findingRow(key, findings, glossary, symptoms, unfolded) {
  const f = findings[key];
  const also = symptoms.length ? `, explains ${number(symptoms.length)} more` : "";
  const line = make("summary", { "data-key": key },
    level(f.severity),
    make("code", { class: "kind" }, f.kind),
    make("span", { class: "where" }, f.place),
    make("span", { class: "since" }, `since step ${number(f.first_step)}`),
    make("span", { class: "steps" }, `in ${number(f.count)} ${f.count === 1 ? "step" : "steps"}${f.current ? "" : `, ${over(f)}`}${also}`));
  const row = make("details", { id: key, "data-kind": f.kind, "data-current": f.current }, line, findingDetails(key, findings, glossary));
  row.lastChild.append(...symptoms);
  row.open = unfolded.has(key);
  return row;
}

/** That a finding is over, and since when if that was seen. */
function over({ last_seen: words }) {
  return words.startsWith("over") ? words : "over";
}

function findingDetails(key, findings, glossary) {
  const f = findings[key];
  const place = [f.op && `op ${f.op}`, f.dtype, f.phase, f.source, f.last_seen];
  const box = make("div", { class: "details" }, make("p", { class: "summary" }, f.summary),
    make("p", { class: "place" }, place.filter(Boolean).join(" · ")));
  const cause = f.root ? undefined : findings[f.caused_by];
  if (cause) box.prepend(make("p", { class: "place" }, `↳ explained by ${cause.kind} (${cause.place})`));
  const advice = make("p", { class: "advice" }, make("span", { class: "now" }, "What to change:"), " ");
  if (f.tried.some((tried) => tried.cures)) advice.append(make("span", { class: "tried" }, TRIED), " ");
  advice.append(f.advice);
  if (f.advice) box.append(advice);
  if (f.change.length) box.append(difference(f));
  if (Object.keys(f.evidence_words).length) box.append(pairs("evidence", Object.entries(f.evidence_words).map(([name, words]) => [name, words])));
  if (f.terms.length) box.append(pairs("terms", f.terms.map((term) => [term, glossary[term]])));
  const about = f.page ? [make("a", { href: `.${f.page}` }, `More about ${f.kind}`), " · "] : [];
  const last = make("p", { class: "place" }, ...about, permalink(key));
  box.append(last);
  if (navigator.clipboard) last.append(" · ", copyButton(f, key)); // only where the page came safely
  return box;
}

/** The remedy as a difference of the line of the program at which it helps. */
function difference({ change, source }) {
  const lines = change.map((line) => make(line.startsWith("-") ? "del" : "ins", {}, `${line}\n`));
  return make("div", { class: "change" }, make("p", { class: "place" }, `The change, in ${source}:`), make("pre", { tabindex: "0" }, ...lines));
}

/** A button that copies a finding as text, to be pasted into a message. */
function copyButton(f, key) {
  const button = make("button", { type: "button", class: "small", "aria-label": `copy ${f.kind} in ${f.place}` }, "copy");
  button.addEventListener("click", async () => {
    const link = document.getElementById(key).querySelector("a.permalink")?.href ?? location.href;
    const text = [`${f.severity}: ${f.kind} in ${f.place}, since step ${f.first_step}`, f.summary, f.advice && `What to change: ${f.advice}`, ...f.change, link];
    try {
      await navigator.clipboard.writeText(text.filter(Boolean).join("\n"));
    } catch {
      return; // the browser was told not to
    }
    setText(button, "copied");
  });
  return button;
}

function pairs(name, entries) {
  return make("dl", { class: name }, ...entries.map(([term, text]) => make("div", {}, make("dt", {}, term), make("dd", {}, text))));
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

/** Say what of the address is not there; a run that has ended may be in the list of those. */
export function showAmiss(sentences, hasEnded) {
  byId("amiss-box").hidden = !sentences.length;
  byId("amiss-ended").hidden = !hasEnded;
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

const UNFOLDED = "ampwatch-unfolded";

/** Unfold what was unfolded when the page was last seen; at first the map alone. */
export function rememberFolds() {
  const folds = [...document.querySelectorAll(".fold")];
  const name = (fold) => fold.parentElement.id;
  const open = (localStorage.getItem(UNFOLDED) ?? "map").split(" ");
  for (const fold of folds) {
    fold.open = open.includes(name(fold));
    fold.addEventListener("toggle", () => localStorage.setItem(UNFOLDED, folds.filter((one) => one.open).map(name).join(" ")));
  }
}

/** On paper nothing can be unfolded. */
export function unfoldForPrint() {
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("article details:not([open])")];
    for (const part of folded) part.open = true;
  });
  window.addEventListener("afterprint", () => { for (const part of folded) part.open = false; });
}
