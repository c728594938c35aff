// One number of the spec as a curve, per device, with its band and what was measured there.
import { answersPart, whenAnswered } from "../answers.js";
import { Refusal } from "../ask.js";
import { plot } from "../charts.js";
import { pythonCall, pythonSpec, requestBlock } from "../copy.js";
import { el, table } from "../dom.js";
import { choice, field, numberField, specForm, specOf, wholeOrText } from "../form.js";
import { TARGETS, grouped, show, showInterval } from "../format.js";

export const id = "sweep";
export const title = "Sweep";

const PATH = "v1/sweep";
const AROUND = 16;
const POINTS = "41";

export function render(root, page) {
  const answers = answersPart();
  const ask = () => update(page, form, answers);
  const form = specForm(page, { answers, extra: () => sweepFields(page), changed: ask });
  root.append(el("div", { class: "columns" }, form.element, answers));
  ask();
  return form.leave;
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
  const dim = field("sweep.dim", "Vary", choice(names, state.get("sweep.dim")));
  const box = el(
    "fieldset",
    { class: "group" },
    el("legend", { text: "Sweep" }),
    el(
      "div",
      { class: "grid" },
      dim,
      field(
        "sweep.scale",
        "Steps",
        choice(["log", "linear"], state.get("sweep.scale", "log"), { log: "by a factor", linear: "even" }),
      ),
      numberField(state, "sweep.from", "From"),
      numberField(state, "sweep.to", "To"),
      numberField(state, "sweep.points", "Points", "At most 512", POINTS),
    ),
  );
  box.addEventListener("input", (event) => {
    if (event.target.name !== "sweep.dim") return;
    state.set({ "sweep.dim": event.target.value, "sweep.from": null, "sweep.to": null });
    complete(page);
    for (const name of ["sweep.from", "sweep.to"]) box.querySelector(`[name="${name}"]`).value = state.get(name);
  });
  return box;
}

function bodyOf(page) {
  const { state } = page;
  const sweep = {
    dim: state.get("sweep.dim"),
    from: wholeOrText(state.get("sweep.from")),
    to: wholeOrText(state.get("sweep.to")),
    points: wholeOrText(state.get("sweep.points", POINTS)),
    scale: state.get("sweep.scale", "log"),
  };
  return { ...specOf(page), devices: page.catalogue.names(state.list("devices")), sweep };
}

const callOf = ({ sweep: { dim, from, to, points, scale }, ...spec }) =>
  pythonCall("sweep", [spec.family], { ...pythonSpec(spec), dim, start: from, stop: to, points, scale });

async function update(page, form, answers) {
  const body = bodyOf(page);
  await whenAnswered(
    answers,
    async (stillAsked) => {
      if (!body.devices.length) throw new Refusal(0, { errors: [{ field: "devices", detail: "Choose a device." }] });
      const { sweep, coverage: _, ...spec } = body;
      const [answer, measured] = await Promise.all([
        page.ask("sweep", PATH, body),
        // Curves are worth showing without what was measured.
        page
          .ask("like", "v1/measurements/like", { ...spec, dim: sweep.dim })
          .catch((error) => (error instanceof Refusal ? { points: [], trouble: error.message } : Promise.reject(error))),
      ]);
      stillAsked();
      draw(page, answers, body, answer, measured);
    },
    form.problem,
  );
}

function draw(page, answers, body, answer, measured) {
  const asked = page.state.get("sweep.target");
  const target = Object.hasOwn(TARGETS, asked) ? asked : "latency_s";
  const [words, unit] = TARGETS[target];
  const curves = answer.curves.map((curve, i) => ({
    ...curve,
    title: page.catalogue.title(curve.device),
    series: i + 1,
    column: curve[target],
  }));
  const drawn = curves.filter(({ column }) => column);
  const inside = (point) => point[target] !== null && drawn.some(({ device }) => device === point.device);
  const points = measured.points.filter(inside);
  // How the answer is shown is no question to the service: it is drawn anew from the same numbers.
  const shownBy = (name, label, chosen, words_) => {
    const select = choice(Object.keys(words_), chosen, words_);
    select.setAttribute("aria-label", label);
    select.addEventListener("change", () => {
      page.state.set({ [name]: select.value });
      page.state.commit();
      draw(page, answers, body, answer, measured);
      answers.querySelector(`select[aria-label="${label}"]`).focus();
    });
    return select;
  };
  answers.replaceChildren(
    el(
      "section",
      { class: "panel" },
      el(
        "div",
        { class: "row" },
        el("h2", { text: `${words} against ${answer.dim}` }),
        el(
          "div",
          { class: "tools" },
          shownBy(
            "sweep.target",
            "Show",
            target,
            Object.fromEntries(Object.entries(TARGETS).map(([name, [one]]) => [name, one])),
          ),
          shownBy("sweep.y", "Upright axis", page.state.get("sweep.y", "log"), { log: "logarithmic", linear: "linear" }),
          el("button", { type: "button", class: "copy", text: "Download CSV", onclick: () => download(answer, body.family) }),
        ),
      ),
      drawn.length
        ? picture(page, answer, drawn, points, { target, words, unit })
        : el("p", { class: "hint", text: `${words} is unknown for ${curves.length > 1 ? "these devices" : "this device"}.` }),
      el("p", { class: "hint", text: hintOf(drawn, points, measured, curves) }),
      el("details", {}, el("summary", { text: "Values as a table" }), valuesTable(answer, curves, unit, words)),
      points.length
        ? el(
            "details",
            {},
            el("summary", { text: `${points.length} measured ${points.length === 1 ? "value" : "values"} as a table` }),
            measuredTable(page, answer.dim, points),
          )
        : "",
    ),
    requestBlock(page, PATH, body, callOf(body)),
  );
  page.say(
    `${words} against ${answer.dim}: ${drawn.map(({ title: name, column }) => `${name} from ${show(column.value[0], unit)} to ${show(column.value.at(-1), unit)}`).join("; ")}`,
  );
}

