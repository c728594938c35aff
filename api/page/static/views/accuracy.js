// The served model's errors on held-out rows: errors, measured against predicted, and how often intervals hold.
import { answersPart, whenAnswered } from "../answers.js";
import { plot } from "../charts.js";
import { el, table } from "../dom.js";
import { choice } from "../form.js";
import { TARGETS, grouped, percent, show, showInterval } from "../format.js";
import { troubleLine } from "../trouble.js";

export const id = "accuracy";
export const title = "Accuracy";

const ALL = "all";
const AROUND = [1 / 1.1, 1.1];
const MANY_SERIES = 8;

export function render(root, page) {
  const answers = answersPart();
  const trouble = troubleLine();
  root.append(el("div", { class: "stack" }, trouble.element, answers));
  whenAnswered(
    answers,
    async (stillAsked) => {
      const answer = await page.ask("accuracy", "v1/accuracy");
      stillAsked();
      draw(page, answers, answer);
    },
    trouble.problem,
  );
}

/** What is chosen, as far as the answer has it. */
function chosenIn({ state }, { splits }) {
  const split = splits.find(({ name }) => name === state.get("accuracy.split")) ?? splits[0];
  const targets = Object.keys(TARGETS).filter((name) => split.slices.some(({ target }) => target === name));
  const target = targets.includes(state.get("accuracy.target")) ? state.get("accuracy.target") : targets[0];
  const families = [...new Set(split.slices.filter((one) => one.target === target).map(({ family }) => family))];
  const family = families.includes(state.get("accuracy.family")) ? state.get("accuracy.family") : ALL;
  return { split, targets, target, families, family };
}

function draw(page, answers, answer) {
  if (!answer.splits.length) {
    answers.replaceChildren(
      el("p", { class: "panel", text: "The served model holds no errors on rows held out." }),
      notes(answer),
    );
    return;
  }
  const { split, targets, target, families, family } = chosenIn(page, answer);
  const again = (name, label, select) => {
    select.setAttribute("aria-label", label);
    select.addEventListener("change", () => {
      page.state.set({ [name]: select.value });
      page.state.commit();
      draw(page, answers, answer);
      answers.querySelector(`select[aria-label="${label}"]`).focus();
    });
    return el("div", { class: "field" }, el("span", { class: "label", "aria-hidden": "true", text: label }), select);
  };
  const words = Object.fromEntries(Object.entries(TARGETS).map(([name, [one]]) => [name, one]));
  const slices = split.slices.filter((one) => one.target === target && (family === ALL || one.family === family));
  answers.replaceChildren(
    el(
      "section",
      { class: "panel" },
      el(
        "div",
        { class: "filters" },
        again(
          "accuracy.split",
          "Rows held out",
          choice(
            answer.splits.map(({ name }) => name),
            split.name,
          ),
        ),
        again("accuracy.target", "Predicted", choice(targets, target, words)),
        again("accuracy.family", "Kernel family", choice([ALL, ...families], family, { [ALL]: "all families" })),
      ),
      el("p", { class: "hint", text: split.doc }),
    ),
    parityPanel(page, split, target, family),
    coveragePanel(slices),
    el(
      "section",
      { class: "panel" },
      el("h2", { text: "Errors" }),
      el("p", {
        class: "hint",
        text: "An error is how far the prediction is from what was measured, as a share of it; rows counts those held out, and the width of an interval is a share of the prediction.",
      }),
      slicesTable(page, slices),
    ),
    notes(answer),
  );
  const whole = slices.filter(({ device }) => device === null);
  page.say(`${split.name}: ${whole.map((one) => `${one.family} median error ${percent(one.median)}`).join(", ")}`);
}

function notes({ notes: said, model, regressor }) {
  return el(
    "section",
    { class: "panel" },
    el("h2", { text: "About these numbers" }),
    said.length
      ? el(
          "ul",
          { class: "notes" },
          said.map((note) => el("li", { text: note })),
        )
      : "",
    el("p", { class: "hint" }, `They are of the model that answers: ${regressor}, manifest `, el("code", { text: model })),
  );
}

