// The view "Workflow": the models that the open workflow samples, and what can be done with it.

import { share } from "./badges.js";
import * as client from "./client.js";
import { button, el, fill } from "./dom.js";
import { chip } from "./entries.js";
import * as host from "./host.js";
import { insertIntoFiles, insertIntoOpen } from "./insert.js";
import { number, seconds, t } from "./strings.js";

const COLOURS = { hit: "good", miss: "none", recorded: "none", refused: "warn", unknown: "none" };

export class Workflow {
  /** @param {object} heard `failed(error)`: the server does not answer. */
  constructor({ failed }) {
    this.failed = failed;
    this.asked = 0;
    this.share = el("p.og-muted", { role: "status" });
    this.message = el("div.og-muted", { role: "status" });
    this.list = el("ul.og-models-list", { "aria-label": t("workflow.list") });
    this.input = el("input", { type: "file", accept: ".json,application/json", multiple: true, hidden: true, onchange: () => this.#files(this.input.files) });
    this.drop = el(
      "div.og-drop",
      { ondragover: (event) => this.#over(event, true), ondragleave: (event) => this.#over(event, false), ondrop: (event) => this.#dropped(event) },
      el("p.og-muted", {}, t("workflow.drop")),
      button(t("workflow.choose"), () => this.input.click(), { name: "file", extra: { "data-action": "insert-files" } }),
      this.input,
    );
    this.insert = button(t("insert.command"), () => insertIntoOpen(), { kind: "primary", name: "plus", extra: { "data-action": "insert" } });
    this.element = el("div.og-pane.og-workflow", {}, this.insert, this.share, this.message, this.list, this.drop);
  }

  /** Ask for the models of the workflow that is open now. */
  async load() {
    const asked = (this.asked += 1);
    this.drawShare();
    try {
      const found = await client.explain(await host.graphAsSaved());
      if (asked !== this.asked) return;
      this.insert.hidden = !found.after.length;
      fill(this.message, found.after.length > 0 && el("p", {}, t("workflow.after", { nodes: found.after.join(", ") })),
        found.lacks.length > 0 && el("details", {}, el("summary", {}, t("workflow.lacks", { count: found.lacks.length })), el("ul", {}, found.lacks.map((one) => el("li", {}, one)))));
      fill(this.list, found.models.map(row));
    } catch (error) {
      if (asked !== this.asked) return;
      fill(this.list);
      this.insert.hidden = true;
      if (error instanceof client.RouteError) fill(this.message, el("p", {}, error.message));
      else this.failed(error);
    }
  }

  /** Show for how long of the last prompt's time its models ran compiled. */
  drawShare() {
    const found = share();
    this.share.hidden = !found;
    if (!found) return;
    const { taken, compiled } = found;
    const part = `${number(Math.round((100 * Math.min(compiled, taken)) / Math.max(taken, 1e-3)))} %`;
    this.share.textContent = t("workflow.share", { compiled: seconds(compiled), taken: seconds(taken), share: part });
  }

  #over(event, over) {
    event.preventDefault();
    event.stopPropagation();
    this.drop.classList.toggle("og-over", over);
  }

  /** Keep the files from the front end, which would open them. */
  #dropped(event) {
    this.#over(event, false);
    void this.#files(event.dataTransfer?.files ?? []);
  }

  async #files(files) {
    await insertIntoFiles([...files]);
    this.input.value = "";
  }
}

function row(model) {
  const loras = model.loras.map((name) => t("workflow.lora", { name }));
  const what = [model.family, ...model.formats, ...loras].filter(Boolean).join(" · ");
  const graphs = model.graphs ? t("models.graphs", { count: model.graphs }) : "";
  return el(
    "li",
    {},
    el("div.og-model-head", {}, el("strong", {}, model.file || model.type), chip(t(`workflow.verdicts.${model.verdict}`), COLOURS[model.verdict])),
    el("p", {}, what),
    el("p.og-muted", {}, [t("node", { id: model.node }), graphs, model.text].filter(Boolean).join(" · ")),
  );
}
