// A whole program of MLIR text on devices: what a run takes, and where in the text the time and energy go.
import { answersPart, awaitAnother, cautions, coverageWords, whenAnswered } from "../answers.js";
import { Refusal } from "../ask.js";
import { breakdownBars, figureOf, scaleFor } from "../bars.js";
import { pythonCall, requestBlock } from "../copy.js";
import { devicePicker } from "../devices.js";
import { el, table } from "../dom.js";
import { COVERAGES, FIRST_DEVICE, choice, field, numberField, showProblem, wholeOrText } from "../form.js";
import { show, showInterval } from "../format.js";
import { groupBars, programText, sharesByLine } from "../program.js";
import { EXAMPLES } from "../programs.js";

export const id = "mlir";
export const title = "MLIR";

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
  if (!state.get("devices"))
    state.set({ devices: page.catalogue.device(FIRST_DEVICE)?.name ?? page.catalogue.devices[0]?.name ?? "" });
  const alert = el("p", { class: "alert", role: "alert", hidden: true });
  const view = {
    page,
    root,
    alert,
    answers: answersPart(),
    settings: el("div", {}),
    open: new Map(),
    functions: [],
    timer: 0,
    answer: null,
  };
  view.program = programText({
    value: state.get("text") || longText,
    trouble: (words) => view.problem(new Refusal(0, { errors: [{ field: "text", detail: words }] })),
    changed: (text, whole) => textChanged(view, text, whole),
  });
  view.program.buttons.prepend(
    ...EXAMPLES.map(({ words, text }) =>
      el("button", { type: "button", text: words, onclick: () => view.program.replace(text) }),
    ),
  );
  view.problem = (refusal) => showProblem(root, alert, refusal);
  const form = el(
    "form",
    { class: "panel spec", novalidate: true, autocomplete: "off", "aria-label": "How it runs" },
    alert,
    view.settings,
  );
  // An edit of the text is one step of the history, not one for each key.
  view.program.element.addEventListener("change", ({ target }) => {
    if (target.name) state.commit();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (!target.name) return;
    state.set({ [target.name]: target.value.trim() });
    soon(view);
  });
  form.addEventListener("change", ({ target }) => {
    if (target.name) state.commit();
  });
  root.append(el("div", { class: "columns mlir" }, view.program.element, form, view.answers));
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
    view.open = new Map();
    view.functions = [];
    drawSettings(view);
  }
  if (whole) state.commit();
  soon(view);
}

function drawSettings(view) {
  const { page, settings } = view;
  const { state } = page;
  const kept = document.activeElement?.name;
  const names = [...new Set([...view.open.keys(), ...state.under("bind.").map(([name]) => name)])];
  const functions = Object.fromEntries([["", "the main one"], ...view.functions.map((name) => [name, name])]);
  const coverages = Object.fromEntries(
    [...COVERAGES, state.get("coverage", "0.9")].map((one) => [one, `${(100 * Number(one)).toFixed(0)} % of cases`]),
  );
  settings.replaceChildren(
    devicePicker(page, { name: "devices", label: "Devices", most: 8, nobody: "none yet", changed: () => soon(view) }),
    names.length
      ? el(
          "fieldset",
          { class: "group field", "data-field": "bind" },
          el("legend", { text: "Sizes the program leaves open" }),
          el("p", { class: "field-error", hidden: true }),
          el(
            "div",
            { class: "grid" },
            names.map((name) => numberField(state, `bind.${name}`, name, view.open.get(name) ?? "")),
          ),
        )
      : el("div", { class: "field", "data-field": "bind", hidden: true }, el("p", { class: "field-error" })),
    el(
      "div",
      { class: "pair" },
      field("function", "Function", choice(Object.keys(functions), state.get("function"), functions)),
      field(
        "compiler",
        "Compiler",
        choice(Object.keys(COMPILERS), state.get("compiler"), COMPILERS),
        "What builds the program on a CPU",
      ),
    ),
    el(
      "div",
      { class: "pair" },
      numberField(state, "threads", "CPU threads", "Left empty: all cores", "all"),
      field("coverage", "Intervals contain", choice(COVERAGES, state.get("coverage", "0.9"), coverages)),
    ),
  );
  if (kept) settings.querySelector(`[name="${CSS.escape(kept)}"]`)?.focus();
}

