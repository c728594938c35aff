// What each power limit costs: energy and time of a kernel against the limit, asked for once a reader opens it.
import { refusedRows } from "./answers.js";
import { Refusal, Stale, orRefusal } from "./ask.js";
import { plot } from "./charts.js";
import { details, el, folded, hint, list, numberCell, panel, refusedPanel, table } from "./dom.js";
import { show, showInterval } from "./format.js";

const PATH = "v1/best-cap";
const SLOWDOWN = 0.1;
// Limits at which a kernel takes longer than so many times the default are in the table alone.
const MOST_TIME = 2;
const OPEN = { caps: "open" };
const LABEL = "Energy and time in percent of those without a limit";

/** The panel; `rows` are devices as { device, title, series }. Whether it is open is in the address. */
export function capsPanel(page, { coverage: _, ...kernel }, rows) {
  const { state } = page;
  const place = el("div", {});
  const ask = ({ device, series }) => orRefusal(page.ask(`caps-${series}`, PATH, { device, kernels: [kernel], slowdown: SLOWDOWN }));
  async function fill() {
    place.replaceChildren(hint("Some sixty settings of each device are tried."));
    const answers = await Promise.all(rows.map(ask));
    draw(page, place, rows.map((row, i) => ({ ...row, answer: answers[i] })));
  }
  function toggled({ target }) {
    if (Boolean(state.get("caps")) !== target.open) {
      state.set(target.open ? OPEN : { caps: null });
      state.commit();
    }
    if (!target.open || place.childElementCount) return;
    fill().catch((error) => {
      if (!(error instanceof Stale)) window.reportError(error);
    });
  }
  return panel("Power limits", folded({ open: Boolean(state.get("caps")), ontoggle: toggled }, "Energy and time against the power limit", place));
}

function draw(page, place, rows) {
  const curves = rows.filter(({ answer }) => !(answer instanceof Refusal)).map((row) => curveOf(page, row));
  place.replaceChildren(...(curves.length ? [list(curves.map(bestWords)), ...figure(curves), limitsTable(curves)] : []), refusedPanel(refusedRows(rows)));
}

/** Points by limit; the last is the device's own. */
function curveOf({ catalogue }, { device, title, series, answer }) {
  const own = catalogue.device(device)?.facts.tdp_w?.value;
  return { title, series, best: answer.best, points: answer.limits.map((one) => ({ ...one, x: one.power_limit_w ?? own })) };
}

const change = (share, less, more) => `${Math.abs(100 * (share - 1)).toFixed(0)}\u00a0% ${share < 1 ? less : more}`;

function bestWords({ title, best }) {
  const { power_limit_w: limit, clock_hz: clock, energy, time } = best;
  if (limit === null && clock === null) return `${title}: no setting takes less energy.`;
  const setting = limit === null ? `a clock of ${(clock / 1e6).toFixed(0)}\u00a0MHz` : show(limit, "w");
  return `${title}: least energy at ${setting}, of settings at most ${100 * SLOWDOWN}\u00a0% slower: ${change(energy, "less", "more")} energy, ${change(time, "shorter", "longer")}.`;
}

function figure(curves) {
  const drawn = ({ points }) => points.filter(({ time }) => time <= MOST_TIME);
  const line = (curve, of) => drawn(curve).map((one) => ({ x: one.x, y: 100 * one[of] }));
  const stops = curves.flatMap((curve) =>
    drawn(curve).map((one) => ({ x: one.x, text: [curve.title, `limit ${show(one.x, "w")}`, `energy ${show(one.energy_j.value, "j")}`, `time ${show(one.latency_s.value, "s")}`] })),
  );
  return [
    plot({
      label: LABEL,
      describe: curves.map(bestWords).join(" "),
      layers: curves.flatMap((one) => [
        { kind: "line", series: one.series, points: line(one, "energy") },
        { kind: "line", dashed: true, series: one.series, points: line(one, "time") },
      ]),
      stops: stops.sort((a, b) => a.x - b.x),
      x: { title: "power limit", quantity: "w" },
      y: { quantity: "count" },
      legend: curves.map(({ title: text, series }) => ({ text, series })),
      height: 280,
    }),
    hint(`${LABEL}. Thick lines: energy; thin dotted lines: time. Limits at which it takes more than twice as long are in the table alone.`),
  ];
}

function limitsTable(curves) {
  const cells = curves.flatMap(({ title, points }) =>
    points.map((one) => [title, numberCell(show(one.x, "w")), showInterval(one.latency_s, "s").text, showInterval(one.energy_j, "j").text]),
  );
  return details("Values as a table", table("Time and energy by power limit", ["Device", "Limit", "Time", "Energy"], cells));
}
