// One kernel on every device: a table that sorts, the same numbers as a picture, and what it costs at a price per hour.
import { awaitAnother } from "../answers.js";
import { intervalCell, rangeRows } from "../bars.js";
import { pythonCall, pythonSpec, requestBlock } from "../copy.js";
import { devicePicker } from "../devices.js";
import { el, headed, hint, lead, numberCell, panel, redraw, refusedPanel, sortHead, table, tag } from "../dom.js";
import { csv } from "../download.js";
import { barPicture, exportTools } from "../exports.js";
import { shownBy, specOf, specView } from "../form.js";
import { inWords, percent, show, showInterval, timingWords } from "../format.js";
import { priceInput, pricesOf } from "../power.js";

const PATH = "v1/compare";
const SETTLE_MS = 400;

// Columns by their names in the address: words, and of those with intervals how to read and to show them.
const COLUMNS = {
  device: { words: "Device" },
  latency_s: { words: "Latency", of: (row) => row.prediction.latency_s, unit: "s" },
  power_w: { words: "Power", of: (row) => row.prediction.power_w, unit: "w" },
  energy_j: { words: "Energy", of: (row) => row.prediction.energy_j, unit: "j" },
  flops_per_s: { words: "Attained", of: (row) => row.flops_per_s, unit: "flop/s" },
  of_bound: { words: "Of the limit" },
  joules_per_flop: { words: "Energy per FLOP", of: (row) => row.joules_per_flop, unit: "j/flop" },
  price: { words: "Price per hour" },
  cost_per_million_calls: { words: "Cost of a million calls", of: (row) => row.cost_per_million_calls, unit: "money" },
};
const PICTURES = ["latency_s", "energy_j", "joules_per_flop", "cost_per_million_calls", "power_w", "flops_per_s"];
const SORTED = Object.keys(COLUMNS).filter((name) => name !== "price");
const KEYS = { device: (row) => row.title, of_bound: (row) => row.of_bound };

export function render(root, page) {
  const view = { page, timer: 0 };
  const { answers, ask, leave } = specView(root, page, {
    devices: false,
    load,
    draw: (_page, _answers, answer) => draw(view, answer),
    extra: devicesField,
  });
  Object.assign(view, { answers, ask });
  return () => {
    leave();
    window.clearTimeout(view.timer);
  };
}

function devicesField(page, changed) {
  const options = { name: "among", label: "Devices", most: 256, nobody: "all of the catalogue", coloured: false };
  return devicePicker(page, { ...options, changed });
}

function bodyOf(page) {
  const among = page.catalogue.names(page.state.list("among"));
  const compared = (device) => !among.length || among.includes(device);
  const prices = pricesOf(page, compared);
  return {
    ...specOf(page),
    ...(among.length ? { devices: among } : {}),
    ...(Object.keys(prices).length ? { price_per_hour: prices } : {}),
  };
}

async function load(page) {
  const body = bodyOf(page);
  return { body, answer: await page.ask("compare", PATH, body) };
}

const order = ({ state }) => ({ by: state.oneOf("sort", SORTED, "latency_s"), descending: state.oneOf("descending", ["true"], "") === "true" });

function sorted(rows, { by, descending }) {
  const key = Object.hasOwn(KEYS, by) ? KEYS[by] : (row) => COLUMNS[by]?.of?.(row)?.value ?? null;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  // Whatever is unknown comes last, whichever way the rest is sorted.
  return rows.toSorted((a, b) => {
    const [one, two] = [key(a), key(b)];
    if (one === null || two === null) return (one === null) - (two === null);
    return descending ? compare(two, one) : compare(one, two);
  });
}

function draw(view, { body, answer }) {
  const { page, answers } = view;
  const again = () => draw(view, { body, answer });
  const rows = sorted(answer.answers.filter((row) => row.prediction), order(page));
  const refused = answer.answers.filter((row) => !row.prediction);
  redraw(
    answers,
    lead(
      answer.family,
      `${show(answer.flops, "flop")}, ${show(answer.bytes, "b")}; ${rows.length} ${rows.length === 1 ? "device answers" : "devices answer"}${refused.length ? `, ${refused.length} cannot` : ""}`,
    ),
    picturePanel(page, rows, again),
    panel(
      "Table",
      hint(
        `${timingWords(answer.timing)} Type what an hour of a device costs you, in any currency; the cost of a million calls follows.`,
      ),
      rows.length ? devicesTable(view, rows, again) : "",
    ),
    refusedPanel(refused),
    requestBlock(page, PATH, body, pythonCall("compare", [body.family], pythonSpec(body))),
  );
  const [best] = rows;
  if (best)
    page.say(
      `${rows.length} devices; first by ${order(page).by}: ${best.title}, ${showInterval(best.prediction.latency_s, "s").text}`,
    );
}

