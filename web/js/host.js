// All that the page uses of ComfyUI's front end. No other module names anything of it.

import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";

export const EXTENSION = "OneGraph";
const TAB = "onegraph-graphs";
const PROMPTS = "onegraph.prompts"; // in the storage of the browser's tab
const RENEWED = "onegraphBadges"; // on the front end's store, all of which is reactive

/**
 * Register the extension. A pack that is installed twice, or served under two names, registers once.
 *
 * @param {object} parts settings, commands, menu, and what to do: `setup()`, `nodeMade(node)`, `nodeMenu(node)`.
 */
export function register({ settings, commands, menu, setup, nodeMade, nodeMenu, graphLoaded }) {
  if ((app.extensions ?? []).some((one) => one.name === EXTENSION)) return;
  app.registerExtension({
    name: EXTENSION,
    settings,
    commands,
    menuCommands: [{ path: [EXTENSION], commands: menu }],
    setup,
    nodeCreated: nodeMade,
    afterConfigureGraph: graphLoaded,
    getNodeMenuItems: nodeMenu,
  });
}

/** Add the sidebar tab. `title` and `tooltip` may be keys of the front end's translations. */
export function addTab({ title, tooltip, icon, iconBadge, render, destroy }) {
  app.extensionManager.registerSidebarTab({
    id: TAB, title, tooltip, icon, iconBadge, label: title, type: "custom", destroy,
    render: (element) => {
      element.style.height = "100%"; // it has none of its own, so that nothing in it could scroll
      render(element);
    },
  });
}

export async function openTab() {
  const manager = app.extensionManager;
  if (manager.sidebarTab?.activeSidebarTabId === TAB) return;
  await manager.command.execute(`Workspace.ToggleSidebarTab.${TAB}`);
}

// ---- server

/** Ask a route of the server; a `fetch` with the front end's own base address and user. */
export const request = (path, options) => api.fetchApi(path, options);

/** Messages that the front end itself sends when the connection is lost, and when it is there again. */
export const LOST = "reconnecting";
export const BACK = "reconnected";
export const QUEUE = "status"; // how many prompts wait has changed

/** Call `handler(detail)` for each message of this type; returns what ends it. */
export function listen(type, handler) {
  const heard = (event) => handler(event.detail);
  api.addEventListener(type, heard);
  return () => api.removeEventListener(type, heard);
}

/** Follow prompts that run to their end: `handler(prompt, seconds)`. One runs at a time. */
export function followRuns(handler) {
  let running = {};
  listen("execution_start", (begun) => (running = begun));
  listen("execution_success", ({ prompt_id: prompt, timestamp }) => {
    if (running.prompt_id === prompt && timestamp) handler(String(prompt), (timestamp - running.timestamp) / 1000);
  });
}

/** The open workflow as it would be queued. */
export async function promptOfGraph() {
  return (await app.graphToPrompt()).output;
}

/** The open workflow as the editor saves it. */
export async function graphAsSaved() {
  return (await app.graphToPrompt()).workflow;
}

/**
 * Show another graph as the open workflow, as an edit of the user, which one undo takes back.
 *
 * @param {function} finish what else belongs to the edit, once the graph is there.
 */
export async function replaceGraph(graph, finish) {
  const open = openWorkflow();
  const tracker = open?.changeTracker;
  if (!tracker?.updateState) {
    await app.loadGraphData(graph, false, false, open);
    finish();
    return;
  }
  capture(tracker);
  await tracker.updateState([graph], tracker.undoQueue); // as undo does, which loads a graph and keeps the history
  finish();
  tracker.activeState = JSON.parse(JSON.stringify(app.rootGraph.serialize()));
  tracker.redoQueue.length = 0;
}

const capture = (tracker) => (tracker.captureCanvasState ?? tracker.checkState).call(tracker);

