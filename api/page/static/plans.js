// Which GPUs, split and settings serve the model best: limits as fields, the front of plans, and the best for each aim.
import { Refusal, Stale } from "./ask.js";
import { plot } from "./charts.js";
import { pythonCall, requestBlock } from "./copy.js";
import { button, details, el, hint, list, panel, table } from "./dom.js";
import { csv } from "./download.js";
import { exportTools, plotPicture } from "./exports.js";
import { named, numberField, numberOrText, showProblem, shownBy, wholeAt } from "./form.js";
import { digits, grouped, percent, show, showInterval } from "./format.js";
import { gridHint } from "./power.js";

const PATH = "v1/llm/plan";
const GPUS = "plan.gpus";
const LIMITS = { ttft_s: "plan.ttft_s", tpot_s: "plan.tpot_s" };
const FIRST_GPUS = "8";
const MOST_GPUS = 4096;
const AIMS = {
  cost: "Least cost per token",
  latency: "Least time per token",
  energy: "Least energy per token",
  throughput: "Most tokens per second",
  gpus: "Fewest GPUs",
};
// What is drawn against the time per token: the other measures that no plan of the front is beaten in all of.
const AGAINST = {
  cost: { words: "Cost of a million tokens", of: (one) => one.cost_per_million_tokens, unit: "money" },
  energy: { words: "Energy per token", of: (one) => one.energy_per_token_j, unit: "j" },
};
const TIME = "Time per token";

/** The panel: `element`, and `refresh(body)`, which takes the model, the GPUs and the lengths that are asked about. Plans are
 * searched for when the button is pressed, and where the address asks for them. */
export function plansPanel(page) {
  const { state } = page;
  const alert = el("p", { class: "alert", role: "alert", hidden: true });
  const problem = (refusal) => showProblem(form, alert, refusal);
  const result = el("div", { "aria-live": "polite" });
  const view = { page, result, shown: "", wanted: null };
  const find = button("Find plans", () => {
    if (!state.get(GPUS)) state.set({ [GPUS]: FIRST_GPUS });
    state.commit();
    return search(view, find, problem);
  });
  const form = el(
    "form",
    { class: "plan-limits", novalidate: true, autocomplete: "off", "aria-label": "Limits of plans" },
    named("gpus", numberField(state, GPUS, "GPUs in all", "Every plan uses so many", FIRST_GPUS)),
    named("ttft_s", numberField(state, LIMITS.ttft_s, "First token within, s", "Of the median request", "any")),
    named("tpot_s", numberField(state, LIMITS.tpot_s, "Time per token within, s", "Of the median request", "any")),
    find,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    find.click();
  });
  form.addEventListener("input", ({ target }) => state.set({ [target.name]: target.value.trim() }));
  const about = hint("Compares splits, formats, sizes of steps and requests under way on the GPUs chosen above, and simulates the best. It takes seconds.");
  const element = panel("Which plan is best", about, form, alert, result);
  return {
    element,
    refresh(wanted) {
      view.wanted = wanted;
      if (view.shown === questionOf(view)) return;
      result.replaceChildren();
      problem(null);
      // Only a link asks on its own: whoever changes the model has not asked for plans.
      if (!view.shown && state.get(GPUS)) search(view, find, problem);
      else if (view.shown) result.append(hint("The question above changed; these plans are not for it any more."));
    },
  };
}

/** What is asked about, as typed. */
const questionOf = ({ page: { state }, wanted }) =>
  JSON.stringify([wanted, ...[GPUS, ...Object.values(LIMITS)].map((name) => state.get(name))]);

function bodyOf({ page: { state }, wanted }) {
  const limits = Object.entries(LIMITS).filter(([, name]) => state.get(name));
  return {
    ...wanted,
    gpus: wholeAt("gpus", state.get(GPUS, FIRST_GPUS), MOST_GPUS),
    ...Object.fromEntries(limits.map(([field, name]) => [field, numberOrText(state.get(name).replace(",", "."))])),
  };
}

async function search(view, find, problem) {
  view.shown = questionOf(view);
  find.disabled = true;
  view.result.setAttribute("aria-busy", "true");
  try {
    const body = bodyOf(view);
    draw(view, body, await view.page.ask("llm-plans", PATH, body));
    problem(null);
  } catch (error) {
    if (error instanceof Stale) return;
    if (!(error instanceof Refusal)) throw error;
    view.result.replaceChildren();
    problem(error);
  } finally {
    find.disabled = false;
    view.result.setAttribute("aria-busy", "false");
  }
}

const titleOf = ({ catalogue }, { device, replicas, plan, gpus }) =>
  `${grouped(gpus)} × ${catalogue.title(device)}, ${replicas === 1 ? "one copy" : `${grouped(replicas)} copies`} (${splitWords(plan)})`;

const splitWords = (plan) => ["tp", "pp", "ep", "dp"].filter((name) => name === "tp" || plan[name] > 1).map((name) => `${name} ${plan[name]}`).join(", ");

const settingsOf = ({ engine, formats, guesses, concurrency, chunk, replicas }) =>
  `${engine}, ${formats.weights}${guesses ? `, ${guesses} guesses` : ""}, ${grouped(concurrency * replicas)} under way, steps of ${grouped(chunk)}`;

const costWords = (unit) => (unit === "price" ? "Cost of a million tokens" : "GPU hours of a million tokens");

const callOf = ({ model, ...rest }) => pythonCall("llm_plan", [model], rest);

