// The checkpoints of the model folders: which are ready, and which would compile.

import * as client from "./client.js";
import { chip } from "./entries.js";
import { el, fill } from "./dom.js";
import { ago, bytes, t } from "./strings.js";
import { VirtualList } from "./virtual.js";

const COLOURS = { ready: "good", partly: "warn", would_compile: "none", unknown: "none" };
const ORDER = ["ready", "partly", "would_compile"];

export class Models {
  /** @param {object} heard `failed(error)`; `chosen(name)`: the user wants to see a checkpoint's graphs. */
  constructor({ failed, chosen }) {
    this.failed = failed;
    this.chosen = chosen;
    this.models = [];
    this.counts = el("p.og-muted.og-counts", { "aria-live": "polite" });
    this.list = new VirtualList({ label: t("models.list"), row: (index) => this.#row(this.models[index]), need: () => {} });
    this.element = el("div.og-pane.og-models", {}, this.counts, this.list.element);
  }

  close() {
    this.list.close();
  }

  async load() {
    try {
      const { models } = await client.models();
      this.models = models.sort(
        (a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.name.localeCompare(b.name),
      );
    } catch (error) {
      this.failed(error);
      return;
    }
    const counted = ORDER.map((state) => [state, this.models.filter((one) => one.state === state).length]);
    const told = counted.filter(([, count]) => count).map(([state, count]) => t(`models.counts.${state}`, { count }));
    fill(this.counts, this.models.length ? told.join(" · ") : t("models.none"));
    this.list.reset(this.models.length);
  }

  #row(model) {
    const state = t(`models.states.${model.state}`);
    const graphs = t("models.graphs", { count: model.graphs ?? 0 });
    const what = [model.folder, graphs].filter(Boolean).join(" · ");
    const size = model.graphs ? bytes(model.bytes) : "";
    const used = model.graphs && model.last_used ? ago(model.last_used) : "";
    return el(
      "button.og-row",
      { type: "button", onclick: () => this.chosen(model) },
      el("span.og-name", {}, el("span.og-text", {}, model.name)),
      el("span.og-state", {}, chip(state, COLOURS[model.state])),
      el("span.og-what", {}, what),
      el("span.og-more", {}, size && el("span.og-size", {}, size), used && el("span.og-used", {}, used)),
    );
  }
}
