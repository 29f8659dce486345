// Dialogs over everything: the browser's own element keeps the focus inside and closes at Escape.

import { button, el, fill, iconButton } from "./dom.js";
import { t } from "./strings.js";

let made = 0;

/**
 * Show a dialog; resolves to what `close(value)` was given, or null when it is dismissed.
 *
 * @param {object} parts title, `body(close)`, and `actions(close)` that return elements.
 */
export function show({ title, body, actions = () => [] }) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    const id = `og-dialog-${(made += 1)}`;
    const dialog = el("dialog.onegraph.og-dialog", {
      "aria-labelledby": id,
      onclose: () => {
        dialog.remove();
        // The button that opened the dialog may have been drawn anew behind it, when an answer came.
        (before?.isConnected ? before : document.querySelector(`.og-tab [data-action="${before?.dataset.action}"]`))?.focus();
        resolve(answer);
      },
      onclick: (event) => event.target === dialog && close(null), // the backdrop
      onkeydown: (event) => event.stopPropagation(), // keys are the dialog's, not the canvas's
    });
    let answer = null;
    const close = (value = null) => {
      answer = value;
      dialog.close();
    };
    const buttons = actions(close);
    fill(
      dialog,
      el(
        "div.og-sheet",
        {},
        el("header", {}, el("h2", { id }, title), iconButton(t("close"), "times", () => close(null))),
        el("div.og-body", { tabindex: "0", role: "group", "aria-labelledby": id }, body(close)),
        buttons.length ? el("footer", {}, buttons) : null,
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("[data-first]") ?? dialog.querySelector("footer button"))?.focus();
  });
}

/** Ask for a yes; true or false. `danger` names what cannot be taken back. */
export async function confirm({ title, text, body = () => [], yes, danger = false }) {
  return (
    (await show({
      title,
      body: (close) => [el("p", {}, text), body(close)],
      actions: (close) => [
        button(t("cancel"), () => close(false), { extra: { "data-first": true } }),
        button(yes, () => close(true), { kind: danger ? "danger" : "primary" }),
      ],
    })) === true
  );
}