function picturePanel(page, rows, again) {
  const target = page.state.oneOf("picture", PICTURES, "latency_s");
  const pictures = Object.fromEntries(PICTURES.map((name) => [name, COLUMNS[name].words]));
  const { words, of, unit } = COLUMNS[target];
  const missing = rows.filter((row) => !of(row)).length;
  const unpriced = `${missing} ${missing === 1 ? "device has" : "devices have"} no price yet; type one in the table.`;
  const bars = rows.map((row) => ({ title: row.title, interval: of(row), guess: !row.prediction.in_domain }));
  const { family, sizes, dtype } = specOf(page);
  const about = `${family}, ${inWords(sizes)}, ${dtype}`;
  const tools = exportTools("compare", () => barPicture(bars, unit, `${words} by device`, about), () => csvOf(rows));
  return panel(
    headed(words, el("div", { class: "tools" }, shownBy(page, "picture", "Picture of", pictures, target, again), tools)),
    rangeRows(`${words} by device`, bars, unit),
    alikeHints(rows).map(hint),
    missing ? hint(target === "cost_per_million_calls" ? unpriced : `Unknown for ${missing} of them.`) : "",
  );
}

/** Why devices that were not measured have the same answer, where they have. */
function alikeHints(rows) {
  const groups = new Map();
  for (const row of rows.filter(({ prediction }) => !prediction.in_domain)) {
    const { latency_s: latency, bound, breakdown, method } = row.prediction;
    const limit = show(breakdown[bound], "s");
    const key = JSON.stringify([showInterval(latency, "s").text, bound, limit, method]);
    groups.set(key, { names: [...(groups.get(key)?.names ?? []), row.title], bound, limit });
  }
  return [...groups.values()]
    .filter(({ names }) => names.length > 1)
    .map(({ names, bound, limit }) => {
      const [last, ...others] = names.toReversed();
      return `${others.toReversed().join(", ")} and ${last} have the same answer: none of them was measured, and what binds this kernel on paper (${bound}, ${limit}) is the same of each.`;
    });
}

/** Every number of the answer as text of a CSV file. */
function csvOf(rows) {
  const shown = Object.entries(COLUMNS).filter(([, { of }]) => of);
  const lines = rows.map((row) => [
    row.device,
    row.title,
    ...shown.flatMap(([, { of }]) => ["value", "lower", "upper"].map((end) => of(row)?.[end])),
    row.of_bound,
    row.prediction.bound,
    row.prediction.in_domain,
    row.prediction.method,
  ]);
  const columns = shown.flatMap(([name]) => [name, `${name}_lower`, `${name}_upper`]);
  return csv(["device", "title", ...columns, "of_bound", "bound", "in_domain", "method"], lines);
}

function devicesTable(view, rows, again) {
  const { page } = view;
  const sort = (name) => (descending) => {
    page.state.set({ sort: name === "latency_s" ? null : name, descending: descending ? "true" : null });
    page.state.commit();
    again();
  };
  const head = ([name, { words }]) => (name === "price" ? words : sortHead(words, { name, ...order(page), sort: sort(name) }));
  return table(
    "Devices compared; the buttons in the heads sort",
    Object.entries(COLUMNS).map(head),
    rows.map((row) => Object.keys(COLUMNS).map((name) => cell(view, row, name))),
    { label: "Devices compared", kind: "compare" },
  );
}

function cell(view, row, name) {
  const { of, unit } = COLUMNS[name];
  if (of) return intervalCell(of(row), unit);
  if (name === "price")
    return priceInput(view.page, row, () => {
      window.clearTimeout(view.timer);
      view.timer = window.setTimeout(view.ask, SETTLE_MS);
      awaitAnother(view.answers);
    });
  if (name === "of_bound") return numberCell(row.of_bound === null ? "unknown" : percent(row.of_bound));
  const { in_domain: inDomain, notes, method } = row.prediction;
  return el("th", { scope: "row" }, row.title, inDomain ? "" : tag("extrapolated", notes), el("small", { text: method }));
}
