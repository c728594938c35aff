// A program as text: typed, pasted, dropped or chosen, with line numbers that show where its time goes.
import { button, el } from "./dom.js";
import { percent } from "./format.js";

const MOST_B = 32 * 1024 * 1024;
const BYTECODE = "ML\u00ef";
const LINES_ABOVE = 3;
const LONGEST_BAR = 55;

/** Why the text of a file cannot be taken, or null. */
async function problemOf(file) {
  if (file.size > MOST_B)
    return `${file.name} has ${(file.size / 1e6).toFixed(0)} MB, which is too much for this page; print its weights short.`;
  const head = String.fromCharCode(...new Uint8Array(await file.slice(0, 3).arrayBuffer()));
  return head === BYTECODE ? `${file.name} is MLIR bytecode; print it as text first, for instance with mlir-opt.` : null;
}

/** An editor of the text of a program; `changed(text, whole)` is called on each edit, `whole` where another program took its place. */
export function programText({ value, changed, trouble }) {
  const area = el("textarea", {
    id: "program",
    name: "text",
    spellcheck: "false",
    autocomplete: "off",
    wrap: "off",
    rows: "14",
    "aria-describedby": "program-error",
    placeholder: "Paste MLIR, or drop a file here",
  });
  area.value = value;
  const gutter = el("div", { class: "gutter", "aria-hidden": "true" });
  const file = el("input", {
    type: "file",
    id: "program-file",
    class: "unseen",
    accept: ".mlir,.ttir,.ttgir,.stablehlo,.txt,text/plain",
  });
  const buttons = el(
    "div",
    { class: "tools" },
    el("label", { class: "as-button", for: "program-file", text: "Choose a file" }),
    file,
  );
  const element = el(
    "section",
    { class: "panel program field", "data-field": "text" },
    el("div", { class: "row" }, el("h2", {}, el("label", { for: "program", text: "Program" })), buttons),
    el("div", { class: "editor" }, gutter, area),
    el("p", { class: "field-error", id: "program-error", hidden: true }),
  );
  let shares = new Map();

  const heights = () => ({
    line: Number.parseFloat(getComputedStyle(area).lineHeight),
    pad: Number.parseFloat(getComputedStyle(area).paddingTop),
  });

  function draw() {
    const { line: height, pad } = heights();
    const count = area.value.split("\n").length;
    const longest = Math.max(...shares.values());
    const first = Math.max(0, Math.floor((area.scrollTop - pad) / height));
    const last = Math.min(count, first + Math.ceil(area.clientHeight / height) + 2);
    gutter.replaceChildren(
      ...Array.from({ length: Math.max(0, last - first) }, (_, i) => first + i + 1).map((line) =>
        el(
          "span",
          { css: { top: `${pad + (line - 1) * height - area.scrollTop}px` } },
          shares.has(line) ? el("i", { css: { width: `${((LONGEST_BAR * shares.get(line)) / longest).toFixed(1)}%` } }) : null,
          String(line),
        ),
      ),
    );
  }

  async function take(chosen) {
    if (!chosen) return;
    const problem = await problemOf(chosen);
    if (problem) trouble(problem);
    else replace(await chosen.text());
  }

  function replace(text) {
    area.value = text;
    area.scrollTop = 0;
    shares = new Map();
    draw();
    changed(text, true);
  }

  area.addEventListener("input", () => {
    shares = new Map();
    draw();
    changed(area.value, false);
  });
  area.addEventListener("scroll", draw, { passive: true });
  file.addEventListener("change", () => {
    take(file.files[0]);
    file.value = "";
  });
  element.addEventListener("dragover", (event) => {
    event.preventDefault();
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    element.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  new ResizeObserver(draw).observe(area);
  return {
    element,
    buttons,
    replace,
    text: () => area.value,
    /** Bars at the line numbers: shares of the whole by line. */
    heat(sharesOfLines) {
      shares = sharesOfLines;
      draw();
    },
    /** Select a line and bring it into sight. */
    select(line) {
      const lines = area.value.split("\n");
      const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
      area.focus();
      area.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
      area.scrollTop = Math.max(0, (line - LINES_ABOVE) * heights().line);
      element.scrollIntoView({ block: "nearest" });
    },
  };
}

/** Shares of the time by line: a kernel's share lies on the lines it is made of, as their operations cost. */
export function sharesByLine(groups) {
  const shares = new Map();
  for (const { lines, line_shares: parts, time_share: share } of groups) {
    lines.forEach((line, i) => shares.set(line, (shares.get(line) ?? 0) + share * parts[i]));
  }
  return shares;
}

/** Where a program's time and energy go: a bar per kernel, the longest first, with the lines it is made of; at most `most`. */
export function groupBars(groups, { most, select, energy }) {
  const longest = groups.toSorted((a, b) => b.time_share - a.time_share).slice(0, most);
  const whole = groups.reduce((sum, one) => sum + (one.energy_j ?? 0), 0);
  const bar = (kind, share) =>
    el("span", { class: `bar ${kind}` }, el("span", { css: { width: `${(100 * Math.max(0.002, share)).toFixed(2)}%` } }));
  const row = (one) => {
    const share = energy && one.energy_j !== null && whole > 0 ? one.energy_j / whole : null;
    const line = (number) =>
      button(`line ${number}`, () => select(number), { class: "link", "aria-label": `Select line ${number}: ${one.title}` });
    return el(
      "li",
      { class: one.understood ? null : "unclear" },
      el(
        "div",
        { class: "name" },
        el("strong", { text: one.title }),
        one.runs === 1 ? "" : ` × ${one.runs}`,
        one.understood ? "" : " (a guess)",
      ),
      el(
        "div",
        { class: "bars", "aria-hidden": "true" },
        bar("time", one.time_share),
        share === null ? null : bar("energy", share),
      ),
      el(
        "div",
        { class: "amount" },
        percent(one.time_share),
        share === null ? "" : el("small", { text: `${percent(share)} of energy` }),
      ),
      el("div", { class: "lines" }, one.lines.map(line)),
    );
  };
  return el("ul", { class: "groups", "aria-label": "Kernels by their share of the time" }, longest.map(row));
}
