// What the gradients would lose in block-scaled formats: asked for by itself, while the panel is on the screen.

import { byId } from "./dom.js";

const REFRESH_MS = 5000; // blocks are measured no more often
const MAX_WAIT_MS = 20000; // for an answer; then the next round asks again
const ROOT = "(root)"; // how the daemon calls the module without a name in an address

export class Blocks {
  /** @param {(formats: {name: string, group: string, words: string}[]) => void} onNews */
  constructor(onNews) {
    this.onNews = onNews;
    this.wanted = null; // { run, rank, subject, module }; null for module: all gradients
    this.inView = false;
    new IntersectionObserver((entries) => {
      this.inView = entries.at(-1).isIntersecting;
      this.refresh();
    }).observe(byId("whatif"));
    setInterval(() => this.refresh(), REFRESH_MS);
  }

  /** Say whose losses are to be shown. */
  want(wanted) {
    const old = this.wanted;
    if (old !== null && ["subject", "module"].every((part) => old[part] === wanted[part])) return;
    this.wanted = wanted;
    this.onNews([]);
    this.refresh();
  }

  async refresh() {
    if (this.wanted === null || !this.inView || document.hidden || this.asking === this.wanted) return;
    const wanted = this.wanted;
    const { run, rank, module } = wanted;
    this.asking = wanted;
    try {
      const query = new URLSearchParams({ run, rank, ...(module === null ? {} : { module: module || ROOT }) });
      const answer = await fetch(`blocks.json?${query}`, { signal: AbortSignal.timeout(MAX_WAIT_MS) });
      if (answer.ok && wanted === this.wanted) this.onNews((await answer.json()).formats);
    } catch {
      // The daemon is away; the page says so at its top, and the next round asks again.
    } finally {
      if (this.asking === wanted) this.asking = null;
    }
  }
}
