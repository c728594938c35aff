// What the nightly machinery did: outcomes, what needs a person, errors and rows by night, and the way to each report.
import { answersPart, whenAnswered } from "../answers.js";
import { storedKey } from "../ask.js";
import { plot } from "../charts.js";
import { el } from "../dom.js";
import { download } from "../download.js";
import { grouped, percent } from "../format.js";
import { troubleLine } from "../trouble.js";

export const id = "nights";
export const title = "Nights";

const LIMIT = 30;
const OUTCOMES = {
  promoted: "promoted",
  kept: "kept",
  "rolled-back": "rolled back",
  failed: "failed",
  interrupted: "interrupted",
  running: "running",
};
const SAID = {
  promoted: (one) => `A better model was found: ${one.champion_after} answers now.`,
  kept: (one) => `No challenger was better beyond doubt: ${one.champion_after ?? "the model before"} goes on answering.`,
  "rolled-back": (one) => `What was promoted did not hold: ${one.champion_after ?? "the model before"} answers again.`,
  failed: () => "The night failed; its report says where and why, and what answers now.",
  interrupted: (one) => `The night was interrupted at ${one.stage || "its start"}; the same plan goes on from there.`,
  running: (one) => `The night runs, at ${one.stage || "its start"}.`,
};

export function render(root, page) {
  const view = { page, answers: answersPart(), trouble: troubleLine() };
  root.append(el("div", { class: "stack" }, view.trouble.element, view.answers));
  look(view);
}

function look(view) {
  whenAnswered(
    view.answers,
    async (stillAsked) => {
      const text = view.page.state.get("nights.offset", "0");
      const answer = await view.page.ask("nights", `v1/nights?offset=${/^\d{1,9}$/.test(text) ? text : 0}&limit=${LIMIT}`);
      stillAsked();
      draw(view, answer);
    },
    view.trouble.problem,
  );
}

function draw(view, answer) {
  const { answers, page } = view;
  const { nights, total, offset } = answer;
  const focused = document.activeElement?.getAttribute?.("data-keep");
  if (!total) {
    answers.replaceChildren(
      el(
        "section",
        { class: "panel" },
        el("h2", { text: "No night yet" }),
        el("p", {}, "A night measures where it matters, trains, and changes the model only for a better one: ", el("code", { text: "kernelcast nightly PLAN.yaml" }), "."),
      ),
    );
    page.say("No night yet");
    return;
  }
  const [first] = nights;
  answers.replaceChildren(
    offset === 0 ? newest(first) : "",
    ...charts(nights),
    el(
      "section",
      { class: "panel" },
      el("h2", { text: nights.length ? `${grouped(offset + 1)} to ${grouped(offset + nights.length)} of ${grouped(total)} nights` : `There are ${grouped(total)} nights` }),
      nights.length ? tableOf(view, nights) : el("p", { class: "hint", text: "There are fewer nights than this page starts at." }),
      pager(view, answer),
    ),
  );
  if (focused) answers.querySelector(`[data-keep="${CSS.escape(focused)}"]`)?.focus();
  page.say(offset === 0 ? `${grouped(total)} nights; the newest: ${outcomeOf(first)}` : `Nights from ${offset + 1}`);
}

const outcomeOf = (one) => OUTCOMES[one.outcome] ?? "cannot be read";
/** Begin of a night to the minute, in UTC as the service tells it; of one that cannot be read from its name. */
const when = (one) =>
  (one.began ?? one.id.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d).*/, "$1-$2-$3T$4:$5")).slice(0, 16).replace("T", " ");
const measured = (one) => Object.values(one.rows).reduce((sum, count) => sum + count, 0);

function newest(one) {
  return el(
    "section",
    { class: "panel newest" },
    el("h2", { text: `Newest night: ${outcomeOf(one)}` }),
    el("p", { text: one.problem ?? SAID[one.outcome](one) }),
    one.needs_person.length
      ? el(
          "div",
          { class: "cautions" },
          el("strong", { text: "This needs a person" }),
          el(
            "ul",
            {},
            one.needs_person.map((said) => el("li", { text: said })),
          ),
        )
      : one.problem
        ? ""
        : el("p", { class: "hint", text: "Nothing in it asks for a person." }),
  );
}

