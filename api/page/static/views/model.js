// A step of a whole model on several devices: time, where it goes, memory, what could be won, energy and cost.
import { alertLine, answersPart, awaitAnother, whenAnswered } from "../answers.js";
import { Refusal, Stale } from "../ask.js";
import { pythonCall, requestBlock } from "../copy.js";
import { devicePicker } from "../devices.js";
import { el, folded, hint, lead, redraw, refusedPanel } from "../dom.js";
import { formatWords, panels, stepWords } from "../estimates.js";
import { choice, field, group, numberField, showProblem, stateForm, wholeOrText } from "../form.js";
import { grouped, showInterval } from "../format.js";
import { modelChoice, modelFacts, modelOf, shippedModels } from "../models.js";
import { hasPower, powerFields, powerOf, pricesOf, settingWords } from "../power.js";

const PATH = "v1/estimate";
const FIRST = { model: "meta-llama/Llama-3.1-8B", phase: "decode", batch: "16", length: "4096" };
const FIRST_DEVICES = ["h100-sxm", "b200", "mi300x", "rtx-4090"];
const DEVICES = "model.devices";
const MOST_DEVICES = 8;
// A slider is asked about while it moves; what is typed may go on.
const SLIDE_MS = 40;
const TYPE_MS = 250;
const OWN = "";

const PHASES = {
  prefill: "Prefill",
  decode: "Decode",
  forward: "Forward",
  train: "Train",
  encode: "Encode",
};
const LENGTH_WORDS = { prefill: "Prompt tokens", decode: "Tokens in the cache", forward: "Tokens", train: "Tokens" };
const BATCHES = { least: 0, most: 10 };
const LENGTHS = { least: 5, most: 17 };
const SPLITS = ["1", "2", "4", "8", "16"];
const FORMATS = {
  "": "the model's",
  bf16: "bf16",
  fp8: "fp8",
  nvfp4: "nvfp4",
  int8: "int8",
  int4: "int4",
};

export function render(root, page) {
  const view = { page, timer: 0, root };
  view.answers = answersPart();
  root.append(view.answers);
  open(view).catch((error) => {
    if (error instanceof Stale || view.left) return;
    if (!(error instanceof Refusal)) window.reportError(error);
    const { element, problem } = alertLine();
    root.replaceChildren(element, view.answers);
    problem({ errors: [], message: error.message });
    view.answers.setAttribute("aria-busy", "false");
  });
  return () => {
    view.left = true;
    window.clearTimeout(view.timer);
  };
}

async function open(view) {
  await shippedModels(view.page);
  if (view.left) return;
  const phases = phasesOf(modelOf(view.page));
  view.page.state.oneOf("phase", phases, phases.includes(FIRST.phase) ? FIRST.phase : phases[0]);
  complete(view.page);
  view.page.state.commit(true);
  view.form = modelForm(view);
  view.root.replaceChildren(el("div", { class: "columns model" }, view.form.element, view.answers));
  ask(view);
}

/** The phases of a model; of a configuration of one's own, all. */
function phasesOf(model) {
  if (!model) return Object.keys(PHASES);
  return [...(model.encodes ? ["encode"] : []), ...(model.generates ? ["prefill", "decode"] : ["forward"]), "train"];
}

/** Whether the input fixes how long sequences are. */
const isFixed = ({ state }) => Boolean(modelOf({ state })?.fixed_length) || state.get("phase") === "encode";

/** Give the state what it needs to be asked about. */
function complete({ state, catalogue }) {
  if (!state.get("config") && !state.get("model")) state.set({ model: FIRST.model });
  for (const name of ["phase", "batch", "length"]) if (!state.get(name)) state.set({ [name]: FIRST[name] });
  const model = modelOf({ state });
  if (!phasesOf(model).includes(state.get("phase"))) state.set({ phase: phasesOf(model)[0] });
  if (!state.get(DEVICES)) state.set({ [DEVICES]: catalogue.names(FIRST_DEVICES).join(",") });
}

