// A whole program of MLIR text on devices: what a run takes, and where in the text the time and energy go.
import { answersPart, awaitAnother, cautions, coverageWords, whenAnswered } from "../answers.js";
import { Refusal, refusalAt } from "../ask.js";
import { breakdownBars, figuresOf, scaleOf } from "../bars.js";
import { pythonCall, requestBlock } from "../copy.js";
import { devicePicker } from "../devices.js";
import { button, caution, details, el, folded, headed, hint, lead, redraw, table } from "../dom.js";
import * as form from "../form.js";
import { TARGETS, show, showInterval } from "../format.js";
import { groupBars, programText, sharesByLine } from "../program.js";
import { EXAMPLES } from "../programs.js";

const PATH = "v1/predict/mlir";
const SETTLE_MS = 300;
const LONGEST_IN_ADDRESS = 6000;
const LONGEST_SHOWN = 20_000;
const MOST_BARS = 24;
const COMPILERS = { "": "the usual one", iree: "IREE", xla: "XLA" };
const OPEN_SIZE = /(?:^|[:;] )([^\s:;]+)(?: \(or [^)]*\))?: (size \d+ of argument \d+)/g;
const CHOOSE_FROM = /name one of: (.+)$/;

// A text too long for an address lives as long as the page.
let longText = "";

export function render(root, page) {
  const { state } = page;
  form.completeDevices(page);
  const alert = el("p", { class: "alert", role: "alert", hidden: true });
  const view = {
    page,
    answers: answersPart(),
    settings: el("div", {}),
    openSizes: new Map(),
    functions: [],
    timer: 0,
    problem: (refusal) => form.showProblem(root, alert, refusal),
  };
  view.program = programText({
    value: state.get("text") || longText,
    trouble: (words) => view.problem(refusalAt("text", words)),
    changed: (text, whole) => textChanged(view, text, whole),
  });
  view.program.buttons.prepend(...EXAMPLES.map(({ words, text }) => button(words, () => view.program.replace(text))));
  // An edit of the text is one step of the history, not one for each key.
  view.program.element.addEventListener("change", ({ target }) => {
    if (target.name) state.commit();
  });
  const settings = form.stateForm(page, "How it runs", () => soon(view), alert, view.settings);
  root.append(el("div", { class: "columns mlir" }, view.program.element, settings, view.answers));
  drawSettings(view);
  update(view);
  return () => window.clearTimeout(view.timer);
}

function soon(view) {
  window.clearTimeout(view.timer);
  view.timer = window.setTimeout(() => update(view), SETTLE_MS);
  awaitAnother(view.answers);
}

function textChanged(view, text, whole) {
  const { state } = view.page;
  const fits = text.length <= LONGEST_IN_ADDRESS;
  longText = fits ? "" : text;
  state.set({ text: fits ? text : "" });
  if (whole) {
    // Sizes and a function of another program say nothing about this one.
    state.drop("bind.");
    state.set({ function: null });
    view.openSizes = new Map();
    view.functions = [];
    drawSettings(view);
    state.commit();
  }
  soon(view);
}

function drawSettings(view) {
  const { page, settings } = view;
  const { state } = page;
  const focused = document.activeElement?.name;
  const names = [...new Set([...view.openSizes.keys(), ...state.under("bind.").map(([name]) => name)])];
  const functions = Object.fromEntries([["", "the main one"], ...view.functions.map((name) => [name, name])]);
  const select = (name, label, words, help) =>
    form.field(name, label, form.choice(Object.keys(words), state.get(name), words), help);
  const sizes = names.map((name) => form.numberField(state, `bind.${name}`, name, view.openSizes.get(name) ?? ""));
  settings.replaceChildren(
    devicePicker(page, { name: "devices", label: "Devices", most: 8, nobody: "none yet", changed: () => soon(view) }),
    el(
      "fieldset",
      { class: "group field", "data-field": "bind", hidden: !names.length },
      el("legend", { text: "Sizes the program leaves open" }),
      el("p", { class: "field-error", hidden: true }),
      el("div", { class: "grid" }, sizes),
    ),
    el(
      "div",
      { class: "pair" },
      select("function", "Function", functions),
      select("compiler", "Compiler", COMPILERS, "What builds the program on a CPU"),
    ),
    el(
      "div",
      { class: "pair" },
      form.numberField(state, "threads", "CPU threads", "Left empty: all cores", "all"),
      form.coverageField(state),
    ),
  );
  if (focused) settings.querySelector(`[name="${CSS.escape(focused)}"]`)?.focus();
}