function hintOf(drawn, points, measured, curves) {
  const outside = drawn.filter(({ in_domain }) => in_domain.includes(false)).map(({ title: name }) => name);
  const missing = curves.filter(({ column }) => !column).map(({ title: name }) => name);
  return [
    "Line: prediction. Band: its interval. Dashes: the least time the limits allow.",
    points.length
      ? "Rings: measured."
      : measured.trouble
        ? `What was measured is not shown: ${measured.trouble}`
        : "Nothing was measured that is like this spec.",
    outside.length ? `Outside what was measured in places: ${outside.join(", ")}.` : "",
    missing.length && drawn.length ? `Unknown: ${missing.join(", ")}.` : "",
  ]
    .filter(Boolean)
    .join(" ");
}

function picture(page, { dim, values }, drawn, points, { target, words, unit }) {
  const layers = drawn.flatMap(({ series, column, lower_bound_s: least }) => [
    { kind: "band", series, points: values.map((x, i) => ({ x, lower: column.lower[i], upper: column.upper[i] })) },
    ...(target === "latency_s"
      ? [{ kind: "line", dashed: true, series, points: values.map((x, i) => ({ x, y: least[i] })) }]
      : []),
    { kind: "line", series, points: values.map((x, i) => ({ x, y: column.value[i] })) },
  ]);
  for (const { series, device } of drawn) {
    const here = points.filter((point) => point.device === device && point.value >= values[0] && point.value <= values.at(-1));
    if (here.length)
      layers.push({ kind: "dots", hollow: true, series, points: here.map((point) => ({ x: point.value, y: point[target] })) });
  }
  const stops = values.map((x, i) => ({
    x,
    text: [
      `${dim} = ${grouped(x)}`,
      ...drawn.map(
        ({ title: name, column, bound }) =>
          `${name}: ${showInterval({ value: column.value[i], lower: column.lower[i], upper: column.upper[i] }, unit).text}, ${bound[i]}`,
      ),
    ],
  }));
  const first = drawn
    .map(
      ({ title: name, column }) =>
        `${name}: ${show(column.value[0], unit)} at ${values[0]}, ${show(column.value.at(-1), unit)} at ${values.at(-1)}`,
    )
    .join(". ");
  return plot({
    label: `${words} against ${dim}`,
    describe: first,
    layers,
    stops,
    height: 400,
    x: { title: dim, log: page.state.get("sweep.scale", "log") === "log" },
    y: { log: page.state.get("sweep.y", "log") === "log", floor: 0, quantity: unit },
    legend: drawn.map(({ title: text, series }) => ({ text, series })),
  });
}

function valuesTable({ dim, values }, curves, unit, words) {
  const cell = ({ column, in_domain }, i) =>
    column
      ? showInterval({ value: column.value[i], lower: column.lower[i], upper: column.upper[i] }, unit).text +
        (in_domain[i] ? "" : " *")
      : "unknown";
  return el(
    "div",
    {},
    table(
      words,
      [dim, ...curves.map(({ title: name }) => name)],
      values.map((value, i) => [grouped(value), ...curves.map((curve) => cell(curve, i))]),
    ),
    curves.some(({ in_domain }) => in_domain.includes(false))
      ? el("p", { class: "hint", text: "* outside what was measured" })
      : "",
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
      shown(point.latency_s, "s"),
      shown(point.power_w, "w"),
      shown(point.energy_j, "j"),
      point.impl || "not given",
      point.threads ?? "not given",
      point.cache_state,
      point.runs ?? "not given",
    ]),
  );
}

/** Every number of the answer as text of a CSV file. */
function csvOf({ dim, values, curves }) {
  const targets = ["latency_s", "power_w", "energy_j"];
  const head = [
    dim,
    "device",
    ...targets.flatMap((name) => [name, `${name}_lower`, `${name}_upper`]),
    "lower_bound_s",
    "bound",
    "in_domain",
  ];
  const rows = curves.flatMap((curve) =>
    values.map((value, i) => [
      value,
      curve.device,
      ...targets.flatMap((name) => ["value", "lower", "upper"].map((end) => curve[name]?.[end][i] ?? "")),
      curve.lower_bound_s[i],
      curve.bound[i],
      curve.in_domain[i],
    ]),
  );
  return `${[head, ...rows].map((row) => row.join(",")).join("\r\n")}\r\n`;
}

function download(answer, family) {
  const address = URL.createObjectURL(new Blob([csvOf(answer)], { type: "text/csv" }));
  el("a", { href: address, download: `${family}-${answer.dim}.csv` }).click();
  window.setTimeout(() => URL.revokeObjectURL(address), 1000);
}
