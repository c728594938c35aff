// One number of the spec as a curve, per device, with its band and what was measured there.
import { Refusal, orRefusal } from "../ask.js";
import { plot } from "../charts.js";
import { pythonCall, pythonSpec, requestBlock } from "../copy.js";
import { details, el, headed, hint, panel, redraw, table } from "../dom.js";
import { csv } from "../download.js";
import { exportTools, plotPicture } from "../exports.js";
import { chosenDevices, choice, field, group, numberField, shownBy, specOf, specView, wholeOrText } from "../form.js";
import { TARGETS, TARGET_WORDS, grouped, inWords, show, showInterval, timingWords } from "../format.js";

const PATH = "v1/sweep";
const AROUND = 16;
const POINTS = "41";

export function render(root, page) {
  return specView(root, page, { load, draw, extra: sweepFields }).leave;
}

/** Give the state a dimension and a range around what the spec has there. */
function complete({ state, catalogue }) {
  const { properties, examples } = catalogue.schema(state.get("family"));
  const sizes = properties.sizes.properties;
  const names = [...Object.keys(sizes), ...Object.keys(properties.config.properties)];
  if (!state.get("sweep.dim")) {
    state.set({
      "sweep.dim": names.find((name) => examples[0].sizes[name] > 8) ?? names[0],
      "sweep.from": null,
      "sweep.to": null,
    });
  }
  const dim = state.get("sweep.dim");
  const here = Number(state.get(`sizes.${dim}`) || state.get(`config.${dim}`)) || 64;
  if (!state.get("sweep.from")) state.set({ "sweep.from": Math.max(sizes[dim]?.minimum ?? 1, Math.round(here / AROUND)) });
  if (!state.get("sweep.to")) state.set({ "sweep.to": here * AROUND });
  return names;
}

function sweepFields(page) {
  const { state } = page;
  const names = complete(page);
  const scales = { log: "by a factor", linear: "even" };
  const fields = group(
    "Sweep",
    el(
      "div",
      { class: "grid" },
      field("sweep.dim", "Vary", choice(names, state.get("sweep.dim"))),
      field("sweep.scale", "Steps", choice(Object.keys(scales), state.get("sweep.scale", "log"), scales)),
      numberField(state, "sweep.from", "From"),
      numberField(state, "sweep.to", "To"),
      numberField(state, "sweep.points", "Points", "At most 512", POINTS),
    ),
  );
  fields.addEventListener("input", (event) => {
    if (event.target.name !== "sweep.dim") return;
    state.set({ "sweep.dim": event.target.value, "sweep.from": null, "sweep.to": null });
    complete(page);
    for (const name of ["sweep.from", "sweep.to"]) fields.querySelector(`[name="${name}"]`).value = state.get(name);
  });
  return fields;
}

const callOf = ({ sweep: { dim, from, to, points, scale }, ...spec }) =>
  pythonCall("sweep", [spec.family], { ...pythonSpec(spec), dim, start: from, stop: to, points, scale });

async function load(page) {
  const { state } = page;
  const sweep = {
    dim: state.get("sweep.dim"),
    from: wholeOrText(state.get("sweep.from")),
    to: wholeOrText(state.get("sweep.to")),
    points: wholeOrText(state.get("sweep.points", POINTS)),
    scale: state.get("sweep.scale", "log"),
  };
  const body = { ...specOf(page), devices: chosenDevices(page), sweep };
  const { sweep: _, coverage: __, ...spec } = body;
  const [answer, measured] = await Promise.all([
    page.ask("sweep", PATH, body),
    // Curves are worth showing without what was measured.
    orRefusal(page.ask("like", "v1/measurements/like", { ...spec, dim: sweep.dim })),
  ]);
  return { body, answer, measured };
}

function draw(page, answers, { body, answer, measured }) {
  const { state, catalogue } = page;
  const target = state.oneOf("sweep.target", Object.keys(TARGETS), "latency_s");
  const [words, unit] = TARGETS[target];
  const curves = answer.curves.map((curve, i) => ({
    ...curve,
    title: catalogue.title(curve.device),
    series: i + 1,
    column: curve[target],
  }));
  const known = curves.filter(({ column }) => column);
  const ofKnown = (point) => point[target] !== null && known.some(({ device }) => device === point.device);
  const points = measured instanceof Refusal ? [] : measured.points.filter(ofKnown);
  const again = () => draw(page, answers, { body, answer, measured });
  const drawn = known.length ? picture(page, answer, known, points, { target, words, unit }) : null;
  const axis = state.oneOf("sweep.y", ["log", "linear"], "log");
  redraw(
    answers,
    panel(
      headed(
        `${words} against ${answer.dim}`,
        el(
          "div",
          { class: "tools" },
          shownBy(page, "sweep.target", "Show", TARGET_WORDS, target, again),
          shownBy(page, "sweep.y", "Upright axis", { log: "logarithmic", linear: "linear" }, axis, again),
          exportTools(
            `${body.family}-${answer.dim}`,
            () => plotPicture(drawn, `${words} against ${answer.dim}`, aboutOf(body), legendOf(known)),
            () => csvOf(answer),
          ),
        ),
      ),
      drawn ?? hint(`${words} is unknown for ${curves.length > 1 ? "these devices" : "this device"}.`),
      hint(`${timingWords(answer.timing)} ${remarks(known, points, measured, curves)}`),
      details("Values as a table", valuesTable(answer, curves, unit, words)),
      points.length
        ? details(
            `${points.length} measured ${points.length === 1 ? "value" : "values"} as a table`,
            measuredTable(page, answer.dim, points),
          )
        : "",
    ),
    requestBlock(page, PATH, body, callOf(body)),
  );
  page.say(
    `${words} against ${answer.dim}: ${known.map(({ title: name, column }) => `${name} from ${show(column.value[0], unit)} to ${show(column.value.at(-1), unit)}`).join("; ")}`,
  );
}

