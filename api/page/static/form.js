// The spec as a form, made from the JSON Schema of its family. A control is named as its field in the API and in the address.
import { awaitAnother } from "./answers.js";
import { devicePicker } from "./devices.js";
import { el, freshId } from "./dom.js";
import { grouped } from "./format.js";

const FIRST_FAMILY = "gemm";
export const FIRST_DEVICE = "nvidia-h200-sxm-141gb";
const SETTLE_MS = 180;
/** Coverages to choose from. */
export const COVERAGES = ["0.5", "0.8", "0.9", "0.95"];
const OPTIONAL = ["variant", "impl", "kv_dtype", "cache_state"];

/** A whole number as JSON's; anything else goes out as it is, and the service says what is wrong with it. */
export function wholeOrText(text) {
  return /^-?\d{1,15}$/.test(text) ? Number(text) : text;
}

/** The spec that the state's fields describe, without a device. */
export function specOf({ state }) {
  const numbers = (prefix) => Object.fromEntries(state.under(prefix).map(([name, text]) => [name, wholeOrText(text)]));
  const spec = { family: state.get("family"), dtype: state.get("dtype"), sizes: numbers("sizes.") };
  for (const name of OPTIONAL) if (state.get(name)) spec[name] = state.get(name);
  if (state.get("threads")) spec.threads = wholeOrText(state.get("threads"));
  const config = numbers("config.");
  if (Object.keys(config).length) spec.config = config;
  if (state.get("coverage")) spec.coverage = Number(state.get("coverage"));
  return spec;
}

/** Whether the sizes say which variant it is, where none is given. */
function impliedVariant({ required, properties }) {
  return !required.includes("variant") && !("default" in properties.variant);
}

/** Give the state what it needs to be asked about: a family, a device, a format and every size. */
function complete({ state, catalogue }) {
  const known = catalogue.families.includes(state.get("family"));
  const asked = state.get("family");
  if (!known) {
    state.set({ family: catalogue.families.includes(FIRST_FAMILY) ? FIRST_FAMILY : catalogue.families[0] });
    state.drop("sizes.");
    state.drop("config.");
    state.set({ variant: null });
  }
  const schema = catalogue.schema(state.get("family"));
  const [example] = schema.examples;
  if (!state.get("devices")) state.set({ devices: catalogue.device(FIRST_DEVICE)?.name ?? catalogue.devices[0]?.name ?? "" });
  if (!state.get("dtype")) state.set({ dtype: example.dtype });
  if (!state.get("variant") && schema.required.includes("variant")) state.set({ variant: example.variant });
  for (const [name, one] of Object.entries(schema.properties.sizes.properties)) {
    if (!state.get(`sizes.${name}`)) state.set({ [`sizes.${name}`]: example.sizes[name] ?? one.default ?? one.minimum });
  }
  return known || !asked ? "" : `This service knows no kernel family ${asked}; ${state.get("family")} is shown instead.`;
}

/** A label, a control and a place for what is wrong with it. */
export function field(name, label, control, hint = "") {
  const id = freshId("field");
  control.id = id;
  control.setAttribute("name", name);
  control.setAttribute("aria-describedby", `${id}-error`);
  if (hint) control.title = hint;
  return el(
    "div",
    { class: "field", "data-field": name },
    el("label", { for: id, text: label, title: hint || null }),
    control,
    el("p", { class: "field-error", id: `${id}-error`, hidden: true }),
  );
}

/** A choice among values; a value that is none of them is offered too, so that what an address asks for is what is sent. */
export function choice(values, chosen, words = {}) {
  const all = values.includes(chosen) ? values : [...values, chosen];
  const select = el(
    "select",
    {},
    all.map((value) => el("option", { value, text: words[value] ?? value })),
  );
  select.value = chosen;
  return select;
}

/** A field for a whole number of the state. */
export function numberField(state, name, label, hint = "", placeholder = "") {
  return field(
    name,
    label,
    el("input", { value: state.get(name), inputmode: "numeric", autocomplete: "off", placeholder, maxlength: "16" }),
    hint,
  );
}

/** The form of a spec. `changed` is called when the fields have settled, `answers` is busy until then; `devices: false` and
 * `knobs: false` leave their choice out, `extra()` is a part that is put behind the sizes. */
