// What was measured: the sets and their cards, and their rows, filtered, sorted and paged by the service.
import { alertLine, answersPart, whenAnswered } from "../answers.js";
import { button, details, el, headed, hint, numberCell, pager, panel, redraw, sortHead, table } from "../dom.js";
import { csv, download } from "../download.js";
import { choice } from "../form.js";
import { grouped } from "../format.js";
import { loadMarkdown, markdown } from "../markdown.js";
import { columnsShown, rowDetail, shownIn, wordsOf } from "../measured.js";

// Filters: words, and where a set lists the values of one; one it does not list has always the same ones.
const FILTERS = {
  set: { label: "Set" },
  family: { label: "Kernel family", listed: "families" },
  device: { label: "Device", listed: "devices" },
  dtype: { label: "Number format", listed: "dtypes" },
  impl: { label: "Implementation", listed: "impls" },
  variant: { label: "Variant", listed: "variants" },
  status: { label: "Outcome", listed: "statuses" },
  cache_state: { label: "Caches", values: ["hot", "cold"] },
};
const CHOICES = [...Object.keys(FILTERS), "sort", "descending"];
const LIMITS = ["10", "25", "50", "100", "200"];
const LIMIT = "25";
const PREFIX = "data.";
const UNSORTED = ["sizes", "config"];

export function render(root, page) {
  const { element, problem } = alertLine();
  const view = {
    page,
    problem,
    answers: answersPart(),
    sets: [],
    filters: el("div", { class: "filters" }),
    cards: el("div", { class: "sets" }),
  };
  const rows = el("section", { class: "panel", "aria-label": "Rows shown" }, element, view.filters);
  root.append(el("div", { class: "stack" }, view.cards, rows, view.answers));
  const draw = ([{ sets }]) => {
    view.sets = sets;
    drawSets(view);
    update(view);
  };
  whenAnswered(view.answers, () => Promise.all([page.ask("sets", "v1/measurements/sets"), loadMarkdown()]), draw, problem);
}

function update(view) {
  drawFilters(view);
  const load = () => view.page.ask("measurements", pathOf(view));
  whenAnswered(view.answers, load, (answer) => draw(view, answer), view.problem);
}

const of = ({ page }, name, otherwise = "") => page.state.get(PREFIX + name, otherwise);
const whole = (text, otherwise) => (/^\d{1,9}$/.test(text) ? Number(text) : otherwise);

/** Change what is shown; whatever was chosen by its place among the rows is chosen no more. */
function change(view, changes) {
  const all = { offset: null, row: null, ...changes };
  view.page.state.set(Object.fromEntries(Object.entries(all).map(([name, value]) => [PREFIX + name, value])));
  view.page.state.commit();
  update(view);
}

function clear(view, changes = {}) {
  change(view, { ...Object.fromEntries(CHOICES.map((name) => [name, null])), ...changes });
}

function drawSets(view) {
  const { catalogue } = view.page;
  const card = (set) =>
    el(
      "section",
      { class: "panel set" },
      el("h2", { text: set.title }),
      el(
        "p",
        { class: "count" },
        el("strong", { text: grouped(set.rows) }),
        set.rows === 1 ? " row" : " rows",
        set.families.length ? el("span", { class: "hint", text: ` of ${set.families.join(", ")}` }) : "",
      ),
      set.devices.length ? hint(set.devices.map((name) => catalogue.title(name)).join(", ")) : "",
      set.notes.map((note) => el("p", { class: set.rows ? "cautions" : "hint", text: note })),
      set.cards.map((one) => details(one.title, markdown(one.text, { name: one.title, level: 3 }))),
      set.rows
        ? button("Show rows", () => clear(view, { set: set.name }), { "aria-label": `Show rows of: ${set.title}` })
        : "",
    );
  view.cards.replaceChildren(...view.sets.map(card));
}

function drawFilters(view) {
  const chosen = of(view, "set");
  const sets = view.sets.filter(({ name, rows }) => rows && (!chosen || name === chosen));
  const titles = {
    set: Object.fromEntries(view.sets.map((set) => [set.name, set.title])),
    device: Object.fromEntries(sets.flatMap((set) => set.devices).map((name) => [name, view.page.catalogue.title(name)])),
  };
  const select = ([name, { label, listed, values = Object.keys(titles[name] ?? {}) }]) => {
    const names = listed ? [...new Set(sets.flatMap((set) => set[listed]))].sort() : values;
    const control = choice(["", ...names], of(view, name), { "": "all", ...titles[name] });
    control.name = PREFIX + name;
    control.setAttribute("data-keep", name);
    control.addEventListener("change", () =>
      change(view, { [name]: control.value, ...(name === "family" ? { sort: null, descending: null } : {}) }),
    );
    return el("label", { class: "field" }, el("span", { text: label }), control);
  };
  redraw(
    view.filters,
    ...Object.entries(FILTERS).map(select),
    button("Clear", () => clear(view), { class: "quiet", "data-keep": "clear" }),
  );
}

