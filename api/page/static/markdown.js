// Markdown as elements. The text is read by marked's lexer, and every token becomes an element made here: HTML in the text is
// shown as it was written, pictures are named and not loaded, and a link leads to http, https or mail, or is no link.
import { el, table } from "./dom.js";

let lexer = null;

/** Get the reader of Markdown, which few views need; to be awaited before `markdown`. */
export async function loadMarkdown() {
  ({ lexer } = await import("./vendor/marked.js"));
}

const SAFE = ["http:", "https:", "mailto:"];
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const LAST_CODE_POINT = 0x10ffff;

/** The signs that entities in a text stand for; what is none stays as it is. */
function decoded(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{2,4}));/gi, (raw, tens, hex, name) => {
    if (name) return ENTITIES[name] ?? raw;
    const code = tens ? Number(tens) : Number.parseInt(hex, 16);
    return code > 0 && code <= LAST_CODE_POINT ? String.fromCodePoint(code) : raw;
  });
}

/** An address that a link may lead to, or null. */
function safeHref(href) {
  try {
    const address = new URL(href);
    return SAFE.includes(address.protocol) ? address.href : null;
  } catch {
    return null; // Nothing but a whole address leads anywhere from here: files beside the text are not served.
  }
}

function link({ href, tokens }) {
  const to = safeHref(href);
  return to ? el("a", { href: to, rel: "noopener noreferrer" }, inline(tokens)) : el("span", {}, inline(tokens));
}

const INLINE = {
  text: (token) => (token.tokens ? inline(token.tokens) : decoded(token.text)),
  escape: ({ text }) => text,
  strong: ({ tokens }) => el("strong", {}, inline(tokens)),
  em: ({ tokens }) => el("em", {}, inline(tokens)),
  del: ({ tokens }) => el("del", {}, inline(tokens)),
  codespan: ({ text }) => el("code", { text }),
  br: () => el("br"),
  link,
  image: ({ text, href }) => `[picture: ${text || href}]`,
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
};

function inline(tokens) {
  return tokens.map((token) => (Object.hasOwn(INLINE, token.type) ? INLINE[token.type](token) : token.raw));
}

/** Headings start at `level` and never leave one out, whatever the text does. */
function outline(level) {
  let last = level - 1;
  return (depth) => {
    last = Math.min(depth + level - 1, last + 1, 6);
    return `h${last}`;
  };
}

function tableOf({ header, rows }, place) {
  const texts = header.map(({ text }) => text).filter((text) => text.trim());
  place.tables += 1;
  const head = ({ tokens, text }) => (text.trim() ? el("th", { scope: "col" }, inline(tokens)) : el("td"));
  const cell = ({ tokens }, i) => (i ? el("td", {}, inline(tokens)) : el("th", { scope: "row" }, inline(tokens)));
  return table(
    `${place.name}, table ${place.tables}: ${texts.join(", ") || "Facts"}`,
    // An empty head says nothing to anyone, least of all read out.
    texts.length ? header.map(head) : [],
    rows.map((row) => row.map(cell)),
  );
}

const BLOCKS = {
  space: () => null,
  def: () => null,
  heading: ({ depth, tokens }, place) => el(place.heading(depth), {}, inline(tokens)),
  paragraph: ({ tokens }) => el("p", {}, inline(tokens)),
  text: (token) => el("span", {}, INLINE.text(token)),
  code: ({ text }) => el("pre", { tabindex: "0", "aria-label": "Code" }, el("code", { text })),
  blockquote: ({ tokens }, place) => el("blockquote", {}, blocks(tokens, place)),
  hr: () => el("hr"),
  table: tableOf,
  list: ({ ordered, start, items }, place) =>
    el(
      ordered ? "ol" : "ul",
      { start: ordered && start !== 1 ? start : null },
      items.map(({ tokens }) => el("li", {}, blocks(tokens, place))),
    ),
  checkbox: (token) => INLINE.checkbox(token),
};

function blocks(tokens, place) {
  return tokens.map((token) =>
    Object.hasOwn(BLOCKS, token.type) ? BLOCKS[token.type](token, place) : el("p", { text: token.raw }),
  );
}

/** A Markdown text as one element; `name` is what its tables are called for screen readers, headings start at `level`. */
export function markdown(text, { name, level = 2 }) {
  try {
    return el("div", { class: "markdown" }, blocks(lexer(text), { name, tables: 0, heading: outline(level) }));
  } catch (error) {
    // Nested deeper than the stack is high, for instance.
    return el(
      "div",
      { class: "markdown" },
      el("p", { class: "hint", text: `This text cannot be laid out (${error.message}); it is shown as it is.` }),
      el("pre", { tabindex: "0", "aria-label": name, text }),
    );
  }
}
