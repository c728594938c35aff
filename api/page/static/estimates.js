// Panels of estimates: a step of a model on devices side by side.
import { intervalCell, legend, rangeRows, stackedRows } from "./bars.js";
import { details, el, headed, hint, list, numberCell, panel, table } from "./dom.js";
import { csv } from "./download.js";
import { barPicture, exportTools } from "./exports.js";
import { shownBy } from "./form.js";
import { grouped, percent, show, showDifference } from "./format.js";
import { gridHint, priceInput } from "./power.js";

const PICTURES = {
  latency_s: { words: "Time of a step", unit: "s", of: (row) => row.latency_s },
  tokens_per_s: { words: "Tokens per second", unit: "count", of: (row) => row.tokens_per_s },
  energy_per_token_j: { words: "Energy per token", unit: "j", of: (row) => row.energy_per_token_j },
  power_w: { words: "Power", unit: "w", of: (row) => row.power_w },
  cost_per_million_tokens: { words: "Cost of a million tokens", unit: "money", of: (row) => row.cost_per_million_tokens },
};
const MEMORY_WORDS = {
  weights: "weights",
  gradients: "gradients",
  optimizer_state: "optimiser state",
  cache: "keys and values",
  activations: "activations",
  inputs: "inputs",
  workspace: "workspace",
};
const MOST_SEGMENTS = 7;
const OTHERS = "everything else";

/** The panels of an answer: `rows` are the devices that have totals, `again()` draws them anew, and `priced()` is called where a
 * price was typed. */
export const panels = (page, answer, rows, { again, priced }) => [
  picturePanel(page, answer, rows, again),
  timePanel(page, rows, again),
  memoryPanel(rows, answer),
  wonPanel(rows),
  tablePanel(page, answer, rows, priced),
  notesPanel(rows),
];

/** What runs, in words. */
export function stepWords({ phase, batch, length }) {
  const sequences = `${grouped(batch)} ${batch === 1 ? "sequence" : "sequences"}`;
  if (phase === "decode") return `one new token for each of ${sequences} after ${grouped(length)}`;
  if (phase === "train") return `a training step of ${sequences} of ${grouped(length)} tokens, with AdamW`;
  return `${sequences} of ${grouped(length)} new tokens`;
}

/** Number formats in words. */
export function formatWords({ dtype, weights, experts, kv }) {
  const others = [weights === dtype ? "" : `weights ${weights}`, experts === weights ? "" : `experts ${experts}`, kv === dtype ? "" : `cache ${kv}`];
  return [dtype, ...others.filter(Boolean)].join(", ");
}

function picturePanel(page, answer, rows, again) {
  const name = page.state.oneOf("model.picture", Object.keys(PICTURES), "latency_s");
  const { words, unit, of } = PICTURES[name];
  const choices = Object.fromEntries(Object.entries(PICTURES).map(([key, { words: text }]) => [key, text]));
  const known = rows.filter(of);
  const bars = rows.map((row) => ({ title: row.title, interval: of(row), guess: !row.in_domain }));
  const about = `${answer.model.name}, ${stepWords(answer)}, ${formatWords(answer.formats)}`;
  const tools = exportTools("model", () => barPicture(bars, unit, `${words} by device`, about), () => csvOf(rows));
  return panel(
    headed(words, el("div", { class: "tools" }, shownBy(page, "model.picture", "Picture of", choices, name, again), tools)),
    rangeRows(`${words} by device`, bars, unit),
    known.length < rows.length && name === "cost_per_million_tokens" ? hint("Type prices in the table below.") : "",
  );
}

function csvOf(rows) {
  const measures = { ...PICTURES, carbon_g: { of: (row) => row.footprint?.carbon_g } };
  const columns = Object.keys(measures).flatMap((name) => [name, `${name}_lower`, `${name}_upper`]);
  const values = (row) => Object.values(measures).flatMap(({ of }) => ["value", "lower", "upper"].map((end) => of(row)?.[end]));
  return csv(["device", "title", ...columns], rows.map((row) => [row.device, row.title, ...values(row)]));
}

function timePanel(page, rows, again) {
  const shares = page.state.oneOf("bars", ["time", "share"], "time") === "share";
  const totals = new Map();
  for (const { modules } of rows)
    for (const { name, time_share: share } of modules) totals.set(name, Math.max(totals.get(name) ?? 0, share));
  const names = [...totals].sort(([, a], [, b]) => b - a).map(([name]) => name);
  const shown = names.slice(0, names.length > MOST_SEGMENTS + 1 ? MOST_SEGMENTS : MOST_SEGMENTS + 1);
  const order = names.length > shown.length ? [...shown, OTHERS] : shown;
  const segmentsOf = ({ modules }) =>
    order.map((name) => {
      const members = modules.filter((one) => (name === OTHERS ? !shown.includes(one.name) : one.name === name));
      const seconds = members.reduce((sum, one) => sum + one.latency_s, 0);
      const part = members.reduce((sum, one) => sum + one.time_share, 0);
      return { name, size: shares ? part : seconds, text: `${placeWords(name)}: ${show(seconds, "s")}, ${percent(part)}` };
    });
  const bars = rows.map((row) => ({
    title: row.title,
    segments: segmentsOf(row),
    amount: `${show(row.latency_s.value, "s")}, ${boundWords(row)}`,
  }));
  const ways = { time: "in seconds", share: "in shares" };
  return panel(
    headed("Where the time goes", shownBy(page, "bars", "Bars", ways, shares ? "share" : "time", again)),
    legend(order.map(placeWords)),
    stackedRows("Time by part of the model", bars),
    details(
      "Every part as a table",
      table(
        "Parts of the step by device",
        ["Part", ...rows.map((row) => row.title)],
        kernelNames(rows).map((name) => [name, ...rows.map((row) => partCell(row, name))]),
        { number: (i) => i > 0 },
      ),
    ),
  );
}