/** The longest power of two of tokens that a model's sequences may have, as its exponent. */
function longestExponent({ state }) {
  const most = modelOf({ state })?.max_length;
  if (!most) return LENGTHS.most;
  const room = state.get("phase") === "decode" ? most - 1 : most;
  return Math.max(LENGTHS.least, Math.min(LENGTHS.most, Math.floor(Math.log2(room))));
}

/** Another model or phase: its sequences may be shorter. */
function limitLength(page) {
  const longest = 2 ** longestExponent(page);
  if (Number(page.state.get("length")) > longest) page.state.set({ length: longest });
}

function ask(view) {
  window.clearTimeout(view.timer);
  const load = async () => {
    const body = bodyOf(view.page);
    return { body, answer: await view.page.ask("estimate", PATH, body) };
  };
  return whenAnswered(view.answers, load, (answered) => draw(view, answered), view.form.problem);
}

function soon(view, wait) {
  window.clearTimeout(view.timer);
  view.timer = window.setTimeout(() => ask(view), wait);
  awaitAnother(view.answers);
}

function bodyOf({ state, catalogue }) {
  const devices = catalogue.names(state.list(DEVICES));
  const prices = pricesOf({ state, catalogue }, (device) => devices.includes(device));
  const plan = state.get("plan.tp", "1") === "1" ? {} : { plan: { tp: wholeOrText(state.get("plan.tp")) } };
  return {
    ...(state.get("config") ? { config: configOf(state.get("config")) } : { model: state.get("model") }),
    devices,
    phase: state.get("phase"),
    batch: wholeOrText(state.get("batch")),
    ...(isFixed({ state }) ? {} : { length: wholeOrText(state.get("length")) }),
    ...(state.get("config") && state.get("source") ? { source: wholeOrText(state.get("source")) } : {}),
    ...plan,
    ...(state.get("weights") ? { weights: state.get("weights") } : {}),
    ...(Object.keys(prices).length ? { price_per_hour: prices } : {}),
    ...powerOf({ state }),
  };
}

/** A configuration as JSON; text that is none goes out as it is, and the service says what is wrong with it. */
function configOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function modelForm(view) {
  const { page } = view;
  const { state } = page;
  const alert = el("p", { class: "alert", role: "alert", hidden: true });
  const body = el("div", {});
  const form = stateForm(page, "The model", edited, alert, body);

  function edited({ name, type }) {
    if (name === "model") state.set({ config: null });
    if (name === "config") state.set({ model: state.get("config") ? null : FIRST.model });
    if (name === "model" || name === "phase" || name === "config") {
      complete(page);
      if (name === "config") return soon(view, TYPE_MS);
      // The control that was edited is replaced, and tells nobody that its edit is finished.
      limitLength(page);
      state.commit();
      fill();
      form.querySelector(name === "phase" ? "[name=phase]:checked" : `[name=${name}]`)?.focus();
    }
    return soon(view, type === "text" ? TYPE_MS : SLIDE_MS);
  }

  function fill() {
    const model = modelOf(page);
    const lengths = { ...LENGTHS, most: longestExponent(page) };
    body.replaceChildren(
      field("model", "Model", choiceOf(page)),
      ...(model ? modelFacts(page) : [hint(state.get("config") ? "A configuration of your own, below." : "No model of this name ships.")]),
      phaseChoice(page, phasesOf(model)),
      slider(view, "batch", state.get("phase") === "train" ? "Sequences in the batch" : "Sequences at a time", BATCHES),
      isFixed(page)
        ? hint(model?.fixed_length ? `Every input has ${grouped(model.fixed_length)} positions.` : "The input fixes their length.")
        : slider(view, "length", LENGTH_WORDS[state.get("phase")] ?? LENGTH_WORDS.forward, lengths),
      devicePicker(page, { name: DEVICES, label: "Devices", most: MOST_DEVICES, nobody: "none yet", coloured: false, changed: () => soon(view, 0) }),
      folded(
        { class: "more", open: Boolean(state.get("weights") || state.get("plan.tp") || state.get("config")) || hasPower(page) },
        "More settings",
        el(
          "div",
          { class: "grid" },
          field("weights", "Weights in", choice(Object.keys(FORMATS), state.get("weights"), FORMATS)),
          field("plan.tp", "Devices per copy", choice(SPLITS, state.get("plan.tp", "1"))),
        ),
        powerFields(page),
        ownConfig(state),
      ),
    );
  }

  fill();
  return { element: form, problem: (refusal) => showProblem(form, alert, refusal) };
}

