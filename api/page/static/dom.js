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

/** A table with headers: `columns` are texts or elements, `rows` lists of texts or elements, the first of each its header. */
export function table(caption, columns, rows) {
  const cell = (name, content, scope) => {
    const made = el(name, { scope });
    made.append(content instanceof Node ? content : String(content));
    return made;
  };
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "unseen", text: caption }),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          columns.map((column) => cell("th", column, "col")),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            row.map((one, i) => (i ? cell("td", one) : cell("th", one, "row"))),
          ),
        ),
      ),
    ),
  );
}

let made = 0;

/** An id no other element has. */
export function freshId(prefix) {
  made += 1;
  return `${prefix}-${made}`;
}
