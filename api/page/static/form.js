// The spec as a form, made from the JSON Schema of its family. A control is named as its field in the API and in the address.
import { answersPart, awaitAnother, whenAnswered } from "./answers.js";
import { Stale, refusalAt } from "./ask.js";
import { devicePicker } from "./devices.js";
import { el, folded, freshId, hint } from "./dom.js";
import { grouped, inWords } from "./format.js";
import { implChoice } from "./impls.js";
import { namedShapes } from "./presets.js";

const FIRST_FAMILY = "gemm";
const FIRST_DEVICE = "nvidia-h200-sxm-141gb";
/** How long fields rest before their answer is asked for, in milliseconds. */
export const SETTLE_MS = 180;
const COVERAGES = ["0.5", "0.8", "0.9", "0.95"];
const OPTIONAL = ["variant", "impl", "kv_dtype", "cache_state", "timing"];

/** A whole number as JSON's; anything else goes out as it is, and the service says what is wrong with it. */
export function wholeOrText(text) {
  return /^-?\d+$/.test(text) ? Number(text) : text;
}

/** The same of any number. */
export const numberOrText = (text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text);

/** A whole number from 1 to `most`; any other text is refused at the field. */
export function wholeAt(field, text, most) {
  if (/^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= most) return Number(text);
  throw refusalAt(field, `must be a whole number from 1 to ${most}${text && `, not \u201c${text.slice(0, 60)}\u201d`}`);
}

/** The spec that the state's fields describe, without a device. */
export function specOf({ state }) {
  const numbers = (prefix) => Object.fromEntries(state.under(prefix).map(([name, text]) => [name, wholeOrText(text)]));
  const spec = { family: state.get("family"), dtype: state.get("dtype"), sizes: numbers("sizes.") };
  for (const name of OPTIONAL) if (state.get(name)) spec[name] = state.get(name);
  if (state.get("threads")) spec.threads = wholeOrText(state.get("threads"));
  const config = numbers("config.");
  if (Object.keys(config).length) spec.config = config;
  if (state.get("coverage")) spec.coverage = numberOrText(state.get("coverage"));
  return spec;
}

/** Whether the sizes say which variant it is, where none is given. */
function impliedVariant({ required, properties }) {
  return !required.includes("variant") && !("default" in properties.variant);
}

/** Give the state what it needs to be asked about: a family, a device, a format and every size. */
function complete({ state, catalogue }) {
  const family = state.get("family");
  const known = catalogue.families.includes(family);
  if (!known) changeFamily(state, catalogue.families.includes(FIRST_FAMILY) ? FIRST_FAMILY : catalogue.families[0]);
  const schema = catalogue.schema(state.get("family"));
  const [example] = schema.examples;
  completeDevices({ state, catalogue });
  if (!state.get("dtype")) state.set({ dtype: example.dtype });
  if (!state.get("variant") && schema.required.includes("variant")) state.set({ variant: example.variant });
  completeSizes(state, "sizes.", catalogue.exampleSizes(state.get("family")));
  return known || !family ? "" : `This service knows no kernel family ${family}; ${state.get("family")} is shown instead.`;
}

/** Give the state those of `sizes` that it lacks under `prefix`. */
export function completeSizes(state, prefix, sizes) {
  for (const [name, size] of Object.entries(sizes)) if (!state.get(prefix + name)) state.set({ [prefix + name]: size });
}

/** Another family: sizes, tuning numbers and the variant of the one before say nothing about it. */
function changeFamily(state, family) {
  for (const prefix of ["sizes.", "config.", "sweep."]) state.drop(prefix);
  state.set({ family, variant: null });
}

/** Give the state a device where it has none. */
export function completeDevices({ state, catalogue }) {
  if (!state.get("devices")) state.set({ devices: catalogue.device(FIRST_DEVICE)?.name ?? catalogue.devices[0]?.name ?? "" });
}

/** The devices chosen, by their names in the catalogue; a refusal where there is none. */
export function chosenDevices({ state, catalogue }) {
  const names = catalogue.names(state.list("devices"));
  if (!names.length) throw refusalAt("devices", "Choose a device.");
  return names;
}

