// The badge on each node of the pack: how its graphs are doing, and why calls ran uncompiled.

import * as client from "./client.js";
import { show } from "./dialog.js";
import { el } from "./dom.js";
import * as host from "./host.js";
import { faster, has, lang, number, seconds, t } from "./strings.js";

export const SHOW = "OneGraph.ShowBadges";
const MOST_WORKFLOWS = 20; // of which a node's badge is remembered
const COLOURS = {
  waiting: { fgColor: "#d5d9e2", bgColor: "#3a3f4b" },
  not_run: { fgColor: "#d5d9e2", bgColor: "#3a3f4b" },
  compiling: { fgColor: "#ffffff", bgColor: "#1d4f91" },
  restored: { fgColor: "#ffffff", bgColor: "#1f6b43" },
  compiled: { fgColor: "#ffffff", bgColor: "#1f6b43" },
  partly: { fgColor: "#ffffff", bgColor: "#7a5200" },
  eager: { fgColor: "#ffffff", bgColor: "#7a5200" },
};

// node id -> [{prompt, badge}], the last one of each workflow and what compiles, as the server told it: ids are the same
// in many workflows. A prompt that this page did not queue is of none that it knows: its nodes are on the tab alone.
const known = new Map();
const watchers = new Set();
const said = new Map(); // node id -> {prompt, text}, what the server told last
const looks = new WeakMap(); // node -> the look that was made last, and of what
const ran = new WeakMap(); // workflow -> {prompt, seconds}, the last one that this page queued
let events = 0; // how often the server told of a badge
let questions = 0; // how often this page asked for all
let shown = true;
let opened = null; // the node whose reasons are shown

export const isOurs = (node) => host.typeOf(node).startsWith("OneGraph");

/** Call `handler()` at every change; returns what ends it. */
export function watch(handler) {
  watchers.add(handler);
  return () => watchers.delete(handler);
}

/** Nodes that compile now: [id, badge, whether it is a node of the open workflow]. */
export const compiling = () =>
  [...known].flatMap(([id, all]) =>
    all.filter(compiles).map(({ prompt, badge }) => [id, badge, isOpen(prompt)]));

/** Whether a prompt was queued by this page, from the workflow that is open now. */
function isOpen(prompt) {
  const workflow = host.workflowOf(prompt);
  return workflow !== null && workflow === host.openWorkflow();
}

const compiles = ({ badge }) => badge.state === "compiling";

/** What is known of a node of the open workflow. */
function of(id) {
  const all = (known.get(id) ?? []).filter(({ prompt }) => isOpen(prompt));
  return (all.find(compiles) ?? all[0])?.badge ?? null;
}

/** What a badge says in the user's language. */
export function text(badge) {
  const { state, seconds: taken, eager_calls: eager, calls, progress } = badge;
  if (state === "compiling" && progress != null) {
    return t("badge.compiling", { share: `${number(Math.round(progress * 100))} %` });
  }
  if (state === "partly") {
    const blocks = badge.reasons.reduce((sum, one) => sum + one.calls, 0);
    return eager ? t("badge.partly", { eager: number(eager), calls: number(calls) }) : t("badge.blocks", { count: blocks });
  }
  if (state === "restored" || state === "compiled") {
    const how = taken != null && t(`badge.${state}In`, { time: seconds(taken) });
    const blocks = badge.blocks_speedup && t("badge.blocksSpeed", { speed: faster(badge.blocks_speedup) });
    const parts = [how, badge.speedup && faster(badge.speedup), blocks].filter(Boolean);
    return parts.join(", ") || t(`badge.${state}`);
  }
  return has(`badge.${state}`) ? t(`badge.${state}`) : badge.text;
}

const isUnderWay = ({ badge }) => badge.state === "waiting" || compiles({ badge });

/** Ask for the badges of a page that was just opened, or has missed some. */
export async function load() {
  const [before, mine] = [events, ++questions];
  try {
    const { badges } = await client.badges();
    if (mine !== questions) return; // one that was asked later is newer, whichever comes first
    if (events !== before) return load(); // the answer may be older
    for (const [id, all] of known) known.set(id, all.filter((one) => !isUnderWay(one)));
    for (const one of badges) note(one);
  } catch {
    // Without them nodes have no badge until they run.
  }
  drawAll();
}

/** A prompt has ended, or begun: the server tells of those that were to call a model whether they still do. */
export function queueChanged() {
  if ([...known.values()].flat().some(({ badge }) => badge.state === "waiting")) void load();
}

