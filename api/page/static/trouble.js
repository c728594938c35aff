// Where views without the form of a spec say what was refused.
import { el } from "./dom.js";

/** A line for refusals: `element` to put on the page, and `problem(refusal)`, null where there is none. */
export function troubleLine() {
  const element = el("p", { class: "alert", role: "alert", hidden: true });
  return {
    element,
    problem(refusal) {
      element.hidden = !refusal;
      element.textContent = refusal
        ? [...new Set(refusal.errors.map(({ detail }) => detail))].join("; ") || refusal.message
        : "";
    },
  };
}
