// Building elements. Attributes only, never markup from text: nothing an answer says can become an element.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else if (name === "value" || name === "checked") element[name] = value;
    else if (name === "css") for (const [property, to] of Object.entries(value)) element.style.setProperty(property, to);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element: `el("p", { class: "hint", text: "…" }, child, …)`; `on…` are listeners, `css` goes through CSSOM. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** An SVG element, the same way. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** A button; `attributes` as those of `el`. */
export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", text, onclick, ...attributes });
}

/** Mark a control as holding what cannot be taken, or not. */
export function setInvalid(control, invalid) {
  if (invalid) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
}

/** A remark. */
export function hint(text) {
  return el("p", { class: "hint", text });
}

/** The line above the answers: what they are about, then words about it. */
export function lead(subject, words) {
  return el("p", { class: "lead" }, el("strong", { text: subject }), ` ${words}`);
}

/** A part of the answers under a heading: a text, or an element in place of the heading. */
export function panel(heading, ...children) {
  return el("section", { class: "panel" }, heading instanceof Node ? heading : el("h2", { text: heading }), children);
}

/** A heading with controls beside it. */
export function headed(heading, ...controls) {
  return el("div", { class: "row" }, el("h2", { text: heading }), controls);
}

/** Content that is folded away under a summary, a text; `attributes` as those of `el`. */
export function folded(attributes, summary, ...children) {
  return el("details", attributes, el("summary", { text: summary }), children);
}

/** Content that is folded away under a summary. */
export const details = (summary, ...children) => folded({}, summary, ...children);

/** A list of texts or elements. */
export function list(items, attributes = {}) {
  return el("ul", attributes, items.map((item) => el("li", {}, item)));
}

/** A list of [term, text]. */
export function terms(pairs) {
  return el("dl", {}, pairs.map(([term, text]) => [el("dt", { text: term }), el("dd", { text })]));
}

/** The devices that have no answer and why; nothing where there are none. */
export function refusedPanel(rows) {
  if (!rows.length) return "";
  const reasons = terms(rows.map((row) => [row.title, row.refusal]));
  return el("section", { class: "panel refused" }, el("h2", { text: "No answer" }), reasons);
}

/** A warning: what it is about, then texts as a list. */
export function caution(title, texts, { mild = false } = {}) {
  return el("div", { class: mild ? "cautions mild" : "cautions" }, el("strong", { text: title }), list(texts));
}

/** A word in a table that unfolds to remarks. */
export function tag(word, remarks) {
  return folded({ class: "tag" }, word, list(remarks));
}

/** A table cell of a number. */
export function numberCell(text) {
  return el("td", { class: "number", text });
}

function cell(name, content, scope) {
  if (content instanceof HTMLTableCellElement) return content;
  return el(name, { scope }, content instanceof Node ? content : String(content));
}

/** A table in a region that scrolls. `columns` and the cells of `rows` are texts, elements or table cells; the first cell of a
 * row is its header. Columns that `number(i)` is true of are aligned as numbers, `rowClass(i)` is the class of a row. */
export function table(caption, columns, rows, { label = caption, kind = null, number = () => false, rowClass = () => null } = {}) {
  const head = (column, i) =>
    column instanceof HTMLTableCellElement ? column : el("th", { scope: "col", class: number(i) ? "number" : null }, column);
  const line = (cells, i) =>
    el("tr", { class: rowClass(i) }, cells.map((one, at) => cell(at ? "td" : "th", one, at ? null : "row")));
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    el(
      "table",
      { class: kind },
      el("caption", { class: "unseen", text: caption }),
      columns.length ? el("thead", {}, el("tr", {}, columns.map(head))) : "",
      el("tbody", {}, rows.map(line)),
    ),
  );
}

/** The head of a column that rows are sorted by; `sort(descending)` is called to sort by it. */
export function sortHead(words, { name, by, descending, sort, number = false }) {
  const chosen = name === by;
  const order = chosen ? (descending ? "descending" : "ascending") : null;
  return el(
    "th",
    { scope: "col", class: number ? "number" : null, "aria-sort": order },
    el(
      "button",
      { type: "button", class: "sort", "data-keep": `sort-${name}`, onclick: () => sort(chosen && !descending) },
      words,
      el("span", { "aria-hidden": "true", text: { ascending: " ↑", descending: " ↓" }[order] ?? " ↕" }),
    ),
  );
}

/** Buttons from page to page of a long table: `steps` are [words, offset, whether there is no such page], `go(offset)` goes. */
export function pager(steps, go, ...more) {
  return el(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    steps.map(([words, offset, disabled]) => button(words, () => go(offset), { "data-keep": words, disabled })),
    more,
  );
}

/** Put other children into `root`; the focus stays on the control with the same `data-keep`, and so does a
 * text that such a control cannot take. */
export function redraw(root, ...children) {
  const focused = document.activeElement?.getAttribute("data-keep");
  const wrong = [...root.querySelectorAll("input[data-keep][aria-invalid]")];
  const sameAs = (keep) => root.querySelector(`[data-keep="${CSS.escape(keep)}"]`);
  root.replaceChildren(...children.filter(Boolean));
  if (focused) sameAs(focused)?.focus();
  for (const { dataset, value } of wrong) {
    const now = sameAs(dataset.keep);
    if (!now) continue;
    now.value = value;
    now.dispatchEvent(new Event("input"));
  }
}

let count = 0;

/** An id no other element has. */
export function freshId(prefix) {
  count += 1;
  return `${prefix}-${count}`;
}
