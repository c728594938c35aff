// The served model's errors on held-out rows: errors, measured against predicted, and how often intervals hold.
import { plainView, whenAnswered } from "../answers.js";
import { barRow } from "../bars.js";
import { plot } from "../charts.js";
import { details, el, hint, list, numberCell, panel, redraw, table } from "../dom.js";
import { shownBy } from "../form.js";
import { TARGETS, TARGET_WORDS, grouped, percent, show, showInterval } from "../format.js";

const ALL = "all";
const AROUND = [1 / 1.1, 1.1];
const MANY_SERIES = 8;

export function render(root, page) {
  const { answers, problem } = plainView(root, page);
  whenAnswered(answers, () => page.ask("accuracy", "v1/accuracy"), (answer) => draw(page, answers, answer), problem);
}

/** What is chosen, as far as the answer has it. */
function chosenIn({ state }, { splits }) {
  const split = splits.find(({ name }) => name === state.oneOf("accuracy.split", splits.map((one) => one.name), splits[0].name));
  const targets = Object.keys(TARGETS).filter((name) => split.slices.some(({ target }) => target === name));
  const target = state.oneOf("accuracy.target", targets, targets[0]);
  const families = [...new Set(split.slices.filter((one) => one.target === target).map(({ family }) => family))];
  const family = state.oneOf("accuracy.family", families, ALL);
  return { split, targets, target, families, family };
}

function draw(page, answers, answer) {
  if (!answer.splits.length) {
    const words = "The served model holds no errors on rows held out.";
    answers.replaceChildren(el("p", { class: "panel", text: words }), notes(answer));
    return;
  }
  const { split, targets, target, families, family } = chosenIn(page, answer);
  const again = () => draw(page, answers, answer);
  const filter = (name, label, words, chosen) =>
    el(
      "div",
      { class: "field" },
      el("span", { class: "label", "aria-hidden": "true", text: label }),
      shownBy(page, name, label, words, chosen, again),
    );
  const splits = Object.fromEntries(answer.splits.map(({ name }) => [name, name]));
  const targetWords = Object.fromEntries(targets.map((name) => [name, TARGET_WORDS[name]]));
  const familyWords = Object.fromEntries([[ALL, "all families"], ...families.map((name) => [name, name])]);
  const slices = split.slices.filter((one) => one.target === target && (family === ALL || one.family === family));
  redraw(
    answers,
    el(
      "section",
      { class: "panel" },
      el(
        "div",
        { class: "filters" },
        filter("accuracy.split", "Rows held out", splits, split.name),
        filter("accuracy.target", "Predicted", targetWords, target),
        filter("accuracy.family", "Kernel family", familyWords, family),
      ),
      hint(split.doc),
    ),
    parityPanel(page, split, target, family),
    coveragePanel(slices),
    panel(
      "Errors",
      hint(
        "An error is how far the prediction is from what was measured, as a share of it; rows counts those held out, and the width of an interval is a share of the prediction.",
      ),
      slicesTable(page, slices),
    ),
    notes(answer),
  );
  const whole = slices.filter(({ device }) => device === null);
  page.say(`${split.name}: ${whole.map((one) => `${one.family} median error ${percent(one.median)}`).join(", ")}`);
}

function notes({ notes: texts, model, regressor }) {
  return panel(
    "About these numbers",
    texts.length ? list(texts, { class: "notes" }) : "",
    el("p", { class: "hint" }, `They are of the model that answers: ${regressor}, manifest `, el("code", { text: model })),
  );
}

function parityPanel(page, split, target, family) {
  const parts = split.parity.filter((one) => one.target === target && (family === ALL || one.family === family));
  const [words, unit] = TARGETS[target];
  const heading = "Predicted against measured";
  if (!parts.length) {
    const noValues = `No values of ${words.toLowerCase()} are kept for this choice.`;
    return panel(heading, hint(split.parity.length ? noValues : "Of these rows errors are kept alone, no single values."));
  }
  const devices = [...new Set(parts.map(({ device }) => device))];
  const points = pointsOf(parts);
  const near = points.filter(({ x, y }) => Math.abs(y / x - 1) <= 0.1).length;
  const inside = points.filter(({ x, lower, upper }) => lower <= x && x <= upper).length;
  const counts = `${grouped(points.length)} of the held-out rows are drawn: ${percent(near / points.length)} of them within 10 %, ${percent(inside / points.length)} inside their interval`;
  return el(
    "section",
    { class: "panel parity" },
    el("h2", { text: heading }),
    plot({
      label: `${words} predicted against measured`,
      describe: `${counts}.`,
      ...parityLayers(page, devices, points, unit),
      height: 460,
      x: { title: "measured", log: true, quantity: unit },
      y: { log: true, quantity: unit },
    }),
    hint(`${counts}. Upright lines are the intervals.`),
    family === ALL
      ? hint("Choose a kernel family to see the values as a table.")
      : details("Values as a table", pointsTable(page, points, unit)),
  );
}

