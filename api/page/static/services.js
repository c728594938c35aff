// Panels of services of a language model: curves over the load, figures at one load, where a step's time goes.
import { Refusal } from "./ask.js";
import { intervalCell, legend, stackedRows } from "./bars.js";
import { plot } from "./charts.js";
import { button, details, el, headed, hint, list, panel, table } from "./dom.js";
import { csv } from "./download.js";
import { exportTools, plotPicture } from "./exports.js";
import { shownBy } from "./form.js";
import { digits, grouped, percent, show, showInterval } from "./format.js";
import { gridHint, priceInput } from "./power.js";

const AXES = { linear: "linear", log: "logarithmic" };
const PARTS = ["gemm", "attention", "moe", "collectives", "rest", "host", "draft"];
const AGAINST = "tokens per second of one user";

// What is drawn against the tokens per second of one user.
const PICTURES = {
  throughput: { words: "Tokens per second of one GPU", unit: "count", of: (one) => one.throughput_per_gpu_tok_s },
  energy: { words: "Energy per token", unit: "j", of: (one) => one.energy_per_token_j },
  ttft: { words: "Time to the first token", unit: "s", of: (one) => one.ttft_s.p50 },
  cost: { words: "Cost of a million tokens", unit: "money", of: (one) => one.cost_per_million_tokens },
};
const COLUMNS = {
  "First token, median": [(one) => one.ttft_s.p50, "s"],
  "Time per token, median": [(one) => one.tpot_s?.p50, "s"],
  "Tokens/s of a user": [(one) => one.tokens_per_user_s, "count"],
  "Tokens/s of a GPU": [(one) => one.throughput_per_gpu_tok_s, "count"],
  "Power of a GPU": [(one) => one.power_w, "w"],
  "Energy per token": [(one) => one.energy_per_token_j, "j"],
};

// The table leaves out what its neighbour says in other units.
const HERE = Object.keys(COLUMNS).filter((name) => name !== "Tokens/s of a user");

/** The panels: `rows` are plans with the answer `here` and those along the load, `points`; `measured` are measured services or a
 * refusal; `again()` draws anew, `priced()` is called where a price was typed. */
export function servicePanels(page, rows, { measured, again, priced }) {
  const known = measuredOf(rows, measured);
  return [
    curvePanel(page, rows, known, again),
    el("div", { class: "beside-each-other" }, ["energy", "ttft", "cost"].map((name) => smallPanel(rows, name))),
    measuredPanel(page, rows, known, measured),
    tablePanel(page, rows, priced),
    stepPanel(rows),
    notesPanel(rows),
  ];
}

const curveOf = ({ points }, { of }) =>
  points.filter((one) => one.tokens_per_user_s && of(one)).map((one) => ({ x: one.tokens_per_user_s.value, y: of(one).value, one }));

const xOf = (one) => one.tokens_per_user_s.value;

function curves(rows, picture, { log, label, known = [], isSmall = false }) {
  const drawn = rows.map((row) => ({ ...row, curve: curveOf(row, picture) })).filter(({ curve }) => curve.length);
  if (!drawn.length) return null;
  const layers = drawn.flatMap(({ series, curve, here }) => {
    const value = picture.of(here);
    const at = value && here.tokens_per_user_s ? [{ x: xOf(here), y: value.value, lower: value.lower, upper: value.upper }] : [];
    return [
      { kind: "line", series, points: curve },
      { kind: "whisker", series, points: at },
      { kind: "dots", series, points: at },
    ];
  });
  for (const { series, points } of known) layers.push({ kind: "dots", hollow: true, series, points });
  const stops = drawn
    .flatMap(({ title, curve }) =>
      curve.map(({ x, y, one }) => ({
        x,
        text: [title, `${grouped(one.load.size)} under way`, `${digits(x)} tokens/s of a user`, `${picture.words}: ${show(y, picture.unit)}`],
      })),
    )
    .sort((a, b) => a.x - b.x);
  const keys = drawn.map(({ title: text, series }) => ({ text, series }));
  const ends = ({ title, curve }) =>
    `${title}: ${show(curve[0].y, picture.unit)} at ${digits(curve[0].x)} tokens per second of a user, ${show(curve.at(-1).y, picture.unit)} at ${digits(curve.at(-1).x)}`;
  const figure = plot({
    label,
    describe: drawn.map(ends).join(". "),
    layers,
    stops,
    height: isSmall ? 250 : 400,
    x: { title: AGAINST, log: log.x, quantity: "count", floor: 0 },
    y: { log: log.y, quantity: picture.unit, floor: 0 },
    legend: isSmall ? [] : keys,
  });
  return { figure, keys };
}