function charts(nights) {
  const shown = nights.filter((one) => one.problem === null && one.outcome !== "running").toReversed();
  const marks = shown.map((one, i) => [i, when(one).slice(5, 10)]);
  const known = shown.map((one, x) => ({ x, y: 100 * one.champion_error, one })).filter(({ one }) => one.champion_error !== null);
  const good = shown.map((one, x) => ({ x, y: one.rows.ok ?? 0 }));
  const all = shown.map((one, x) => ({ x, y: measured(one) }));
  const pictures = [];
  if (known.length > 1) {
    pictures.push([
      "How far off the model was on each night's own rows, %",
      plot({
        label: "Mean error by night, %",
        describe: `From ${percent(known[0].one.champion_error)} to ${percent(known.at(-1).one.champion_error)} over ${known.length} nights.`,
        layers: [
          { kind: "line", series: 1, points: known },
          { kind: "dots", series: 1, points: known },
        ],
        stops: known.map(({ x, one }) => ({ x, text: [when(one), `mean error ${percent(one.champion_error)}`, outcomeOf(one)] })),
        height: 240,
        x: { title: "night", marks },
        y: { quantity: "count", floor: 0 },
      }),
    ]);
  }
  if (shown.length > 1 && all.some(({ y }) => y)) {
    pictures.push([
      "Rows measured",
      plot({
        label: "Rows by night",
        describe: `${grouped(all.reduce((sum, { y }) => sum + y, 0))} rows over ${shown.length} nights.`,
        layers: [
          { kind: "line", series: 2, dashed: true, points: all },
          { kind: "line", series: 1, points: good },
          { kind: "dots", series: 1, points: good },
        ],
        stops: shown.map((one, x) => ({
          x,
          text: [when(one), ...Object.entries(one.rows).map(([status, count]) => `${grouped(count)} ${status}`)],
        })),
        height: 240,
        x: { title: "night", marks },
        y: { quantity: "count", floor: 0 },
        legend: [
          { text: "ok", series: 1 },
          { text: "all (dashes)", series: 2 },
        ],
      }),
    ]);
  }
  return pictures.map(([head, picture]) => el("section", { class: "panel" }, el("h2", { text: head }), picture));
}

function tableOf(view, nights) {
  const number = (text) => el("td", { class: "number", text });
  const line = (one) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", text: when(one) }),
      el("td", {}, outcomeOf(one)),
      one.problem
        ? el("td", { class: "words", colspan: "7", text: one.problem })
        : [
            el("td", { class: "words", text: one.plan }),
            el("td", {
              class: "words",
              text: one.device
                .split(", ")
                .map((name) => view.page.catalogue.title(name))
                .join(", "),
            }),
            number(grouped(measured(one))),
            number(one.champion_error === null ? "—" : percent(one.champion_error)),
            number(grouped(one.findings["needs-person"] ?? 0)),
            el("td", { class: "words", text: one.champion_after ?? "—" }),
            el("td", {}, one.has_page ? reportLink(view, one) : "—"),
          ],
    );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Nights" },
    el(
      "table",
      {},
      el("caption", { class: "unseen", text: "Nights, newest first" }),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["Began (UTC)", "Outcome", "Plan", "Device", "Rows", "Mean error", "Needs a person", "Model after", "Report"].map(
            (words, i) => el("th", { scope: "col", class: i > 3 && i < 7 ? "number" : null, text: words }),
          ),
        ),
      ),
      el("tbody", {}, nights.map(line)),
    ),
  );
}

/** A link to the report. A browser sends no key with a link, so where there is one the report is fetched and offered as a file. */
function reportLink(view, one) {
  const address = `nights/${encodeURIComponent(one.id)}`;
  return el("a", {
    href: address,
    target: "_blank",
    rel: "noopener",
    text: "Report",
    "aria-label": `Report of ${one.id}`,
    onclick: (event) => {
      if (storedKey() === null) return;
      event.preventDefault();
      whenAnswered(
        view.answers,
        async (stillAsked) => {
          const html = await view.page.ask("night", address, undefined, { text: true });
          stillAsked();
          download(`${one.id}.html`, "text/html", html);
        },
        view.trouble.problem,
      );
    },
  });
}

function pager(view, { total, offset, nights }) {
  if (total <= LIMIT && offset === 0) return "";
  const to = (label, place, off) =>
    el("button", {
      type: "button",
      "data-keep": label,
      disabled: off,
      text: label,
      onclick: () => {
        view.page.state.set({ "nights.offset": place ? String(place) : null });
        view.page.state.commit();
        look(view);
      },
    });
  return el(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    to("Newer", Math.max(0, Math.min(offset - LIMIT, total - 1)), offset === 0),
    to("Older", offset + LIMIT, offset + nights.length >= total),
  );
}
