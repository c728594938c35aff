// What the nightly runs did: outcomes, what needs a person, errors and rows by night, and the way to each report.
import { plainView, whenAnswered } from "../answers.js";
import { storedKey } from "../ask.js";
import { plot } from "../charts.js";
import { caution, el, hint, numberCell, pager, panel, redraw, table } from "../dom.js";
import { download } from "../download.js";
import { grouped, percent } from "../format.js";

const LIMIT = 30;
const champion = (night) => night.champion_after ?? "the model before";
const stage = (night) => night.stage || "its start";
// Outcomes: their words in the table, and the sentence about the newest night.
const OUTCOMES = {
  promoted: ["promoted", (night) => `A better model was found: ${night.champion_after} answers now.`],
  kept: ["kept", (night) => `No challenger was better beyond doubt: ${champion(night)} goes on answering.`],
  "rolled-back": ["rolled back", (night) => `What was promoted did not hold: ${champion(night)} answers again.`],
  failed: ["failed", () => "The night failed; its report says where and why, and what answers now."],
  interrupted: [
    "interrupted",
    (night) => `The night was interrupted at ${stage(night)}; the same plan goes on from there.`,
  ],
  running: ["running", (night) => `The night runs, at ${stage(night)}.`],
};

export function render(root, page) {
  update(plainView(root, page));
}

function update(view) {
  const text = view.page.state.get("nights.offset", "0");
  const path = `v1/nights?offset=${/^\d{1,9}$/.test(text) ? text : 0}&limit=${LIMIT}`;
  whenAnswered(view.answers, () => view.page.ask("nights", path), (answer) => draw(view, answer), view.problem);
}

function draw(view, answer) {
  const { answers, page } = view;
  const { nights, total, offset } = answer;
  if (!total) {
    const command = el("code", { text: "kernelcast measure nightly PLAN.yaml" });
    const words = "A night measures where it matters, trains, and changes the model only for a better one: ";
    answers.replaceChildren(panel("No night yet", el("p", {}, words, command, ".")));
    page.say("No night yet");
    return;
  }
  const [first] = nights;
  const range = `${grouped(offset + 1)} to ${grouped(offset + nights.length)} of ${grouped(total)} nights`;
  redraw(
    answers,
    offset === 0 ? newest(first) : "",
    ...charts(nights),
    panel(
      nights.length ? range : `There are ${grouped(total)} nights`,
      nights.length ? nightsTable(view, nights) : hint("There are fewer nights than this page starts at."),
      pages(view, answer),
    ),
  );
  page.say(offset === 0 ? `${grouped(total)} nights; the newest: ${outcomeOf(first)}` : `Nights from ${offset + 1}`);
}

const outcomeOf = (night) => OUTCOMES[night.outcome]?.[0] ?? "cannot be read";
/** Begin of a night to the minute, in UTC as the service tells it; of one that cannot be read from its name. */
const beginOf = (night) =>
  (night.began ?? night.id.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d).*/, "$1-$2-$3T$4:$5")).slice(0, 16).replace("T", " ");
const rowsOf = (night) => Object.values(night.rows).reduce((sum, count) => sum + count, 0);

function newest(night) {
  return el(
    "section",
    { class: "panel newest" },
    el("h2", { text: `Newest night: ${outcomeOf(night)}` }),
    el("p", { text: night.problem ?? OUTCOMES[night.outcome][1](night) }),
    night.needs_person.length
      ? caution("This needs a person", night.needs_person)
      : night.problem
        ? ""
        : hint("Nothing in it asks for a person."),
  );
}