function pointsOf(parts) {
  return parts
    .flatMap(({ measured, predicted, lower, upper, device, family }) =>
      measured.map((x, i) => ({ x, y: predicted[i], lower: lower[i], upper: upper[i], device, family })),
    )
    .filter(({ x, y }) => x > 0 && y > 0)
    .sort((a, b) => a.x - b.x);
}

/** Layers, stops and legend of measured against predicted: a cloud with intervals per device, and lines at and around 1. */
function parityLayers(page, devices, points, unit) {
  const series = MANY_SERIES;
  const ends = [points[0].x, points.at(-1).x];
  const diagonal = (factor) => ({ series, points: ends.map((x) => ({ x, y: x * factor })) });
  const layers = AROUND.map((factor) => ({ kind: "line", dashed: true, ...diagonal(factor) }));
  layers.push({ kind: "roof", ...diagonal(1) });
  const legend = [];
  for (const [i, device] of devices.entries()) {
    const own = 1 + (i % (MANY_SERIES - 1));
    const here = points.filter((one) => one.device === device);
    layers.push(
      { kind: "reach", series: own, points: here.filter(({ lower, upper }) => lower > 0 && upper > 0) },
      { kind: "cloud", series: own, points: here },
    );
    legend.push({ text: page.catalogue.title(device), series: own, mark: "dot" });
  }
  legend.push({ text: "predicted = measured; dashes: 10 % off", series });
  const stops = points.map((one) => ({
    x: one.x,
    text: [
      `measured ${show(one.x, unit)}`,
      `predicted ${showInterval({ value: one.y, lower: one.lower, upper: one.upper }, unit).text}`,
      `${one.family}, ${page.catalogue.title(one.device)}`,
    ],
  }));
  return { layers, stops, legend };
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
  const share = (value) => `${(100 * value).toFixed(1)}%`;
  const row = ({ family, device, n, covered, coverage }) =>
    barRow(
      device === null ? family : `${family}, ${device}`,
      el(
        "div",
        { class: "interval", "aria-hidden": "true" },
        el("span", { class: "reach", css: { left: "0%", width: share(covered) } }),
        el("span", { class: "limit", css: { left: share(coverage) } }),
      ),
      `${percent(covered)} of ${grouped(n)}, asked ${percent(coverage)}`,
    );
  return panel(
    "How often the intervals hold",
    el(
      "ul",
      { class: "ranges holds", "aria-label": "Share of rows inside their interval" },
      (whole.length > 1 ? whole : judged).map(row),
    ),
    hint(
      "The dotted mark is what was asked for: a bar that ends at it has honest intervals, one that ends before it has too narrow ones.",
    ),
  );
}

function slicesTable(page, slices) {
  const shares = (...values) => values.map((value) => numberCell(value === null || value === undefined ? "—" : percent(value)));
  const judged = slices.some(({ covered }) => covered !== null);
  return table(
    "Errors by family and device",
    [
      ...["Family", "Device", "Rows", "Mean error", "Median error", "Within 10 %"],
      ...(judged ? ["In interval", "Asked", "Width"] : []),
    ],
    slices.map((one) => [
      one.family,
      el("td", { class: "words", text: one.device === null ? "all devices" : page.catalogue.title(one.device) }),
      numberCell(grouped(one.n)),
      ...shares(one.mean, one.median, one.within_10),
      ...(judged ? shares(one.covered, one.coverage, one.width) : []),
    ]),
    { number: (i) => i > 1, rowClass: (i) => (slices[i].device === null ? "whole" : null) },
  );
}
