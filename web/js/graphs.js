// The graphs that the server lists, page by page as they are looked at.

import * as client from "./client.js";

const PAGE = 100;

export class Graphs {
  /** @param {object} heard `changed()` after an answer; `failed(error)` when there is none. */
  constructor({ changed, failed }) {
    this.changed = changed;
    this.failed = failed;
    this.query = { state: "", search: "", sort: "used", order: "desc" };
    this.entries = []; // holes where nothing was asked yet
    this.total = null; // null until the first answer
    this.totals = null;
    this.revision = null;
    this.complete = true; // false while the server reads its folders for the first time
    this.asked = new Set();
    this.turn = 0; // answers to what was asked before a new query are dropped
  }

  at(index) {
    return this.entries[index] ?? null;
  }

  /** Ask with another filter or order, from the begin. */
  async ask(query = {}) {
    this.query = { ...this.query, ...query };
    this.asked = new Set();
    this.turn += 1;
    await this.#load([0], []);
  }

  /** Ask again for rows that are shown; what is shown stays until the answer is there. */
  async renew(first, last) {
    this.asked = new Set();
    this.turn += 1;
    await this.#load(pages(first, last), this.entries.slice());
  }

  /** Load what of these rows was not asked for yet. */
  need(first, last) {
    const missing = pages(first, last).filter((page) => !this.asked.has(page));
    if (missing.length && this.total !== null) void this.#load(missing, this.entries);
  }

  async #load(wanted, entries) {
    const turn = this.turn;
    for (const page of wanted) this.asked.add(page);
    try {
      const answers = await Promise.all(
        wanted.map((page) => client.graphs({ ...this.query, offset: page * PAGE, limit: PAGE })),
      );
      if (turn !== this.turn) return;
      const { total, totals, revision, complete = true } = answers.at(-1);
      answers.forEach((answer, at) => answer.entries.forEach((one, i) => (entries[wanted[at] * PAGE + i] = one)));
      entries.length = total;
      Object.assign(this, { entries, total, totals, revision, complete });
      this.changed();
    } catch (error) {
      if (turn !== this.turn) return;
      for (const page of wanted) this.asked.delete(page);
      this.failed(error);
    }
  }
}

function pages(first, last) {
  const found = [];
  for (let page = Math.floor(first / PAGE); page * PAGE < Math.max(last, first + 1); page += 1) found.push(page);
  return found;
}
