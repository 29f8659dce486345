// "Insert Compile Model": have the server put the node behind whatever loads a model, in the open workflow or in files.

import { tell } from "./actions.js";
import * as badges from "./badges.js";
import * as client from "./client.js";
import * as host from "./host.js";
import * as settings from "./settings.js";
import { t } from "./strings.js";

const SHOWN = 8000; // milliseconds
const NOTHING = "nothing_inserted";

/** The command: change the open workflow; resolves to whether it was changed. One undo takes it back. */
export async function insertIntoOpen() {
  const workflow = host.openWorkflow();
  try {
    const { workflow: changed, after } = await client.insert(await host.graphAsSaved());
    if (host.openWorkflow() !== workflow) return false; // the user opened another one meanwhile
    await host.replaceGraph(changed, () => {
      for (const [, node] of host.nodes()) if (badges.isOurs(node)) settings.giveDefaults(node);
    });
    host.toast({ severity: "success", summary: t("insert.done"), detail: t("insert.after", { nodes: after.join(", ") }), life: SHOWN });
    return true;
  } catch (error) {
    failed(error);
    return false;
  }
}

/** Download each file with the node in it, as `<name>.onegraph.json`. */
export async function insertIntoFiles(files) {
  for (const file of files) {
    try {
      const { workflow, after } = await client.insert(await parsed(file));
      host.download(JSON.stringify(workflow), `${file.name.replace(/\.json$/i, "")}.onegraph.json`);
      host.toast({ severity: "success", summary: file.name, detail: t("insert.after", { nodes: after.join(", ") }), life: SHOWN });
    } catch (error) {
      failed(error, file.name);
    }
  }
}

async function parsed(file) {
  const data = JSON.parse(await file.text());
  if (!Array.isArray(data?.nodes)) throw new TypeError(t("insert.notWorkflow"));
  return data;
}

function failed(error, name = "") {
  if (error.code === NOTHING) host.toast({ severity: "info", summary: name || t("insert.title"), detail: t("insert.nothing"), life: SHOWN });
  else tell(error instanceof SyntaxError ? new TypeError(t("insert.notWorkflow")) : error, name || t("insert.failed"));
}