/** A label, a control and a place for what is wrong with it. `help` is shown on hovering. */
export function field(name, label, control, help = "") {
  const id = freshId("field");
  control.id = id;
  control.setAttribute("name", name);
  control.setAttribute("aria-describedby", `${id}-error`);
  if (help) control.title = help;
  return el(
    "div",
    { class: "field", "data-field": name },
    el("label", { for: id, text: label, title: help || null }),
    control,
    el("p", { class: "field-error", id: `${id}-error`, hidden: true }),
  );
}

/** Refusals name fields as the API does, the address by the view that they belong to. */
export function named(apiName, element) {
  element.dataset.field = apiName;
  return element;
}

/** A choice among values; a value that is none of them is offered too, so that what an address asks for is what is sent. */
export function choice(values, chosen, words = {}) {
  const all = values.includes(chosen) ? values : [...values, chosen];
  const select = el("select", {}, all.map((value) => el("option", { value, text: words[value] ?? value })));
  select.value = chosen;
  return select;
}

/** A choice of how an answer is shown, which is no question to the service: it changes the state's field `name`, then calls
 * `draw()`. `words` maps values to words. */
export function shownBy({ state }, name, label, words, chosen, draw) {
  const select = choice(Object.keys(words), chosen, words);
  select.setAttribute("aria-label", label);
  select.setAttribute("data-keep", name);
  select.addEventListener("change", () => {
    state.set({ [name]: select.value });
    state.commit();
    select.focus(); // Not every browser focuses what is chosen with the pointer.
    draw();
  });
  return select;
}

/** A field for a whole number of the state. */
export function numberField(state, name, label, help = "", placeholder = "") {
  const attributes = { value: state.get(name), inputmode: "numeric", autocomplete: "off", placeholder, maxlength: "16" };
  return field(name, label, el("input", attributes), help);
}

/** The field for the share of cases that intervals contain. */
export function coverageField(state, help = "") {
  const chosen = state.get("coverage", "0.9");
  const inPercent = (one) => (Number.isFinite(Number(one)) ? `${(100 * Number(one)).toFixed(0)} %` : one);
  const words = Object.fromEntries([...COVERAGES, chosen].map((one) => [one, inPercent(one)]));
  return field("coverage", "Intervals contain", choice(COVERAGES, chosen, words), help);
}

/** Fields side by side under a heading. */
export function group(heading, ...fields) {
  return el("fieldset", { class: "group" }, el("legend", { text: heading }), fields);
}

/** A form whose fields are the state's: `changed(control)` is called on each edit of one, and a finished edit is a step of
 * the history. */
export function stateForm({ state }, label, changed, ...children) {
  const form = el("form", { class: "panel spec", novalidate: true, autocomplete: "off", "aria-label": label }, children);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (!target.name) return;
    state.set({ [target.name]: target.value.trim() });
    changed(target);
  });
  form.addEventListener("change", ({ target }) => {
    if (target.name) state.commit();
  });
  return form;
}

/** A view of a form of a spec and the answers to it, put into `root`: `load(page)` answers, `draw(page, answers, answer)` shows.
 * Options are those of `specForm`, and `extra(page, ask)`. Returns the part of the answers, `ask()`, and `leave()`, which is to be
 * called when the view is left. */
export function specView(root, page, { load, draw, extra = null, ...options }) {
  const answers = answersPart();
  const ask = () => whenAnswered(answers, () => load(page), (answer) => draw(page, answers, answer), form.problem);
  const form = specForm(page, { answers, changed: ask, extra: extra && (() => extra(page, ask)), ...options });
  root.append(el("div", { class: "columns" }, form.element, answers));
  ask();
  return { answers, ask, leave: form.leave };
}

/** The form of a spec. `changed` is called when the fields have settled, `answers` is busy until then; `devices: false` and
 * `knobs: false` leave their choice out, `extra()` is a part that is put behind the sizes, `more` one of the further settings:
 * { fields(page), isGiven(page) }. */
