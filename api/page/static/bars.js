// Intervals and shares as bars: what a number is, how sure it is, and how it compares.
import { el, hint } from "./dom.js";
import { show, showInterval } from "./format.js";

const LOG_FROM = 40;

/** A scale from 0 to 1 for values up to `high`: linear from nothing, or logarithmic where the values span too much. */
export function scaleFor(values) {
  const good = values.filter((one) => one > 0);
  const [low, high] = [Math.min(...good), 1.06 * Math.max(...good)];
  if (!(high / low > LOG_FROM)) return { log: false, at: (value) => value / high };
  const floor = low / 1.6;
  return { log: true, at: (value) => Math.max(0, Math.log(value / floor) / Math.log(high / floor)) };
}

/** The scale for the intervals of a quantity in several predictions, and for further values. */
export function scaleOf(predictions, target, more = []) {
  return scaleFor([...more, ...predictions.flatMap((one) => (one[target] ? [one[target].lower, one[target].upper] : []))]);
}

const share = (value) => `${(100 * Math.min(1, Math.max(0, value))).toFixed(2)}%`;

/** An interval as a band with a mark at its value, on a scale; `limit` is a second mark, what cannot be gone below. */
export function intervalBar(interval, scale, limit = null) {
  const start = scale.at(interval.lower);
  return el(
    "div",
    { class: "interval", "aria-hidden": "true" },
    el("span", { class: "reach", css: { left: share(start), width: share(scale.at(interval.upper) - start) } }),
    limit === null ? null : el("span", { class: "limit", css: { left: share(scale.at(limit)) } }),
    el("span", { class: "mark", css: { left: share(scale.at(interval.value)) } }),
  );
}

/** Latency, power and energy of a prediction as big numbers. `scales` are by quantity, `limits` the second marks of latency and
 * power, `noPower` says why there is no power. */
export function figuresOf(prediction, scales, { limits = {}, noPower }) {
  const figure = (title, target, quantity, unknown) =>
    figureOf(title, prediction[target], quantity, scales[target], limits[target] ?? null, unknown);
  return el(
    "div",
    { class: "figures" },
    figure("Latency", "latency_s", "s", ""),
    figure("Power", "power_w", "w", noPower),
    figure("Energy", "energy_j", "j", "Energy is latency times power."),
  );
}

/** A big number with its interval in words and as a bar; `unknown` says why there is none. */
function figureOf(title, interval, quantity, scale, limit, unknown) {
  if (interval === null) {
    return el(
      "div",
      { class: "figure none" },
      el("h3", { text: title }),
      el("p", { class: "big", text: "unknown" }),
      hint(unknown),
    );
  }
  const shown = showInterval(interval, quantity);
  return el(
    "div",
    { class: "figure" },
    el("h3", { text: title }),
    el("p", { class: "big" }, shown.value, el("span", { text: `\u00a0${shown.unit}` })),
    intervalBar(interval, scale, limit),
    el("p", { class: "ends" }, el("span", { text: shown.lower }), " to ", el("span", { text: shown.upper })),
  );
}

/** A row of a list of bars: name, bar, amount in words. */
export function barRow(name, bar, amount, kind = null) {
  return el("li", { class: kind }, el("span", { class: "name", text: name }), bar, el("span", { class: "amount", text: amount }));
}

/** What each limit alone would take, the one that binds first, as bars up to `whole`, which is the predicted time. */
export function breakdownBars(breakdown, bound, whole) {
  const rows = Object.entries(breakdown).sort(([, a], [, b]) => b - a);
  const high = Math.max(whole, ...rows.map(([, seconds]) => seconds));
  const bar = (seconds) => el("span", { css: { width: share(Math.max(0.004, seconds / high)) } });
  const row = (name, seconds, kind) =>
    barRow(name, el("span", { class: "bar", "aria-hidden": "true" }, bar(seconds)), show(seconds, "s"), kind);
  return el(
    "ul",
    { class: "breakdown" },
    row("predicted", whole, "whole"),
    rows.map(([name, seconds]) => row(name === bound ? `${name} (binds)` : name, seconds, name === bound ? "binds" : "")),
  );
}

/** Devices as rows of one picture: name, band with mark, value in words. Rows are { title, interval, guess },
 * where `guess` is outside what was measured. */
export function rangeRows(label, rows, quantity) {
  const known = rows.filter((row) => row.interval !== null);
  if (!known.length) return hint("None of these devices has a value.");
  const scale = scaleOf(known, "interval");
  return el(
    "div",
    {},
    el(
      "ul",
      { class: "ranges", "aria-label": label },
      known.map(({ title, interval, guess }) =>
        barRow(title, intervalBar(interval, scale), showInterval(interval, quantity).text, guess ? "guess" : null),
      ),
    ),
    hint(
      [
        scale.log ? "The bars are on a logarithmic scale." : "The bars start at zero.",
        known.some(({ guess }) => guess) ? "Striped: outside what was measured." : "",
      ].join(" "),
    ),
  );
}

/** What colours of stacked bars mean: names in the order of their series. */
export function legend(names) {
  const key = (name, i) => el("span", { class: `series-${i + 1}` }, el("span", { class: "swatch", "aria-hidden": "true" }), name);
  return el("p", { class: "legend" }, names.map(key));
}

/** Rows of bars of parts side by side, all on one scale from nothing. Rows are { title, segments, amount }, and where there is
 * one, `capacity`, which is framed, `limit` within it, and `bad` where that is exceeded; segments are { name, size, text }. */
export function stackedRows(label, rows) {
  const whole = ({ segments }) => segments.reduce((sum, one) => sum + one.size, 0);
  const high = Math.max(...rows.map((row) => Math.max(whole(row), row.capacity ?? 0)));
  const part = ({ size, text }, i) =>
    size > 0 ? el("span", { class: `series-${i + 1}`, title: text, css: { "flex-basis": share(size / high) } }) : null;
  const bar = ({ segments, capacity = null, limit = null }) =>
    el(
      "div",
      { class: "stacked", "aria-hidden": "true" },
      capacity === null ? null : el("span", { class: "capacity", css: { width: share(capacity / high) } }),
      el("div", { class: "parts" }, segments.map(part)),
      limit === null ? null : el("span", { class: "limit", css: { left: share(limit / high) } }),
    );
  const row = (one) => {
    const item = barRow(one.title, bar(one), one.amount, one.bad ? "bad" : null);
    item.append(el("span", { class: "unseen", text: one.segments.filter(({ size }) => size > 0).map(({ text }) => text).join("; ") }));
    return item;
  };
  return el("ul", { class: "ranges stacks", "aria-label": label }, rows.map(row));
}

/** A value over its interval as the cell of a table. */
export function intervalCell(interval, unit) {
  if (!interval) return el("td", { class: "number unknown", text: unit === "money" ? "—" : "unknown" });
  const { value, unit: name, lower, upper } = showInterval(interval, unit);
  return el(
    "td",
    { class: "number" },
    el("strong", { text: name ? `${value}\u00a0${name}` : value }),
    el("small", { text: `${lower.split("\u00a0")[0]} to ${upper.split("\u00a0")[0]}` }),
  );
}