function charts(nights) {
  const finished = nights.filter((night) => night.problem === null && night.outcome !== "running").toReversed();
  const points = finished.map((night, x) => ({ x, night }));
  const judged = points.filter(({ night }) => night.champion_error !== null);
  const series = (from, value) => from.map(({ x, night }) => ({ x, y: value(night) }));
  const chart = (heading, options, from, words) =>
    panel(
      heading,
      plot({
        ...options,
        stops: from.map(({ x, night }) => ({ x, text: [beginOf(night), ...words(night)] })),
        height: 240,
        x: { title: "night", marks: points.map(({ x, night }) => [x, beginOf(night).slice(5, 10)]) },
        y: { quantity: "count", floor: 0 },
      }),
    );
  const errors = series(judged, (night) => 100 * night.champion_error);
  const good = series(points, (night) => night.rows.ok ?? 0);
  const all = series(points, rowsOf);
  const total = all.reduce((sum, { y }) => sum + y, 0);
  return [
    judged.length > 1 &&
      chart(
        "How far off the model was on each night's own rows, %",
        {
          label: "Mean error by night, %",
          describe: `From ${percent(judged[0].night.champion_error)} to ${percent(judged.at(-1).night.champion_error)} over ${judged.length} nights.`,
          layers: ["line", "dots"].map((kind) => ({ kind, series: 1, points: errors })),
        },
        judged,
        (night) => [`mean error ${percent(night.champion_error)}`, outcomeOf(night)],
      ),
    points.length > 1 &&
      total > 0 &&
      chart(
        "Rows measured",
        {
          label: "Rows by night",
          describe: `${grouped(total)} rows over ${points.length} nights.`,
          layers: [
            { kind: "line", series: 2, dashed: true, points: all },
            ...["line", "dots"].map((kind) => ({ kind, series: 1, points: good })),
          ],
          legend: [
            { text: "ok", series: 1 },
            { text: "all (dashes)", series: 2 },
          ],
        },
        points,
        (night) => Object.entries(night.rows).map(([status, count]) => `${grouped(count)} ${status}`),
      ),
  ];
}

function nightsTable(view, nights) {
  const { catalogue } = view.page;
  const wide = (text, colspan) => el("td", { class: "words", text, colspan });
  const row = (night) => [
    beginOf(night),
    outcomeOf(night),
    ...(night.problem
      ? [wide(night.problem, "7")]
      : [
          wide(night.plan),
          wide(night.device.split(", ").map((name) => catalogue.title(name)).join(", ")),
          numberCell(grouped(rowsOf(night))),
          numberCell(night.champion_error === null ? "—" : percent(night.champion_error)),
          numberCell(grouped(night.findings["needs-person"] ?? 0)),
          wide(night.champion_after ?? "—"),
          night.has_page ? reportLink(view, night) : "—",
        ]),
  ];
  return table(
    "Nights, newest first",
    ["Began (UTC)", "Outcome", "Plan", "Device", "Rows", "Mean error", "Needs a person", "Model after", "Report"],
    nights.map(row),
    { label: "Nights", number: (i) => i > 3 && i < 7 },
  );
}

/** A link to the report. A browser sends no key with a link, so where there is one the report is fetched and offered as a file. */
function reportLink(view, night) {
  const address = `nights/${encodeURIComponent(night.id)}`;
  const fetchReport = () => view.page.ask("night", address, undefined, { text: true });
  return el("a", {
    href: address,
    target: "_blank",
    rel: "noopener",
    text: "Report",
    "aria-label": `Report of ${night.id}`,
    onclick: (event) => {
      if (storedKey() === null) return;
      event.preventDefault();
      whenAnswered(view.answers, fetchReport, (html) => download(`${night.id}.html`, "text/html", html), view.problem);
    },
  });
}

function pages(view, { total, offset, nights }) {
  if (total <= LIMIT && offset === 0) return "";
  return pager(
    [
      ["Newer", Math.max(0, Math.min(offset - LIMIT, total - 1)), offset === 0],
      ["Older", offset + LIMIT, offset + nights.length >= total],
    ],
    (place) => {
      view.page.state.set({ "nights.offset": place ? String(place) : null });
      view.page.state.commit();
      update(view);
    },
  );
}
