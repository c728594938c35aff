// Numbers as people read them. Only units are changed here: every number shown is one the server gave.

const PREFIXES = { P: 1e15, T: 1e12, G: 1e9, M: 1e6, k: 1e3, "": 1, m: 1e-3, µ: 1e-6, n: 1e-9, p: 1e-12, f: 1e-15 };

/** A unit with its prefixes, largest first, as [factor, name]. */
const units = (unit, ...prefixes) => prefixes.map((prefix) => [PREFIXES[prefix], prefix + unit]);

const QUANTITIES = {
  s: units("s", "", "m", "µ", "n"),
  w: units("W", "k", "", "m"),
  g: units("g", "k", "", "m", "µ", "n"),
  j: units("J", "k", "", "m", "µ", "n"),
  "flop/s": units("FLOP/s", "P", "T", "G", "M", "k", ""),
  flop: units("FLOP", "P", "T", "G", "M", "k", ""),
  "b/s": units("B/s", "T", "G", "M", "k", ""),
  b: units("B", "T", "G", "M", "k", ""),
  "j/flop": units("J/FLOP", "m", "µ", "n", "p", "f"),
  "flop/b": units("FLOP/B", ""),
  money: units("", ""),
  count: units("", ""),
};
const THIN = "\u202f";

/** Name and unit of each predicted quantity. */
export const TARGETS = { latency_s: ["Latency", "s"], power_w: ["Power", "w"], energy_j: ["Energy", "j"] };
export const TARGET_WORDS = Object.fromEntries(Object.entries(TARGETS).map(([target, [words]]) => [target, words]));

/** What times contain, in words. */
export const timingWords = (timing) => `Times of ${timing === "call" ? "a call, with its launch" : "the kernel alone"}.`;

/** The factor and name of the unit that suits a value. */
function unitFor(value, quantity) {
  const units = QUANTITIES[quantity];
  return units.find(([factor]) => Math.abs(value) >= 0.9995 * factor) ?? units.at(-1);
}

/** Three significant digits; whole thousands are grouped, very large and very small ones written as powers. */
export function digits(value, significant = 3) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(significant - 1).replace("e+", "e");
  if (size >= 1000) return grouped(Math.round(value));
  return value.toPrecision(significant);
}

/** A whole number with its thousands grouped. */
export function grouped(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** A value with its unit, such as `65.1 µs`. */
export function show(value, quantity) {
  if (value === null || value === undefined) return "unknown";
  const [factor, name] = unitFor(value, quantity);
  return `${digits(value / factor)}${name ? `\u00a0${name}` : ""}`;
}

/** A round value at a tick of an axis, such as `50 µs`. */
export function showTick(value, quantity) {
  if (value === 0) return "0";
  const [factor, name] = unitFor(value, quantity);
  const shown = Number((value / factor).toPrecision(3));
  return `${Math.abs(shown) >= 1000 ? grouped(shown) : shown}${name ? `\u00a0${name}` : ""}`;
}

/** Value and both ends of an interval, all in the unit of the value, and the three in one line. */
export function showInterval(interval, quantity) {
  const [factor, name] = unitFor(interval.value, quantity);
  const [value, lower, upper] = [interval.value, interval.lower, interval.upper].map((one) => digits(one / factor));
  const unit = name ? `\u00a0${name}` : "";
  return {
    value,
    unit: name,
    lower: `${lower}${unit}`,
    upper: `${upper}${unit}`,
    text: `${value}${unit} (${lower} to ${upper}${unit})`,
  };
}

/** A difference and both ends of its interval in one line, in the unit of the value; each may be negative. */
export function showDifference(difference, quantity) {
  const [factor, name] = unitFor(difference.value, quantity);
  const [value, lower, upper] = [difference.value, difference.lower, difference.upper].map((one) => {
    const text = digits(Math.abs(one) / factor);
    return one < 0 ? `\u2212${text}` : text;
  });
  return `${value}\u00a0${name} (${lower} to ${upper}\u00a0${name})`;
}

/** A share as a percentage. */
export function percent(share) {
  const shown = 100 * share;
  return `${shown >= 10 ? shown.toFixed(0) : shown.toPrecision(2)}\u00a0%`;
}

/** Sizes or tuning numbers in words, such as `m 512 · n 4096`. */
export function inWords(numbers, showNumber = String) {
  return Object.entries(numbers)
    .map(([name, value]) => `${name}\u00a0${showNumber(value)}`)
    .join(" · ");
}
