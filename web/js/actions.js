// What the user does with graphs: ask before something is lost, do it, and tell in a toast how it went.

import * as client from "./client.js";
import { confirm } from "./dialog.js";
import { el } from "./dom.js";
import { checkpoint, componentText } from "./entries.js";
import { toast } from "./host.js";
import { bytes, t } from "./strings.js";

const ASKED = ["delete", "retry"]; // before which the user is asked
const SHOWN = 6000; // milliseconds
const MOST_NAMED = 200; // of the graphs that a prune removes

export const nameOf = (entry) => `${checkpoint(entry)}, ${componentText(entry.component)}, ${entry.shapes}`;

/** Tell of an error in a toast. */
export function tell(error, summary) {
  const gone = error instanceof client.ServerGone;
  toast({ severity: "error", summary, detail: gone ? t("gone.short") : String(error?.message ?? error), life: 2 * SHOWN });
}

/** Verify, pin, unpin, retry or delete a graph; resolves to the route's answer, or null when nothing was done. */
export async function act(action, entry) {
  const sure = !ASKED.includes(action) || await confirm({
    title: t(`confirm.${action}.title`),
    text: t(`confirm.${action}.text`, { size: bytes(entry.bytes) }),
    body: () => el("p.og-subject", {}, nameOf(entry)),
    yes: t(`actions.${action}`),
    danger: action === "delete",
  });
  if (!sure) return null;
  try {
    const answer = await client.act(entry.id, action);
    toast({
      severity: answer.done ? "success" : "warn",
      summary: t(answer.done ? `done.${action}` : "notDone"),
      detail: answer.text,
      life: SHOWN,
    });
    return answer;
  } catch (error) {
    tell(error, t("notDone"));
    return null;
  }
}

/** How many graphs there are, as the tab counts them, and how many copies. */
function counted(removed) {
  const copies = removed.filter((one) => one.copy).length;
  const graphs = removed.length - copies;
  return [graphs > 0 && t("count", { count: graphs }), copies > 0 && t("prune.copies", { count: copies })].filter(Boolean).join(", ");
}

/** Show what a prune would remove, and remove it when the user wants it; true when something was removed. */
export async function prune() {
  let plan;
  try {
    plan = await client.prune(true);
  } catch (error) {
    tell(error, t("prune.failed"));
    return false;
  }
  const { removed } = plan;
  if (!removed.length) {
    toast({ severity: "info", summary: t("prune.nothing"), detail: t("prune.nothingText"), life: SHOWN });
    return false;
  }
  const sure = await confirm({
    title: t("prune.title"),
    text: t("prune.text", { what: counted(removed), freed: bytes(plan.freed) }),
    body: () => [
      el("ul.og-plain", {}, removed.slice(0, MOST_NAMED).map((one) =>
        el("li", {}, el("span", {}, one.copy ? t("prune.copy", { name: nameOf(one) }) : nameOf(one)), el("span.og-size", {}, bytes(one.bytes))))),
      removed.length > MOST_NAMED && el("p", {}, t("more", { count: removed.length - MOST_NAMED })),
      plan.kept_in_use > 0 && el("p.og-muted", {}, t("prune.inUse", { count: plan.kept_in_use })),
    ],
    yes: t("prune.yes"),
    danger: true,
  });
  if (!sure) return false;
  try {
    const done = await client.prune(false);
    toast({ severity: "success", summary: t("prune.done", { what: counted(done.removed) }), detail: t("prune.freed", { freed: bytes(done.freed) }), life: SHOWN });
    return true;
  } catch (error) {
    tell(error, t("prune.failed"));
    return false;
  }
}