function specForm(page, { answers, devices = true, knobs: tuned = true, extra, more, changed }) {
  const { state, catalogue } = page;
  const alert = el("p", { class: "alert", role: "alert", hidden: true });
  const body = el("div", {});
  const note = complete(page);
  let refreshPreset = () => {};
  let impls = null;
  let timer = 0;
  const soon = () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(changed, SETTLE_MS);
    awaitAnother(answers);
  };

  function draw() {
    const schema = catalogue.schema(state.get("family"));
    const { properties } = schema;
    const names = (property) => property.examples ?? property.enum;
    const plain = impliedVariant(schema) ? "by the sizes" : "plain";
    const variants = properties.variant.enum.filter((name) => name !== null);
    const variant = state.get("variant", properties.variant.default ?? (variants.includes("") ? "" : variants[0]));
    body.replaceChildren(
      field("family", "Kernel", choice(catalogue.families, state.get("family"))),
      hint(schema.description.split("\n")[0]),
      devices ? devicePicker(page, { name: "devices", label: "Devices", most: 8, nobody: "none yet", changed: devicesChanged }) : "",
      el(
        "div",
        { class: "pair" },
        field("dtype", "Number format", choice(names(properties.dtype), state.get("dtype"))),
        variants.length > 1
          ? field("variant", "Variant", choice(variants, variant, { "": plain }), properties.variant.description)
          : "",
      ),
      sizeFields(schema),
      extra ? extra() : "",
      !more && (state.get("power_limit_w") || state.get("clock_hz")) ? hint("Power limits and clocks are for the view Kernel; here devices run as they come.") : "",
      moreFields(properties, names(properties.kv_dtype)),
    );
  }

  function sizeFields(schema) {
    const { properties } = schema.properties.sizes;
    const named = namedShapes(schema.properties.family.const);
    const shapes = [...named, ...schema.examples.slice(1).map(({ sizes }) => ({ sizes }))];
    const fields = Object.entries(properties)
      .sort(([, a], [, b]) => ("default" in a) - ("default" in b))
      .map(([name, one]) => numberField(state, `sizes.${name}`, name, one.description));
    return group("Sizes", shapes.length ? presets(schema, shapes) : "", el("div", { class: "grid" }, fields));
  }

  function presets(schema, shapes) {
    const { properties } = schema.properties.sizes;
    const unusual = (sizes) => Object.entries(sizes).filter(([name, size]) => properties[name]?.default !== size);
    const id = freshId("preset");
    const options = shapes.map(({ name, sizes }, i) =>
      el("option", { value: String(i), text: name ?? inWords(Object.fromEntries(unusual(sizes)), grouped) }),
    );
    const count = shapes.filter(({ name }) => name).length;
    const preset = el(
      "select",
      { id },
      el("option", { value: "", text: "Sizes of well-known models…" }),
      count ? el("optgroup", { label: "By name" }, options.slice(0, count)) : "",
      el("optgroup", { label: "Sizes that were measured" }, options.slice(count)),
    );
    const same = ({ sizes }) => Object.entries(sizes).every(([name, size]) => state.get(`sizes.${name}`) === String(size));
    // Sizes that were edited are a preset's no more.
    refreshPreset = () => {
      preset.value = String(shapes.findIndex(same)).replace("-1", "");
    };
    refreshPreset();
    preset.addEventListener("change", (event) => {
      event.stopPropagation();
      if (!preset.value) return;
      const { sizes } = shapes[preset.value];
      for (const [name, size] of Object.entries(sizes)) state.set({ [`sizes.${name}`]: size });
      if (impliedVariant(schema)) state.set({ variant: null });
      complete(page);
      for (const input of body.querySelectorAll("input[name^='sizes.']")) input.value = state.get(input.name);
      const select = body.querySelector("select[name=variant]");
      if (select) select.value = state.get("variant");
      state.commit();
      soon();
    });
    return el("div", { class: "field" }, el("label", { class: "unseen", for: id, text: "Sizes of well-known models" }), preset);
  }

  function moreFields(properties, formats) {
    const knobs = tuned ? Object.keys(properties.config.properties) : [];
    const names = ["impl", "kv_dtype", "threads", "cache_state", "timing", "coverage", ...knobs.map((one) => `config.${one}`)];
    impls = implChoice(page, () => ({ family: state.get("family"), dtype: state.get("dtype"), devices: devicesOfImpls() }));
    const isOpen = names.some((name) => state.get(name)) || Boolean(more?.isGiven(page));
    if (isOpen) fillImpls();
    const caches = choice(properties.cache_state.enum, state.get("cache_state", "hot"));
    const timings = choice(properties.timing.enum.filter((one) => one !== null), state.get("timing"), { "": "as measured", device: "kernel alone", call: "a call" });
    const kvFormats = choice(["", ...formats.filter((one) => one !== null)], state.get("kv_dtype"), { "": "same" });
    const knob = (name) => numberField(state, `config.${name}`, name, properties.config.description, "not given");
    return folded(
      { class: "more", open: isOpen, ontoggle: ({ target }) => target.open && fillImpls() },
      "More settings",
      el(
        "div",
        { class: "grid" },
        field("impl", "Implementation", impls.select, properties.impl.description),
        field("cache_state", "Caches", caches, properties.cache_state.description),
        field("timing", "Time of", timings, properties.timing.description),
        numberField(state, "threads", "CPU threads", properties.threads.description, "all"),
        field("kv_dtype", "Cache format", kvFormats, properties.kv_dtype.description),
      ),
      more ? more.fields(page) : "",
      coverageField(state, properties.coverage.description),
      knobs.length ? group("Tuning numbers", el("div", { class: "grid" }, knobs.map(knob))) : "",
    );
  }

  /** Devices whose implementations are listed: those chosen, or the first one where all are compared. */
  function devicesOfImpls() {
    const chosen = catalogue.names(state.list(devices ? "devices" : tuned ? "among" : "tiles.device"));
    return chosen.length ? chosen : catalogue.names(state.list("devices").length ? state.list("devices") : [FIRST_DEVICE]);
  }

  function devicesChanged() {
    if (body.querySelector(".more").open) fillImpls();
    soon();
  }

  function fillImpls() {
    // The list is help: without it, what the address asks for is still there.
    impls.fill().catch((error) => {
      if (!(error instanceof Stale)) window.reportError(error);
    });
  }

  function edited({ name, value }) {
    if (name.startsWith("sizes.")) refreshPreset();
    if (name === "dtype" || name === "tiles.device") fillImpls();
    if (name === "family") {
      changeFamily(state, value);
      complete(page);
      draw();
      body.querySelector("[name=family]").focus();
    }
    soon();
  }

  const form = stateForm(page, "The kernel", edited, alert, body);
  draw();
  if (note) showAlert(alert, note);
  return {
    element: form,
    /** Show what was refused, each error at its field; null clears. */
    problem: (refusal) => showProblem(form, alert, refusal),
    leave: () => window.clearTimeout(timer),
  };
}