function draw(view, body, answer) {
  const { page, result } = view;
  const measure = page.state.oneOf("plan.against", Object.keys(AGAINST), "cost");
  result.replaceChildren(
    el("p", { text: `${grouped(answer.plans)} plans were compared, of which ${grouped(answer.possible)} are possible and within the limits.` }),
    ...bestTable(page, answer),
    ...frontFigure(page, answer, measure, () => draw(view, body, answer)),
    refusedPlans(answer),
    requestBlock(page, PATH, body, callOf(body)),
  );
  page.say(`${grouped(answer.possible)} plans; ${answer.choices.map(({ aim, plan }) => `${AIMS[aim]}: ${titleOf(page, plan)}`).join("; ")}`);
}

const CARBON = "CO2e of a million tokens";
const carbonOf = ({ carbon_g_per_million_tokens: carbon }) => (carbon === null ? "unknown" : show(carbon, "g"));

function bestTable(page, { choices, cost_unit: unit }) {
  const footprint = choices.map(({ service }) => service.footprint_per_million_tokens).find(Boolean);
  const sure = (choice) => (choice.probability === null ? "—" : percent(choice.probability));
  const cells = (choice) => {
    const { service, plan } = choice;
    const cost = unit === "price" ? service.cost_per_million_tokens : null;
    return [
      AIMS[choice.aim],
      el("td", {}, titleOf(page, plan), el("br"), settingsOf(plan)),
      showInterval(service.ttft_s.p50, "s").text,
      service.tpot_s ? showInterval(service.tpot_s.p50, "s").text : "none",
      showInterval(service.throughput_tok_s, "count").text,
      service.energy_per_token_j ? showInterval(service.energy_per_token_j, "j").text : "unknown",
      ...(footprint ? [service.energy_per_token_j ? showInterval(service.footprint_per_million_tokens.carbon_g, "g").text : "unknown"] : []),
      cost ? showInterval(cost, "money").text : digits(plan.cost_per_million_tokens),
      sure(choice),
    ];
  };
  const columns = ["Best in", "Plan", "First token", TIME, "Tokens/s", "Energy per token", ...(footprint ? [CARBON] : []), costWords(unit), "Sure"];
  const commands = choices.map(({ aim, command, notes }) => el("div", {}, el("h3", { text: AIMS[aim] }), el("pre", {}, el("code", { text: command })), notes.length ? list(notes) : ""));
  return [
    table("The best plan for each aim, simulated", columns, choices.map(cells), { number: (i) => i > 1 }),
    hint("Sure: how probable it is that the plan is better than the best of the other settings."),
    footprint ? gridHint(footprint) : "",
    details("Command lines of their engines", ...commands),
  ];
}

function frontFigure(page, { front, devices, cost_unit: unit }, measure, again) {
  const { words: plain, of, unit: quantity } = AGAINST[measure];
  const words = measure === "cost" ? costWords(unit) : plain;
  const known = front.filter((one) => of(one) !== null);
  if (!known.length) return [hint("Energy of these plans is unknown.")];
  const label = `${words} against time per token`;
  const points = known.map((one) => ({ x: one.tpot_s, y: of(one), one })).sort((a, b) => a.x - b.x);
  const layers = devices.map((device, i) => ({ kind: "dots", series: i + 1, points: points.filter(({ one }) => one.device === device) }));
  const keys = devices.map((device, i) => ({ text: page.catalogue.title(device), series: i + 1, mark: "dot" }));
  const stops = points.map(({ x, y, one }) => ({ x, text: [titleOf(page, one), settingsOf(one), `${TIME}: ${show(x, "s")}`, `${words}: ${show(y, quantity)}`] }));
  const figure = plot({
    label,
    describe: `${points.length} plans that no other beats in cost, time and energy together, from ${show(points[0].x, "s")} to ${show(points.at(-1).x, "s")} per token`,
    layers,
    stops,
    x: { title: TIME, log: true, quantity: "s" },
    y: { log: true, quantity },
    legend: keys,
  });
  const choices = Object.fromEntries(Object.entries(AGAINST).map(([name, one]) => [name, one.words]));
  const tools = exportTools("llm-plans", () => plotPicture(figure, label, "Plans that no other beats", keys), () => csvOf(front));
  return [
    el("div", { class: "row" }, el("h3", { text: `Plans that no other beats: ${label.toLowerCase()}` }), el("div", { class: "tools" }, shownBy(page, "plan.against", "Drawn against the time per token", choices, measure, again), tools)),
    figure,
    details("These plans as a table", frontTable(page, front, unit)),
  ];
}

function frontTable(page, front, unit) {
  const carbon = page.state.get("grid") ? [CARBON] : [];
  const cells = (one) => [
    titleOf(page, one), settingsOf(one), show(one.ttft_s, "s"), one.tpot_s ? show(one.tpot_s, "s") : "none", digits(one.throughput_tok_s),
    one.energy_per_token_j === null ? "unknown" : show(one.energy_per_token_j, "j"), ...carbon.map(() => carbonOf(one)), digits(one.cost_per_million_tokens),
  ]; // prettier-ignore
  const columns = ["Plan", "Settings", "First token", TIME, "Tokens/s", "Energy per token", ...carbon, costWords(unit)];
  return table("Plans that no other beats, in closed form", columns, front.map(cells), { number: (i) => i > 1 });
}

function csvOf(front) {
  const columns = ["device", "gpus", "replicas", "tp", "pp", "ep", "dp", "engine", "weights", "guesses", "concurrency", "chunk", "ttft_s", "tpot_s", "throughput_tok_s", "energy_per_token_j", "power_w", "cost_per_million_tokens", "carbon_g_per_million_tokens"];
  return csv(columns, front.map((one) => columns.map((name) => one[name] ?? one.plan[name] ?? one.formats[name])));
}

function refusedPlans({ refusals }) {
  if (!refusals.length) return "";
  return details("Plans that are not possible", list(refusals.map(({ kind, count, nearest }) => `${kind}: ${grouped(count)}; nearest ${nearest}`)));
}
