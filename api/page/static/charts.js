// Curves and points over two axes, as SVG. The picture has a description; its values are read with the pointer or, on the
// slider that lies over it, with the arrow keys; whoever calls it puts a table of the same values beside it.
import { el, svg } from "./dom.js";
import { showTick } from "./format.js";

const PAD = { top: 14, right: 16, bottom: 46 };
const NARROW = 480;
const LETTER = 6.7;
const PAGE_STEPS = 10;

/** Places of round numbers along a linear or logarithmic axis, about `count` of them. */
function ticksOf(low, high, log, count) {
  if (log) {
    const decades = Math.log10(high / low);
    const steps = decades < 0.8 ? [1, 1.5, 2, 3, 4, 5, 6, 8] : decades <= count / 2.5 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / count));
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      if (steps.length === 1 && power % every) continue;
      ticks.push(...steps.map((step) => step * 10 ** power));
    }
    return ticks.filter((one) => one >= low * 0.9999 && one <= high * 1.0001);
  }
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i += 1) ticks.push(i * step);
  return ticks;
}

/** At most `count` of the marks, evenly apart, the last among them. */
function spaced(marks, count) {
  const every = Math.ceil(marks.length / count);
  return marks.filter((_, i) => (marks.length - 1 - i) % every === 0);
}