/** A prompt has run to its end. */
export function ended(prompt, taken) {
  const workflow = host.workflowOf(prompt);
  if (typeof workflow === "object" && workflow) ran.set(workflow, { prompt, taken });
  for (const handler of watchers) handler();
}

/** Seconds that the open workflow's last prompt took, and those in which its models ran compiled; null: none ran. */
export function share() {
  const { prompt, taken } = ran.get(host.openWorkflow()) ?? {};
  const all = [...known.values()].flat().filter((one) => one.prompt === prompt);
  return prompt && all.length ? { taken, compiled: all.reduce((sum, { badge }) => sum + (badge.compiled_s ?? 0), 0) } : null;
}

export function heard(told) {
  events += 1;
  note(told);
  drawAll();
}

/** A prompt whose workflow is not known may be one of this page's, of which the server's answer has yet to come. */
function note({ node, prompt_id: prompt, badge }) {
  const id = String(node);
  const workflow = host.workflowOf(prompt);
  const isReplaced = (one) =>
    workflow && host.workflowOf(one.prompt) === workflow && compiles(one) === compiles({ badge });
  const others = (known.get(id) ?? []).filter((one) => one.prompt !== prompt && !(badge && isReplaced(one)));
  const all = badge ? [{ prompt, badge }, ...others] : others;
  const [ours, strangers] = [true, false].map((ofUs) => all.filter((one) => Boolean(host.workflowOf(one.prompt)) === ofUs));
  known.set(id, [...ours.slice(0, MOST_WORKFLOWS), ...strangers.slice(0, MOST_WORKFLOWS)]);
}

/** A text of a node: shown where the node's workflow is open. */
export function heardText({ node, prompt_id: prompt, text: shownText }) {
  said.set(String(node), { prompt, text: shownText });
  if (isOpen(prompt)) host.showText(String(node), shownText);
}

/** It is known now of which workflow a prompt is; what the server told of it may have come before. */
export function promptKnown(prompt) {
  for (const [id, one] of said) if (one.prompt === prompt && isOpen(prompt)) host.showText(id, one.text);
  drawAll();
}

/** Put a badge on a node; it is seen on nodes of the pack, once the server tells something. */
export function add(node) {
  host.addBadge(node, lookOf, (there) => void explain(there));
}

/** What a node's badge says now, and in which colours; the same object while that is the same. */
function lookOf(node) {
  const badge = shown && isOurs(node) ? of(host.idOf(node)) : null;
  if (!badge) return null;
  const kept = looks.get(node);
  if (kept?.badge === badge && kept.language === lang()) return kept.look;
  const look = { text: text(badge), ...(COLOURS[badge.state] ?? COLOURS.waiting) };
  looks.set(node, { badge, language: lang(), look });
  return look;
}

/** The setting: whether the user wants to see badges. */
export function setShown(wanted) {
  shown = wanted;
  drawAll();
}

export function drawAll() {
  host.renewBadges();
  for (const handler of watchers) handler();
}

/** What the user can do about calls that ran uncompiled for a reason; null where its sentence says so. */
const remedy = (name) => (name == null ? null : t(`remedies.${has(`remedies.${name}`) ? name : "other"}`));

/** Show why calls of a node ran uncompiled, and what to do. */
export async function explain(node) {
  if (opened === node) return; // one click, of which two parts of the front end may tell
  opened = node;
  const badge = of(host.idOf(node));
  await show({
    title: host.titleOf(node),
    body: () => (badge ? told(badge) : [el("p", {}, t("reasons.notRun"))]),
  });
  opened = null;
}

function told(badge) {
  const reasons = badge.reasons ?? [];
  return [
    el("p.og-lead", {}, text(badge)),
    badge.calls > 0 && el("p", {}, t("reasons.calls", { compiled: badge.calls - badge.eager_calls, count: badge.calls })),
    reasons.length
      ? el("ul.og-reasons", {}, reasons.map((one) =>
          el("li", {},
            el("p.og-why", {}, one.text),
            el("p.og-muted", {}, one.calls ? t("reasons.eager", { count: one.calls }) : "", " ", el("code", {}, one.code)),
            remedy(one.remedy) && el("p", {}, el("strong", {}, t("reasons.what")), " ", remedy(one.remedy)))))
      : el("p", {}, t(`reasons.${compiles({ badge }) ? "wait" : badge.calls ? "none" : "notRun"}`)),
  ];
}