const legendOf = (curves) => curves.map(({ title: text, series }) => ({ text, series }));

const aboutOf = ({ family, sizes, dtype, sweep }) =>
  `${family}, ${inWords(Object.fromEntries(Object.entries(sizes).filter(([name]) => name !== sweep.dim)), grouped)}, ${dtype}; band: interval`;

function remarks(known, points, measured, curves) {
  const outside = known.filter(({ in_domain }) => in_domain.includes(false)).map(({ title: name }) => name);
  const missing = curves.filter(({ column }) => !column).map(({ title: name }) => name);
  return [
    "Line: prediction. Band: its interval. Dashes: the least time the limits allow.",
    points.length
      ? "Rings: measured."
      : measured instanceof Refusal
        ? `What was measured is not shown: ${measured.message}`
        : "Nothing was measured that is like this spec.",
    outside.length ? `Outside what was measured in places: ${outside.join(", ")}.` : "",
    missing.length && known.length ? `Unknown: ${missing.join(", ")}.` : "",
    `Method: ${known.map(({ title: name, method }) => `${name}: ${method.words.join(", ")}`).join("; ")}.`,
  ]
    .filter(Boolean)
    .join(" ");
}

const intervalAt = (column, i) => ({ value: column.value[i], lower: column.lower[i], upper: column.upper[i] });

function picture(page, { dim, values }, curves, points, { target, words, unit }) {
  const layers = curves.flatMap(({ series, column, lower_bound_s: least }) => [
    { kind: "band", series, points: values.map((x, i) => ({ x, lower: column.lower[i], upper: column.upper[i] })) },
    ...(target === "latency_s"
      ? [{ kind: "line", dashed: true, series, points: values.map((x, i) => ({ x, y: least[i] })) }]
      : []),
    { kind: "line", series, points: values.map((x, i) => ({ x, y: column.value[i] })) },
  ]);
  for (const { series, device } of curves) {
    const here = points.filter((point) => point.device === device && point.value >= values[0] && point.value <= values.at(-1));
    if (here.length)
      layers.push({ kind: "dots", hollow: true, series, points: here.map((point) => ({ x: point.value, y: point[target] })) });
  }
  const stops = values.map((x, i) => ({
    x,
    text: [
      `${dim} = ${grouped(x)}`,
      ...curves.map(
        ({ title: name, column, bound }) => `${name}: ${showInterval(intervalAt(column, i), unit).text}, ${bound[i]}`,
      ),
    ],
  }));
  const ends = ({ title: name, column }) =>
    `${name}: ${show(column.value[0], unit)} at ${values[0]}, ${show(column.value.at(-1), unit)} at ${values.at(-1)}`;
  return plot({
    label: `${words} against ${dim}`,
    describe: curves.map(ends).join(". "),
    layers,
    stops,
    height: 400,
    x: { title: dim, log: page.state.get("sweep.scale", "log") === "log" },
    y: { log: page.state.get("sweep.y", "log") === "log", floor: 0, quantity: unit },
    legend: legendOf(curves),
  });
}

function valuesTable({ dim, values }, curves, unit, words) {
  const cell = ({ column, in_domain }, i) =>
    column ? showInterval(intervalAt(column, i), unit).text + (in_domain[i] ? "" : " *") : "unknown";
  const rows = values.map((value, i) => [grouped(value), ...curves.map((curve) => cell(curve, i))]);
  return el(
    "div",
    {},
    table(words, [dim, ...curves.map(({ title: name }) => name)], rows),
    curves.some(({ in_domain }) => in_domain.includes(false)) ? hint("* outside what was measured") : "",
  );
}

function measuredTable(page, dim, points) {
  const shown = (value, unit) => (value === null ? "not measured" : show(value, unit));
  return table(
    "Measured",
    ["Device", dim, "Latency", "Power", "Energy", "Run by", "Threads", "Caches", "Runs"],
    points.map((point) => [
      page.catalogue.title(point.device),
      grouped(point.value),
      ...Object.entries(TARGETS).map(([name, [, unit]]) => shown(point[name], unit)),
      point.impl || "not given",
      point.threads ?? "not given",
      point.cache_state,
      point.runs ?? "not given",
    ]),
  );
}

/** Every number of the answer as text of a CSV file. */
function csvOf({ dim, values, curves }) {
  const targets = Object.keys(TARGETS);
  const columns = targets.flatMap((name) => [name, `${name}_lower`, `${name}_upper`]);
  const rows = curves.flatMap((curve) =>
    values.map((value, i) => [
      value,
      curve.device,
      ...targets.flatMap((name) => ["value", "lower", "upper"].map((end) => curve[name]?.[end][i])),
      curve.lower_bound_s[i],
      curve.bound[i],
      curve.method.words[curve.method.codes[i]],
      curve.in_domain[i],
    ]),
  );
  return csv([dim, "device", ...columns, "lower_bound_s", "bound", "method", "in_domain"], rows);
}
