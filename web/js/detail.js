// One graph: all that is known of it, and what can be done with it.

import * as client from "./client.js";
import { el, fill, iconButton } from "./dom.js";
import * as entries from "./entries.js";
import { bytes, has, t } from "./strings.js";

export class Detail {
  /** @param {object} heard `act(action, entry)`; `closed(id)`. */
  constructor({ act, closed }) {
    this.act = act;
    this.closed = closed;
    this.entry = null;
    this.more = null; // what the route tells beyond the entry
    this.enabled = true;
    this.element = el("aside.og-detail", { "aria-label": t("details"), hidden: true });
  }

  get id() {
    return this.entry?.id ?? null;
  }

  get isOpen() {
    return this.entry !== null;
  }

  setEnabled(enabled) {
    if (this.enabled === enabled) return;
    this.enabled = enabled;
    if (this.entry) this.#draw();
  }

  async open(entry) {
    const same = this.id === entry.id;
    this.entry = entry;
    if (!same) this.more = null;
    this.#draw();
    if (!same) this.element.querySelector("h3")?.focus();
    try {
      const { entry: newer, details } = await client.graph(entry.id);
      if (this.id !== entry.id) return;
      this.entry = newer;
      this.more = details;
      this.#draw();
    } catch (error) {
      if (this.id === entry.id && error instanceof client.RouteError) {
        this.more = { error: error.message };
        this.#draw();
      }
    }
  }

  close() {
    const { id } = this;
    this.entry = null;
    this.element.hidden = true;
    fill(this.element);
    this.closed(id);
  }

  #draw() {
    const { entry, more } = this;
    const focused = this.element.contains(document.activeElement) ? document.activeElement : null;
    const marked = focused?.dataset.action ?? (focused?.tagName === "H3" ? "h3" : null);
    const opened = new Set([...this.element.querySelectorAll("details[open]")].map((one) => one.dataset.part));
    this.element.hidden = false;
    const remedy = more?.remedy_code && has(`graphRemedies.${more.remedy_code}`) ? t(`graphRemedies.${more.remedy_code}`) : more?.remedy;
    const part = (name, ...body) => el("details", { "data-part": name, open: opened.has(name) }, el("summary", {}, t(`detail.${name}`)), body);
    fill(
      this.element,
      el(
        "header", {},
        iconButton(t("back"), "arrow-left", () => this.close(), { "data-action": "back" }),
        el("h3", { tabindex: "-1" }, entries.checkpoint(entry)),
        entries.stateChip(entry.state),
      ),
      (entry.reason || remedy) && el("div.og-reason", {}, entry.reason && el("p", {}, entry.reason.text), remedy && el("p", {}, el("strong", {}, t("reasons.what")), " ", remedy)),
      more?.error && el("div.og-reason", {}, el("p", {}, more.error)),
      el("div.og-actions", { role: "group", "aria-label": t("actionsName") }, entries.actions(entry, this.act, !this.enabled)),
      entries.pairs(entries.facts(entry)),
      more?.files?.length && part("files", el("ul.og-plain", {}, more.files.map((one) => el("li", {}, el("span", {}, one.name), el("span.og-size", {}, bytes(one.bytes)))))),
      more?.key && part("key", entries.pairs(Object.entries(more.key), (name) => name)),
    );
    if (marked) (this.element.querySelector(`[data-action="${marked}"]`) ?? this.element.querySelector("h3")).focus();
  }
}