function parityPanel(page, split, target, family) {
  const parts = split.parity.filter((one) => one.target === target && (family === ALL || one.family === family));
  const [words, unit] = TARGETS[target];
  const head = el("h2", { text: "Predicted against measured" });
  if (!parts.length) {
    return el(
      "section",
      { class: "panel" },
      head,
      el("p", {
        class: "hint",
        text: split.parity.length
          ? `No values of ${words.toLowerCase()} are kept for this choice.`
          : "Of these rows errors are kept alone, no single values.",
      }),
    );
  }
  const devices = [...new Set(parts.map(({ device }) => device))];
  const seriesOf = (device) => 1 + (devices.indexOf(device) % (MANY_SERIES - 1));
  const points = parts
    .flatMap((part) =>
      part.measured.map((measured, i) => ({
        x: measured,
        y: part.predicted[i],
        lower: part.lower[i],
        upper: part.upper[i],
        device: part.device,
        family: part.family,
      })),
    )
    .filter(({ x, y }) => x > 0 && y > 0)
    .sort((a, b) => a.x - b.x);
  const ends = [points[0].x, points.at(-1).x];
  const diagonal = (factor, dashed) => ({
    kind: "line",
    dashed,
    series: MANY_SERIES,
    points: ends.map((x) => ({ x, y: x * factor })),
  });
  const layers = [...AROUND.map((factor) => diagonal(factor, true)), { ...diagonal(1, false), kind: "roof" }];
  for (const device of devices) {
    const here = points.filter((one) => one.device === device);
    layers.push(
      { kind: "reach", series: seriesOf(device), points: here.filter(({ lower, upper }) => lower > 0 && upper > 0) },
      { kind: "cloud", series: seriesOf(device), points: here },
    );
  }
  const near = points.filter(({ x, y }) => Math.abs(y / x - 1) <= 0.1).length;
  const inside = points.filter(({ x, lower, upper }) => lower <= x && x <= upper).length;
  const counts = `${grouped(points.length)} of the held-out rows are drawn: ${percent(near / points.length)} of them within 10 %, ${percent(inside / points.length)} inside their interval`;
  const stops = points.map((one) => ({
    x: one.x,
    text: [
      `measured ${show(one.x, unit)}`,
      `predicted ${showInterval({ value: one.y, lower: one.lower, upper: one.upper }, unit).text}`,
      `${one.family}, ${page.catalogue.title(one.device)}`,
    ],
  }));
  return el(
    "section",
    { class: "panel parity" },
    head,
    plot({
      label: `${words} predicted against measured`,
      describe: `${counts}.`,
      layers,
      stops,
      height: 460,
      x: { title: "measured", log: true, quantity: unit },
      y: { log: true, quantity: unit },
      legend: [
        ...devices.map((device) => ({ text: page.catalogue.title(device), series: seriesOf(device), mark: "dot" })),
        { text: "predicted = measured; dashes: 10 % off", series: MANY_SERIES },
      ],
    }),
    el("p", { class: "hint", text: `${counts}. Upright lines are the intervals.` }),
    family === ALL
      ? el("p", { class: "hint", text: "Choose a kernel family to see the values as a table." })
      : el("details", {}, el("summary", { text: "Values as a table" }), pointsTable(page, points, unit)),
  );
}

function pointsTable(page, points, unit) {
  return table(
    "Measured and predicted values",
    ["Measured", "Predicted", "From", "To", "Device"],
    points.map((one) => [
      ...[one.x, one.y, one.lower, one.upper].map((value) => show(value, unit)),
      page.catalogue.title(one.device),
    ]),
  );
}

function coveragePanel(slices) {
  const judged = slices.filter(({ covered, coverage }) => covered !== null && coverage !== null);
  if (!judged.length) return "";
  const whole = judged.filter(({ device }) => device === null);
  const rows = whole.length > 1 ? whole : judged;
  const share = (value) => `${(100 * value).toFixed(1)}%`;
  return el(
    "section",
    { class: "panel" },
    el("h2", { text: "How often the intervals hold" }),
    el(
      "ul",
      { class: "ranges holds", "aria-label": "Share of rows inside their interval" },
      rows.map((one) =>
        el(
          "li",
          {},
          el("span", { class: "name", text: one.device === null ? one.family : `${one.family}, ${one.device}` }),
          el(
            "div",
            { class: "interval", "aria-hidden": "true" },
            el("span", { class: "reach", css: { left: "0%", width: share(one.covered) } }),
            el("span", { class: "limit", css: { left: share(one.coverage) } }),
          ),
          el("span", { class: "amount", text: `${percent(one.covered)} of ${grouped(one.n)}, asked ${percent(one.coverage)}` }),
        ),
      ),
    ),
    el("p", {
      class: "hint",
      text: "The dotted mark is what was asked for: a bar that ends at it has honest intervals, one that ends before it has too narrow ones.",
    }),
  );
}

function slicesTable(page, slices) {
  const number = (text) => el("td", { class: "number", text });
  const shareOf = (value) => (value === null || value === undefined ? "—" : percent(value));
  const judged = slices.some(({ covered }) => covered !== null);
  const line = (one) =>
    el(
      "tr",
      { class: one.device === null ? "whole" : null },
      el("th", { scope: "row", text: one.family }),
      el("td", { class: "words", text: one.device === null ? "all devices" : page.catalogue.title(one.device) }),
      number(grouped(one.n)),
      [one.mean, one.median, one.within_10].map((value) => number(shareOf(value))),
      judged ? [number(shareOf(one.covered)), number(shareOf(one.coverage)), number(shareOf(one.width))] : "",
    );
  const heads = [
    "Family",
    "Device",
    "Rows",
    "Mean error",
    "Median error",
    "Within 10 %",
    ...(judged ? ["In interval", "Asked", "Width"] : []),
  ];
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Errors by family and device" },
    el(
      "table",
      {},
      el("caption", { class: "unseen", text: "Errors by family and device" }),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((words, i) => el("th", { scope: "col", class: i > 1 ? "number" : null, text: words })),
        ),
      ),
      el("tbody", {}, slices.map(line)),
    ),
  );
}
