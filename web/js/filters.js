// Search, state and order of the list.

import { stateText } from "./entries.js";
import { el, fill, icon, iconButton } from "./dom.js";
import { number, t } from "./strings.js";

const SORTS = ["used", "bytes", "model", "state", "restores"];
const UP = new Set(["model", "state"]); // what is read from A to Z first
const PAUSE = 200; // milliseconds after a key

export class Filters {
  /** @param {function} ask called with what changed of the query. */
  constructor(ask) {
    this.ask = ask;
    this.order = "desc";
    this.field = el("input", {
      type: "search", placeholder: t("search"), "aria-label": t("search"), spellcheck: "false", autocomplete: "off",
      oninput: () => this.#typed(),
    });
    this.state = el("select", { "aria-label": t("filterState"), onchange: () => this.ask({ state: this.state.value }) });
    this.sort = el(
      "select", { "aria-label": t("sortBy"), onchange: () => this.#sorted(UP.has(this.sort.value) ? "asc" : "desc") },
      SORTS.map((name) => el("option", { value: name }, t(`sorts.${name}`))),
    );
    this.direction = iconButton("", "sort-amount-down", () => this.#sorted(this.order === "asc" ? "desc" : "asc"));
    this.count = el("span.og-count.og-muted", { role: "status" });
    this.element = el(
      "div.og-filters", {},
      el("label.og-search", {}, icon("search"), this.field),
      el("div.og-selects", {}, this.state, this.sort, this.direction, this.count),
    );
    this.told(null, {});
    this.#showOrder();
  }

  /** Show how many match, and the states that there are. */
  told(total, states) {
    fill(this.count, total === null ? "" : t("count", { count: total }));
    const wanted = this.state.value;
    const known = Object.keys(states).filter((state) => states[state] || state === wanted);
    if (wanted && !known.includes(wanted)) known.push(wanted);
    fill(
      this.state,
      el("option", { value: "" }, t("allStates")),
      known.map((state) => el("option", { value: state }, states[state] ? `${stateText(state)} (${number(states[state])})` : stateText(state))),
    );
    this.state.value = wanted;
  }

  search(text) {
    this.field.value = text;
    this.state.value = "";
    this.ask({ search: text, state: "" });
  }

  clear() {
    this.search("");
    this.field.focus();
  }

  #typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask({ search: this.field.value.trim() }), PAUSE);
  }

  #sorted(order) {
    this.order = order;
    this.#showOrder();
    this.ask({ sort: this.sort.value, order });
  }

  #showOrder() {
    const name = t(this.order === "asc" ? "ascending" : "descending");
    this.direction.setAttribute("aria-label", name);
    this.direction.title = name;
    fill(this.direction, icon(this.order === "asc" ? "sort-amount-up" : "sort-amount-down"));
  }
}
