// What the daemon says, kept up to date: one event stream, one state.

const RETRY_MS = 2000;
const UNAUTHORIZED = 401;
const SILENCE_MS = 10000; // the daemon speaks every second; a proxy may keep a dead stream open

/**
 * Apply a JSON merge patch (RFC 7396): null removes, objects merge, the rest replaces.
 * Objects of the result have no prototype, so that no name in the data means anything else.
 */
export function merge(target, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const merged = isState(target) ? target : Object.create(null);
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete merged[name];
    else merged[name] = merge(merged[name], value);
  }
  return merged;
}

/** The cells of a row by the names of its columns. */
export function named(columns, cells) {
  return Object.fromEntries(columns.map((column, i) => [column, cells[i]]));
}

/** Rows by their first steps as objects, in the order of these. */
export function byStep(columns, rows) {
  return Object.entries(rows)
    .map(([first, cells]) => ({ first: Number(first), ...named(columns, cells) }))
    .sort((a, b) => a.first - b.first);
}

/** Whether everything about a rank is here: of those that nobody looks at the daemon sends one line. */
export function isWhole(rank) {
  return "series" in rank;
}

function isState(value) {
  return value !== null && typeof value === "object" && Object.getPrototypeOf(value) === null;
}

function queryOf({ run, rank, beside = null }) {
  const query = new URLSearchParams();
  if (run !== null) query.set("run", run);
  if (rank !== null) query.set("rank", rank);
  if (beside) query.set("with", `${beside.run}:${beside.rank}`);
  return query.size ? `?${query}` : "";
}

/** Follows the daemon's event stream for as long as the page is open, through its restarts. */
export class Stream {
  /**
   * @param {{run: ?string, rank: ?string}} shown as in `look`
   * @param {(state: object) => void} onState called with the whole state after every event
   * @param {(live: boolean, heardAt: number, wantsToken: boolean) => void} onConnection called when
   *   news stop or come back; heardAt is the time of the last news in ms since the epoch, 0 for none;
   *   wantsToken if the daemon is there and this browser may not read it (any more)
   */
  constructor(shown, onState, onConnection) {
    this.query = queryOf(shown);
    this.onState = onState;
    this.onConnection = onConnection;
    this.heardAt = 0;
    this.state = null;
    this.open();
    setInterval(() => this.checkSilence(), 1000);
  }

  /**
   * Have everything about a rank, and about the `rank` of the `run` beside it if there is one; what is null the
   * daemon chooses as the page does. It comes with the next event.
   */
  look(shown) {
    const query = queryOf(shown);
    if (query === this.query) return;
    this.query = query;
    this.source.close();
    this.open();
  }

  open() {
    clearTimeout(this.retry);
    this.source?.close(); // or an old stream would write into the state of the new one
    this.openedAt = Date.now();
    this.source = new EventSource(`events${this.query}`);
    this.source.addEventListener("full", (event) => this.hear(null, event));
    this.source.addEventListener("delta", (event) => this.hear(this.state, event));
    this.source.addEventListener("error", () => this.lose());
  }

  hear(base, event) {
    this.state = merge(base, JSON.parse(event.data));
    this.heardAt = Date.now();
    this.onConnection(true, this.heardAt, false);
    this.onState(this.state);
  }

  /** The browser reconnects by itself, unless the stream was refused for good. */
  lose() {
    this.onConnection(false, this.heardAt, false);
    if (this.source.readyState !== EventSource.CLOSED) return;
    this.askWhy();
    this.reopenLater();
  }

  /** A stream that was refused does not say why; another answer does. */
  askWhy() {
    const refused = (answer) => {
      // With a password alone the browser itself asks for that.
      const wanted = answer.headers.get("WWW-Authenticate") ?? "";
      const wantsToken = answer.status === UNAUTHORIZED && wanted.includes("Bearer");
      if (wantsToken) this.onConnection(false, this.heardAt, true);
    };
    fetch("sd", { method: "HEAD" }).then(refused, () => {});
  }

  reopenLater() {
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.open(), RETRY_MS);
  }

  checkSilence() {
    if (this.source.readyState !== EventSource.OPEN) return;
    if (Date.now() - Math.max(this.openedAt, this.heardAt) < SILENCE_MS) return;
    this.source.close();
    this.lose();
  }
}
