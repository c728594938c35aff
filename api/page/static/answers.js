// The region of answers: waiting, refusals, and pieces of an answer that several views show.
import { Refusal, Stale } from "./ask.js";
import { caution, el } from "./dom.js";
import { show } from "./format.js";

/** Why there is no power or energy. */
export const NO_POWER = "Too few runs of this kernel with power were measured on devices like this one.";

/** What is to be known before a prediction is believed, as a list; nothing where there is nothing to say. */
export function cautions(prediction) {
  const notes = [...prediction.notes];
  if (!prediction.in_domain && !notes.length)
    notes.push("The model was not trained on cases like this one; the interval is wider for it.");
  if (!notes.length) return null;
  return caution(prediction.in_domain ? "Note" : "Outside what was measured", notes, { mild: prediction.in_domain });
}

/** A share of cases in words. */
export function coverageWords(coverage) {
  return `${(100 * coverage).toFixed(0)} % of cases fall inside the intervals`;
}

/** The roofline of several answers as layers and stops for `plot`; each { title, series, roofline }. */
export function rooflineParts(answers) {
  const points = answers.filter(({ roofline }) => roofline.attained_flops_per_s?.value > 0 && roofline.intensity > 0);
  if (!points.length) return null;
  const edges = points.flatMap(({ roofline }) => [roofline.intensity, roofline.ridge_intensity]);
  const [low, high] = [Math.min(...edges) / 4, Math.max(...edges) * 4];
  const layers = points.flatMap(({ series, roofline }) => {
    const peak = roofline.peak_flops_per_s.value;
    const under = (intensity) => roofline.bandwidth_b_per_s.value * intensity;
    const point = { x: roofline.intensity, y: roofline.attained_flops_per_s.value, ...roofline.attained_flops_per_s };
    const roof = [[low, under(low)], [roofline.ridge_intensity, peak], [high, peak]];
    return [
      { kind: "roof", series, points: roof.map(([x, y]) => ({ x, y })) },
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

/** What was refused of rows with a `title` and an `answer` each, for `refusedPanel`; what is the same of all of several is said once. */
export function refusedRows(rows) {
  const refused = rows.filter(({ answer }) => answer instanceof Refusal).map(({ title, answer }) => ({ title, refusal: answer.errors[0]?.detail ?? answer.message }));
  const isSame = refused.length > 1 && refused.length === rows.length && new Set(refused.map(({ refusal }) => refusal)).size === 1;
  return isSame ? [{ title: "Every device", refusal: refused[0].refusal }] : refused;
}

/** The part of a view where answers appear; it is busy while one is awaited, and stale while the last was refused. */
export function answersPart() {
  return el("section", { class: "answers", "aria-label": "Answers", "aria-busy": "true" });
}

/** A line for refusals of views without the form of a spec: `element`, and `problem(refusal)`, null where there is none, which
 * returns what the line says. */
export function alertLine() {
  const element = el("p", { class: "alert", role: "alert", hidden: true });
  const problem = (refusal) => {
    element.hidden = !refusal;
    element.textContent = refusal ? [...new Set(refusal.errors.map(({ detail }) => detail))].join("; ") || refusal.message : "";
    return element.textContent;
  };
  return { element, problem };
}

/** A view of answers alone, put into `root`; `problem` is for `whenAnswered`. */
export function plainView(root, page) {
  const answers = answersPart();
  const { element, problem } = alertLine();
  root.append(el("div", { class: "stack" }, element, answers));
  return { page, answers, problem };
}

const turns = new WeakMap();

/** Say that `part` waits for another answer: whatever was asked before is not shown any more. */
export function awaitAnother(part) {
  turns.set(part, (turns.get(part) ?? 0) + 1);
  part.setAttribute("aria-busy", "true");
}

/** Show in `part` what `load()` answers, with `draw(answer)`, unless a newer question was asked meanwhile. `problem` gets the
 * refusal, or null after an answer, and returns what of it stands at no field. */
export async function whenAnswered(part, load, draw, problem) {
  awaitAnother(part);
  const turn = turns.get(part);
  try {
    const answer = await load();
    if (turns.get(part) !== turn) return;
    draw(answer);
    if (turns.get(part) !== turn) return;
    problem(null);
    part.classList.remove("stale");
  } catch (error) {
    if (error instanceof Stale || turns.get(part) !== turn) return;
    const apart = problem(error instanceof Refusal ? error : new Refusal(0, { detail: `The page failed: ${error.message}` }));
    part.querySelector(".outdated")?.remove();
    const words = part.childElementCount
      ? `What follows answers an earlier question; the last one was refused${apart ? `: ${apart}` : "."}`
      : `There is no answer to this yet. ${apart || "What is wrong stands beside the fields."}`;
    part.classList.add("stale");
    part.prepend(el("p", { class: "panel outdated", text: words }));
    // A fault of the page's own is for its makers as well.
    if (!(error instanceof Refusal)) window.reportError(error);
  }
  part.setAttribute("aria-busy", "false");
}
