// A measured row as people read it.
import { button, el, terms } from "./dom.js";
import { digits, grouped, inWords, show } from "./format.js";
import { writeFragment } from "./state.js";

const WORDS = {
  set: "Set",
  family: "Family",
  device: "Device",
  dtype: "Format",
  kv_dtype: "Cache format",
  variant: "Variant",
  impl: "Run by",
  threads: "Threads",
  cache_state: "Caches",
  timing: "Time of",
  sizes: "Sizes",
  config: "Tuning numbers",
  status: "Outcome",
  latency_s: "Latency",
  power_w: "Power",
  energy_j: "Energy",
  n_samples: "Samples",
  latency_q1_s: "First quartile",
  latency_q3_s: "Third quartile",
  latency_min_s: "Shortest",
  first_call_s: "First call",
  rejected_samples: "Samples rejected",
  converged: "Converged",
  noisy: "Noisy",
  source: "Source",
  split: "Split",
  block: "Block",
  case_id: "Case",
  message: "Message",
  measured_at: "Measured",
};
const UNITS = { s: "s", w: "w", j: "j", b: "b" };
// Columns of every table beside sizes and knobs; the rest stands in the row in full.
const RESULTS = ["latency_s", "power_w", "energy_j"];
const HOW = ["dtype", "variant", "impl", "threads", "cache_state", "timing", "device", "n_samples"];
const SPEC = ["set", "family", "device", "dtype", "kv_dtype", "variant", "impl", "threads", "cache_state", "timing", "status"];
const TYPED = ["impl", "kv_dtype", "threads", "cache_state", "timing"];

/** What a column is called. */
export const wordsOf = (name) => WORDS[name] ?? name;

/** Whether a cell says nothing. */
const isEmpty = (value) =>
  value === null || value === undefined || value === "" || (typeof value === "object" && !Object.keys(value).length);

const dimensions = (columns) => columns.slice(columns.indexOf("timing") + 1, columns.indexOf("status"));

/** Columns of a page of rows that its table shows: what was run and what came of it, as far as any row says it. */
export function columnsShown({ columns, rows }) {
  const hasValues = (name) => columns.includes(name) && rows.some((row) => !isEmpty(row[columns.indexOf(name)]));
  const failed = rows.some((row) => row[columns.indexOf("status")] !== "ok");
  const families = columns.includes("sizes") ? ["family"] : [];
  return [...families, ...(failed ? ["status"] : []), ...RESULTS, ...dimensions(columns), ...HOW].filter(hasValues);
}

/** A cell in words and units. */
export function shownIn(page, name, value) {
  if (isEmpty(value)) return "—";
  if (name === "device") return page.catalogue.title(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object") return inWords(value);
  if (typeof value !== "number") return String(value);
  const unit = UNITS[/_([a-z])$/.exec(name)?.[1]];
  if (unit) return show(value, unit);
  return Number.isInteger(value) ? grouped(value) : digits(value);
}

/** The address of the predict view with the spec of a row. */
function predictHref({ state, catalogue }, row) {
  const ofSpec = (name) => /^(sizes|config)\./.test(name) || ["family", "devices", "dtype", "variant", ...TYPED].includes(name);
  const fields = new Map([...state.fields].filter(([name]) => !ofSpec(name)));
  const put = (name, value) => {
    if (!isEmpty(value)) fields.set(name, String(value));
  };
  for (const name of ["family", "dtype", "variant", ...TYPED]) put(name, row[name]);
  put("devices", row.device);
  // Sizes and knobs are columns of their own where all rows are of one family.
  const { properties } = catalogue.schema(row.family);
  for (const part of ["sizes", "config"])
    for (const name of Object.keys(row[part] ?? properties[part].properties)) put(`${part}.${name}`, (row[part] ?? row)[name]);
  return writeFragment("predict", fields);
}

/** A row in full, with a way to its prediction; `close` is called to put it away. */
export function rowDetail(page, row, number, close) {
  const cells = Object.entries(row).filter(([, value]) => !isEmpty(value));
  const known = page.catalogue.families.includes(row.family);
  const isSpec = (name) =>
    SPEC.includes(name) || ["sizes", "config"].includes(name) || dimensions(Object.keys(row)).includes(name);
  const half = (heading, wanted) =>
    el(
      "div",
      {},
      el("h3", { text: heading }),
      terms(cells.filter(([name]) => wanted(name)).map(([name, value]) => [wordsOf(name), shownIn(page, name, value)])),
    );
  return el(
    "section",
    { class: "panel facts" },
    el(
      "div",
      { class: "row" },
      el("h2", { tabindex: "-1", text: `Row ${grouped(number)}` }),
      el(
        "div",
        { class: "tools" },
        known ? el("a", { class: "as-button", href: predictHref(page, row), text: "Predict this row" }) : "",
        button("Close", close),
      ),
    ),
    el(
      "div",
      { class: "halves" },
      half("What was run", isSpec),
      half("What came of it", (name) => !isSpec(name)),
    ),
  );
}