function bodyOf({ page, program }) {
  const { state } = page;
  const bind = Object.fromEntries(state.under("bind.").map(([name, text]) => [name, wholeOrText(text)]));
  return {
    text: program.text(),
    devices: page.catalogue.names(state.list("devices")),
    ...(state.get("function") ? { function: state.get("function") } : {}),
    ...(Object.keys(bind).length ? { bind } : {}),
    ...(state.get("compiler") ? { compiler: state.get("compiler") } : {}),
    ...(state.get("threads") ? { threads: wholeOrText(state.get("threads")) } : {}),
    ...(state.get("coverage") ? { coverage: Number(state.get("coverage")) } : {}),
  };
}

async function update(view) {
  await whenAnswered(
    view.answers,
    async (stillAsked) => {
      const body = bodyOf(view);
      if (!body.text.trim()) {
        view.answer = null;
        view.program.heat(new Map());
        view.answers.replaceChildren(
          el("p", {
            class: "panel hint",
            text: "Paste a program of the stablehlo, linalg, tosa or torch dialects, drop its file, or take an example. It is read by this service alone.",
          }),
        );
        return;
      }
      if (!body.devices.length) throw new Refusal(0, { errors: [{ field: "devices", detail: "Choose a device." }] });
      const answer = await askedOf(view, body, stillAsked);
      stillAsked();
      view.answer = answer;
      if (view.functions.join() !== answer.functions.join()) {
        view.functions = answer.functions;
        drawSettings(view);
      }
      draw(view, body);
    },
    view.problem,
  );
}

/** The answer; a refusal that names open sizes or functions puts fields for them on the page first. */
async function askedOf(view, body, stillAsked) {
  try {
    return await view.page.ask("mlir", PATH, body);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    stillAsked();
    for (const one of error.errors) {
      const sizes = one.field === "bind" ? [...one.detail.matchAll(OPEN_SIZE)] : [];
      const names = one.field === "function" ? CHOOSE_FROM.exec(one.detail)?.[1].split(", ") : null;
      for (const [, name, what] of sizes) view.open.set(name, what);
      if (sizes.length)
        one.detail = `The program leaves sizes open. Give each a number: ${sizes.map(([, name, what]) => `${name} (${what})`).join(", ")}.`;
      if (names) view.functions = names;
      if (sizes.length || names) drawSettings(view);
    }
    throw error;
  }
}

const callOf = ({ text, devices, ...rest }) => pythonCall("predict_mlir", [text, devices], rest);

function draw(view, body) {
  const { page, answers, answer } = view;
  const found = answer.answers;
  const scale = (target) => scaleFor(found.flatMap((one) => (one[target] ? [one[target].lower, one[target].upper] : [])));
  const scales = { latency_s: scale("latency_s"), power_w: scale("power_w"), energy_j: scale("energy_j") };
  answers.replaceChildren(
    el(
      "p",
      { class: "lead" },
      el("strong", { text: found[0].function }),
      ` ${show(found[0].flops, "flop")}, ${show(found[0].bytes, "b")}, read by ${answer.reader}; ${coverageWords(found[0].coverage)}`,
    ),
    answer.refusals.length
      ? el(
          "div",
          { class: "cautions mild" },
          el("strong", { text: "Readers asked before" }),
          el(
            "ul",
            {},
            answer.refusals.map(({ reader, reason }) => el("li", { text: `${reader}: ${reason}` })),
          ),
        )
      : "",
    el(
      "div",
      { class: found.length > 1 ? "cards several" : "cards" },
      found.map((one, i) => card(page, one, scales, { series: i + 1, several: found.length > 1 })),
    ),
    wherePanel(view, body),
    body.text.length <= LONGEST_SHOWN
      ? requestBlock(page, PATH, body, callOf(body))
      : el("p", {
          class: "panel hint",
          text: "This program is too long to be written out as a request, or to be held by the address of this page.",
        }),
  );
  page.say(found.map((one) => `${page.catalogue.title(one.device)}: ${showInterval(one.latency_s, "s").text}`).join("; "));
}

