// One device: its facts with their sources, what the answers for it rest on, and what adapting to it would bring.
import { answersPart, alertLine, whenAnswered } from "../answers.js";
import { devicePicker } from "../devices.js";
import { details, el, hint, list, numberCell, panel, table } from "../dom.js";
import { grouped } from "../format.js";

const TARGETS = { latency_s: "Latency", power_w: "Power", energy_j: "Energy" };
const BASES = {
  itself: "other kernels of this device",
  edition: "another edition of the chip",
  utilisation: "how busy the device is",
  "scaled bound": "scaled lower bound",
  law: "bytes and operations alone",
};
const ERROR_OF = { held_out: "other shapes", device_left_out: "devices left out", own_rows: "this device's own rows" };

export function render(root, page) {
  const answers = answersPart();
  const { element, problem } = alertLine();
  const ask = () => {
    const [name] = page.catalogue.names(page.state.list("device"));
    const chosen = name ?? page.catalogue.devices[0].name;
    const load = () => page.ask("device", `v1/devices/${encodeURIComponent(chosen)}`);
    whenAnswered(answers, load, (device) => draw(page, answers, device), problem);
  };
  const options = { name: "device", label: "Device", most: 1, nobody: "the first of the catalogue", coloured: false };
  root.append(el("div", { class: "stack" }, devicePicker(page, { ...options, changed: ask }), element, answers));
  ask();
}

function draw(page, answers, device) {
  answers.replaceChildren(
    el("div", { class: "stack" }, basisPanel(page, device), minutesPanel(device), measuredPanel(device), factsPanel(device)),
  );
  page.say(`The page of ${device.title} is shown.`);
}

function basisPanel(page, { title: name, model, basis }) {
  const heading = `What the answers for ${name} rest on`;
  if (!basis) return panel(heading, hint("The model that answers does not say."));
  const rows = basis.map((line) => [
    line.family,
    TARGETS[line.target],
    BASES[line.basis] ?? line.basis,
    numberCell(line.rows === null ? "not counted" : line.rows ? grouped(line.rows) : ""),
    kernelWords(line.kernels),
    line.sources.map((one) => `${page.catalogue.title(one.device)} ${percents(one.weight)} (${one.distance.toFixed(2)})`).join(", "),
    errorWords(line.error_here ?? line.error),
  ]);
  const columns = ["Family", "Of", "Rests on", "Rows here", "Kernels", "Carried over from", "Mean / median error"];
  return panel(
    heading,
    hint(
      `Model: ${model}. *: some variants, cache states or knobs of it only. Carried over from: share of the answer and, in ` +
        "brackets, the distance; laws for all devices make up the rest. Errors are those of held-out predictions of this kind. " +
        "Energy is latency times power and rests on the less sure of the two.",
    ),
    table(heading, columns, rows, { number: (i) => i === 3 }),
  );
}

const percents = (share) => `${(100 * share).toFixed(0)} %`;

function errorWords(error) {
  if (!error) return "";
  return `${error.mean_ape_pct.toFixed(1)} / ${error.median_ape_pct.toFixed(1)} %, ${ERROR_OF[error.of]}`;
}

function kernelWords(kernels) {
  const dtypes = Map.groupBy(kernels, ({ impl }) => impl || "no impl");
  const words = [...dtypes].map(
    ([impl, of]) => `${impl} ${of.map(({ dtype, is_whole: isWhole }) => dtype + (isWhole ? "" : "*")).join(", ")}`,
  );
  if (!words.length) return "all";
  return words.length > 2 ? details(`${words.length} implementations`, list(words)) : words.join("; ");
}

function minutesPanel({ ten_minutes: ten }) {
  if (!ten) return "";
  const both = ([mean, median]) => `${mean.toFixed(1)} / ${median.toFixed(1)} %`;
  const rows = ten.measured.map((run) => [
    run.machine,
    run.base,
    numberCell(run.minutes === null ? "" : String(run.minutes)),
    numberCell(grouped(run.rows)),
    both(run.before),
    both(run.after),
  ]);
  const caption = "Adaptations that were measured: mean / median error on shapes left out";
  const columns = ["On", "Model", "Minutes", "Rows", "Before", "After"];
  return panel(
    "What ten minutes on it would bring",
    list(ten.says),
    hint(caption),
    table(caption, columns, rows, { number: (i) => i === 2 || i === 3 }),
  );
}

function measuredPanel({ measured }) {
  const rows = Object.entries(measured);
  const heading = "Measured figures in the device file";
  if (!rows.length) return panel(heading, hint("There are none."));
  return panel(heading, hint("Of these, launch floors are used by answers for calls."), factTable(heading, rows));
}

function factsPanel(device) {
  const peaks = ["matrix", "vector"].flatMap((unit) =>
    Object.entries(device[`${unit}_flops_per_s`]).map(([dtype, fact]) => [`${unit} ${dtype} flops_per_s`, fact]),
  );
  return panel("Facts", factTable("Facts", [...Object.entries(device.facts), ...peaks]));
}

const factTable = (caption, facts) =>
  table(
    caption,
    ["Fact", "Value", "Source"],
    facts.map(([name, { value, source }]) => [name, numberCell(value.toPrecision(4)), source]),
    { number: (i) => i === 1 },
  );
