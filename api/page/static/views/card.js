// The card of the model that answers, and facts about it at the side.
import { plainView, whenAnswered } from "../answers.js";
import { Refusal, orRefusal } from "../ask.js";
import { details, el, hint, table, terms } from "../dom.js";
import { grouped } from "../format.js";
import { loadMarkdown, markdown } from "../markdown.js";

export function render(root, page) {
  const { answers, problem } = plainView(root, page);
  const load = () =>
    Promise.all([
      // A model without a card still has facts.
      orRefusal(page.ask("card", "v1/model-card", undefined, { text: true })),
      page.ask("card-facts", "v1/models"),
      loadMarkdown(),
    ]);
  const draw = ([text, { models }]) => {
    const refused = text instanceof Refusal;
    const card = el("article", { class: "panel" }, refused ? hint(text.message) : markdown(text, { name: "Model card" }));
    answers.replaceChildren(el("div", { class: "beside" }, card, models.map(facts)));
    page.say(refused ? text.message : "The model card is shown.");
  };
  whenAnswered(answers, load, draw, problem);
}

function facts({ name, path, loaded_at: loadedAt, problem, manifest }) {
  const known = (value) => value !== null && value !== undefined && value !== "";
  const own = manifest ?? {};
  const about = [
    ["Name", name],
    ["Loaded", momentOf(loadedAt)],
    ["Made", momentOf(own.created)],
    ["Regressor", own.regressor],
    ["Made by kernelcast", own.kernelcast],
    ["Seed", own.seed],
    ["Split", own.split],
    ["Own rows", known(own.own_rows) ? grouped(own.own_rows) : null],
    ["Where", path],
  ];
  const families = Object.entries(own.families ?? {});
  const rows = families.map(([family, { schema }]) => [family, listOf(schema?.dtypes), listOf(schema?.devices)]);
  return el(
    "aside",
    { class: "panel facts", "aria-label": `Facts about ${name}` },
    el("h2", { text: "The model that answers" }),
    problem
      ? el("div", { class: "cautions" }, el("strong", { text: "A newer model was not taken" }), el("p", { text: problem }))
      : "",
    terms(about.filter(([, value]) => known(value))),
    rows.length
      ? details(`${rows.length} kernel families`, table(`Families of ${name}`, ["Family", "Formats", "Devices measured"], rows))
      : "",
    own.versions ? details("Made with", terms(Object.entries(own.versions))) : "",
  );
}

const listOf = (names) => (Array.isArray(names) && names.length ? names.join(", ") : "not given");

/** A moment as people read it, in universal time; a text that is none stays as it is. */
function momentOf(text) {
  const [, day, time] = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)/.exec(text) ?? [];
  return day ? `${day} ${time} UTC` : text;
}
