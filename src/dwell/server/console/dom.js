// Making and changing what is shown. What comes from outside is text, always: nothing here, and
// nothing that uses it, makes elements of a string.

/** Return an element; names that begin with "on" are listeners, all others are attributes. */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  set(node, attributes);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Return an element of a drawing. */
export function draw(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  set(node, attributes);
  node.append(...children);
  return node;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
}

// What would not be seen, or would turn the writing around.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Return a text of somebody else's, whose direction of writing is its own, and of which all is seen. */
export const their = (text) => el("bdi", {}, String(text).replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`));

export const button = (label, onclick, kind = "") => el("button", { type: "button", class: kind, onclick }, label);

/** Return a link to a page of the console. */
export const link = (label, page, parameters = {}) => el("a", { href: place(page, parameters) }, label);

export const place = (page, parameters = {}) => `#/${page}${first.query(parameters)}`;

/** Return a labelled field of a form. */
export function field(label, name, attributes = {}, kind = "input") {
  return el("label", { class: attributes.wide ? "wide" : "" }, label, el(kind, { name, autocomplete: "off", ...attributes, wide: null }));
}

/** Return a labelled field of several lines. */
export function area(label, name, rows, value = "") {
  return el("label", { class: "wide" }, label, el("textarea", { name, rows, spellcheck: "false" }, value));
}

/** Return a labelled field for a name, as of a topic. */
export const nameField = (label, name, value = "") => field(label, name, { value, required: true, maxlength: 200, pattern: "[A-Za-z0-9._:\\-]+" });

export function select(label, name, options, value) {
  const made = options.map(([word, text]) => el("option", { value: word, selected: word === value }, text));
  return el("label", {}, label, el("select", { name }, made));
}

/** Return a form that hands over what was filled in, and is never sent. */
export function form(label, onsubmit, ...children) {
  return el("form", {
    "aria-label": label,
    onsubmit: (event) => {
      event.preventDefault();
      onsubmit(Object.fromEntries(new FormData(event.target)), event.target);
    },
  }, ...children);
}

/** A table whose rows are told apart by a key, so that who is in one stays there when it changes.
 *  A column is {label, show(item) -> text or node, number, sort}. */
export class Table {
  constructor(caption, columns, key, { onsort = null } = {}) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.heads = columns.map((column) => this.head(column, onsort));
    this.body = el("tbody", { role: "rowgroup" });
    // A copy of a row takes a fraction of the time that it takes to make one.
    this.blank = el("tr", { role: "row" }, columns.map((column) =>
      el("td", { role: "cell", "data-label": column.label, class: column.number ? "number" : "" })));
    this.node = el("table", { role: "table" },
      el("caption", {}, caption),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, this.heads)), this.body);
  }

  head(column, onsort) {
    const label = column.sort && onsort ? button(column.label, () => onsort(column.sort)) : column.label;
    return el("th", { role: "columnheader", scope: "col", class: column.number ? "number" : "" }, label);
  }

  sorted(word) {
    this.columns.forEach((column, at) => {
      if (column.sort === word) this.heads[at].setAttribute("aria-sort", word === "name" ? "ascending" : "descending");
      else this.heads[at].removeAttribute("aria-sort");
    });
  }

  show(items) {
    const focused = document.activeElement;
    const wanted = new Set();
    let before = null;
    for (const item of items) {
      const key = this.key(item);
      wanted.add(key);
      const row = this.rows.get(key) ?? this.row(key);
      row.cells.forEach((cell, at) => fill(cell, this.columns[at].show(item)));
      const next = before ? before.nextSibling : this.body.firstChild;
      if (next !== row.node) this.body.insertBefore(row.node, next);
      before = row.node;
    }
    for (const [key, row] of this.rows) {
      if (!wanted.has(key)) { row.node.remove(); this.rows.delete(key); }
    }
    // A row that was moved lost whoever was in it.
    if (focused !== document.activeElement && this.body.contains(focused)) focused.focus();
  }

  row(key) {
    const node = this.blank.cloneNode(true);
    const row = { cells: [...node.children], node };
    this.rows.set(key, row);
    return row;
  }
}

/** Let a node hold something else, unless it looks the same: focus and selection stay. */
export function fill(node, content) {
  const list = (Array.isArray(content) ? content : [content]).filter((part) => part !== null && part !== undefined);
  const same = list.length === node.childNodes.length && list.every((part, at) => isSame(node.childNodes[at], part));
  if (!same) node.replaceChildren(...list);
}

function isSame(there, part) {
  if (typeof part === "string" || typeof part === "number") return there.nodeType === Node.TEXT_NODE && there.data === String(part);
  // Listeners cannot be compared: what has buttons is made anew only where its words differ.
  return part instanceof Node && there.isEqualNode(part);
}

/** Return names with what belongs to each. */
export const facts = (pairs) =>
  el("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
