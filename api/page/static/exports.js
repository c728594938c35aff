// A picture of the page as a file for slides: SVG, PNG, and the numbers behind it as CSV.
import { button, el, svg } from "./dom.js";
import { download } from "./download.js";
import { showInterval } from "./format.js";
import { scaleOf } from "./bars.js";

const STYLED = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "fill-opacity", "stroke-opacity", "opacity", "font-size", "font-weight",
  "text-anchor",
]; // prettier-ignore
const FONT = '"Helvetica Neue", Helvetica, "Liberation Sans", Arial, sans-serif';
const EDGE = 24;
const HEAD = 64;
const LETTER = 7.4;
const LINE = 20;
const BARS = { width: 1160, row: 30, amount: 240 };
// A slide is shown larger than a window.
const PIXELS = 2;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const write = (x, y, text, more = {}) => svg("text", { x, y, fill: colour("soft"), "font-size": 13, ...more }, text);

/** Buttons that offer a picture: `draw()` makes it (`plotPicture` or `barPicture`), `table()` is its numbers as CSV. */
export function exportTools(name, draw, table) {
  const offer = (ending, make) => button(ending.toUpperCase(), make, { class: "copy", "aria-label": `Download ${ending.toUpperCase()}` });
  return el(
    "div",
    { class: "tools exports", role: "group", "aria-label": "Download" },
    offer("svg", () => download(`${name}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(draw()))),
    offer("png", async () => download(`${name}.png`, "image/png", await png(draw()))),
    offer("csv", () => download(`${name}.csv`, "text/csv", table())),
  );
}

/** A picture under a title and a line of words, with everything it needs in it. */
function framed(title, words, width, height, marks) {
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, "font-family": FONT },
    svg("rect", { x: 0, y: 0, width, height, fill: colour("panel") }),
    write(EDGE, 30, title, { fill: colour("ink"), "font-size": 18, "font-weight": 600 }),
    write(EDGE, 51, words),
    marks,
    write(width - EDGE, height - 10, "kernelcast", { "font-size": 11, "text-anchor": "end" }),
  );
}

/** The picture of a `plot` as it is drawn now; `legend` is that of the plot. */
export function plotPicture(figure, title, words, legend) {
  const drawn = figure.querySelector(".canvas > svg");
  const copy = drawn.cloneNode(true);
  const originals = drawn.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((mark, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of STYLED) if (!mark.hasAttribute(name)) mark.setAttribute(name, style.getPropertyValue(name));
    mark.removeAttribute("class");
  });
  const { width, height } = drawn.viewBox.baseVal;
  const keys = [];
  let [x, y] = [EDGE, HEAD + height + 22];
  for (const { text, series, mark } of legend) {
    const size = 34 + LETTER * text.length + 24;
    if (x + size > EDGE + width && x > EDGE) [x, y] = [EDGE, y + LINE];
    const tint = colour(`s${series}`);
    keys.push(
      mark === "dot"
        ? svg("circle", { cx: x + 13, cy: y - 4, r: 5, fill: colour("panel"), stroke: tint, "stroke-width": 2 })
        : svg("path", { d: `M${x} ${y - 4}H${x + 26}`, stroke: tint, "stroke-width": 3, fill: "none" }),
      write(x + 34, y, text),
    );
    x += size;
  }
  const body = svg("g", { transform: `translate(${EDGE} ${HEAD})` }, [...copy.childNodes]);
  return framed(title, words, width + 2 * EDGE, y + 36, [body, keys]);
}

/** Rows of `rangeRows` as a picture: name, band with mark, value in words. */
export function barPicture(rows, quantity, title, words) {
  const known = rows.filter(({ interval }) => interval);
  const scale = scaleOf(known, "interval");
  const name = LETTER * Math.max(...known.map((row) => row.title.length)) + 16;
  const room = BARS.width - 2 * EDGE - name - BARS.amount;
  const at = (value) => EDGE + name + room * Math.min(1, Math.max(0, scale.at(value)));
  const row = ({ title: device, interval, guess }, i) => {
    const y = HEAD + 16 + i * BARS.row;
    const tint = colour("accent");
    const [start, end] = [at(interval.lower), at(interval.upper)];
    return [
      write(EDGE, y + 5, device, { fill: colour("ink") }),
      svg("rect", { x: EDGE + name, y: y - 6, width: room, height: 12, rx: 6, fill: colour("sunk"), stroke: colour("line") }),
      svg("rect", { x: start, y: y - 6, width: Math.max(3, end - start), height: 12, rx: 6, fill: tint, "fill-opacity": guess ? 0.2 : 0.4 }),
      svg("rect", { x: at(interval.value) - 2, y: y - 9, width: 4, height: 18, rx: 2, fill: tint }),
      write(BARS.width - EDGE, y + 5, showInterval(interval, quantity).text, { "text-anchor": "end" }),
    ];
  };
  const kinds = [scale.log ? "logarithmic bars" : "bars from zero", "band: interval", known.some(({ guess }) => guess) ? "pale: outside what was measured" : ""];
  const height = HEAD + known.length * BARS.row + 36;
  return framed(title, [words, ...kinds].filter(Boolean).join("; "), BARS.width, height, known.map(row));
}

/** The picture as PNG. It is painted mark by mark: the page's policy lets no picture in that is not a file of the service. */
async function png(picture) {
  const { width, height } = picture.viewBox.baseVal;
  const canvas = new OffscreenCanvas(width * PIXELS, height * PIXELS);
  const paint = canvas.getContext("2d");
  paint.scale(PIXELS, PIXELS);
  for (const mark of picture.children) paintMark(paint, mark);
  return canvas.convertToBlob({ type: "image/png" });
}

const number = (mark, name, otherwise = 0) => Number.parseFloat(mark.getAttribute(name) ?? otherwise);

function outline(mark) {
  if (mark.localName === "path") return new Path2D(mark.getAttribute("d"));
  const shape = new Path2D();
  if (mark.localName === "circle") shape.arc(number(mark, "cx"), number(mark, "cy"), number(mark, "r"), 0, 2 * Math.PI);
  else shape.roundRect(number(mark, "x"), number(mark, "y"), number(mark, "width"), number(mark, "height"), number(mark, "rx"));
  return shape;
}

function paintMark(paint, mark) {
  paint.save();
  if (mark.localName === "g") {
    const [dx = 0, dy = 0] = (mark.getAttribute("transform")?.match(/[\d.]+/g) ?? []).map(Number);
    paint.translate(dx, dy);
    for (const inner of mark.children) paintMark(paint, inner);
    return paint.restore();
  }
  const seen = (name) => number(mark, "opacity", 1) * number(mark, name, 1);
  const [fill, stroke] = [mark.getAttribute("fill") ?? "none", mark.getAttribute("stroke") ?? "none"];
  paint.fillStyle = fill;
  if (mark.localName === "text") {
    const anchor = mark.getAttribute("text-anchor");
    paint.font = `${mark.getAttribute("font-weight") ?? 400} ${number(mark, "font-size", 13)}px ${FONT}`;
    paint.textAlign = { middle: "center", end: "right" }[anchor] ?? "left";
    paint.fillText(mark.textContent, number(mark, "x"), number(mark, "y"));
    return paint.restore();
  }
  const shape = outline(mark);
  if (fill !== "none") {
    paint.globalAlpha = seen("fill-opacity");
    paint.fill(shape);
  }
  if (stroke !== "none") {
    paint.globalAlpha = seen("stroke-opacity");
    paint.strokeStyle = stroke;
    paint.lineWidth = number(mark, "stroke-width", 1);
    paint.setLineDash((mark.getAttribute("stroke-dasharray") ?? "").match(/[\d.]+/g)?.map(Number) ?? []);
    paint.stroke(shape);
  }
  return paint.restore();
}
