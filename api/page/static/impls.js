// The implementations that the model knows of a kernel, as a choice: those measured on the devices in the format first.
import { orRefusal, Refusal } from "./ask.js";
import { el } from "./dom.js";
import { grouped } from "./format.js";

const pages = new Map();

/** What the answers for a device rest on, asked for once; a refusal where the service does not say. */
async function basisOf(page, device) {
  if (!pages.has(device)) {
    const answer = await orRefusal(page.ask(`basis-${device}`, `v1/devices/${encodeURIComponent(device)}`));
    if (answer instanceof Refusal) return [];
    pages.set(device, answer.basis ?? []);
  }
  return pages.get(device);
}

/** Implementations of a family in a format: those with rows on one of the devices with their number, the others with 0. */
async function knownImpls(page, { family, dtype, devices }) {
  const rows = new Map();
  for (const device of devices) {
    for (const line of await basisOf(page, device)) {
      if (line.family !== family || line.target !== "latency_s" || line.basis === "not answered") continue;
      for (const { impl, dtype: format, rows: count } of line.kernels)
        if (impl && format.split("/")[0] === dtype) rows.set(impl, (rows.get(impl) ?? 0) + (count ?? 0));
    }
  }
  return [...rows].sort(([a, m], [b, n]) => n - m || a.localeCompare(b));
}

/** A choice of the implementation in the state's field `impl`; `fill()` asks for what there is to choose from. */
export function implChoice(page, asked) {
  const { state } = page;
  const select = el("select", {});
  const option = (value, text) => el("option", { value, text });
  const put = (...groups) => {
    const chosen = state.get("impl");
    select.replaceChildren(option("", "what is known best"), ...groups);
    if (![...select.options].some(({ value }) => value === chosen)) select.append(option(chosen, chosen));
    select.value = chosen;
  };
  const group = (label, known, words) => (known.length ? [el("optgroup", { label }, known.map((one) => option(one[0], words(one))))] : []);
  async function fill() {
    const known = await knownImpls(page, asked());
    put(
      ...group("Measured here", known.filter(([, count]) => count), ([impl, count]) => `${impl} (${grouped(count)} rows)`),
      ...group("Measured elsewhere", known.filter(([, count]) => !count), ([impl]) => impl),
    );
  }
  put();
  return { select, fill };
}