export function specForm(page, { answers, devices = true, knobs: tuned = true, extra = null, changed }) {
  const { state, catalogue } = page;
  const alert = el("p", { class: "alert", role: "alert", hidden: true });
  const body = el("div", {});
  const form = el(
    "form",
    { class: "panel spec", novalidate: true, autocomplete: "off", "aria-label": "The kernel" },
    alert,
    body,
  );
  const note = complete(page);
  let timer = 0;
  const soon = () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(changed, SETTLE_MS);
    awaitAnother(answers);
  };

  function draw() {
    const schema = catalogue.schema(state.get("family"));
    const { properties } = schema;
    const names = (schema_) => schema_.examples ?? schema_.enum;
    const plain = impliedVariant(schema) ? "by the sizes" : "plain";
    const variants = properties.variant.enum.filter((name) => name !== null);
    const variant = state.get("variant", properties.variant.default ?? (variants.includes("") ? "" : variants[0]));
    body.replaceChildren(
      field("family", "Kernel", choice(catalogue.families, state.get("family"))),
      el("p", { class: "hint", text: schema.description.split("\n")[0] }),
      devices ? devicePicker(page, { name: "devices", label: "Devices", most: 8, nobody: "none yet", changed: soon }) : "",
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
      moreFields(properties, names(properties.kv_dtype)),
    );
  }

  function sizeFields(schema) {
    const shapes = schema.examples.slice(1).map((one) => one.sizes);
    const telling = (sizes) =>
      Object.entries(sizes)
        .filter(([name, size]) => schema.properties.sizes.properties[name]?.default !== size)
        .map(([name, size]) => `${name}\u00a0${grouped(size)}`)
        .join(" · ");
    const same = (sizes) => Object.entries(sizes).every(([name, size]) => state.get(`sizes.${name}`) === String(size));
    const preset = el(
      "select",
      {
        onchange: (event) => {
          event.stopPropagation();
          const sizes = shapes[event.target.value];
          if (!sizes) return;
          for (const [name, size] of Object.entries(sizes)) state.set({ [`sizes.${name}`]: size });
          if (impliedVariant(schema)) state.set({ variant: null });
          complete(page);
          for (const input of body.querySelectorAll("input[name^='sizes.']")) input.value = state.get(input.name);
          const select = body.querySelector("select[name=variant]");
          if (select) select.value = state.get("variant");
          state.commit();
          soon();
        },
      },
      el("option", { value: "", text: "Shapes of real models…" }),
      shapes.map((sizes, i) => el("option", { value: String(i), text: telling(sizes) })),
    );
    const chosen = shapes.findIndex(same);
    preset.value = chosen < 0 ? "" : String(chosen);
    const id = freshId("preset");
    preset.id = id;
    return el(
      "fieldset",
      { class: "group" },
      el("legend", { text: "Sizes" }),
      shapes.length
        ? el("div", { class: "field" }, el("label", { class: "unseen", for: id, text: "Shapes of real models" }), preset)
        : "",
      el(
        "div",
        { class: "grid" },
        Object.entries(schema.properties.sizes.properties)
          .sort(([, a], [, b]) => ("default" in a) - ("default" in b))
          .map(([name, one]) => numberField(state, `sizes.${name}`, name, one.description)),
      ),
    );
  }

  function moreFields(properties, formats) {
    const knobs = tuned ? Object.keys(properties.config.properties) : [];
    const set = ["impl", "kv_dtype", "threads", "cache_state", "coverage", ...knobs.map((one) => `config.${one}`)].filter(
      (name) => state.get(name),
    );
    const coverages = Object.fromEntries(
      [...COVERAGES, state.get("coverage", "0.9")].map((one) => [one, `${(100 * Number(one)).toFixed(0)} % of cases`]),
    );
    return el(
      "details",
      { class: "more", open: set.length > 0 },
      el("summary", { text: "More settings" }),
      el(
        "div",
        { class: "grid" },
        field(
          "impl",
          "Implementation",
          el("input", { value: state.get("impl"), maxlength: "64", placeholder: "what is known best", autocomplete: "off" }),
          properties.impl.description,
        ),
        field(
          "cache_state",
          "Caches",
          choice(properties.cache_state.enum, state.get("cache_state", "hot")),
          properties.cache_state.description,
        ),
        numberField(state, "threads", "CPU threads", properties.threads.description, "all"),
        field(
          "kv_dtype",
          "Cache format",
          choice(["", ...formats.filter((one) => one !== null)], state.get("kv_dtype"), { "": "same" }),
          properties.kv_dtype.description,
        ),
      ),
      field(
        "coverage",
        "Intervals contain",
        choice(COVERAGES, state.get("coverage", "0.9"), coverages),
        properties.coverage.description,
      ),
      knobs.length
        ? el(
            "fieldset",
            { class: "group" },
            el("legend", { text: "Tuning numbers" }),
            el(
              "div",
              { class: "grid" },
              knobs.map((name) => numberField(state, `config.${name}`, name, properties.config.description, "not given")),
            ),
          )
        : "",
    );
  }

  function read(control) {
    if (!control.name) return false;
    if (control.name === "family") {
      state.drop("sizes.");
      state.drop("config.");
      state.drop("sweep.");
      state.set({ family: control.value, variant: null });
      complete(page);
      draw();
      body.querySelector("[name=family]").focus();
    } else {
      state.set({ [control.name]: control.value.trim() });
    }
    return true;
  }

  form.addEventListener("input", (event) => {
    if (read(event.target)) soon();
  });
  form.addEventListener("change", (event) => {
    if (event.target.name) state.commit();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
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

/** Show a refusal in `root`: each error at the field it names, all of them in `alert`; null clears. */
export function showProblem(root, alert, refusal) {
  for (const box of root.querySelectorAll(".field.wrong")) {
    box.classList.remove("wrong");
    box.querySelector(".field-error").hidden = true;
    box.querySelector("[aria-invalid]")?.removeAttribute("aria-invalid");
  }
  if (!refusal) return showAlert(alert, "");
  const said = [];
  let first = null;
  for (const { field: path, detail } of refusal.errors) {
    const box = [...root.querySelectorAll("[data-field]")].find((one) => one.dataset.field === controlName(path));
    if (!box) {
      said.push(path ? `${path}: ${detail}` : detail);
      continue;
    }
    said.push(detail);
    first ??= box;
    const place = box.querySelector(".field-error");
    place.textContent = place.hidden ? detail : `${place.textContent}; ${detail}`;
    place.hidden = false;
    box.classList.add("wrong");
    box.closest("details")?.setAttribute("open", "");
    box.querySelector(".field > input, .field > select, .field textarea")?.setAttribute("aria-invalid", "true");
  }
  first?.scrollIntoView({ block: "nearest" });
  return showAlert(alert, [...new Set(said)].join("; ") || refusal.message);
}
