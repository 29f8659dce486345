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
  const used = found.counted_bytes ?? found.bytes;
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
      sum(t("totals.graphs"), number(found.graphs ?? 0)),
      sum(t("totals.restores"), number(found.restores ?? 0)),
      quarantined > 0 && sum(t("totals.quarantined"), number(quarantined)),
    ),
  );
}

const sum = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));

/** The nodes that compile now and the bake, each with its bar; empty when nothing goes on. */
export class Activity {
  constructor() {
    this.element = el("div.og-activity", { role: "group", "aria-label": t("activity") });
    this.ends = [badges.watch(() => this.draw()), bake.watch(() => this.draw())];
    this.draw();
  }

  close() {
    for (const end of this.ends) end();
  }

  draw() {
    const titles = new Map([...host.nodes()].map(([id, node]) => [id, host.titleOf(node)]));
    const nodes = badges.compiling().map(([id, badge, open]) => {
      const title = (open && titles.get(id)) || t("node", { id });
      return line(title, badges.text(badge), bar(badge.progress, t("compilingNode", { title })));
    });
    const job = bake.current();
    const kept = job && !bake.isOver(job);
    fill(
      this.element,
      nodes,
      kept && line(
        t("bake.title"),
        [bake.progressText(job), job.text].filter(Boolean).join(": "),
        bar(bake.share(job), t("bake.title")),
        button(t("cancel"), bake.cancel, { extra: { "data-action": "cancel-bake" } }),
      ),
    );
    this.element.hidden = !this.element.childElementCount;
  }
}

const line = (title, text, share, ...more) =>
  el("div.og-now", {}, el("div", {}, el("strong", {}, title), el("span", {}, text), share), more);
