// What a kernel and another on the same device cost each other: the other is chosen here, and asked about once a reader opens it.
import { refusedRows } from "./answers.js";
import { Refusal, Stale, orRefusal } from "./ask.js";
import { el, folded, hint, panel, redraw, refusedPanel, table } from "./dom.js";
import { SETTLE_MS, choice, completeSizes, field, numberField, wholeOrText } from "./form.js";
import { digits, grouped, inWords, show, showInterval } from "./format.js";

const PATH = "v1/predict/colocated";
const FAMILY = "beside";
const SIZES = "beside.sizes.";

/** The panel of a kernel on `rows`, devices as { device, title, series }, which run as they come: `isSet` says whether others are
 * asked about beside it. The other kernel is in the address, and the panel open where it is. */
export function besidePanel(page, { coverage, ...kernel }, rows, isSet) {
  const { state, catalogue } = page;
  const place = el("div", {});
  const result = el("div", { "aria-live": "polite" });
  const isLinked = Boolean(state.get(FAMILY));
  let timer = 0;

  async function ask() {
    // A panel that was folded, or that another one has replaced, asks no more.
    if (!place.isConnected || !state.get(FAMILY)) return;
    result.setAttribute("aria-busy", "true");
    try {
      const kernels = [kernel, neighbour(page, kernel)];
      const bodyOf = ({ device }) => ({ device, kernels, ...(coverage ? { coverage } : {}) });
      const answers = await Promise.all(rows.map((row) => orRefusal(page.ask(`beside-${row.series}`, PATH, bodyOf(row)))));
      draw(result, rows.map((row, i) => ({ ...row, answer: answers[i] })), kernels, isSet);
    } catch (error) {
      if (error instanceof Stale) return;
      window.reportError(error);
    }
    result.setAttribute("aria-busy", "false");
  }

  /** Another kernel, of the sizes that the address has, and else of those of the first kernel or of an example. */
  function choose(family) {
    const sizes = family === kernel.family ? kernel.sizes : catalogue.exampleSizes(family);
    for (const [name] of state.under(SIZES)) if (!(name in sizes)) state.set({ [SIZES + name]: null });
    state.set({ [FAMILY]: family });
    completeSizes(state, SIZES, sizes);
  }

  function fill() {
    const { properties } = catalogue.schema(state.get(FAMILY)).properties.sizes;
    const form = el(
      "form",
      { novalidate: true, autocomplete: "off", "aria-label": "The other kernel" },
      field(FAMILY, "The other kernel", choice(catalogue.families, state.get(FAMILY))),
      el("div", { class: "grid" }, Object.entries(properties).map(([name, one]) => numberField(state, SIZES + name, name, one.description))),
    );
    for (const control of form.querySelectorAll("[name]")) control.setAttribute("data-keep", control.name);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", ({ target }) => {
      if (target.name === FAMILY) {
        state.drop(SIZES);
        choose(target.value);
        fill();
        place.querySelector("select").focus();
      } else state.set({ [target.name]: target.value.trim() });
      result.setAttribute("aria-busy", "true");
      window.clearTimeout(timer);
      timer = window.setTimeout(ask, SETTLE_MS);
    });
    form.addEventListener("change", () => state.commit());
    place.replaceChildren(form, result);
  }

  function open() {
    choose(state.oneOf(FAMILY, catalogue.families, kernel.family));
    fill();
  }

  function toggled({ target }) {
    if (target.open) {
      if (!place.childElementCount) open();
      // What a link leaves out is filled in without a step of the history.
      state.commit(isLinked);
      ask();
    } else if (state.get(FAMILY)) {
      window.clearTimeout(timer);
      result.replaceChildren();
      place.replaceChildren();
      state.drop(SIZES);
      state.set({ [FAMILY]: null });
      state.commit();
    }
  }
  // Filled before it is drawn, so that a control that had the focus has it again.
  if (isLinked) open();
  return panel("Neighbours", folded({ open: isLinked, ontoggle: toggled }, "Beside another kernel on the same device", place));
}

/** The other kernel as a spec: in the format, on the threads and with the caches of the first, where its family has them. */
function neighbour({ state, catalogue }, { family, sizes: _, config, impl, variant, kv_dtype: format, ...rest }) {
  const other = state.get(FAMILY);
  const schema = catalogue.schema(other);
  const [example] = schema.examples;
  const formats = schema.properties.dtype.enum;
  const same = other === family ? { variant, impl, config, kv_dtype: format } : { variant: schema.required.includes("variant") ? example.variant : null };
  const spec = {
    ...rest,
    ...same,
    family: other,
    dtype: !formats || formats.includes(rest.dtype) ? rest.dtype : example.dtype,
    sizes: Object.fromEntries(state.under(SIZES).map(([name, text]) => [name, wholeOrText(text)])),
  };
  return Object.fromEntries(Object.entries(spec).filter(([, value]) => value !== null && value !== undefined));
}

function draw(result, rows, kernels, isSet) {
  const answers = rows.filter(({ answer }) => !(answer instanceof Refusal));
  const cells = answers.flatMap(({ title, answer }) =>
    answer.kernels.map((one, i) => [
      title,
      `${kernels[i].family} ${kernels[i].dtype}, ${inWords(kernels[i].sizes, grouped)}`,
      `${digits(one.slowdown.value)} times`,
      showInterval(one.latency_s, "s").text,
      show(one.alone.latency_s.value, "s"),
    ]),
  );
  const plain = isSet && answers.length ? ["without the power limit and the clock"] : [];
  const about = answers.flatMap(({ answer }) => [`Law: ${answer.source}`, ...answer.notes]);
  redraw(
    result,
    cells.length ? table("Each kernel beside the other", ["Device", "Kernel", "Longer", "Beside", "Alone"], cells) : "",
    ...[...new Set([...plain, ...about])].map((words) => hint(`${words[0].toUpperCase()}${words.slice(1)}.`)),
    refusedPanel(refusedRows(rows)),
  );
}
