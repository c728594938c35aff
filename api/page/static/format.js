// Numbers as people read them. Only units are changed here: every number shown is one the server gave.

const QUANTITIES = {
  s: [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "µs"],
    [1e-9, "ns"],
  ],
  w: [
    [1e3, "kW"],
    [1, "W"],
    [1e-3, "mW"],
  ],
  j: [
    [1e3, "kJ"],
    [1, "J"],
    [1e-3, "mJ"],
    [1e-6, "µJ"],
    [1e-9, "nJ"],
  ],
  "flop/s": [
    [1e15, "PFLOP/s"],
    [1e12, "TFLOP/s"],
    [1e9, "GFLOP/s"],
    [1e6, "MFLOP/s"],
    [1e3, "kFLOP/s"],
    [1, "FLOP/s"],
  ],
  flop: [
    [1e15, "PFLOP"],
    [1e12, "TFLOP"],
    [1e9, "GFLOP"],
    [1e6, "MFLOP"],
    [1e3, "kFLOP"],
    [1, "FLOP"],
  ],
  "b/s": [
    [1e12, "TB/s"],
    [1e9, "GB/s"],
    [1e6, "MB/s"],
    [1e3, "kB/s"],
    [1, "B/s"],
  ],
  b: [
    [1e12, "TB"],
    [1e9, "GB"],
    [1e6, "MB"],
    [1e3, "kB"],
    [1, "B"],
  ],
  "j/flop": [
    [1e-3, "mJ/FLOP"],
    [1e-6, "µJ/FLOP"],
    [1e-9, "nJ/FLOP"],
    [1e-12, "pJ/FLOP"],
    [1e-15, "fJ/FLOP"],
  ],
  "flop/b": [[1, "FLOP/B"]],
  money: [[1, ""]],
  count: [[1, ""]],
};
const THIN = "\u202f";

/** Name and unit of each predicted quantity. */
export const TARGETS = { latency_s: ["Latency", "s"], power_w: ["Power", "w"], energy_j: ["Energy", "j"] };

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

/** A share as a percentage. */
export function percent(share) {
  const shown = 100 * share;
  return `${shown >= 10 ? shown.toFixed(0) : shown.toPrecision(2)}\u00a0%`;
}
