// A measured row as people read it.
import { el } from "./dom.js";
import { digits, grouped, show } from "./format.js";
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
const HOW = ["dtype", "variant", "impl", "threads", "cache_state", "device", "n_samples"];
const SPEC = ["set", "family", "device", "dtype", "kv_dtype", "variant", "impl", "threads", "cache_state", "status"];
const TYPED = ["impl", "kv_dtype", "threads", "cache_state"];

/** What a column is called. */
export const wordsOf = (name) => WORDS[name] ?? name;

const dimensions = (columns) => columns.slice(columns.indexOf("cache_state") + 1, columns.indexOf("status"));

/** Columns of a page of rows that its table shows: what was run and what came of it, as far as any row says it. */
export function columnsShown({ columns, rows }) {
  const said = (name) => {
    const at = columns.indexOf(name);
    return rows.some(
      (row) => row[at] !== null && row[at] !== "" && (typeof row[at] !== "object" || Object.keys(row[at]).length),
    );
  };
  const failed = rows.some((row) => row[columns.indexOf("status")] !== "ok");
  const families = columns.includes("sizes") ? ["family"] : [];
  return [...families, ...(failed ? ["status"] : []), ...RESULTS, ...dimensions(columns), ...HOW].filter(
    (name) => columns.includes(name) && said(name),
  );
}

/** A cell in words and units. */
export function shownIn(page, name, value) {
  if (value === null || value === undefined || value === "") return "—";
  if (name === "device") return page.catalogue.title(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object")
    return (
      Object.entries(value)
        .map(([key, one]) => `${key}\u00a0${one}`)
        .join(" · ") || "—"
    );
  if (typeof value !== "number") return String(value);
  const unit = UNITS[/_([a-z])$/.exec(name)?.[1]];
  if (unit) return show(value, unit);
  return Number.isInteger(value) ? grouped(value) : digits(value);
}

/** The address of the predict view with the spec of a row. */
export function predictHref({ state, catalogue }, row) {
  const gone = (name) => /^(sizes|config)\./.test(name) || ["family", "devices", "dtype", "variant", ...TYPED].includes(name);
  const fields = new Map([...state.fields].filter(([name]) => !gone(name)));
  const put = (name, value) => {
    if (value !== null && value !== undefined && value !== "") fields.set(name, String(value));
  };
  for (const name of ["family", "dtype", "variant", ...TYPED]) put(name, row[name]);
  put("devices", row.device);
  const { sizes, config } = specOf(catalogue, row);
  for (const [name, value] of Object.entries(sizes)) put(`sizes.${name}`, value);
  for (const [name, value] of Object.entries(config)) put(`config.${name}`, value);
  return writeFragment("predict", fields);
}

/** Sizes and knobs of a row, whichever way its page has them. */
function specOf(catalogue, row) {
  if (row.sizes) return row;
  const { properties } = catalogue.schema(row.family);
  const given = (names) =>
    Object.fromEntries(
      Object.keys(names)
        .filter((name) => name in row && row[name] !== null)
        .map((name) => [name, row[name]]),
    );
  return { sizes: given(properties.sizes.properties), config: given(properties.config.properties) };
}

/** A row in full, with a way to its prediction; `close` is called to put it away. */
export function rowDetail(page, row, number, close) {
  const given = Object.entries(row).filter(
    ([, value]) => value !== null && value !== "" && !(typeof value === "object" && !Object.keys(value).length),
  );
  const terms = (wanted) =>
    el(
      "dl",
      {},
      given
        .filter(([name]) => wanted(name))
        .map(([name, value]) => [el("dt", { text: wordsOf(name) }), el("dd", { text: shownIn(page, name, value) })]),
    );
  const known = page.catalogue.families.includes(row.family);
  const isSpec = (name) =>
    SPEC.includes(name) || ["sizes", "config"].includes(name) || dimensions(Object.keys(row)).includes(name);
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
        el("button", { type: "button", text: "Close", onclick: close }),
      ),
    ),
    el(
      "div",
      { class: "halves" },
      el("div", {}, el("h3", { text: "What was run" }), terms(isSpec)),
      el(
        "div",
        {},
        el("h3", { text: "What came of it" }),
        terms((name) => !isSpec(name)),
      ),
    ),
  );
}