/** A part of a layer without the word that they all begin with. */
const placeWords = (name) => name.replace(/^layers\./, "").replaceAll("_", " ");

const boundWords = ({ bound }) => {
  const [[name, share] = ["", 0]] = Object.entries(bound);
  return name ? `${percent(share)} bound by ${name}` : "";
};

function kernelNames(rows) {
  const longest = new Map();
  for (const { kernels } of rows)
    for (const { name, time_share: share } of kernels) longest.set(name, Math.max(longest.get(name) ?? 0, share));
  return [...longest].sort(([, a], [, b]) => b - a).map(([name]) => name);
}

function partCell({ kernels }, name) {
  const part = kernels.find((one) => one.name === name);
  return numberCell(part ? `${show(part.latency_s, "s")} · ${percent(part.time_share)} · ${part.bound}` : "—");
}

function memoryPanel(rows, { devices }) {
  const names = Object.keys(MEMORY_WORDS).filter((name) => rows.some((row) => row.memory.parts_b[name]));
  const bars = rows.map(({ title: name, memory }) => ({
    title: name,
    segments: names.map((part) => ({
      name: MEMORY_WORDS[part],
      size: memory.parts_b[part] ?? 0,
      text: `${MEMORY_WORDS[part]}: ${show(memory.parts_b[part] ?? 0, "b")}`,
    })),
    capacity: memory.device_b,
    limit: memory.usable_b,
    bad: memory.fits === false,
    amount: fitWords(memory),
  }));
  const each = devices > 1 ? "the fullest device" : "the device";
  return panel(
    `Memory of ${each}`,
    legend(names.map((name) => MEMORY_WORDS[name])),
    stackedRows("Memory by what it holds", bars),
    hint("The frame is the device's memory, the dotted mark the 90 % that is taken as usable."),
  );
}

function fitWords({ total_b: total, device_b: device, fits, sequences }) {
  if (device === null) return show(total, "b");
  const sizes = `${show(total, "b")} of ${show(device, "b")}`;
  if (!fits) return `${sizes}: does not fit`;
  return sequences === null ? `${sizes}: fits` : `${sizes}: ${grouped(sequences)} sequences fit`;
}

function wonPanel(rows) {
  const items = rows.flatMap((row) => row.savings.map((saving) => ({ row, saving })));
  if (!items.length) return panel("Where time could be won", hint("None of the changes looked at would save time here."));
  return panel(
    "Where time could be won",
    table(
      "Changes that would save time",
      ["Change", "Device", "Saved of a step", "Share"],
      items.map(({ row, saving }) => [saving.change, row.title, numberCell(showDifference(saving.saved_s, "s")), numberCell(percent(saving.share))]),
      { kind: "won", number: (i) => i > 1 },
    ),
    hint("Each line alone; what two changes save together is less than their sum. Less precise weights may change answers."),
  );
}

function tablePanel(page, answer, rows, priced) {
  const many = answer.devices > 1;
  const { footprint } = rows.find((row) => row.footprint) ?? {};
  const columns = ["Device", "Time", "Tokens per second", "Power", "Energy per token", ...(footprint ? ["CO2e of a step"] : []), "Price per hour", "Cost of a million tokens"];
  const cells = (row) => [
    row.title,
    intervalCell(row.latency_s, "s"),
    intervalCell(row.tokens_per_s, "count"),
    intervalCell(row.power_w, "w"),
    intervalCell(row.energy_per_token_j, "j"),
    ...(footprint ? [intervalCell(row.footprint.carbon_g, "g")] : []),
    el("td", {}, priceInput(page, row, priced)),
    intervalCell(row.cost_per_million_tokens, "money"),
  ];
  return panel(
    "Table",
    hint(`Type what an hour of ${many ? "one device" : "a device"} costs you, in any currency.`),
    table("Devices side by side", columns, rows.map(cells), { label: "Devices side by side", kind: "compare", number: (i) => i > 0 }),
    footprint ? gridHint(footprint) : "",
  );
}

function notesPanel(rows) {
  const notes = new Map();
  for (const row of rows) for (const note of row.notes) notes.set(note, [...(notes.get(note) ?? []), row.title]);
  if (!notes.size) return "";
  const words = ([note, titles]) => (titles.length < rows.length ? `${titles.join(", ")}: ${note}` : note);
  return panel("What to know", details(`${notes.size} notes`, list([...notes].map(words), { class: "notes" })));
}
