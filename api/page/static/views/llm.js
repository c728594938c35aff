// A service of a language model: throughput against interactivity by GPU and split, latency, memory, energy and cost at a load.
import { answersPart, awaitAnother, whenAnswered } from "../answers.js";
import { Refusal, orRefusal, refusalAt } from "../ask.js";
import { pythonCall, requestBlock } from "../copy.js";
import { devicePicker } from "../devices.js";
import { el, folded, lead, redraw, refusedPanel } from "../dom.js";
import { choice, field, group, named, numberField, numberOrText } from "../form.js";
import { showProblem, stateForm, wholeAt, wholeOrText } from "../form.js";
import { grouped, showInterval } from "../format.js";
import { modelChoice, modelFacts, shippedModels, shippedNames } from "../models.js";
import { plansPanel } from "../plans.js";
import { hasPower, powerFields, powerOf, pricesOf, settingOf, settingWords } from "../power.js";
import { presetButtons } from "../presets.js";
import { servicePanels } from "../services.js";

const PATH = "v1/llm/predict";
const DEVICES = "llm.devices";
const SPLITS = "llm.tp";
const MOST_DEVICES = 4;
const MOST_CURVES = 8;
const POSSIBLE_SPLITS = ["1", "2", "4", "8"];
const CONCURRENCIES = [1, 2, 4, 8, 16, 32, 64, 128, 256];
// Longer prompts take longer to simulate: their curves have fewer points.
const LONG_PROMPT = 65_536;
const FEW_CONCURRENCIES = [1, 4, 16, 64, 256];
const SETTLE_MS = 250;
// Limits of the service.
const MOST_REQUESTS = 100_000;
const MOST_TOKENS = 10_000_000;
const MOST_GUESSES = 32;
const FIRST = { input_tokens: "1024", output_tokens: "1024", concurrency: "32", engine: "vllm" };
const ENGINES = { vllm: "vLLM", sglang: "SGLang", trtllm: "TensorRT-LLM" };
const GUESSES = ["speculate", "acceptance", "draft"];
const WEIGHTS = { "": "the model's own", bf16: "bf16", fp8: "fp8", nvfp4: "nvfp4", int8: "int8", int4: "int4" };

const preset = (model, devices, tp, more = {}) => ({ ...FIRST, weights: "", speculate: "", acceptance: "", draft: "", model, [DEVICES]: devices, [SPLITS]: tp, ...more });
const [H100, H200, B200, L40S] = ["nvidia-h100-sxm-80gb", "nvidia-h200-sxm-141gb", "nvidia-b200-sxm-180gb", "nvidia-l40s"];
/** Questions that people begin with, by name. */
const PRESETS = {
  "Llama 3.1 70B, fp8": preset("meta-llama/Llama-3.1-70B", `${H100},${B200}`, "2,4", { weights: "fp8" }),
  "gpt-oss 120B": preset("openai/gpt-oss-120b", `${H100},${B200}`, "2,8"),
  "Llama 3.1 8B": preset("meta-llama/Llama-3.1-8B", `${H100},${H200},${L40S}`, "1", { output_tokens: "256" }),
  "Qwen3 32B": preset("Qwen/Qwen3-32B", `${H100},${H200}`, "2,8"),
  "DeepSeek V3": preset("deepseek-ai/DeepSeek-V3", `${H200},${B200}`, "8"),
};
const [START] = Object.values(PRESETS);

export function render(root, page) {
  const { state } = page;
  const view = { page, timer: 0, answers: answersPart(), plans: plansPanel(page) };
  if (!Object.keys(START).some((name) => state.get(name))) state.set(START);
  for (const [name, value] of Object.entries(FIRST)) if (!state.get(name)) state.set({ [name]: value });
  if (!state.get("model")) state.set({ model: START.model });
  for (const name of [DEVICES, SPLITS]) if (!state.get(name)) state.set({ [name]: START[name] });
  view.ask = () => {
    window.clearTimeout(view.timer);
    return whenAnswered(view.answers, () => load(page), (loaded) => draw(view, loaded), (refusal) => view.problem(refusal));
  };
  const form = serviceForm(view);
  root.append(el("div", { class: "columns llm" }, form, view.answers));
  // After the form is there to be used: to ask takes a slow phone a while.
  soon(view, 0);
  return () => {
    view.left = true;
    window.clearTimeout(view.timer);
  };
}

function soon(view, wait = SETTLE_MS) {
  window.clearTimeout(view.timer);
  view.timer = window.setTimeout(view.ask, wait);
  awaitAnother(view.answers);
}