function pathOf(view) {
  const query = new URLSearchParams();
  for (const name of CHOICES) if (of(view, name)) query.set(name, of(view, name));
  query.set("offset", of(view, "offset", "0"));
  query.set("limit", of(view, "limit", LIMIT));
  return `v1/measurements?${query}`;
}

function draw(view, answer) {
  const { answers, page } = view;
  const { total, offset, rows, columns } = answer;
  const last = offset + rows.length;
  const range = rows.length
    ? `${grouped(offset + 1)} to ${grouped(last)} of ${grouped(total)} rows`
    : `None of ${grouped(total)} rows`;
  const save = () => download(`measurements-${offset + 1}-${last}.csv`, "text/csv", csv(columns, rows));
  redraw(
    answers,
    panel(
      headed(range, el("div", { class: "tools" }, rows.length ? button("Download CSV", save, { class: "copy" }) : "")),
      rows.length
        ? rowsTable(view, answer)
        : hint(total ? "There are fewer rows than this page starts at." : "No measured row is like this; clear a filter."),
      pages(view, answer),
    ),
    el("div", { class: "detail" }),
  );
  const row = whole(of(view, "row"), -1);
  if (row >= offset && row < last) showRow(view, answer, row, false);
  page.say(range);
}

function rowsTable(view, answer) {
  const at = (name) => answer.columns.indexOf(name);
  const sorting = { by: of(view, "sort"), descending: of(view, "descending") === "true" };
  const columns = columnsShown(answer);
  const head = (name) => {
    if (UNSORTED.includes(name)) return wordsOf(name);
    const number = answer.rows.some((row) => typeof row[at(name)] === "number");
    const sort = (descending) => change(view, { sort: name, descending: descending ? "true" : null });
    return sortHead(wordsOf(name), { name, ...sorting, sort, number });
  };
  const cell = (name, value) => {
    const text = shownIn(view.page, name, value);
    return typeof value === "number" ? numberCell(text) : text;
  };
  const place = (i) => answer.offset + i;
  return table(
    "Measured rows; the buttons in the heads sort, the numbers show a row in full",
    ["Row", ...columns.map(head)],
    answer.rows.map((row, i) => [
      button(grouped(place(i) + 1), () => showRow(view, answer, place(i), true), {
        class: "link",
        "data-keep": `row-${i}`,
        "aria-label": `Row ${place(i) + 1} in full`,
      }),
      ...columns.map((name) => cell(name, row[at(name)])),
    ]),
    { label: "Measured rows", kind: "measured" },
  );
}

function pages(view, { total, offset, rows }) {
  const limit = whole(of(view, "limit", LIMIT), Number(LIMIT)) || Number(LIMIT);
  const end = total ? Math.floor((total - 1) / limit) * limit : 0;
  const select = choice(LIMITS, of(view, "limit", LIMIT));
  select.setAttribute("data-keep", "limit");
  select.addEventListener("change", () => change(view, { limit: select.value === LIMIT ? null : select.value }));
  return pager(
    [
      ["First", 0, offset === 0],
      ["Previous", Math.max(0, Math.min(offset - limit, end)), offset === 0],
      ["Next", offset + limit, offset + rows.length >= total],
      ["Last", end, offset >= end],
    ],
    (place) => change(view, { offset: place ? String(place) : null }),
    el("label", { class: "per" }, el("span", { text: "Rows on a page" }), select),
  );
}

function showRow(view, answer, place, focus) {
  const { page, answers } = view;
  const row = Object.fromEntries(answer.columns.map((name, i) => [name, answer.rows[place - answer.offset][i]]));
  page.state.set({ [`${PREFIX}row`]: String(place) });
  if (focus) page.state.commit();
  const detail = rowDetail(page, row, place + 1, () => {
    detail.remove();
    page.state.set({ [`${PREFIX}row`]: null });
    page.state.commit();
    answers.querySelector(`[data-keep="row-${place - answer.offset}"]`)?.focus();
  });
  answers.querySelector(".detail").replaceChildren(detail);
  if (!focus) return;
  detail.querySelector("h2").focus();
  detail.scrollIntoView({ block: "nearest" });
}
