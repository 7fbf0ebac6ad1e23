// The state of the scheduler, by long polling; a hidden page does not poll.

import { ask } from "./dom.js";

const PAUSE = 250; // between two questions, so that a busy scheduler costs a few answers a second
const SAMPLES = 240;
const ROWS = 5000;

class Live extends EventTarget {
  /** The last answer, or null. */
  now = null;
  /** The newest first, up to a limit. */
  decisions = [];
  /** How many decisions were too many to list. */
  missed = 0;
  /** { time, rate, median, slowest } of each answer. */
  samples = [];
  cluster = null;
  fill = new Uint8Array();
  resource = "cpu";
  problem = "connecting…";
  #interrupt = new AbortController();

  async start() {
    for (;;) {
      await visible();
      try {
        await this.#ask();
        this.#report("");
        await sleep(PAUSE);
      } catch (error) {
        if (error.name === "AbortError") continue;
        this.#report(`No answer from the scheduler (${error.message}); retrying.`);
        await sleep(2000);
      }
    }
  }

  show(resource) {
    this.resource = resource;
    if (this.now) this.now.state = "";
    this.#interrupt.abort();
  }

  async #ask() {
    const { run, number: after, state } = this.now ?? {};
    this.#interrupt = new AbortController();
    const { signal } = this.#interrupt;
    const answer = await ask("live", { run, after, state, resource: this.resource }, { signal });
    if (answer.layout && answer.layout !== this.cluster?.layout) {
      this.cluster = await ask("cluster");
      this.dispatchEvent(new Event("layout"));
    }
    this.#take(answer);
    this.dispatchEvent(new Event("news"));
  }

  #take(answer) {
    const before = this.now;
    const isNew = before?.run !== answer.run;
    if (isNew) {
      this.decisions = [];
      this.missed = 0;
    }
    this.decisions = answer.decisions.concat(this.decisions).slice(0, ROWS);
    this.missed += answer.missed;
    if (before && !isNew) {
      const seconds = Math.max(answer.time - before.time, 0.05);
      const { time, median, slowest } = answer;
      this.samples.push({ time, rate: (answer.number - before.number) / seconds, median, slowest });
      this.samples.splice(0, this.samples.length - SAMPLES);
    }
    const text = atob(answer.fill);
    this.fill = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    this.now = answer;
  }

  #report(problem) {
    if (problem !== this.problem) {
      this.problem = problem;
      this.dispatchEvent(new Event("problem"));
    }
  }

  /** Decisions per second over the last seconds. */
  get rate() {
    const recent = this.samples.filter((each) => each.time > (this.now?.time ?? 0) - 5);
    return recent.length ? recent.reduce((sum, each) => sum + each.rate, 0) / recent.length : 0;
  }

  /** The last sample that has decisions in it. */
  get latency() {
    return this.samples.findLast((each) => each.median !== null) ?? this.now ?? {};
  }
}

export const live = new Live();

function sleep(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true });
  });
}