/** The choice of a model, or of the configuration that is given below. */
function choiceOf(page) {
  const select = modelChoice(page);
  if (!page.state.get("config")) return select;
  select.prepend(el("option", { value: OWN, text: "Your own configuration" }));
  select.value = OWN;
  return select;
}

function phaseChoice({ state }, phases) {
  const one = (phase) =>
    el(
      "label",
      {},
      el("input", { type: "radio", name: "phase", value: phase, checked: state.get("phase") === phase }),
      el("span", { text: PHASES[phase] }),
    );
  return el(
    "fieldset",
    { class: "field", "data-field": "phase" },
    el("legend", { text: "What runs" }),
    el("div", { class: "segments" }, phases.map(one)),
    el("p", { class: "field-error", hidden: true }),
  );
}

/** A number with a slider over powers of two. */
function slider(view, name, label, { least, most }) {
  const { state } = view.page;
  const box = numberField(state, name, label);
  const number = box.querySelector("input");
  const exponent = () => Math.min(most, Math.max(least, Math.round(Math.log2(Number(state.get(name)) || 1))));
  const range = el("input", { type: "range", min: least, max: most, step: 1, "aria-label": `${label}, slider`, "data-keep": name });
  const shown = () => {
    range.value = exponent();
    range.setAttribute("aria-valuetext", grouped(2 ** exponent()));
  };
  range.addEventListener("input", (event) => {
    event.stopPropagation();
    state.set({ [name]: 2 ** Number(range.value) });
    number.value = state.get(name);
    range.setAttribute("aria-valuetext", grouped(2 ** Number(range.value)));
    soon(view, SLIDE_MS);
  });
  range.addEventListener("change", () => state.commit());
  number.addEventListener("input", () => window.queueMicrotask(shown));
  shown();
  box.classList.add("slider");
  number.before(range);
  return box;
}

function ownConfig(state) {
  const area = el("textarea", { rows: "5", spellcheck: "false", placeholder: '{"model_type": "llama", …}', maxlength: "200000" });
  area.value = state.get("config");
  return group(
    "Another model",
    field("config", "Its config.json", area),
    hint("From the model's repository; no weights are needed."),
    numberField(state, "source", "Tokens that its encoder of text reads"),
  );
}

function draw(view, { body, answer }) {
  const { page, answers } = view;
  const again = () => draw(view, { body, answer });
  const rows = answer.answers.filter((row) => row.latency_s);
  const refused = answer.answers.filter((row) => !row.latency_s);
  const titles = answer.devices > 1 ? ` on ${answer.devices} devices each` : "";
  redraw(
    answers,
    lead(answer.model.name, `${stepWords(answer)}${titles}; ${formatWords(answer.formats)}${settingWords(body)}`),
    ...(rows.length ? panels(page, answer, rows, { again, priced: () => soon(view, TYPE_MS) }) : []),
    refusedPanel(refused),
    requestBlock(page, PATH, body, pythonOf(body)),
  );
  const best = rows.toSorted((a, b) => a.latency_s.value - b.latency_s.value)[0];
  if (best) page.say(`${answer.model.name}, ${stepWords(answer)}; fastest: ${best.title}, ${showInterval(best.latency_s, "s").text}`);
}

const pythonOf = ({ devices, ...rest }) => pythonCall("estimate", [devices], rest);
