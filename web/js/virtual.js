// A list of any length of which only the visible rows exist.

import { el } from "./dom.js";

const SPARE = 6; // rows above and below what is visible

export class VirtualList {
  /**
   * @param {object} options
   *   label: the list's name for screen readers.
   *   row(index): the row's button, or null while its entry is not known yet.
   *   need(first, last): called with the rows that are shown, before they are.
   */
  constructor({ label, row, need }) {
    this.row = row;
    this.need = need;
    this.count = 0;
    this.rows = new Map(); // index -> li
    this.current = 0; // the row that the tab key reaches
    this.height = 64;
    this.list = el("ul.og-list", { role: "list", "aria-label": label });
    this.element = el("div.og-scroll", { tabindex: "-1", onscroll: () => this.draw(), onkeydown: (event) => this.#key(event) }, this.list);
    this.sizes = new ResizeObserver(() => this.#resized());
    this.sizes.observe(this.element);
  }

  close() {
    this.sizes.disconnect();
  }

  /** Show this many rows, all of them anew. */
  reset(count) {
    this.count = count;
    this.current = Math.min(this.current, Math.max(count - 1, 0));
    const focused = this.element.contains(document.activeElement);
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.list.style.height = `${count * this.height}px`;
    this.draw();
    if (focused && count) this.#hold();
  }

  /** Draw the rows that are visible now and drop the others. */
  draw() {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(Math.floor(scrollTop / this.height) - SPARE, 0);
    const last = Math.min(Math.ceil((scrollTop + (clientHeight || 800)) / this.height) + SPARE, this.count);
    if (last > first) this.need(first, last);
    for (const [index, row] of this.rows) {
      if ((index < first || index >= last) && !row.contains(document.activeElement)) {
        row.remove();
        this.rows.delete(index);
      }
    }
    for (let index = first; index < last; index += 1) {
      if (!this.rows.has(index)) this.#make(index);
    }
  }

  /** Put the focus on a row, after scrolling to it. */
  focus(index) {
    const top = index * this.height;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.element.scrollTop = top + this.height - clientHeight;
    this.#button(this.current)?.setAttribute("tabindex", "-1");
    this.current = index;
    this.draw();
    this.#hold();
  }

  #button(index) {
    return this.rows.get(index)?.querySelector("button") ?? null;
  }

  /** Have the current row keep the focus; the list has it while that row's entry is not known yet. */
  #hold() {
    if (!this.rows.has(this.current)) this.#make(this.current);
    const button = this.#button(this.current);
    button?.setAttribute("tabindex", "0");
    (button ?? this.element).focus({ preventScroll: true });
  }

  #make(index) {
    const button = this.row(index);
    button?.setAttribute("tabindex", index === this.current ? "0" : "-1");
    const row = el(
      "li",
      { "aria-setsize": this.count, "aria-posinset": index + 1, style: `transform:translateY(${index * this.height}px)` },
      button ?? el("div.og-skeleton", { "aria-hidden": "true" }),
    );
    // In the order of the list, which is the order in which screen readers read.
    const next = [...this.rows.keys()].filter((other) => other > index);
    this.list.insertBefore(row, next.length ? this.rows.get(Math.min(...next)) : null);
    this.rows.set(index, row);
  }

  #resized() {
    const height = Number.parseFloat(getComputedStyle(this.element).getPropertyValue("--og-row")) || 64;
    if (height !== this.height) {
      const at = this.element.scrollTop / this.height;
      this.height = height;
      this.reset(this.count);
      this.element.scrollTop = at * height;
    }
    this.draw();
  }

  #key(event) {
    const page = Math.max(Math.floor(this.element.clientHeight / this.height) - 1, 1);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.count, End: this.count }[event.key];
    if (step === undefined || !this.count || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.focus(Math.min(Math.max(this.current + step, 0), this.count - 1));
  }
}
