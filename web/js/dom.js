// Elements of the page. Texts become text nodes and never markup, wherever they come from.

/**
 * Make an element.
 *
 * @param {string} name tag, with classes: `div.og-row.og-wide`.
 * @param {object} properties attributes; `on*` are listeners, null and false leave one out.
 * @param {...(Node|string|number|null|false|Array)} children
 */
export function el(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  append(made, children);
  return made;
}

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace what is in an element. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
  return parent;
}

/** An icon of the front end's own font, which screen readers pass over. */
export const icon = (name) => el(`i.pi.pi-${name}`, { "aria-hidden": "true" });

export function button(label, onclick, { name = null, kind = "", disabled = false, extra = {} } = {}) {
  const classes = `button.og-button${kind ? `.og-${kind}` : ""}`;
  return el(classes, { type: "button", onclick, disabled, ...extra }, name && icon(name), el("span", {}, label));
}

/** A button that is an icon alone. */
export function iconButton(label, name, onclick, extra = {}) {
  return el("button.og-button.og-icon", { type: "button", onclick, "aria-label": label, title: label, ...extra }, icon(name));
}

/** A bar that tells a share of 0 to 1; null: of unknown length. */
export function bar(share, label, kind = "") {
  const known = share !== null && share !== undefined;
  const now = known ? Math.round(Math.min(Math.max(share, 0), 1) * 100) : null;
  return el(
    `div.og-bar${kind ? `.og-${kind}` : ""}${known ? "" : ".og-unknown"}`,
    { role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": now },
    el("div", { style: known ? `width:${now}%` : null }),
  );
}