/** Have the browser save a text as a file. */
export function download(text, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** The workflow that is open; the same object as long as it is the same workflow. */
export const openWorkflow = () => app.extensionManager?.workflow?.activeWorkflow ?? null;

// prompt id -> the workflow from which this page queued it; what a page that was loaded again knew before: its key.
const queued = new Map(JSON.parse(sessionStorage.getItem(PROMPTS) ?? "[]"));
const MOST_PROMPTS = 200;
let promptKnown = () => {};

const NO_ID = "00000000-0000-0000-0000-000000000000"; // of a workflow from the API format, which gets one when it is loaded again
const keyOf = (workflow, id = workflow.activeState?.id) => `${workflow.path} ${id}`;

/** Learn of which workflow a prompt is: messages name a prompt only, and ids of nodes are the same in many workflows. */
export function remember(prompt, workflow) {
  if (queued.has(prompt) || !workflow) return;
  queued.set(prompt, workflow);
  if (queued.size > MOST_PROMPTS) queued.delete(queued.keys().next().value);
  promptKnown(prompt);
}

/** Follow which prompts this page queues. `handler(prompt)` is called for each once its workflow is known. */
export function followPrompts(handler) {
  promptKnown = handler;
  const queuePrompt = api.queuePrompt;
  api.queuePrompt = async function (...parts) {
    const workflow = openWorkflow();
    const answer = await queuePrompt.apply(this, parts);
    if (answer?.prompt_id) remember(String(answer.prompt_id), workflow);
    return answer;
  };
  addEventListener("pagehide", () => {
    const keys = [...queued].map(([prompt, one]) => [prompt, typeof one === "string" ? one : keyOf(one)]);
    sessionStorage.setItem(PROMPTS, JSON.stringify(keys));
  });
}

/** The workflow that a prompt is of, or its key while it is not open; null where this page did not queue it. */
export function workflowOf(prompt) {
  const found = queued.get(prompt) ?? null;
  const open = openWorkflow();
  if (typeof found !== "string" || !open || ![keyOf(open), keyOf(open, NO_ID)].includes(found)) return found;
  queued.set(prompt, open);
  return open;
}

// ---- settings and languages

export const setting = (id) => app.extensionManager.setting.get(id);
export const setSetting = (id, value) => app.extensionManager.setting.set(id, value);
export const language = () => app.extensionManager?.setting.get("Comfy.Locale") ?? "en";

/** Call `handler()` whenever the user takes another language. */
export function onLanguage(handler) {
  app.ui?.settings?.addEventListener?.("Comfy.Locale.change", () => queueMicrotask(handler));
}

/** Texts of all packs: {language: {...}}. */
export async function translations() {
  const answer = await api.fetchApi("/i18n");
  return answer.ok ? answer.json() : {};
}

// ---- messages

/** Show a toast and return what removes it. `life` in milliseconds; without one it stays. */
export function toast({ severity = "info", summary, detail, life }) {
  const message = { severity, summary, detail, life, group: undefined };
  const toasts = app.extensionManager.toast;
  toasts.add(message);
  return () => toasts.remove(message);
}

// ---- nodes

/** All nodes of the workflow, those inside of subgraphs too, with the ids by which the server knows them. */
export function* nodes(graph = app.canvas?.graph?.rootGraph ?? app.canvas?.graph, prefix = "") {
  for (const node of graph?.nodes ?? graph?._nodes ?? []) {
    const id = `${prefix}${node.id}`;
    yield [id, node];
    if (node.subgraph) yield* nodes(node.subgraph, `${id}:`);
  }
}

/** The id by which the server knows a node. */
export function idOf(node) {
  const { graph } = node;
  if (!graph?.rootGraph || graph.rootGraph === graph) return String(node.id);
  return [...nodes()].find(([, one]) => one === node)?.[0] ?? String(node.id);
}

export const isLoading = () => Boolean(app.configuringGraph);
export const typeOf = (node) => node.comfyClass ?? node.constructor?.comfyClass ?? node.type ?? "";
export const titleOf = (node) => String(node.title || typeOf(node));
export const selectedNodes = () => Object.values(app.canvas?.selected_nodes ?? {});

/** Give a node's input another value before anybody sees it. */
export function setInput(node, name, value) {
  const widget = node.widgets?.find((one) => one.name === name);
  const choices = widget?.options?.values;
  if (widget && (!Array.isArray(choices) || choices.includes(value))) widget.value = value;
}

/**
 * Give a node a badge that both renderers draw.
 *
 * Nodes 2.0 keeps what it shows of a node when another workflow is opened that has a node of the same id, with the
 * badges of the first. So every node needs the badge, and it asks for the node that has its id now.
 *
 * @param {function} look what it is for a node now: `{text, fgColor, bgColor}`, or null for none; the same object while
 *   it is the same.
 */
export function addBadge(node, look, onClick) {
  const none = new globalThis.LGraphBadge({ text: "" });
  let shown = null;
  let badge = none;
  const now = () => {
    void app.extensionManager[RENEWED]; // Nodes 2.0 calls this again when what it read has changed
    const there = node.graph?.getNodeById?.(node.id) ?? node;
    const wanted = look(there);
    if (wanted !== shown) {
      badge = wanted ? new globalThis.LGraphBadge({ ...wanted, onClick: () => onClick(there) }) : none;
      shown = wanted;
    }
    return badge;
  };
  now.onegraph = true;
  node.badges.push(now);
}

/** Show a text below a node, as ComfyUI shows those of its own nodes. */
export function showText(id, text) {
  if (openWorkflow()?.activeState?.id !== app.rootGraph?.id) return; // another one is being opened: its graph comes first
  api.dispatchCustomEvent("progress_text", { nodeId: id, text });
}

/** Have all badges drawn anew. */
export function renewBadges() {
  if (!app.extensionManager) return; // settings are told before there is anything to draw
  app.extensionManager[RENEWED] = (app.extensionManager[RENEWED] ?? 0) + 1;
  app.canvas?.setDirty(true, false);
}
