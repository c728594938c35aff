// What was measured: the sets and their cards, and their rows, filtered, sorted and paged by the service.
import { answersPart, whenAnswered } from "../answers.js";
import { csv, download } from "../download.js";
import { el } from "../dom.js";
import { choice } from "../form.js";
import { grouped } from "../format.js";
import { markdown } from "../markdown.js";
import { columnsShown, rowDetail, shownIn, wordsOf } from "../measured.js";
import { troubleLine } from "../trouble.js";

export const id = "data";
export const title = "Data";

const FILTERS = {
  set: "Set",
  family: "Kernel family",
  device: "Device",
  dtype: "Number format",
  impl: "Implementation",
  variant: "Variant",
  status: "Outcome",
  cache_state: "Caches",
};
// Where a set lists the values of a filter; one it does not list has always the same ones.
const LISTED = {
  family: "families",
  device: "devices",
  dtype: "dtypes",
  impl: "impls",
  variant: "variants",
  status: "statuses",
};
const CACHES = ["hot", "cold"];
const LIMITS = ["10", "25", "50", "100", "200"];
const LIMIT = "25";
const PREFIX = "data.";
const UNSORTED = ["sizes", "config"];

export function render(root, page) {
  const view = {
    page,
    answers: answersPart(),
    trouble: troubleLine(),
    sets: [],
    filters: el("div", { class: "filters" }),
    cards: el("div", { class: "sets" }),
  };
  root.append(
    el(
      "div",
      { class: "stack" },
      view.cards,
      el("section", { class: "panel", "aria-label": "Rows shown" }, view.trouble.element, view.filters),
      view.answers,
    ),
  );
  start(view);
}

async function start(view) {
  await whenAnswered(
    view.answers,
    async (stillAsked) => {
      const { sets } = await view.page.ask("sets", "v1/measurements/sets");
      stillAsked();
      view.sets = sets;
      drawSets(view);
      drawFilters(view);
      await fetchRows(view, stillAsked);
    },
    view.trouble.problem,
  );
}

const of = ({ page }, name, otherwise = "") => page.state.get(PREFIX + name, otherwise);
const whole = (text, otherwise) => (/^\d{1,9}$/.test(text) ? Number(text) : otherwise);

/** Change what is shown; whatever was chosen by its place among the rows is chosen no more. */
function show(view, changes, { keepPage = false } = {}) {
  view.page.state.set({
    ...(keepPage ? {} : { [`${PREFIX}offset`]: null }),
    [`${PREFIX}row`]: null,
    ...Object.fromEntries(Object.entries(changes).map(([name, value]) => [PREFIX + name, value])),
  });
  view.page.state.commit();
  drawFilters(view);
  whenAnswered(view.answers, (stillAsked) => fetchRows(view, stillAsked), view.trouble.problem);
}

function drawSets(view) {
  view.cards.replaceChildren(
    ...view.sets.map((set) =>
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
        set.devices.length
          ? el("p", { class: "hint", text: set.devices.map((name) => view.page.catalogue.title(name)).join(", ") })
          : "",
        set.notes.map((note) => el("p", { class: set.rows ? "cautions" : "hint", text: note })),
        set.cards.map((card) =>
          el("details", {}, el("summary", { text: card.title }), markdown(card.text, { name: card.title, level: 3 })),
        ),
        set.rows
          ? el("button", {
              type: "button",
              "aria-label": `Show rows of: ${set.title}`,
              text: "Show rows",
              onclick: () =>
                show(view, {
                  ...Object.fromEntries(Object.keys(FILTERS).map((name) => [name, null])),
                  set: set.name,
                  sort: null,
                  descending: null,
                }),
            })
          : "",
      ),
    ),
  );
}

function drawFilters(view) {
  const { page } = view;
  const chosen = of(view, "set");
  const sets = view.sets.filter(({ name, rows }) => rows && (!chosen || name === chosen));
  const values = {
    set: view.sets.map(({ name }) => name),
    cache_state: CACHES,
    ...Object.fromEntries(
      Object.entries(LISTED).map(([name, list]) => [name, [...new Set(sets.flatMap((set) => set[list]))].sort()]),
    ),
  };
  const words = {
    set: Object.fromEntries(view.sets.map(({ name, title: text }) => [name, text])),
    device: Object.fromEntries(values.device.map((name) => [name, page.catalogue.title(name)])),
  };
  const focused = document.activeElement?.name;
  view.filters.replaceChildren(
    ...Object.entries(FILTERS).map(([name, label]) => {
      const select = choice(["", ...values[name]], of(view, name), { "": "all", ...words[name] });
      select.name = PREFIX + name;
      select.addEventListener("change", () =>
        show(view, { [name]: select.value, ...(name === "family" ? { sort: null, descending: null } : {}) }),
      );
      return el("label", { class: "field" }, el("span", { text: label }), select);
    }),
    el("button", {
      type: "button",
      class: "quiet",
      text: "Clear",
      onclick: () =>
        show(view, Object.fromEntries([...Object.keys(FILTERS), "sort", "descending"].map((name) => [name, null]))),
    }),
  );
  if (focused) view.filters.querySelector(`[name="${CSS.escape(focused)}"]`)?.focus();
}

