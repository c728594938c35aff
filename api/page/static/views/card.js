// The card of the model that answers, and facts about it at the side.
import { answersPart, whenAnswered } from "../answers.js";
import { Refusal } from "../ask.js";
import { el, table } from "../dom.js";
import { grouped } from "../format.js";
import { markdown } from "../markdown.js";
import { troubleLine } from "../trouble.js";

export const id = "card";
export const title = "Model card";

export function render(root, page) {
  const answers = answersPart();
  const trouble = troubleLine();
  root.append(el("div", { class: "stack" }, trouble.element, answers));
  whenAnswered(
    answers,
    async (stillAsked) => {
      const [text, { models }] = await Promise.all([
        // A model without a card still has facts.
        page
          .ask("card", "v1/model-card", undefined, { text: true })
          .catch((error) => (error instanceof Refusal ? error : Promise.reject(error))),
        page.ask("card-facts", "v1/models"),
      ]);
      stillAsked();
      const card =
        text instanceof Refusal ? el("p", { class: "hint", text: text.message }) : markdown(text, { name: "Model card" });
      answers.replaceChildren(el("div", { class: "beside" }, el("article", { class: "panel" }, card), ...models.map(facts)));
      page.say(text instanceof Refusal ? text.message : "The model card is shown.");
    },
    trouble.problem,
  );
}

function facts({ name, path, loaded_at: loadedAt, problem, manifest }) {
  const given = (value) => value !== null && value !== undefined && value !== "";
  const own = manifest ?? {};
  const about = [
    ["Name", name],
    ["Loaded", momentOf(loadedAt)],
    ["Made", momentOf(own.created)],
    ["Regressor", own.regressor],
    ["Made by kernelcast", own.kernelcast],
    ["Seed", own.seed],
    ["Split", own.split],
    ["Own rows", given(own.own_rows) ? grouped(own.own_rows) : null],
    ["Where", path],
  ];
  const families = Object.entries(own.families ?? {});
  const trained = families.map(([family, { schema }]) => [family, listOf(schema?.dtypes), listOf(schema?.devices)]);
  return el(
    "aside",
    { class: "panel facts", "aria-label": `Facts about ${name}` },
    el("h2", { text: "The model that answers" }),
    problem
      ? el("div", { class: "cautions" }, el("strong", { text: "A newer model was not taken" }), el("p", { text: problem }))
      : "",
    el(
      "dl",
      {},
      about
        .filter(([, value]) => given(value))
        .map(([term, value]) => [el("dt", { text: term }), el("dd", { text: String(value) })]),
    ),
    trained.length
      ? el(
          "details",
          {},
          el("summary", { text: `${trained.length} kernel families` }),
          table(`Families of ${name}`, ["Family", "Formats", "Devices measured"], trained),
        )
      : "",
    own.versions
      ? el(
          "details",
          {},
          el("summary", { text: "Made with" }),
          el(
            "dl",
            {},
            Object.entries(own.versions).map(([term, value]) => [el("dt", { text: term }), el("dd", { text: String(value) })]),
          ),
        )
      : "",
  );
}

const listOf = (names) => (Array.isArray(names) && names.length ? names.join(", ") : "not given");

/** A moment as people read it, in universal time; a text that is none stays as it is. */
function momentOf(text) {
  if (!text) return null;
  const found = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)/.exec(text);
  return found ? `${found[1]} ${found[2]} UTC` : text;
}
