// The routes below /onegraph/.

import { request } from "./host.js";

/** What a route refused, with the reason's code. */
export class RouteError extends Error {
  constructor(text, code, status) {
    super(text);
    this.code = code;
    this.status = status;
  }
}

/** The server does not answer at all. */
export class ServerGone extends Error {}

const PATIENCE = 30_000; // milliseconds

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await request(`/onegraph/${path}`, { signal: AbortSignal.timeout(PATIENCE), ...options });
  } catch (error) {
    throw new ServerGone(String(error?.message ?? error));
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  if (answer.status === 502 || answer.status === 504) throw new ServerGone(answer.statusText); // a proxy, without it
  throw new RouteError(String(body?.error ?? `${answer.status} ${answer.statusText}`), String(body?.code ?? ""), answer.status);
}

const get = (path) => ask(path);
const post = (path, body = {}) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

const named = (id) => encodeURIComponent(id);

export function graphs({ state, search, sort, order, offset, limit }) {
  // A pattern that all states match: without one, quarantined graphs are left out.
  const query = new URLSearchParams({ state: state || "*", sort, order, offset, limit, partial: true });
  if (search) query.set("search", search);
  return get(`graphs?${query}`);
}

export const graph = (id) => get(`graphs/${named(id)}`);
export const act = (id, action) => post(`graphs/${named(id)}/${action}`);
/** Remove what is over the budget and what is of no use, also copies beside checkpoints, or tell what would go. */
export async function prune(dryRun) {
  const done = [];
  for (const beside of [false, true]) done.push(await post("prune", { dry_run: dryRun, beside, unusable: true }));
  const [graphs, copies] = done;
  return {
    removed: [...graphs.removed, ...copies.removed.map((one) => ({ ...one, copy: true }))],
    kept_in_use: graphs.kept_in_use,
    freed: done.reduce((sum, one) => sum + Math.max(one.before - one.after, 0), 0),
  };
}
export const models = () => get("models");
export const insert = (workflow) => post("insert", { workflow });
/** The models of a workflow in either format. */
export const explain = (prompt) => post("explain", { prompt });
export const bake = (prompt) => post("bake", { prompt });
export const bakeJob = (job) => get(`bake/${named(job)}`);
export const cancelBake = (job) => post(`bake/${named(job)}/cancel`);
export const settings = () => get("settings");
export const setBudget = (bytes) => post("settings", { disk_budget_bytes: bytes });
export const badges = () => get("badges");