function bodyOf(page, text) {
  const { state } = page;
  const bind = Object.fromEntries(state.under("bind.").map(([name, size]) => [name, form.wholeOrText(size)]));
  return {
    text,
    devices: form.chosenDevices(page),
    ...(state.get("function") ? { function: state.get("function") } : {}),
    ...(Object.keys(bind).length ? { bind } : {}),
    ...(state.get("compiler") ? { compiler: state.get("compiler") } : {}),
    ...(state.get("threads") ? { threads: form.wholeOrText(state.get("threads")) } : {}),
    ...(state.get("coverage") ? { coverage: form.numberOrText(state.get("coverage")) } : {}),
  };
}

function update(view) {
  const load = async () => {
    const text = view.program.text();
    if (!text.trim()) return null;
    const body = bodyOf(view.page, text);
    return { body, answer: await view.page.ask("mlir", PATH, body) };
  };
  whenAnswered(
    view.answers,
    load,
    (answer) => draw(view, answer),
    (refusal) => {
      if (refusal) offerChoices(view, refusal);
      view.problem(refusal);
    },
  );
}

/** Put fields on the page for the open sizes or functions that a refusal names. */
function offerChoices(view, refusal) {
  for (const one of refusal.errors) {
    const sizes = one.field === "bind" ? [...one.detail.matchAll(OPEN_SIZE)] : [];
    const names = one.field === "function" ? CHOOSE_FROM.exec(one.detail)?.[1].split(", ") : null;
    for (const [, name, what] of sizes) view.openSizes.set(name, what);
    if (sizes.length)
      one.detail = `The program leaves sizes open. Give each a number: ${sizes.map(([, name, what]) => `${name} (${what})`).join(", ")}.`;
    if (names) view.functions = names;
    if (sizes.length || names) drawSettings(view);
  }
}

const callOf = ({ text, devices, ...rest }) => pythonCall("predict_mlir", [text, devices], rest);

function draw(view, loaded) {
  const { page, answers, program } = view;
  if (!loaded) {
    program.heat(new Map());
    const words =
      "Paste a program of the stablehlo, linalg, tosa or torch dialects, drop its file, or take an example. It is read by this service alone.";
    answers.replaceChildren(el("p", { class: "panel hint", text: words }));
    return;
  }
  const { body, answer } = loaded;
  if (view.functions.join() !== answer.functions.join()) {
    view.functions = answer.functions;
    drawSettings(view);
  }
  const programs = answer.answers;
  const [first] = programs;
  const several = programs.length > 1;
  const scales = Object.fromEntries(Object.keys(TARGETS).map((target) => [target, scaleOf(programs, target)]));
  redraw(
    answers,
    lead(
      first.function,
      `${show(first.flops, "flop")}, ${show(first.bytes, "b")}, read by ${answer.reader}; ${coverageWords(first.coverage)}`,
    ),
    answer.refusals.length
      ? caution("Readers asked before", answer.refusals.map(({ reader, reason }) => `${reader}: ${reason}`), { mild: true })
      : "",
    el(
      "div",
      { class: several ? "cards several" : "cards" },
      programs.map((one, i) => card(page, one, scales, { series: i + 1, several })),
    ),
    wherePanel(view, answer, () => draw(view, loaded)),
    body.text.length <= LONGEST_SHOWN
      ? requestBlock(page, PATH, body, callOf(body))
      : el("p", {
          class: "panel hint",
          text: "This program is too long to be written out as a request, or to be held by the address of this page.",
        }),
  );
  page.say(programs.map((one) => `${page.catalogue.title(one.device)}: ${showInterval(one.latency_s, "s").text}`).join("; "));
}

