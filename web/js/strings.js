// Texts in the user's language, and numbers, sizes and times as it writes them.

import * as host from "./host.js";

const FALLBACK = "en";
const NAMESPACE = "onegraph";

let all = {};
let chosen = FALLBACK;

/** Load the texts; without them keys are shown, and the page works all the same. */
export async function load() {
  try {
    all = await host.translations();
  } catch {
    all = {};
  }
  refresh();
}

/** Take the language that the user has chosen now. */
export function refresh() {
  const wanted = host.language();
  const base = wanted.split("-")[0];
  chosen = [wanted, base].find((one) => all[one]?.[NAMESPACE]) ?? FALLBACK;
}

export const lang = () => chosen;

function find(language, key) {
  let found = all[language]?.[NAMESPACE];
  for (const part of key.split(".")) found = found?.[part];
  return typeof found === "string" ? found : undefined;
}

/** Whether there is a text. */
export const has = (key) => find(FALLBACK, key) !== undefined;

/** The text of a key, with values in place of `{name}`. With a `count`, the form `one` or `other` of the key. */
export function t(key, values = {}) {
  const exact = "count" in values ? `${key}.${new Intl.PluralRules(chosen).select(values.count)}` : key;
  const text =
    find(chosen, exact) ?? ("count" in values ? find(chosen, `${key}.other`) : undefined) ?? find(FALLBACK, exact) ??
    find(FALLBACK, `${key}.other`) ?? key;
  const shown = "count" in values ? { ...values, count: number(values.count) } : values;
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in shown ? String(shown[name]) : whole));
}

export const number = (value, digits = 0) =>
  new Intl.NumberFormat(chosen, { maximumFractionDigits: digits }).format(value);

/** How fast a graph is beside the uncompiled model. */
export const faster = (speedup, digits = speedup < 10 ? 1 : 0) =>
  t(speedup < 1.05 ? "asFast" : "timesEager", { speed: number(speedup, digits) });

const STEPS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  let step = 0;
  let shown = value;
  while (shown >= 1024 && step < STEPS.length - 1) {
    shown /= 1024;
    step += 1;
  }
  return `${number(shown, step && shown < 10 ? 1 : 0)} ${STEPS[step]}`;
}

export function seconds(value) {
  if (value < 60) return t("time.seconds", { value: number(value, value < 0.1 ? 2 : value < 10 ? 1 : 0) });
  if (value < 3600) return t("time.minutes", { value: number(value / 60, value < 600 ? 1 : 0) });
  return t("time.hours", { value: number(value / 3600, value < 36000 ? 1 : 0) });
}

const AGES = [["year", 31_536_000], ["month", 2_592_000], ["day", 86_400], ["hour", 3600], ["minute", 60]];

/** How long ago a time was, such as "3 days ago". */
export function ago(iso, now = Date.now()) {
  const passed = (now - Date.parse(iso)) / 1000;
  if (!Number.isFinite(passed)) return "";
  const format = new Intl.RelativeTimeFormat(chosen, { numeric: "auto" });
  for (const [unit, length] of AGES) {
    if (passed >= length) return format.format(-Math.floor(passed / length), unit);
  }
  return t("time.now");
}

export function moment(iso) {
  const time = Date.parse(iso);
  return Number.isFinite(time)
    ? new Intl.DateTimeFormat(chosen, { dateStyle: "medium", timeStyle: "short" }).format(time)
    : "";
}

export const clock = (time) => new Intl.DateTimeFormat(chosen, { timeStyle: "short" }).format(time);