/** A map from values to pixels, with the domain widened to hold all `values`. */
function axis(values, log, [start, end], floor) {
  const good = values.filter((one) => Number.isFinite(one) && (!log || one > 0));
  let low = Math.min(...good);
  let high = Math.max(...good);
  if (log) {
    const room = low === high ? 2 : (high / low) ** 0.04;
    [low, high] = [low / room, high * room];
  } else {
    if (floor === 0) low = 0;
    const room = low === high ? Math.abs(low) * 0.5 || 1 : (high - low) * 0.04;
    [low, high] = [floor === 0 ? 0 : low - room, high + room];
  }
  const scale = log ? Math.log : (one) => one;
  const place = (value) =>
    start + ((end - start) * (scale(Math.max(value, log ? low / 10 : -Infinity)) - scale(low))) / (scale(high) - scale(low));
  return { low, high, place };
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

const curve = (layer, x, y, kind) => svg("path", { class: kind, d: path(layer.points.map((p) => [x(p.x), y(p.y)])) });
const circle = (p, x, y, kind, r) => svg("circle", { class: kind, cx: x(p.x), cy: y(p.y), r });
const each = (layer, mark) => svg("g", {}, layer.points.map(mark));

const DRAW = {
  band: (layer, x, y) =>
    svg("path", {
      class: "band",
      d: `${path([...layer.points.map((p) => [x(p.x), y(p.upper)]), ...layer.points.toReversed().map((p) => [x(p.x), y(p.lower)])])}Z`,
    }),
  line: (layer, x, y) => curve(layer, x, y, layer.dashed ? "line dashed" : "line"),
  roof: (layer, x, y) => curve(layer, x, y, "line roof"),
  gap: (layer, x, y) => each(layer, (p) => svg("path", { class: "line dashed", d: `M${x(p.x)} ${y(p.y)}V${y(p.to)}` })),
  dots: (layer, x, y) => each(layer, (p) => circle(p, x, y, layer.hollow ? "dot hollow" : "dot", layer.hollow ? 4 : 5)),
  cloud: (layer, x, y) => each(layer, (p) => circle(p, x, y, "cloud", 3)),
  reach: (layer, x, y) =>
    svg("path", { class: "reach", d: layer.points.map((p) => `M${x(p.x)} ${y(p.lower)}V${y(p.upper)}`).join("") }),
  whisker: (layer, x, y) =>
    each(layer, (p) =>
      svg("path", {
        class: "whisker",
        d: `M${x(p.x)} ${y(p.lower)}V${y(p.upper)}M${x(p.x) - 5} ${y(p.lower)}h10M${x(p.x) - 5} ${y(p.upper)}h10`,
      }),
    ),
};

function keyOf(mark) {
  const width = mark === "dot" ? 12 : 34;
  return svg(
    "svg",
    { class: "key", viewBox: `0 0 ${width} 12`, width, height: 12, "aria-hidden": "true" },
    mark === "dot" ? svg("circle", { class: "dot", cx: 6, cy: 6, r: 5 }) : svg("path", { class: "line", d: "M1 6H33" }),
  );
}

/**
 * A figure of `layers` ({ kind, series, points: [{ x, y, lower, upper, to }] }) over axes ({ title, log, quantity, floor }).
 * `marks` of the x axis are [value, text] to write under it in the place of round numbers, as many as there is room for.
 * `stops` are what can be read: [{ x, text: [line, …] }], in order; `describe` says what the picture shows.
 */
export function plot({ label, describe, x: xAxis, y: yAxis, layers, stops, legend = [], height = 340 }) {
  const picture = el("div", { class: "canvas" });
  const tip = el("div", { class: "tip", "aria-hidden": "true", hidden: true });
  const reader = el("div", {
    class: "reader",
    role: "slider",
    tabindex: "0",
    "aria-label": `Values of: ${label}`,
    "aria-valuemin": "0",
    "aria-valuemax": String(Math.max(0, stops.length - 1)),
    "aria-valuenow": "0",
    "aria-valuetext": stops[0]?.text.join("; ") ?? "nothing",
  });
  const figure = el(
    "figure",
    { class: "plot" },
    el("div", { class: "stage" }, picture, reader, tip),
    legend.length
      ? el(
          "figcaption",
          { class: "legend" },
          legend.map(({ series, text, mark = "line" }) => el("span", { class: `series-${series}` }, keyOf(mark), text)),
        )
      : null,
  );
  let at = 0;
  let places = [];
  let cross = null;

  function draw() {
    const width = Math.max(260, picture.clientWidth || 640);
    const right = width - PAD.right;
    const bottom = height - PAD.bottom;
    const all = layers.flatMap((layer) => layer.points);
    const y = axis(
      all.flatMap((p) => [p.y, p.lower, p.upper]).filter((one) => one !== undefined),
      yAxis.log,
      [bottom, PAD.top],
      yAxis.floor,
    );
    const levels = ticksOf(y.low, y.high, yAxis.log, 6).map((value) => [y.place(value), showTick(value, yAxis.quantity)]);
    const left = 14 + LETTER * Math.max(...levels.map(([, text]) => text.length), 3);
    const x = axis(all.map((p) => p.x), xAxis.log, [left, right]);
    const grid = svg("g", { class: "grid-lines" });
    for (const [level, text] of levels) {
      grid.append(
        svg("path", { d: `M${left} ${level}H${right}` }),
        svg("text", { x: left - 8, y: level + 4, "text-anchor": "end" }, text),
      );
    }
    const count = width < NARROW ? 4 : 8;
    const marks = xAxis.marks
      ? spaced(xAxis.marks, count)
      : ticksOf(x.low, x.high, xAxis.log, count).map((value) => [value, showTick(value, xAxis.quantity ?? "count")]);
    for (const [value, text] of marks) {
      const place = x.place(value);
      const inside = place + (LETTER * text.length) / 2 < width;
      grid.append(
        svg("path", { d: `M${place} ${PAD.top}V${bottom}` }),
        svg("text", { x: inside ? place : width, y: bottom + 18, "text-anchor": inside ? "middle" : "end" }, text),
      );
    }
    cross = svg("path", { class: "cross", d: "" });
    const drawn = layers.map((layer) => {
      const group = svg("g", { class: `series-${layer.series}` });
      group.append(DRAW[layer.kind](layer, x.place, y.place));
      return group;
    });
    picture.replaceChildren(
      svg(
        "svg",
        { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${label}. ${describe}` },
        grid,
        svg("path", { class: "frame", d: `M${left} ${PAD.top}V${bottom}H${right}` }),
        drawn,
        cross,
        svg("text", { class: "title", x: (left + right) / 2, y: height - 8, "text-anchor": "middle" }, xAxis.title),
      ),
    );
    places = stops.map((stop) => x.place(stop.x));
    cross.dataset.bottom = bottom;
  }

  function read(to, shown = true) {
    if (!stops.length) return;
    at = Math.min(Math.max(to, 0), stops.length - 1);
    reader.setAttribute("aria-valuenow", String(at));
    reader.setAttribute("aria-valuetext", stops[at].text.join("; "));
    tip.hidden = !shown;
    cross.setAttribute("d", shown ? `M${places[at]} ${PAD.top}V${cross.dataset.bottom}` : "");
    if (!shown) return;
    tip.replaceChildren(...stops[at].text.map((line, i) => el(i ? "span" : "strong", { text: line })));
    const beside = places[at] > picture.clientWidth / 2;
    tip.style.setProperty("left", beside ? "auto" : `${places[at] + 12}px`);
    tip.style.setProperty("right", beside ? `${picture.clientWidth - places[at] + 12}px` : "auto");
  }

  reader.addEventListener("pointermove", (event) => {
    const pointer = event.clientX - picture.getBoundingClientRect().left;
    read(places.reduce((best, place, i) => (Math.abs(place - pointer) < Math.abs(places[best] - pointer) ? i : best), 0));
  });
  reader.addEventListener("pointerleave", () => {
    if (document.activeElement !== reader) read(at, false);
  });
  reader.addEventListener("focus", () => {
    if (reader.matches(":focus-visible")) read(at);
  });
  reader.addEventListener("blur", () => read(at, false));
  reader.addEventListener("keydown", (event) => {
    const to = {
      ArrowRight: at + 1,
      ArrowUp: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: at - 1,
      Home: 0,
      End: stops.length - 1,
      PageUp: at + PAGE_STEPS,
      PageDown: at - PAGE_STEPS,
    }[event.key];
    if (event.key === "Escape") read(at, false);
    if (to === undefined) return;
    event.preventDefault();
    read(to);
  });
  let last = 0;
  new ResizeObserver(() => {
    if (picture.clientWidth === last || !picture.clientWidth) return;
    last = picture.clientWidth;
    draw();
  }).observe(picture);
  return figure;
}