function curvePanel(page, rows, known, again) {
  const axis = page.state.oneOf("llm.axes", Object.keys(AXES), "linear");
  const { words } = PICTURES.throughput;
  const label = `${words} against ${AGAINST}`;
  const drawn = curves(rows, PICTURES.throughput, { log: { x: axis === "log", y: axis === "log" }, label, known });
  if (!drawn) return panel(words, hint("An answer of one token is never decoded, so that no speed of a user can be told."));
  const { model, load } = rows[0].here;
  const about = `${model}, prompts of ${grouped(load.input_tokens)}, answers of ${grouped(load.output_tokens)} tokens`;
  const keys = known.length ? [...drawn.keys, { text: "rings: measured", series: known[0].series, mark: "dot" }] : drawn.keys;
  const tools = exportTools("llm-service", () => plotPicture(drawn.figure, label, about, keys), () => csvOf(rows));
  return panel(
    headed(label, el("div", { class: "tools" }, shownBy(page, "llm.axes", "Axes", AXES, axis, again), tools)),
    drawn.figure,
    hint(
      `Each curve runs from ${rangeWords(rows)} requests under way at one copy of the model, right to left. Large mark: ${grouped(load.size)} under way, with its interval.${known.length ? " Rings: measured." : ""}`,
    ),
    details("Values as a table", valuesTable(rows)),
  );
}

function rangeWords(rows) {
  const sizes = rows.flatMap(({ points }) => points.map((one) => one.load.size));
  return `${grouped(Math.min(...sizes))} to ${grouped(Math.max(...sizes))}`;
}

function smallPanel(rows, name) {
  const { words } = PICTURES[name];
  const drawn = curves(rows, PICTURES[name], { log: { x: false, y: true }, label: `${words} against ${AGAINST}`, isSmall: true });
  const missing = name === "cost" ? "Type what an hour of a GPU costs you in the table below." : "It is unknown for these GPUs.";
  return panel(words, drawn ? [drawn.figure, hint("Colours as above; the vertical axis is logarithmic.")] : hint(missing));
}

function valuesTable(rows) {
  const cells = rows.flatMap(({ title, points }) =>
    points.map((one) => [title, grouped(one.load.size), ...Object.values(COLUMNS).map(([of, unit]) => (of(one) ? showInterval(of(one), unit).text : "unknown"))]),
  );
  return table("Service along the load", ["GPU", "Under way", ...Object.keys(COLUMNS)], cells);
}

function csvOf(rows) {
  const values = {
    ttft_p50_s: (one) => one.ttft_s.p50, tpot_p50_s: (one) => one.tpot_s?.p50, tokens_per_user_s: (one) => one.tokens_per_user_s,
    throughput_per_gpu_tok_s: (one) => one.throughput_per_gpu_tok_s, power_w: (one) => one.power_w,
    energy_per_token_j: (one) => one.energy_per_token_j, cost_per_million_tokens: (one) => one.cost_per_million_tokens,
    carbon_g_per_million_tokens: (one) => one.footprint_per_million_tokens?.carbon_g,
  }; // prettier-ignore
  const columns = Object.keys(values).flatMap((name) => [name, `${name}_lower`, `${name}_upper`]);
  const lines = rows.flatMap(({ points }) =>
    points.map((one) => [
      one.model, one.device, one.gpus, one.plan.tp, one.engine, one.load.input_tokens, one.load.output_tokens, one.load.size,
      ...Object.values(values).flatMap((of) => ["value", "lower", "upper"].map((end) => of(one)?.[end])),
    ]), // prettier-ignore
  );
  return csv(["model", "device", "gpus", "tp", "engine", "input_tokens", "output_tokens", "concurrency", ...columns], lines);
}

/** Measured services that are like a plan, as points: their throughput follows from both times. */
function measuredOf(rows, measured) {
  if (measured instanceof Refusal) return [];
  return rows.flatMap((row) => {
    const same = measured.services.find((one) => distance(one, row.here) === 0);
    if (!same) return [];
    const points = same.points.map(([concurrency, ttft, tpot]) => ({
      concurrency,
      tpot,
      x: 1 / tpot,
      y: (concurrency * same.output_tokens) / (ttft + (same.output_tokens - 1) * tpot) / same.tp,
    }));
    return [{ series: row.series, row, service: same, points }];
  });
}

/** How far a measured service is from an answer: doublings of lengths, and one for each other difference. */
function distance(measured, { model, device, plan, engine, formats, load, speculation }) {
  if (measured.model !== model) return Infinity;
  const others = [measured.device !== device, measured.tp !== plan.tp, measured.engine !== engine, measured.weights && measured.weights !== formats.weights, speculation];
  const doublings = (a, b) => Math.abs(Math.log2(a / b));
  const lengths = doublings(measured.input_tokens, load.input_tokens) + doublings(measured.output_tokens, load.output_tokens);
  return others.filter(Boolean).length + lengths;
}

const serviceWords = (page, { device, tp, engine, engine_version: version, weights, input_tokens: input, output_tokens: output }) =>
  `${page.catalogue.title(device)}${tp === 1 ? "" : ` × ${tp}`}, ${engine}${version ? ` ${version}` : ""}${weights ? `, ${weights}` : ""}, prompts of ${grouped(input)} and answers of ${grouped(output)} tokens`;

