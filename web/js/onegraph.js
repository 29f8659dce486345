// The extension: what ComfyUI's front end loads first of the page. The other modules only define things.

import * as badges from "./badges.js";
import * as bake from "./bake.js";
import * as host from "./host.js";
import { insertIntoOpen } from "./insert.js";
import * as settings from "./settings.js";
import * as strings from "./strings.js";
import { Tab } from "./tab.js";

const BAKE = "OneGraph.BakeWorkflow";
const REASONS = "OneGraph.ShowReasons";
const INSERT = "OneGraph.InsertCompileModel";
const GRAPHS = "OneGraph.ShowGraphs";

let tab = null;
let container = null;

function render(element) {
  tab?.close();
  container = element;
  tab = new Tab(element);
}

function destroy() {
  tab?.close();
  tab = container = null;
}

function languageChanged() {
  strings.refresh();
  badges.drawAll();
  if (container) render(container);
}

function explainSelected() {
  const node = host.selectedNodes().find(badges.isOurs);
  if (node) void badges.explain(node);
  else host.toast({ severity: "info", summary: strings.t("reasons.select"), life: 5000 });
}

async function setup() {
  document.head.append(
    Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("../onegraph.css", import.meta.url).href }),
  );
  await strings.load();
  host.addTab({ title: "onegraph.title", tooltip: "onegraph.tooltip", icon: "pi pi-bolt", render, destroy });
  host.onLanguage(languageChanged);
  host.followPrompts(badges.promptKnown);
  host.followRuns(badges.ended);
  host.listen("onegraph.badge", badges.heard);
  host.listen("onegraph.text", badges.heardText);
  host.listen(host.QUEUE, badges.queueChanged);
  host.listen("onegraph.bake", bake.heard);
  host.listen(host.BACK, () => void badges.load());
  void badges.load();
  void settings.load();
}

host.register({
  settings: settings.definitions,
  commands: [
    { id: INSERT, label: "Insert Compile Model", icon: "pi pi-plus", function: () => insertIntoOpen() },
    { id: BAKE, label: "Compile this workflow ahead", icon: "pi pi-bolt", function: () => bake.bakeWorkflow() },
    { id: REASONS, label: "Show why the selected node ran uncompiled", icon: "pi pi-info-circle", function: explainSelected },
    { id: GRAPHS, label: "Show cached graphs", icon: "pi pi-database", function: () => host.openTab() },
  ],
  menu: [INSERT, BAKE, GRAPHS, REASONS],
  setup,
  nodeMade: (node) => {
    badges.add(node);
    settings.nodeMade(node);
  },
  graphLoaded: () => {
    badges.drawAll();
    tab?.graphLoaded();
  },
  nodeMenu: (node) =>
    badges.isOurs(node) ? [{ content: strings.t("reasons.menu"), callback: () => void badges.explain(node) }] : [],
});
