// A log-log plot as SVG: a line, its band, the lower bound in dashes, and a dot where the form stands.
const NS = "http://www.w3.org/2000/svg";
const MARGIN = { left: 64, right: 14, top: 10, bottom: 38 };

function node(name, attributes, parent, text) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function powersBetween(low, high, base) {
  const ticks = [];
  for (let e = Math.ceil(Math.log(low) / Math.log(base) - 1e-9); base ** e <= high * (1 + 1e-9); e++) ticks.push(base ** e);
  return ticks;
}

function thinned(ticks, most) {
  const step = Math.ceil(ticks.length / most);
  return ticks.filter((_, i) => i % step === 0);
}

// points: [{x, value, lower, upper, least}], x ascending; here: the x of the form, or null.
export function drawPlot(holder, points, here, label, formatY) {
  holder.replaceChildren();
  if (points.length < 2) return;
  const width = Math.max(240, Math.min(holder.clientWidth || 640, 900));
  const height = Math.round(Math.max(220, Math.min(340, width * 0.5)));
  const xs = points.map((p) => p.x);
  const lows = points.map((p) => Math.min(p.lower, p.least));
  let [yLow, yHigh] = [Math.min(...lows), Math.max(...points.map((p) => p.upper))];
  yLow /= 1.3; yHigh *= 1.3;
  const x = (v) => MARGIN.left + (Math.log(v / xs[0]) / Math.log(xs.at(-1) / xs[0])) * (width - MARGIN.left - MARGIN.right);
  const y = (v) => height - MARGIN.bottom - (Math.log(v / yLow) / Math.log(yHigh / yLow)) * (height - MARGIN.top - MARGIN.bottom);
  const path = (pick, list = points) => list.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)},${y(pick(p)).toFixed(1)}`).join("");

  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Latency against ${label}` }, holder);
  let yTicks = thinned(powersBetween(yLow, yHigh, 10), 6);
  if (yTicks.length < 2) yTicks = thinned(powersBetween(yLow, yHigh, 2), 6);
  for (const tick of yTicks) {
    node("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }, svg);
    node("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, svg, formatY(tick));
  }
  for (const tick of thinned(powersBetween(xs[0], xs.at(-1), 2), width < 420 ? 5 : 9)) {
    node("line", { class: "axis", x1: x(tick), x2: x(tick), y1: height - MARGIN.bottom, y2: height - MARGIN.bottom + 5 }, svg);
    node("text", { x: x(tick), y: height - MARGIN.bottom + 18, "text-anchor": "middle" }, svg, String(tick));
  }
  node("text", { x: (MARGIN.left + width) / 2, y: height - 4, "text-anchor": "middle" }, svg, label);
  const back = [...points].reverse();
  node("path", { class: "band", d: `${path((p) => p.upper)}${path((p) => p.lower, back).replace("M", "L")}Z` }, svg);
  node("path", { class: "least", d: path((p) => p.least) }, svg);
  node("path", { class: "line", d: path((p) => p.value) }, svg);
  for (const p of points) {
    const dot = node("circle", { class: p.x === here ? "here" : "", cx: x(p.x), cy: y(p.value), r: p.x === here ? 5 : 8, "fill-opacity": p.x === here ? 1 : 0 }, svg);
    node("title", {}, dot, `${label} = ${p.x}: ${formatY(p.value)} (${formatY(p.lower)} – ${formatY(p.upper)})`);
  }
}