function card(page, found, scales, { series, several }) {
  const binds = Object.entries(found.breakdown).sort(([, a], [, b]) => b - a)[0]?.[0];
  const how = [
    found.compiler && `compiler ${COMPILERS[found.compiler] ?? found.compiler}`,
    found.threads !== null && `${found.threads} threads`,
    found.method,
  ]
    .filter(Boolean)
    .join(", ");
  return el(
    "article",
    { class: `panel card series-${series}` },
    el("h2", {}, el("span", { class: "swatch", "aria-hidden": "true" }), page.catalogue.title(found.device)),
    el(
      "div",
      { class: "figures" },
      figureOf("Latency", found.latency_s, "s", scales.latency_s, { limit: found.bound_s }),
      figureOf("Power", found.power_w, "w", scales.power_w, {
        unknown: "It is unknown of one of the kernels, or for this device.",
      }),
      figureOf("Energy", found.energy_j, "j", scales.energy_j, { unknown: "Energy is latency times power." }),
    ),
    cautions(found),
    notUnderstood(found.not_understood),
    el(
      "details",
      { class: "why", open: !several },
      el("summary", { text: "The least time on paper, by limit" }),
      breakdownBars(found.breakdown, binds, found.latency_s.value),
      el("p", { class: "hint", text: `${how}.` }),
    ),
    Object.keys(found.characteristics).length
      ? el(
          "details",
          { class: "why" },
          el("summary", { text: "What the compiled program is like" }),
          table(
            `Compiled program on ${found.device}`,
            ["What", "Value", "From", "To"],
            Object.entries(found.characteristics).map(([name, one]) => [
              name.replaceAll("_", " "),
              ...[one.value, one.lower, one.upper].map((value) => String(Number(value.toPrecision(3)))),
            ]),
          ),
        )
      : "",
  );
}

function notUnderstood(ops) {
  if (!ops.length) return "";
  return el(
    "div",
    { class: "cautions" },
    el("strong", { text: `${ops.length} ${ops.length === 1 ? "operation was" : "operations were"} not understood` }),
    el(
      "ul",
      {},
      ops.map(({ op, reason }) => el("li", {}, el("code", { text: op }), `: ${reason}`)),
    ),
  );
}

function wherePanel(view, body) {
  const { page, program, answer } = view;
  const { state } = page;
  const found = answer.answers.find(({ device }) => device === state.get("mlir.where")) ?? answer.answers[0];
  const energy = found.groups.some((one) => one.energy_j !== null);
  const series = answer.answers.indexOf(found) + 1;
  program.heat(sharesByLine(found.groups));
  const titles = Object.fromEntries(answer.answers.map(({ device }) => [device, page.catalogue.title(device)]));
  const pick = choice(Object.keys(titles), found.device, titles);
  pick.setAttribute("aria-label", "Where it goes on");
  pick.addEventListener("change", () => {
    state.set({ "mlir.where": pick.value });
    state.commit();
    draw(view, body);
    view.answers.querySelector('select[aria-label="Where it goes on"]').focus();
  });
  const rows = found.groups.map((one) => [
    one.title,
    one.lines.join(", ") || "not told",
    String(one.runs),
    show(one.latency_s, "s"),
    show(one.energy_j, "j"),
    show(one.flops, "flop"),
    show(one.bytes, "b"),
    one.bound,
    one.spec || "no family",
    one.stand_in || (one.understood ? "" : "a guess"),
  ]);
  return el(
    "section",
    { class: `panel series-${series}` },
    el(
      "div",
      { class: "row" },
      el("h2", { text: energy ? "Where time and energy go" : "Where the time goes" }),
      answer.answers.length > 1 ? pick : "",
    ),
    groupBars(found.groups, { most: MOST_BARS, select: program.select, energy }),
    el("p", {
      class: "hint",
      text: `${energy ? `Upper bar: share of the time. Lower bar: share of the energy${found.groups.some((one) => one.energy_j === null) ? " that is known" : ""}. ` : ""}${found.groups.length > MOST_BARS ? `The ${MOST_BARS} longest of ${found.groups.length} kernels; the table has all. ` : ""}Bars beside the line numbers of the program show the same by line.`,
    }),
    el(
      "details",
      {},
      el("summary", { text: "Kernels as a table" }),
      table(
        "Kernels of the program",
        ["Kernel", "Lines", "Runs", "Latency", "Energy", "Arithmetic", "Bytes", "Binds", "Predicted as", "Remark"],
        rows,
      ),
    ),
  );
}