function serviceForm(view) {
  const { page } = view;
  const { state } = page;
  const alert = el("p", { class: "alert", role: "alert", hidden: true });
  const body = el("div", {});
  const presets = presetButtons(page, "Start from", PRESETS, () => {
    fill();
    soon(view, 0);
  });
  const form = stateForm(page, "The service", edited, alert, presets.element, body);
  view.problem = (refusal) => {
    view.refusal = refusal;
    return showProblem(form, alert, refusal);
  };

  function edited({ name }) {
    presets.refresh();
    if (name === "model") facts.replaceChildren(...modelFacts(page));
    soon(view);
  }

  const model = el("div", {});
  const draftChoice = el("div", {});
  const facts = el("div", {});
  const changed = () => {
    presets.refresh();
    soon(view, 0);
  };

  function fillModel() {
    model.replaceChildren(field("model", "Model", modelChoice(page, (one) => one.generates)));
    facts.replaceChildren(...modelFacts(page));
    const drafts = ["", ...shippedNames((one) => one.generates)];
    draftChoice.replaceChildren(field("draft", "Guessed by", choice(drafts, state.get("draft"), { "": "n-grams, at no cost" })));
  }

  function fill() {
    fillModel();
    body.replaceChildren(
      model,
      facts,
      named("devices", devicePicker(page, { name: DEVICES, label: "GPUs", most: MOST_DEVICES, nobody: "none yet", coloured: false, changed })),
      splitChoice(page, changed),
      group(
        "Requests",
        el(
          "div",
          { class: "grid" },
          numberField(state, "input_tokens", "Prompt tokens", "Mean tokens of a prompt"),
          numberField(state, "output_tokens", "Answer tokens", "Mean tokens of an answer"),
        ),
        numberField(state, "concurrency", "Requests under way", "At one copy of the model; the table and the large marks are for these"),
      ),
      folded(
        { class: "more", open: Boolean(state.get("weights")) || state.get("engine") !== FIRST.engine },
        "Engine and formats",
        el(
          "div",
          { class: "grid" },
          field("engine", "Engine", choice(Object.keys(ENGINES), state.get("engine"), ENGINES)),
          field("weights", "Weights in", choice(Object.keys(WEIGHTS), state.get("weights"), WEIGHTS)),
        ),
      ),
      folded(
        { class: "more", open: GUESSES.some((name) => state.get(name)) },
        "Speculative decoding",
        el(
          "div",
          { class: "grid" },
          numberField(state, "speculate", "Guesses a step", "Tokens that a step guesses and verifies for each sequence", "none"),
          numberField(state, "acceptance", "Share accepted", "Of guesses after accepted ones, as you measured it", "such as 0.7"),
        ),
        draftChoice,
      ),
      folded({ class: "more", open: hasPower(page) }, "Power limit and CO2", powerFields(page)),
    );
  }

  fill();
  shippedModels(page).then(() => {
    if (view.left) return;
    fillModel();
    if (view.refusal) view.problem(view.refusal);
  }, view.problem);
  return form;
}

const splitsOf = ({ state }) => state.list(SPLITS).map(wholeOrText);

function splitChoice({ state }, changed) {
  const toggle = (split, on) => {
    const now = state.list(SPLITS).filter((one) => one !== split);
    const next = (on ? [...now, split] : now).sort((a, b) => a - b);
    state.set({ [SPLITS]: next.join(",") });
    state.commit();
    changed();
  };
  const others = state.list(SPLITS).filter((one) => !POSSIBLE_SPLITS.includes(one));
  const one = (split) => {
    const check = el("input", { type: "checkbox", value: split, checked: state.list(SPLITS).includes(split), onchange: () => toggle(split, check.checked) });
    return el("label", {}, check, el("span", { text: split }));
  };
  return el(
    "fieldset",
    { class: "field", "data-field": "plan.tp" },
    el("legend", { text: "GPUs that share one copy of the model" }),
    el("div", { class: "segments" }, [...POSSIBLE_SPLITS, ...others].map(one)),
    el("p", { class: "field-error", hidden: true }),
  );
}

/** The devices and splits that are compared, each a curve. */
function plansOf(page) {
  const devices = page.catalogue.names(page.state.list(DEVICES));
  const splits = splitsOf(page);
  if (!devices.length) throw refusalAt("devices", "Choose a GPU.");
  if (!splits.length) throw refusalAt("plan.tp", "Choose how many GPUs share one copy.");
  if (devices.length * splits.length > MOST_CURVES)
    throw refusalAt("plan.tp", `${devices.length} GPUs with ${splits.length} splits are more than ${MOST_CURVES} curves; choose fewer.`);
  const plans = devices.flatMap((device) => splits.map((tp) => ({ device, tp })));
  return plans.map((plan, i) => ({ ...plan, series: i + 1, title: `${page.catalogue.title(plan.device)}${plan.tp === 1 ? "" : ` × ${plan.tp}`}` }));
}