function pathOf(view) {
  const query = new URLSearchParams();
  for (const name of [...Object.keys(FILTERS), "sort", "descending"]) if (of(view, name)) query.set(name, of(view, name));
  query.set("offset", of(view, "offset", "0"));
  query.set("limit", of(view, "limit", LIMIT));
  return `v1/measurements?${query}`;
}

async function fetchRows(view, stillAsked) {
  const answer = await view.page.ask("measurements", pathOf(view));
  stillAsked();
  draw(view, answer);
}

function draw(view, answer) {
  const { answers, page } = view;
  const { total, offset, rows, columns } = answer;
  const last = offset + rows.length;
  const range = rows.length
    ? `${grouped(offset + 1)} to ${grouped(last)} of ${grouped(total)} rows`
    : `None of ${grouped(total)} rows`;
  const focused = document.activeElement?.getAttribute?.("data-keep");
  answers.replaceChildren(
    el(
      "section",
      { class: "panel" },
      el(
        "div",
        { class: "row" },
        el("h2", { text: range }),
        el(
          "div",
          { class: "tools" },
          rows.length
            ? el("button", {
                type: "button",
                class: "copy",
                text: "Download CSV",
                onclick: () => download(`measurements-${offset + 1}-${last}.csv`, "text/csv", csv(columns, rows)),
              })
            : "",
        ),
      ),
      rows.length
        ? tableOf(view, answer)
        : el("p", {
            class: "hint",
            text: total ? "There are fewer rows than this page starts at." : "No measured row is like this; clear a filter.",
          }),
      pager(view, answer),
    ),
    el("div", { class: "detail" }),
  );
  if (focused) answers.querySelector(`[data-keep="${CSS.escape(focused)}"]`)?.focus();
  const row = whole(of(view, "row"), -1);
  if (row >= offset && row < last) showRow(view, answer, row, false);
  page.say(range);
}

function tableOf(view, answer) {
  const columns = columnsShown(answer);
  const sort = of(view, "sort");
  const down = of(view, "descending") === "true";
  const numeric = (name) => answer.rows.some((row) => typeof row[answer.columns.indexOf(name)] === "number");
  const head = (name) => {
    if (UNSORTED.includes(name)) return el("th", { scope: "col", text: wordsOf(name) });
    const chosen = sort === name;
    return el(
      "th",
      {
        scope: "col",
        class: numeric(name) ? "number" : null,
        "aria-sort": chosen ? (down ? "descending" : "ascending") : null,
      },
      el(
        "button",
        {
          type: "button",
          class: "sort",
          "data-keep": `sort-${name}`,
          onclick: () => show(view, { sort: name, descending: chosen && !down ? "true" : null }),
        },
        wordsOf(name),
        el("span", { "aria-hidden": "true", text: chosen ? (down ? " ↓" : " ↑") : " ↕" }),
      ),
    );
  };
  const line = (row, i) =>
    el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        el("button", {
          type: "button",
          class: "link",
          "data-keep": `row-${i}`,
          "aria-label": `Row ${answer.offset + i + 1} in full`,
          text: grouped(answer.offset + i + 1),
          onclick: () => showRow(view, answer, answer.offset + i, true),
        }),
      ),
      columns.map((name) => {
        const value = row[answer.columns.indexOf(name)];
        return el("td", { class: typeof value === "number" ? "number" : null, text: shownIn(view.page, name, value) });
      }),
    );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Measured rows" },
    el(
      "table",
      { class: "measured" },
      el("caption", { class: "unseen", text: "Measured rows; the buttons in the heads sort, the numbers show a row in full" }),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "Row" }), columns.map(head))),
      el("tbody", {}, answer.rows.map(line)),
    ),
  );
}

function pager(view, { total, offset, rows }) {
  const limit = whole(of(view, "limit", LIMIT), Number(LIMIT)) || Number(LIMIT);
  const to = (label, place, off) =>
    el("button", {
      type: "button",
      "data-keep": label,
      disabled: off,
      text: label,
      onclick: () => show(view, { offset: place ? String(place) : null }, { keepPage: true }),
    });
  const end = total ? Math.floor((total - 1) / limit) * limit : 0;
  const select = choice(LIMITS, of(view, "limit", LIMIT));
  select.setAttribute("data-keep", "limit");
  select.addEventListener("change", () => show(view, { limit: select.value === LIMIT ? null : select.value }));
  return el(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    to("First", 0, offset === 0),
    to("Previous", Math.max(0, Math.min(offset - limit, end)), offset === 0),
    to("Next", offset + limit, offset + rows.length >= total),
    to("Last", end, offset >= end),
    el("label", { class: "per" }, el("span", { text: "Rows on a page" }), select),
  );
}

function showRow(view, answer, place, focus) {
  const { page, answers } = view;
  const row = Object.fromEntries(answer.columns.map((name, i) => [name, answer.rows[place - answer.offset][i]]));
  page.state.set({ [`${PREFIX}row`]: String(place) });
  if (focus) page.state.commit();
  const made = rowDetail(page, row, place + 1, () => {
    made.remove();
    page.state.set({ [`${PREFIX}row`]: null });
    page.state.commit();
    answers.querySelector(`[data-keep="row-${place - answer.offset}"]`)?.focus();
  });
  answers.querySelector(".detail").replaceChildren(made);
  if (!focus) return;
  made.querySelector("h2").focus();
  made.scrollIntoView({ block: "nearest" });
}
