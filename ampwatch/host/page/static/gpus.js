// The GPUs of this machine, as NVML tells: one row each, and in words what is absent.

import { byId, make, rebuild, setText } from "./dom.js";
import { number, percent, seconds, si, span } from "./words.js";

const THROTTLES = {
  sw_power_cap: "power limit", sync_boost: "sync boost", board_limit: "board limit", reliability: "reliability",
  thermal: "heat", sw_thermal: "heat", hw_thermal: "heat (hardware)", hw_power_brake: "power brake",
};

/** Columns: title, explanation, the feature that must be there, and the text from its parts. */
const COLUMNS = [
  { title: "Busy", feature: "utilization", hint: "Share of the time in which any kernel ran", show: (v) => percent(v[""]) },
  { title: "Tensor pipe", feature: "tensor_active", hint: "Share of cycles in which a tensor pipe was active; about 75 % is a full load", show: (v) => percent(v.any) },
  { title: "Memory", feature: "memory", hint: "In use, of what is installed", show: (v) => `${si(v.used, "B")} of ${si(v.capacity, "B")}` },
  { title: "Power", feature: "power", hint: "Now, and the limit", show: (v, values) => `${watts(v[""])}${values.power_limit ? ` of ${watts(values.power_limit[""])}` : ""}` },
  { title: "SM clock", feature: "clock", hint: "Now, and the highest", show: (v, values) => `${si(v.sm, "Hz")}${values.clock_max?.sm ? ` of ${si(values.clock_max.sm, "Hz")}` : ""}` },
  { title: "Temperature", feature: "temperature", hint: "Of the GPU", show: (v) => `${Math.round(v.gpu)} °C` },
  { title: "Held down", feature: "throttle", hint: "Time with reduced clocks so far, by reason", show: throttled },
];

const watts = (value) => `${Math.round(value)} W`;

const TOLD = "on this machine, as NVML reports";
const MADE_UP = "simulated to try this page: nothing is read from this machine";

/** Show the GPUs; those that `rank` of `run` computes on stand out. `now` is the daemon's time. */
export function showGpus(gpus, run, rank, now) {
  const known = Object.entries(gpus.gpus).sort(([, a], [, b]) => a.index - b.index);
  const none = known.length ? "" : `No GPU found: ${gpus.host}.`;
  const synthetic = known.some(([, gpu]) => gpu.synthetic);
  setText(byId("gpus-sentence"), none || `${number(known.length)} ${synthetic ? MADE_UP : TOLD}`);
  byId("gpus-box").hidden = !known.length;
  const head = () => ["GPU", ...COLUMNS.map(({ title }) => title), "Trouble", "Used by"].map(
    (title, i) => make("th", { scope: "col", ...(COLUMNS[i - 1] ? { title: COLUMNS[i - 1].hint } : {}), ...(title === "Trouble" ? { title: TROUBLES } : {}) }, title),
  );
  rebuild(document.querySelector("#gpus thead tr"), "once", head);
  rebuild(document.querySelector("#gpus tbody"), [gpus, run, rank, Math.floor(now / 60)], () => known.flatMap(([, gpu]) => [
    row(gpu, gpus.reasons, `${gpu.index}`, gpu.name, trouble(gpu, gpus.reasons, now), run, rank),
    ...Object.entries(gpu.instances).map(([number_, instance]) => row(
      { ...gpu, values: instance.values, capabilities: {}, users: [] }, gpus.reasons, `${gpu.index}, instance ${number_}`,
      instance.profiles.join(", "), make("td", { class: "absent" }, "–"), run, rank,
    )),
  ]));
}

function row(gpu, reasons, name, words, troubles, run, rank) {
  const mine = gpu.users.some(([r, n]) => r === run && String(n) === rank);
  const users = gpu.users.map(([r, n, used]) => `${r} rank ${n}${used === null ? "" : ` (${si(used, "B")})`}`).join(", ");
  const title = make("th", { scope: "row" }, `GPU ${name}`, make("p", { class: "place" }, words));
  if (!gpu.up) title.append(make("p", { class: "level", "data-level": "critical" }, `✖ gone: ${reasons[gpu.gone]}`));
  return make("tr", { "data-selected": String(mine) }, title, ...COLUMNS.map((column) => cell(column, gpu, reasons)), troubles, make("td", {}, users || "no watched rank"));
}

/** A number, or why there is none. */
function cell({ feature, show }, gpu, reasons) {
  const values = gpu.values[feature];
  if (values) return make("td", {}, show(values, gpu.values));
  const reason = gpu.capabilities[feature];
  return make("td", { class: "absent" }, "–", make("p", { class: "place" }, reason ? reasons[reason] : ""));
}

const TROUBLES = "XID errors since the daemon started, uncorrected ECC errors, rows of memory that could not be replaced yet";

/** What has gone wrong in the hardware or its driver; "none" only where it would be known. */
function trouble({ xids, values: { ecc, remapped_rows: rows }, capabilities }, reasons, now) {
  const found = Object.entries(xids).map(([code, [count, seen]]) => `XID ${code}: ${number(count)} ×, ${count > 1 ? "the newest " : ""}${span(Math.max(0, now - seen))} ago`);
  if (ecc?.uncorrected) found.push(`${number(ecc.uncorrected)} uncorrected ECC errors`);
  if (rows?.pending) found.push("rows of memory are replaced at the next reset");
  if (rows?.failure) found.push("a row of memory could not be replaced");
  if (found.length) return make("td", {}, ...found.map((words) => make("p", { class: "level", "data-level": "warning" }, `▲ ${words}`)));
  const unheard = Object.entries({ xid: "XID errors", ecc: "ECC errors", remapped_rows: "remapped rows" })
    .filter(([feature]) => capabilities[feature] !== "ok")
    .map(([feature, words]) => `${words}: ${reasons[capabilities[feature]] ?? "not known"}`);
  const none = ["none", "none in the readings", "none in the readings", "not known"][unheard.length];
  return make("td", {}, none, ...unheard.map((words) => make("p", { class: "place" }, words)));
}

function throttled(values) {
  const held = Object.entries(values).filter(([, time]) => time > 0).sort(([, a], [, b]) => b - a);
  return held.length ? held.map(([why, time]) => `${seconds(time)} ${THROTTLES[why] ?? why}`).join(", ") : "never";
}
