// The pack's part of ComfyUI's settings: the disk budget, values for new nodes, badges.

import * as badges from "./badges.js";
import * as client from "./client.js";
import * as host from "./host.js";
import { t } from "./strings.js";

const BUDGET = "OneGraph.DiskBudget";
const GIB = 2 ** 30;
const INPUTS = {
  backend: ["OneGraph.Default.Backend", ["auto", "inductor", "oneflow", "off"], "auto"],
  shapes: ["OneGraph.Default.Shapes", ["any size", "exact"], "any size"],
  when_missing: ["OneGraph.Default.WhenMissing", ["wait", "background", "eager"], "wait"],
};
const NAMES = { backend: "Backend of new nodes", shapes: "Shapes of new nodes", when_missing: "New nodes, when no graph is cached" };
const TOOLTIPS = {
  backend: "What `backend` is on a node that you add. Nodes that are there stay as they are.",
  shapes: "What `shapes` is on a node that you add.",
  when_missing: "What `when_missing` is on a node that you add.",
};

let known = null; // the server's budget in GiB; null until it told

// English; the front end translates them by `locales/<language>/settings.json`.
const listed = [
  {
    id: BUDGET,
    name: "Disk space for graphs in GiB",
    tooltip: "Over the limit, the least recently used graphs are deleted. 0: no limit. Pinned graphs stay.",
    category: ["OneGraph", "Disk", "Budget"],
    type: "number",
    defaultValue: 10,
    attrs: { min: 0, max: 100000, step: 1, maxFractionDigits: 1, showButtons: true },
    onChange: (value, before) => void changed(value, before),
  },
  {
    id: badges.SHOW,
    name: "Show badges on nodes",
    category: ["OneGraph", "Nodes", "Badges"],
    type: "boolean",
    defaultValue: true,
    onChange: (value) => badges.setShown(value !== false),
  },
  ...Object.entries(INPUTS).map(([input, [id, options, defaultValue]]) => ({
    id, name: NAMES[input], tooltip: TOOLTIPS[input], category: ["OneGraph", "Nodes", input], type: "combo", options, defaultValue,
  })),
];
export const definitions = listed.map((one, at) => ({ ...one, sortOrder: listed.length - at })); // the largest is first

/** Have the dialog show the budget that the server keeps to, which another page or a variable may have set. */
export async function load() {
  try {
    const { disk_budget_bytes: bytes } = await client.settings();
    known = bytes === null ? 0 : Math.round((bytes / GIB) * 10) / 10;
    if (host.setting(BUDGET) !== known) await host.setSetting(BUDGET, known);
  } catch {
    // The setting shows what it was; a change of it tells what went wrong.
  }
}

async function changed(value, before) {
  if (before === undefined || known === null || value === known || !(value >= 0)) return;
  try {
    const wanted = value === 0 ? null : Math.round(value * GIB);
    const answer = await client.setBudget(wanted);
    known = answer.disk_budget_bytes === null ? 0 : Math.round((answer.disk_budget_bytes / GIB) * 10) / 10;
    const kept = known === value;
    const detail = answer.disk_budget_from === "environment" ? t("settings.fromEnvironment") : t(known ? "settings.saved" : "settings.noLimit", { size: known });
    host.toast({ severity: kept ? "success" : "warn", summary: t("settings.budget"), detail, life: 6000 });
    if (!kept) await host.setSetting(BUDGET, known);
  } catch (error) {
    host.toast({ severity: "error", summary: t("settings.budget"), detail: error.message, life: 12000 });
  }
}

/** Give a node that the user adds the values of the settings. */
export function nodeMade(node) {
  if (!host.isLoading() && badges.isOurs(node)) giveDefaults(node);
}

export function giveDefaults(node) {
  for (const [input, [id, , usual]] of Object.entries(INPUTS)) {
    const value = host.setting(id);
    if (value !== undefined && value !== usual) host.setInput(node, input, value);
  }
}
