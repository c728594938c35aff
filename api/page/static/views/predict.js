// One kernel on one device or several: what it takes, how sure that is, what binds, and how far from the limit.
import { NO_POWER, cautions, coverageWords, rooflineParts } from "../answers.js";
import { Refusal, orRefusal } from "../ask.js";
import { breakdownBars, figuresOf, scaleOf } from "../bars.js";
import { besidePanel } from "../beside.js";
import { capsPanel } from "../caps.js";
import { plot } from "../charts.js";
import { pythonCall, pythonSpec, requestBlock } from "../copy.js";
import { details, el, hint, lead, panel, redraw, table } from "../dom.js";
import { chosenDevices, controlName, specOf, specView } from "../form.js";
import { grouped, inWords, percent, show, showInterval, timingWords } from "../format.js";
import { carbonWords, gridHint, hasPower, powerFields, powerOf, settingWords } from "../power.js";

const PATH = "v1/predict";

export function render(root, page) {
  return specView(root, page, { load, draw, more: { fields: powerFields, isGiven: hasPower } }).leave;
}

const bodyOf = (spec, devices) => {
  const { coverage, ...rest } = spec;
  if (devices.length === 1) return { ...rest, device: devices[0], ...(coverage ? { coverage } : {}) };
  return { requests: devices.map((device) => ({ ...rest, device })), ...(coverage ? { coverage } : {}) };
};

const callOf = ({ requests, coverage, ...spec }) =>
  requests
    ? pythonCall("predict_many", [requests], { coverage })
    : pythonCall("predict", [spec.family], { ...pythonSpec(spec), coverage });

async function load(page) {
  const spec = specOf(page);
  const power = powerOf(page);
  const devices = chosenDevices(page);
  const { predictions, refusals } = await predict(page, { ...spec, ...power }, devices);
  const good = devices.filter((_, i) => predictions[i]);
  // What cannot be drawn must not hide what can be said.
  const { coverage: _, ...plain } = spec;
  const [roofs, measured] = good.length
    ? await Promise.all([
        orRefusal(page.ask("roofline", "v1/roofline", { ...spec, devices: good })),
        orRefusal(page.ask("nearest", "v1/measurements/nearest", { ...plain, devices: good })),
      ])
    : [null, null];
  const roofline = new Map(good.map((name, i) => [name, roofs?.answers?.[i]]));
  return {
    spec,
    power,
    timing: roofs?.timing,
    measured,
    rows: devices.map((device, i) => ({
      device,
      title: page.catalogue.title(device),
      series: i + 1,
      prediction: predictions[i],
      refusal: refusals[i],
      roofline: roofline.get(device),
    })),
  };
}

/** Predictions and refusals by position, null where there is none; a refusal that is about no device is thrown. */
async function predict(page, spec, devices) {
  const ask = async (names) => {
    const answer = await page.ask("predict", PATH, bodyOf(spec, names));
    return names.length === 1 ? [answer] : answer.predictions;
  };
  try {
    return { predictions: await ask(devices), refusals: [] };
  } catch (error) {
    const wrong = new Set((error.errors ?? []).map((one) => one.index));
    if (devices.length === 1 || wrong.has(undefined) || !wrong.size || wrong.size === devices.length) throw onePerField(error);
    const good = devices.filter((_, i) => !wrong.has(i));
    const answers = await ask(good);
    return {
      predictions: devices.map((device, i) => (wrong.has(i) ? null : answers[good.indexOf(device)])),
      refusals: devices.map((_, i) => error.errors.find((one) => one.index === i)?.detail),
    };
  }
}

// Every device refuses for the same reason: it is said once.
function onePerField(error) {
  if (!(error instanceof Refusal)) return error;
  const byField = new Map(error.errors.map(({ field, detail }) => [controlName(field), { field: controlName(field), detail }]));
  return Object.assign(error, { errors: [...byField.values()] });
}

function draw(page, answers, { spec, power, timing, rows, measured }) {
  const predictions = rows.map(({ prediction }) => prediction).filter(Boolean);
  // Watts are drawn against the devices' power limits, seconds and joules against the largest of them.
  const limits = predictions.map(({ device }) => page.catalogue.device(device)?.facts.tdp_w?.value ?? 0);
  const scales = {
    latency_s: scaleOf(predictions, "latency_s"),
    power_w: scaleOf(predictions, "power_w", limits),
    energy_j: scaleOf(predictions, "energy_j"),
  };
  const several = rows.length > 1;
  const isSet = settingWords(power) !== "";
  const cards = rows.map((row) =>
    row.prediction
      ? card(page, row, scales, several, power)
      : el("article", { class: "panel card refused" }, el("h2", { text: row.title }), el("p", { text: row.refusal })),
  );
  const { footprint } = predictions.find((one) => one.footprint) ?? {};
  const roofs = rows.filter(({ roofline }) => roofline);
  const log = predictions.length > 1 && Object.values(scales).some((scale) => scale.log);
  const body = bodyOf({ ...spec, ...power }, rows.map(({ device }) => device));
  redraw(
    answers,
    lead(
      spec.family,
      `${inWords(spec.sizes)}, ${spec.dtype}${settingWords(power)}; ${predictions.length ? coverageWords(predictions[0].coverage) : "no answer"}${log ? "; bars are logarithmic" : ""}`,
    ),
    el("div", { class: several ? "cards several" : "cards" }, cards),
    footprint ? gridHint(footprint) : "",
    measured ? measuredPanel(page, rows, spec, measured, isSet) : "",
    roofs.length ? rooflinePanel(roofs, `${timingWords(timing)}${isSet ? " Without the power limit and the clock." : ""}`) : "",
    capsPanel(page, spec, rows),
    besidePanel(page, spec, rows, isSet),
    requestBlock(page, PATH, body, callOf(body)),
  );
  page.say(
    predictions.map((one) => `${page.catalogue.title(one.device)}: ${showInterval(one.latency_s, "s").text}`).join("; ") ||
      "No device answered.",
  );
}

