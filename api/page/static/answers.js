// Pieces of an answer that several views show.
import { Refusal, Stale } from "./ask.js";
import { el } from "./dom.js";
import { show } from "./format.js";

/** Why there is no power or energy. */
export const NO_POWER = "Too few runs of this kernel with power were measured on devices like this one.";

/** What is to be known before a prediction is believed, as a list; nothing where there is nothing to say. */
export function cautions(prediction) {
  const notes = [...prediction.notes];
  if (!prediction.in_domain && !notes.length)
    notes.push("The model was not trained on cases like this one; the interval is wider for it.");
  if (!notes.length) return null;
  return el(
    "div",
    { class: prediction.in_domain ? "cautions mild" : "cautions" },
    el("strong", { text: prediction.in_domain ? "Note" : "Outside what was measured" }),
    el(
      "ul",
      {},
      notes.map((note) => el("li", { text: note })),
    ),
  );
}

/** A share of cases in words. */
export function coverageWords(coverage) {
  return `${(100 * coverage).toFixed(0)} % of cases fall inside the intervals`;
}

/** The roofline of several answers as layers, stops and table rows for `plot`; each { title, series, roofline }. */
export function rooflineParts(found) {
  const points = found.filter(({ roofline }) => roofline.attained_flops_per_s?.value > 0 && roofline.intensity > 0);
  if (!points.length) return null;
  const edges = points.flatMap(({ roofline }) => [roofline.intensity, roofline.ridge_intensity]);
  const [low, high] = [Math.min(...edges) / 4, Math.max(...edges) * 4];
  const layers = points.flatMap(({ series, roofline }) => {
    const peak = roofline.peak_flops_per_s.value;
    const under = (intensity) => roofline.bandwidth_b_per_s.value * intensity;
    const point = { x: roofline.intensity, y: roofline.attained_flops_per_s.value, ...roofline.attained_flops_per_s };
    return [
      {
        kind: "roof",
        series,
        points: [
          { x: low, y: under(low) },
          { x: roofline.ridge_intensity, y: peak },
          { x: high, y: peak },
        ],
      },
      { kind: "gap", series, points: [{ ...point, to: Math.min(peak, under(point.x)) }] },
      { kind: "whisker", series, points: [point] },
      { kind: "dots", series, points: [point] },
    ];
  });
  const stops = points.map(({ title, roofline }) => ({
    x: roofline.intensity,
    text: [
      title,
      `${show(roofline.attained_flops_per_s.value, "flop/s")} at ${show(roofline.intensity, "flop/b")}`,
      `roof ${show(roofline.peak_flops_per_s.value, "flop/s")} and ${show(roofline.bandwidth_b_per_s.value, "b/s")}, ridge at ${show(roofline.ridge_intensity, "flop/b")}`,
    ],
  }));
  return { layers, stops };
}

/** The part of a view where answers appear; it is busy while one is awaited, and stale while the last was refused. */
export function answersPart() {
  return el("section", { class: "answers", "aria-label": "Answers", "aria-busy": "true" });
}

const turns = new WeakMap();

/** Say that `part` waits for another answer: whatever was asked before is not shown any more. */
export function awaitAnother(part) {
  turns.set(part, (turns.get(part) ?? 0) + 1);
  part.setAttribute("aria-busy", "true");
}

/** Run `work(stillAsked)`, which asks and then shows the answer in `part`; it calls `stillAsked()` before it shows anything, which
 * ends it where a newer question was asked meanwhile. `refused` gets the refusal, or null after an answer. */
export async function whenAnswered(part, work, refused) {
  awaitAnother(part);
  const turn = turns.get(part);
  const stillAsked = () => {
    if (turns.get(part) !== turn) throw new Stale();
  };
  try {
    await work(stillAsked);
    stillAsked();
    refused(null);
    part.classList.remove("stale");
  } catch (error) {
    if (error instanceof Stale || turns.get(part) !== turn) return;
    refused(error instanceof Refusal ? error : new Refusal(0, { detail: `The page failed: ${error.message}` }));
    part.querySelector(".outdated")?.remove();
    const words = part.childElementCount
      ? "What follows answers an earlier question; the last one was refused."
      : "There is no answer to this yet. What is wrong stands beside the fields.";
    part.classList.add("stale");
    part.prepend(el("p", { class: "panel outdated", text: words }));
    // A fault of the page's own is for its makers as well.
    if (!(error instanceof Refusal)) window.reportError(error);
  }
  part.setAttribute("aria-busy", "false");
}
