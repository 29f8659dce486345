// The sidebar tab "OneGraph": what is cached, what it costs and saved, and what can be done with it.

import * as actions from "./actions.js";
import { watch } from "./badges.js";
import { bakeWorkflow } from "./bake.js";
import * as client from "./client.js";
import { Detail } from "./detail.js";
import { button, el, fill, iconButton } from "./dom.js";
import * as entries from "./entries.js";
import { Filters } from "./filters.js";
import { Graphs } from "./graphs.js";
import * as host from "./host.js";
import { Models } from "./models.js";
import { Activity, totals } from "./overview.js";
import { clock, t } from "./strings.js";
import { VirtualList } from "./virtual.js";
import { Workflow } from "./workflow.js";

const VIEWS = ["graphs", "models", "workflow"];
const AGAIN = 4000; // milliseconds until a server that did not answer is asked again

export class Tab {
  /** Build the tab in an element of the front end. */
  constructor(container) {
    this.view = "graphs";
    this.gone = false;
    this.seen = null; // when the last answer came
    this.graphs = new Graphs({ changed: () => this.#changed(), failed: (error) => this.#failed(error) });
    this.filters = new Filters((query) => this.#ask(query));
    this.list = new VirtualList({
      label: t("list"),
      row: (index) => this.#row(index),
      need: (first, last) => {
        this.shown = [first, last];
        this.graphs.need(first, last);
      },
    });
    this.models = new Models({ failed: (error) => this.#failed(error), chosen: (model) => this.#graphsOf(model) });
    this.workflow = new Workflow({ failed: (error) => this.#failed(error) });
    this.detail = new Detail({ act: (action, entry) => this.#act(action, entry), closed: (id) => this.#closeDetail(id) });
    this.activity = new Activity();
    this.totals = el("div.og-totals");
    this.banner = el("div.og-banner", { role: "status" });
    this.message = el("div.og-message", { role: "status" });
    this.tabs = VIEWS.map((view) => this.#tab(view));
    this.panel = el("div.og-panel", { role: "tabpanel", id: "og-panel", "aria-labelledby": "og-tab-graphs" });
    this.element = el(
      "section.onegraph.og-tab", { "aria-label": t("title"), onkeydown: keepPlainKeys },
      el(
        "header.og-head", {},
        el("h2", {}, t("title")),
        iconButton(t("bake.command"), "bolt", bakeWorkflow, { "data-action": "bake" }),
        iconButton(t("prune.command"), "eraser", () => this.#prune(), { "data-action": "prune" }),
        iconButton(t("reload"), "refresh", () => this.reload(), { "data-action": "reload" }),
      ),
      this.banner, this.totals, this.activity.element,
      el("div.og-tabs", { role: "tablist", "aria-label": t("views"), onkeydown: (event) => this.#tabKey(event) }, this.tabs),
      this.panel,
    );
    container.replaceChildren(this.element);
    const resized = () => this.#fit();
    const observed = new ResizeObserver(resized); // calls once at the beginning, too, when all is laid out
    for (const one of [container, document.body]) observed.observe(one);
    addEventListener("resize", resized);
    this.ends = [
      () => removeEventListener("resize", resized),
      () => observed.disconnect(),
      host.listen("onegraph.graphs", () => this.#later()),
      watch(() => this.workflow.drawShare()),
      host.listen(host.LOST, () => this.#failed(new client.ServerGone())),
      host.listen(host.BACK, () => this.reload()),
    ];
    totals(this.totals, null);
    this.banner.hidden = true;
    this.#show();
    this.#fit();
    void this.#ask({});
  }

  /** Keep within the window: the front end gives its panel a width that a narrow one does not have. */
  #fit() {
    if (!this.element.isConnected) return;
    const left = Math.max(this.element.getBoundingClientRect().left, 0);
    const width = left < innerWidth ? `${innerWidth - left}px` : "";
    if (this.element.style.maxWidth !== width) this.element.style.maxWidth = width;
  }

  close() {
    for (const end of this.ends) end();
    for (const part of [this.list, this.models, this.activity]) part.close();
    clearTimeout(this.timer);
    clearTimeout(this.retrying);
    this.closed = true;
  }

  /** Ask again for what is shown. */
  async reload() {
    if (this.closed) return;
    if (this.view !== "graphs") await this[this.view].load();
    await this.graphs.renew(...(this.shown ?? [0, 1]));
  }

  // ---- parts

  #tab(view) {
    return el("button", {
      type: "button", role: "tab", id: `og-tab-${view}`, "aria-controls": "og-panel", onclick: () => this.#choose(view),
    }, t(`view.${view}`));
  }

  #tabKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = (VIEWS.indexOf(this.view) + step + VIEWS.length) % VIEWS.length;
    this.#choose(VIEWS[at]);
    this.tabs[at].focus();
  }

  #choose(view) {
    this.view = view;
    this.#show();
    if (view === "graphs") this.list.draw();
    else void this[view].load();
  }

  /** Another workflow is open, or the open one was replaced. */
  graphLoaded() {
    if (!this.closed && this.view === "workflow") void this.workflow.load();
  }

  #show() {
    VIEWS.forEach((view, at) => {
      this.tabs[at].setAttribute("aria-selected", String(view === this.view));
      this.tabs[at].setAttribute("tabindex", view === this.view ? "0" : "-1");
    });
    this.panel.setAttribute("aria-labelledby", `og-tab-${this.view}`);
    if (this.view !== "graphs") fill(this.panel, this[this.view].element);
    else fill(this.panel, el("div.og-pane", {}, this.filters.element, this.message, this.list.element), this.detail.element);
    this.#split(this.view === "graphs" && this.detail.isOpen);
    this.#explain();
  }

  #row(index) {
    const entry = this.graphs.at(index);
    return entry && entries.row(entry, { open: () => this.#open(entry), selected: entry.id === this.detail.id });
  }

  /** Show the details beside the list, or in its place where there is no room for both. */
  #split(detailed) {
    this.element.classList.toggle("og-detailed", detailed);
    this.panel.classList.toggle("og-narrow", detailed);
  }

  /** Say why there is no row, where there is none. */
  #explain() {
    const { total, query } = this.graphs;
    const filtered = query.search || query.state;
    this.message.hidden = total !== 0 && !(total === null && !this.gone);
    this.list.element.hidden = total === 0 || total === null;
    this.filters.element.hidden = total === null || (total === 0 && !filtered);
    if (total === null) {
      fill(this.message, el("p.og-hidden", {}, t("loading")), Array.from({ length: 6 }, () => el("div.og-skeleton", { "aria-hidden": "true" })));
    } else if (filtered) {
      fill(this.message, el("p", {}, t("noMatch")), button(t("showAll"), () => this.filters.clear()));
    } else {
      fill(
        this.message,
        el("h3", {}, t("empty.title")), el("p", {}, t("empty.text")),
        button(t("bake.command"), bakeWorkflow, { kind: "primary", name: "bolt" }),
      );
    }
  }

  // ---- answers

  #changed() {
    if (this.closed) return;
    this.gone = false;
    this.seen = Date.now();
    clearTimeout(this.retrying);
    this.element.classList.remove("og-gone");
    this.banner.hidden = true;
    totals(this.totals, this.graphs.totals);
    this.totals.hidden = false;
    this.filters.told(this.graphs.total, this.graphs.totals?.states ?? {});
    this.#explain();
    this.list.reset(this.graphs.total);
    this.detail.setEnabled(true);
    this.list.element.setAttribute("aria-busy", String(!this.graphs.complete));
    if (!this.graphs.complete) this.#later();
  }

  #failed(error) {
    if (this.closed) return;
    const gone = error instanceof client.ServerGone;
    this.gone = true;
    this.element.classList.toggle("og-gone", gone);
    const text = gone ? t(this.seen ? "gone.since" : "gone.never", { time: this.seen ? clock(this.seen) : "" }) : error.message;
    fill(this.banner, el("span", {}, text), button(t("again"), () => this.reload(), { extra: { "data-action": "again" } }));
    this.banner.hidden = false;
    this.totals.hidden = !this.graphs.totals; // nothing loads any more
    this.detail.setEnabled(!gone);
    this.#explain();
    clearTimeout(this.retrying);
    if (gone) this.retrying = setTimeout(() => this.reload(), AGAIN);
  }

  /** Ask again soon: messages that come together are answered once. */
  #later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.reload(), 300);
  }

  async #ask(query) {
    this.list.element.scrollTop = 0;
    await this.graphs.ask(query);
  }

  // ---- what the user does

  #open(entry) {
    const before = this.detail.id;
    this.#split(true);
    this.detail.open(entry);
    for (const row of this.list.element.querySelectorAll("button")) {
      if (row.dataset.id === before) row.removeAttribute("aria-current");
      if (row.dataset.id === entry.id) row.setAttribute("aria-current", "true");
    }
  }

  #closeDetail(id) {
    this.#split(false);
    this.list.draw();
    const row = [...this.list.element.querySelectorAll("button")].find((one) => one.dataset.id === id);
    row?.removeAttribute("aria-current");
    (row ?? this.list.element.querySelector("button[tabindex='0']"))?.focus();
  }

  async #act(action, entry) {
    const answer = await actions.act(action, entry);
    if (answer === null) return;
    if (action === "delete" && answer.done) this.detail.close();
    else if (answer.entry) this.detail.open(answer.entry);
    await this.reload();
  }

  async #prune() {
    if (await actions.prune()) await this.reload();
  }

  #graphsOf(model) {
    this.view = "graphs";
    this.#show();
    this.filters.search(model.name.replace(/^.*[\\/]/, "").replace(/\.\w+$/, ""));
    this.tabs[0].focus();
  }
}

/** Keep keys from the canvas, which takes letters for commands; those with Ctrl and the like are the front end's. */
function keepPlainKeys(event) {
  if (event.key !== "Escape" && !event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
}