function card(page, { prediction, title: device, series, roofline }, scales, several, { power_limit_w: limit }) {
  const power_w = limit ?? page.catalogue.device(prediction.device)?.facts.tdp_w?.value;
  const limits = { latency_s: Math.max(...Object.values(prediction.breakdown)), power_w };
  const figures = figuresOf(prediction, scales, { limits, noPower: NO_POWER });
  if (prediction.footprint?.carbon_g) figures.lastElementChild.append(hint(carbonWords(prediction.footprint)));
  return el(
    "article",
    { class: `panel card series-${series}${prediction.in_domain ? "" : " guess"}` },
    el("h2", {}, el("span", { class: "swatch", "aria-hidden": "true" }), device),
    figures,
    cautions(prediction),
    el(
      "details",
      { class: "why", open: !several },
      el(
        "summary",
        {},
        el("strong", { text: prediction.bound }),
        " binds",
        roofline
          ? el("span", {}, "; the lower bound is ", el("strong", { text: percent(limits.latency_s / prediction.latency_s.value) }), " of the predicted time")
          : "",
      ),
      breakdownBars(prediction.breakdown, prediction.bound, prediction.latency_s.value),
      hint(
        `The dotted mark in the bar of latency is the least time the limits allow, in that of power the power limit. Each bar here is what that limit alone would take on paper. Method: ${prediction.method}.`,
      ),
    ),
  );
}

/** What was measured that is nearest to the spec, and how far that is, by device. */
function measuredPanel(page, rows, spec, measured, isSet) {
  if (measured instanceof Refusal) return panel("Measured", hint(`What was measured is not shown: ${measured.message}`));
  const { cases } = measured;
  const nameOf = ({ device }) => page.catalogue.title(device);
  const differing = ({ doublings, sizes }) => Object.entries(sizes).filter(([name, size]) => doublings === 0 || size !== spec.sizes[name]);
  const offOf = ({ device, doublings, latency_s: latency }) => {
    const same = !isSet && doublings === 0 && rows.find((row) => row.device === device)?.prediction;
    return same ? same.latency_s.value / latency - 1 : null;
  };
  const signed = (share) => `${share < 0 ? "\u2212" : "+"}${percent(Math.abs(share))}`;
  // Columns that say something of any of the cases.
  const columns = Object.entries({
    Device: nameOf,
    "Away by": ({ doublings }) => (doublings === 0 ? "this very case" : `a factor of ${(2 ** doublings).toPrecision(2)}`),
    Sizes: (one) => inWords(Object.fromEntries(differing(one)), grouped),
    Latency: (one) => show(one.latency_s, "s"),
    "Prediction off by": (one) => (offOf(one) === null ? "" : signed(offOf(one))),
    Power: (one) => (one.power_w === null ? "" : show(one.power_w, "w")),
    Energy: (one) => (one.energy_j === null ? "" : show(one.energy_j, "j")),
    "Run by": (one) => one.impl,
    Runs: (one) => grouped(one.runs),
  }).filter(([, of]) => cases.some(of));
  const missing = rows.filter(({ device, prediction }) => prediction && !cases.some((one) => one.device === device));
  const none = missing.length ? hint(`Nothing that is like this ships as a measured row of: ${missing.map((one) => one.title).join(", ")}.`) : "";
  return panel(
    "Measured nearby",
    cases.length
      ? table("The nearest measured cases", columns.map(([name]) => name), cases.map((one) => columns.map(([, of]) => of(one) || "\u2014")))
      : "",
    none,
    hint(`${isSet ? "Of boards as they come, without the power limit and the clock. " : ""}The nearest measured case of the same format, variant and settings: away by the factor of the size that differs most; sizes named are those that differ. Rows that ship and your own are searched; the model learned from more.`),
  );
}

function rooflinePanel(roofs, about) {
  const parts = rooflineParts(roofs);
  const rows = roofs.map(({ title: name, roofline }) => [
    name,
    show(roofline.intensity, "flop/b"),
    roofline.attained_flops_per_s ? showInterval(roofline.attained_flops_per_s, "flop/s").text : "unknown",
    `${show(roofline.peak_flops_per_s.value, "flop/s")} (${roofline.peak_flops_per_s.source})`,
    `${show(roofline.bandwidth_b_per_s.value, "b/s")} (${roofline.bandwidth_b_per_s.source})`,
    show(roofline.ridge_intensity, "flop/b"),
    percent(roofline.of_limit),
  ]);
  return panel(
    "Roofline",
    hint(about),
    parts
      ? plot({
          label: "Roofline",
          describe: parts.stops.map((stop) => stop.text.join(", ")).join(". "),
          x: { title: "arithmetic intensity, FLOP per byte", log: true },
          y: { log: true, quantity: "flop/s" },
          ...parts,
          legend: roofs.map(({ title: text, series }) => ({ text, series, mark: "dot" })),
        })
      : hint("This kernel counts no arithmetic, so it has no place under a roofline."),
    details(
      "Values as a table",
      table("Roofline", ["Device", "Intensity", "Attained", "Peak", "Memory bandwidth", "Ridge", "Of the limit"], rows),
    ),
  );
}
