// "Compile this workflow ahead": have the server compile all that the open workflow needs, and follow it.

import { tell } from "./actions.js";
import * as client from "./client.js";
import * as host from "./host.js";
import { t } from "./strings.js";

const ENDS = ["done", "failed", "cancelled"];
const EVERY = 3000; // milliseconds; messages come sooner, and one of them may get lost

let job = null; // as the server told it last
let begun = null; // {job, workflow}: what this page bakes; job: null until the server has answered
let removeToast = null;
let shown = "";
let timer = null;
const watchers = new Set();

export const current = () => job;

/** Call `handler(job)` at every change; returns what ends it. */
export function watch(handler) {
  watchers.add(handler);
  return () => watchers.delete(handler);
}

export const isOver = (one) => ENDS.includes(one.state);
export const share = (one) => (one.of ? one.done / one.of : null);
export const progressText = (one) => t(one.of ? "bake.progress" : "bake.begin", { done: one.done, of: one.of });

/** The command. */
export async function bakeWorkflow() {
  if (begun?.job === null || (job && !isOver(job))) {
    host.toast({ severity: "info", summary: t("bake.title"), detail: t("bake.already"), life: 5000 });
    return;
  }
  begun = { job: null, workflow: host.openWorkflow() };
  try {
    const prompt = await host.promptOfGraph();
    if (!Object.values(prompt).some((node) => String(node.class_type).startsWith("OneGraph"))) {
      host.toast({ severity: "warn", summary: t("bake.title"), detail: t("bake.noNodes"), life: 8000 });
      return;
    }
    const { job: id } = await client.bake(prompt);
    begun.job = id;
    if (job?.job === id) claim();
    else heard({ job: id, state: "waiting", done: 0, of: 0, text: "", compiled: 0, restored: 0 });
    follow();
  } catch (error) {
    tell(error, t("bake.failed"));
  } finally {
    if (begun.job === null) begun = null;
  }
}

export async function cancel() {
  if (!job) return;
  try {
    await client.cancelBake(job.job);
  } catch (error) {
    tell(error, t("notDone"));
  }
}

/** Take what the server tells of a job, here or in another window. */
export function heard(told) {
  if (!told?.job || (job?.job === told.job && isOver(job))) return;
  job = told;
  claim();
  showToast();
  for (const handler of watchers) handler(job);
}

/** Its prompts are of the workflow from which this page began it. */
function claim() {
  if (job.job === begun?.job && job.prompt_id) host.remember(job.prompt_id, begun.workflow);
}

function follow() {
  clearTimeout(timer);
  timer = setTimeout(async () => {
    if (!job || isOver(job)) return;
    try {
      heard(await client.bakeJob(job.job));
    } catch (error) {
      if (error instanceof client.RouteError) heard({ ...job, state: "failed", text: error.message });
    }
    follow();
  }, EVERY);
}

function showToast() {
  const over = isOver(job);
  const detail = over ? job.text || t(`bake.counts`, job) : progressText(job); // the tab has all, which changes all the time
  const severity = { done: "success", failed: "error", cancelled: "warn" }[job.state] ?? "info";
  const key = `${job.state} ${detail}`;
  if (key === shown) return;
  shown = key;
  removeToast?.();
  removeToast = host.toast({ severity, summary: t(over ? `bake.${job.state}` : "bake.title"), detail, life: over ? 10000 : undefined });
  if (over) removeToast = null;
}
