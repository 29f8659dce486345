// How one graph is shown: its row in the list, and all that is known of it.

import { button, el, icon } from "./dom.js";
import { ago, bytes, faster, has, moment, number, seconds, t } from "./strings.js";

const COLOURS = { signed: "good", quarantined: "bad", stale: "warn" };

export const stateText = (state) => (has(`states.${state}`) ? t(`states.${state}`) : t("states.foreign"));
export const componentText = (name) => (has(`components.${name}`) ? t(`components.${name}`) : name);
export const checkpoint = (entry) => entry.model.split("/")[0];

/** A word in a coloured frame; the colour says nothing that the word does not. */
export const chip = (text, colour = "none") => el(`span.og-chip.og-${colour}`, {}, text);
export const stateChip = (state) => chip(stateText(state), COLOURS[state] ?? "warn");

const mark = (name, text) => el("span.og-mark", { title: text }, icon(name), el("span.og-hidden", {}, text));
const marks = (entry) => [entry.pinned && mark("thumbtack", t("pinned")), entry.in_use && mark("play-circle", t("inUse"))];

/** A row of the list. Screen readers read the same texts, and words in place of the marks. */
export function row(entry, { open, selected }) {
  return el(
    "button.og-row",
    { type: "button", "aria-current": selected ? "true" : null, onclick: open, "data-id": entry.id },
    el("span.og-name", {}, el("span.og-text", {}, checkpoint(entry)), marks(entry)),
    el("span.og-state", {}, stateChip(entry.state)),
    el("span.og-what", {}, [componentText(entry.component), entry.shapes, entry.dtype].filter(Boolean).join(" · ")),
    el("span.og-more", {}, el("span.og-size", {}, bytes(entry.bytes)), el("span.og-used", {}, ago(entry.used))),
    el("span.og-speed", {}, entry.speedup ? faster(entry.speedup) : ""),
  );
}

const targetText = (target) =>
  typeof target === "string" ? target : Object.entries(target ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");

/** What is known of a graph, as names and values. */
export function facts(entry) {
  const found = [
    ["checkpoint", checkpoint(entry)],
    ["component", componentText(entry.component)],
    ["shapes", entry.shapes],
    ["dtype", entry.dtype],
    ["backend", entry.backend],
    ["target", targetText(entry.target)],
    ["size", bytes(entry.bytes)],
    ["lastUse", `${moment(entry.used)} (${ago(entry.used)})`],
    ["restores", number(entry.restores ?? 0)],
    ["restoreTime", entry.restore_seconds != null && seconds(entry.restore_seconds)],
    ["speedup", entry.speedup ? faster(entry.speedup, 2) : t("notMeasured")],
    ["toEager", entry.to_eager != null && entry.to_eager.toExponential(1)],
    ["compileTime", entry.compile_seconds ? seconds(entry.compile_seconds) : null],
    ["created", entry.created && moment(entry.created)],
    ["kernels", entry.unmeasured && t("unmeasured")],
    ["madeBy", entry.made_by && `OneGraph ${entry.made_by}`],
    ["signature", entry.signed],
    ["key", entry.key],
    ["id", entry.id],
  ];
  return found.filter(([, value]) => value);
}

/** A table of names and values. */
export const pairs = (rows, name = (key) => t(`facts.${key}`)) =>
  el("dl.og-pairs", {}, rows.map(([key, value]) => [el("dt", {}, name(key)), el("dd", {}, value)]));

export function actions(entry, run, disabled) {
  const made = (action, name, kind = "") =>
    button(t(`actions.${action}`), () => run(action, entry), { name, kind, disabled, extra: { "data-action": action } });
  return [
    made("verify", "shield"),
    entry.pinned ? made("unpin", "thumbtack") : made("pin", "thumbtack"),
    entry.state === "quarantined" && made("retry", "refresh"),
    made("delete", "trash", "danger"),
  ];
}