function bodyOf({ state }, { device, tp }, prices, concurrency) {
  return {
    model: state.get("model"),
    device,
    gpus: tp,
    plan: { tp },
    engine: state.get("engine"),
    ...(state.get("weights") ? { weights: state.get("weights") } : {}),
    ...lengthsOf(state),
    concurrency,
    ...guessesOf(state),
    ...(device in prices ? { price_per_hour: prices[device] } : {}),
    ...powerOf({ state }),
  };
}

/** The lengths of requests. */
const lengthsOf = (state) =>
  Object.fromEntries(["input_tokens", "output_tokens"].map((name) => [name, wholeAt(name, state.get(name), MOST_TOKENS)]));

/** How tokens are guessed; the service says what is missing. */
function guessesOf(state) {
  return {
    ...(state.get("speculate") ? { speculate: wholeAt("speculate", state.get("speculate"), MOST_GUESSES) } : {}),
    ...(state.get("acceptance") ? { acceptance: numberOrText(state.get("acceptance").replace(",", ".")) } : {}),
    ...(state.get("draft") ? { draft: state.get("draft") } : {}),
  };
}

/** What plans are searched for: the GPUs and lengths of the view, in its engine. */
function planBody(page, prices) {
  const { state } = page;
  const devices = page.catalogue.names(state.list(DEVICES));
  return {
    model: state.get("model"),
    devices,
    ...lengthsOf(state),
    engines: [state.get("engine")],
    ...(state.get("weights") ? { weights: [state.get("weights")] } : {}),
    ...guessesOf(state),
    ...powerOf(page),
    ...(devices.every((device) => prices[device] > 0) ? { price_per_hour: Object.fromEntries(devices.map((device) => [device, prices[device]])) } : {}),
  };
}

/** Answers by plan: `here` at the load that is asked about, `points` along all loads; a `refusal` where a plan has none. */
async function load(page) {
  const plans = plansOf(page);
  const here = wholeAt("concurrency", page.state.get("concurrency"), MOST_REQUESTS);
  const prices = pricesOf(page, () => true);
  const sizes = Number(page.state.get("input_tokens")) > LONG_PROMPT ? FEW_CONCURRENCIES : CONCURRENCIES;
  const loads = sizes.includes(here) ? sizes : [...sizes, here].sort((a, b) => a - b);
  const [measured, ...answers] = await Promise.all([
    orRefusal(page.ask("services", "static/services.json")),
    ...plans.map((plan) => orRefusal(page.ask(`llm-${plan.series}`, PATH, bodyOf(page, plan, prices, loads)))),
  ]);
  const firstAnswer = answers.findIndex((one) => !(one instanceof Refusal));
  if (firstAnswer < 0) throw answers[0];
  const unpriced = answers.find((one) => one.errors?.some((error) => error.field === "price_per_hour"));
  if (unpriced) throw unpriced;
  const isSet = Object.keys(settingOf(page)).length;
  const rows = plans.map((plan, i) => {
    if (answers[i] instanceof Refusal) return { ...plan, refusal: answers[i].errors[0]?.detail ?? answers[i].message };
    const points = answers[i].services;
    return { ...plan, here: points.find((one) => one.load.size === here), points };
  });
  const notLike = new Refusal(0, { detail: "it ran without a power limit and a locked clock." });
  const body = bodyOf(page, plans[firstAnswer], prices, here);
  return { body, rows, measured: isSet ? notLike : measured, planned: planBody(page, prices) };
}

const callOf = ({ model, device, ...rest }) => pythonCall("llm_predict", [model, device], rest);

function draw(view, loaded) {
  const { page, answers } = view;
  const { body, measured } = loaded;
  const rows = loaded.rows.filter((row) => row.here);
  const again = () => draw(view, loaded);
  const { formats, load: asked } = rows[0].here;
  const kinds = [...new Set(Object.values(formats))].join(", ");
  redraw(
    answers,
    lead(
      body.model,
      `${ENGINES[body.engine] ?? body.engine}, ${kinds}; prompts of ${grouped(asked.input_tokens)} and answers of ${grouped(asked.output_tokens)} tokens${settingWords(body)}`,
    ),
    ...servicePanels(page, rows, { measured, again, priced: () => soon(view) }),
    refusedPanel(loaded.rows.filter((row) => row.refusal)),
    view.plans.element,
    requestBlock(page, PATH, body, callOf(body)),
  );
  view.plans.refresh(loaded.planned);
  const best = rows.toSorted((a, b) => b.here.throughput_per_gpu_tok_s.value - a.here.throughput_per_gpu_tok_s.value)[0];
  const most = showInterval(best.here.throughput_per_gpu_tok_s, "count").text;
  page.say(`${body.model}, ${grouped(asked.size)} requests under way; most tokens per second and GPU: ${best.title}, ${most}`);
}