/** The control an error is about: `requests[2].sizes.m` is the one named `sizes.m`. */
export function controlName(path) {
  const bare = path.replace(/^(requests|kernels|columns)(\[\d+\])?\./, "");
  return /^devices?\b/.test(bare) ? "devices" : bare;
}

function showAlert(alert, text) {
  alert.textContent = text;
  alert.hidden = !text;
}

/** Show a refusal in `root`: each error at the field it names, all of them in `alert`; null clears. Returns what
 * stands at no field. */
export function showProblem(root, alert, refusal) {
  for (const box of root.querySelectorAll(".field.wrong")) {
    box.classList.remove("wrong");
    box.querySelector(".field-error").hidden = true;
    box.querySelector("[aria-invalid]")?.removeAttribute("aria-invalid");
  }
  showAlert(alert, "");
  if (!refusal) return "";
  const messages = [];
  const apart = refusal.errors.length ? [] : [refusal.message];
  let first = null;
  for (const { field: path, detail } of refusal.errors) {
    const box = [...root.querySelectorAll("[data-field]")].find((one) => one.dataset.field === controlName(path));
    if (!box) {
      apart.push(path ? `${path}: ${detail}` : detail);
      continue;
    }
    messages.push(detail);
    first ??= box;
    const place = box.querySelector(".field-error");
    place.textContent = place.hidden ? detail : `${place.textContent}; ${detail}`;
    place.hidden = false;
    box.classList.add("wrong");
    box.closest("details")?.setAttribute("open", "");
    box.querySelector(".field > input, .field > select, .field textarea")?.setAttribute("aria-invalid", "true");
  }
  first?.scrollIntoView({ block: "nearest" });
  showAlert(alert, [...new Set([...messages, ...apart])].join("; "));
  return [...new Set(apart)].join("; ");
}