function card(page, program, scales, { series, several }) {
  const binds = Object.entries(program.breakdown).sort(([, a], [, b]) => b - a)[0]?.[0];
  const how = [
    program.compiler && `compiler ${COMPILERS[program.compiler] ?? program.compiler}`,
    program.threads !== null && `${program.threads} threads`,
    program.method,
  ];
  const noPower = "It is unknown of one of the kernels, or for this device.";
  const characteristics = Object.entries(program.characteristics).map(([name, one]) => [
    name.replaceAll("_", " "),
    ...[one.value, one.lower, one.upper].map((value) => String(Number(value.toPrecision(3)))),
  ]);
  return el(
    "article",
    { class: `panel card series-${series}` },
    el("h2", {}, el("span", { class: "swatch", "aria-hidden": "true" }), page.catalogue.title(program.device)),
    figuresOf(program, scales, { limits: { latency_s: program.bound_s }, noPower }),
    cautions(program),
    notUnderstood(program.not_understood),
    folded(
      { class: "why", open: !several },
      "The least time on paper, by limit",
      breakdownBars(program.breakdown, binds, program.latency_s.value),
      hint(`${how.filter(Boolean).join(", ")}.`),
    ),
    characteristics.length
      ? folded(
          { class: "why" },
          "What the compiled program is like",
          table(`Compiled program on ${program.device}`, ["What", "Value", "From", "To"], characteristics),
        )
      : "",
  );
}

function notUnderstood(ops) {
  if (!ops.length) return "";
  return caution(
    `${ops.length} ${ops.length === 1 ? "operation was" : "operations were"} not understood`,
    ops.map(({ op, reason }) => [el("code", { text: op }), `: ${reason}`]),
  );
}

// What is no kernel, but the host that starts them.
const isHost = ({ kind }) => kind === "control";

function wherePanel({ page, program }, { answers }, again) {
  const shown = answers.find(({ device }) => device === page.state.oneOf("mlir.where", answers.map((one) => one.device), answers[0].device));
  const energy = shown.groups.some((one) => one.energy_j !== null);
  const titles = Object.fromEntries(answers.map(({ device }) => [device, page.catalogue.title(device)]));
  program.heat(sharesByLine(shown.groups));
  const rows = shown.groups.map((one) => [
    one.title,
    one.lines.join(", ") || (isHost(one) ? "" : "not told"),
    String(one.runs),
    show(one.latency_s, "s"),
    show(one.energy_j, "j"),
    show(one.flops, "flop"),
    show(one.bytes, "b"),
    one.bound,
    one.spec || (isHost(one) ? "" : "no family"),
    one.stand_in || (one.understood ? "" : "a guess"),
  ]);
  return el(
    "section",
    { class: `panel series-${answers.indexOf(shown) + 1}` },
    headed(
      energy ? "Where time and energy go" : "Where the time goes",
      answers.length > 1 ? form.shownBy(page, "mlir.where", "Where it goes on", titles, shown.device, again) : "",
    ),
    groupBars(shown.groups, { most: MOST_BARS, select: program.select, energy }),
    hint(
      `${energy ? `Upper bar: share of the time. Lower bar: share of the energy${shown.groups.some((one) => one.energy_j === null) ? " that is known" : ""}. ` : ""}${shown.groups.length > MOST_BARS ? `The ${MOST_BARS} longest of ${shown.groups.length} kernels; the table has all. ` : ""}Bars beside the line numbers of the program show the same by line.`,
    ),
    details(
      "Kernels as a table",
      table(
        "Kernels of the program",
        ["Kernel", "Lines", "Runs", "Latency", "Energy", "Arithmetic", "Bytes", "Binds", "Predicted as", "Remark"],
        rows,
      ),
    ),
  );
}