function measuredPanel(page, rows, known, measured) {
  if (measured instanceof Refusal) return panel("Measured", hint(`What was measured is not shown: ${measured.message}`));
  const source = hint(`Source: ${measured.source}; ${measured.licence}. ${measured.client}. Tokens per second follow from the times: requests under way times tokens over the time of a request.`);
  if (known.length)
    return panel("Measured beside predicted", el("p", { text: errorWords(known) }), details("Measured values as a table", measuredTable(known)), source);
  const nearest = measured.services.toSorted((a, b) => distance(a, rows[0].here) - distance(b, rows[0].here))[0];
  const { model } = rows[0].here;
  if (nearest.model !== model) {
    const models = [...new Set(measured.services.map((one) => one.model))];
    return panel("Measured", hint(`No service of ${model} was measured that ships with this page; measured are ${models.join(", ")}.`), source);
  }
  const go = () => {
    const { device, tp, engine, weights, input_tokens: input, output_tokens: output } = nearest;
    page.go("llm", { "llm.devices": device, "llm.tp": tp, engine, weights: weights || null, input_tokens: input, output_tokens: output });
  };
  const away = digits(distance(nearest, rows[0].here), 2);
  const words = `Nothing was measured that is like this. The nearest is ${away} steps away, where a step is a doubling of a length or another GPU, split, engine or format: ${serviceWords(page, nearest)}. `;
  return panel("Measured", el("p", { class: "hint" }, words, button("Show it", go, { class: "link" })), source);
}

/** How far predictions are from what was measured, in a sentence. */
function errorWords(known) {
  const pairs = known.flatMap(({ row, points }) =>
    points.flatMap(({ concurrency, tpot }) => row.points.filter((one) => one.load.size === concurrency).map((one) => [tpot, one.tpot_s.mean])),
  );
  if (!pairs.length) return "Nothing was measured at the loads that were asked about.";
  const errors = pairs.map(([measured, predicted]) => Math.abs(predicted.value / measured - 1)).sort((a, b) => a - b);
  const inside = pairs.filter(([measured, predicted]) => measured >= predicted.lower && measured <= predicted.upper).length;
  const median = errors.length % 2 ? errors[(errors.length - 1) / 2] : (errors[errors.length / 2 - 1] + errors[errors.length / 2]) / 2;
  return `Of ${pairs.length} measured loads, ${inside} are inside the interval of the time per token; half of the predictions are off by less than ${percent(median)}, the worst by ${percent(errors.at(-1))}. Answers of this model were fitted to such services, these among them.`;
}

function measuredTable(known) {
  const cells = known.flatMap(({ row, service, points }) =>
    points.map(({ concurrency, tpot, y }) => {
      const predicted = row.points.find((one) => one.load.size === concurrency);
      const off = predicted ? predicted.tpot_s.mean.value / tpot - 1 : null;
      return [
        row.title,
        grouped(concurrency),
        show(tpot, "s"),
        predicted ? showInterval(predicted.tpot_s.mean, "s").text : "not asked",
        off === null ? "" : `${off < 0 ? "\u2212" : "+"}${percent(Math.abs(off))}`,
        digits(y),
        service.engine_version || "not said",
      ];
    }),
  );
  return table("Measured services beside predictions", ["GPU", "Under way", "Time per token, measured", "Predicted", "Off by", "Tokens/s of a GPU", "Engine version"], cells);
}

function tablePanel(page, rows, priced) {
  const { load, footprint_per_million_tokens: footprint } = rows[0].here;
  const cells = ({ title, device, here }) => [
    title,
    ...HERE.map((name) => intervalCell(COLUMNS[name][0](here), COLUMNS[name][1])),
    ...(footprint ? [intervalCell(here.footprint_per_million_tokens.carbon_g, "g")] : []),
    el("td", {}, priceInput(page, { title, device }, priced)),
    intervalCell(here.cost_per_million_tokens, "money"),
  ];
  return panel(
    `With ${grouped(load.size)} requests under way`,
    hint("Type what an hour of one GPU costs you, in any currency."),
    table("Services side by side", ["GPU", ...HERE, ...(footprint ? ["CO2e of a million tokens"] : []), "Price per hour", "Cost of a million tokens"], rows.map(cells), {
      label: "Services side by side",
      kind: "compare",
      number: (i) => i > 0,
    }),
    footprint ? gridHint(footprint) : "",
  );
}

function stepPanel(rows) {
  const names = PARTS.filter((name) => rows.some(({ here }) => here.step_parts[name] > 0));
  const bars = rows.map(({ title, here }) => ({
    title,
    segments: names.map((name) => ({ name, size: here.step_parts[name] ?? 0, text: `${name}: ${percent(here.step_parts[name] ?? 0)}` })),
    amount: `${digits(here.batch)} sequences decode together${here.memory.sequences === null ? "" : `; ${grouped(here.memory.sequences)} fit`}`,
  }));
  return panel("Where a decode step's time goes", legend(names), stackedRows("Shares of a decode step", bars));
}

function notesPanel(rows) {
  const notes = [...new Set(rows.flatMap(({ here }) => here.notes))];
  return notes.length ? panel("What to know", list(notes, { class: "notes" })) : "";
}
