// What stands above the list: the sums, and what goes on now.

import * as badges from "./badges.js";
import * as bake from "./bake.js";
import { bar, button, el, fill } from "./dom.js";
import * as host from "./host.js";
import { bytes, number, seconds, t } from "./strings.js";

/** Disk used of the budget, time saved, and how many graphs there are. */
export function totals(element, found) {
  if (!found) {
    fill(element, el("div.og-skeleton.og-totals-wait", { "aria-hidden": "true" }));
    return;
  }
  const used = found.bytes;
  const budget = found.budget_bytes;
  const share = budget ? used / budget : null;
  const text = budget ? t("totals.disk", { used: bytes(used), budget: bytes(budget) }) : t("totals.noBudget", { used: bytes(used) });
  const quarantined = found.states?.quarantined ?? 0;
  fill(
    element,
    el("div.og-disk", {}, el("span", {}, text), share !== null && bar(share, t("totals.diskName"), share > 0.9 ? "full" : "")),
    el(
      "dl.og-sums", {},
      sum(t("totals.saved"), seconds(found.saved_seconds ?? 0)),
      sum(t("totals.graphs"), number(Object.values(found.states ?? {}).reduce((all, one) => all + one, 0))),
      sum(t("totals.restores"), number(found.restores ?? 0)),
      quarantined > 0 && sum(t("totals.quarantined"), number(quarantined)),
      found.copies > 0 && sum(t("totals.copies"), `${number(found.copies)} (${bytes(found.copies_bytes)})`),
    ),
  );
}

const sum = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));

/** The nodes that compile now and the bake, each with its bar; empty when nothing goes on. */
export class Activity {
  constructor() {
    this.element = el("div.og-activity", { role: "group", "aria-label": t("activity") });
    this.lines = new Map(); // kept while they last: a button that is made anew at each change cannot be pressed
    this.ends = [badges.watch(() => this.draw()), bake.watch(() => this.draw())];
    this.draw();
  }

  close() {
    for (const end of this.ends) end();
  }

  draw() {
    const titles = new Map([...host.nodes()].map(([id, node]) => [id, host.titleOf(node)]));
    const now = new Map(badges.compiling().map(([id, badge, open]) => {
      const title = (open && titles.get(id)) || t("node", { id });
      return [`${open} ${id}`, { title, text: badges.text(badge), share: badge.progress, label: t("compilingNode", { title }) }];
    }));
    const job = bake.current();
    if (job && !bake.isOver(job)) {
      const text = [bake.progressText(job), job.text].filter(Boolean).join(": ");
      now.set("bake", { title: t("bake.title"), text, share: bake.share(job), label: t("bake.title"), cancel: bake.cancel });
    }
    for (const [key, line] of this.lines) {
      if (now.has(key)) continue;
      line.element.remove();
      this.lines.delete(key);
    }
    for (const [key, what] of now) {
      if (!this.lines.has(key)) this.lines.set(key, new Line(what.cancel));
      const line = this.lines.get(key);
      line.show(what);
      if (line.element.parentNode) continue;
      this.element.insertBefore(line.element, key === "bake" ? null : (this.lines.get("bake")?.element ?? null));
    }
    this.element.hidden = !now.size;
  }
}

class Line {
  constructor(cancel) {
    this.title = el("strong");
    this.text = el("span");
    this.bar = el("div.og-now-bar");
    const end = cancel && button(t("cancel"), cancel, { extra: { "data-action": "cancel-bake" } });
    this.element = el("div.og-now", {}, el("div", {}, this.title, this.text, this.bar), end);
  }

  show({ title, text, share, label }) {
    if (this.title.textContent !== title) this.title.textContent = title;
    if (this.text.textContent !== text) this.text.textContent = text;
    fill(this.bar, bar(share, label));
  }
}
