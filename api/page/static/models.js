// The models that ship, as a choice by maker, and what is known of the chosen one.
import { el, hint } from "./dom.js";
import { digits, grouped } from "./format.js";

const PATH = "v1/estimate/models";
let shipped = [];

/** The models that ship, asked for once. */
export async function shippedModels(page) {
  if (!shipped.length) shipped = (await page.ask("shipped", PATH)).models;
  return shipped;
}

/** The model that the state names, of those that ship; undefined before they are known. */
export const modelOf = ({ state }) => shipped.find((one) => one.name === state.get("model"));

const makerOf = (name) => name.split("/", 1)[0];

/** A choice of a model of those that `isWanted` is true of; a name that is none of them is offered too, and the service says what
 * is wrong with it. */
export function modelChoice({ state }, isWanted = () => true) {
  const wanted = shipped.filter(isWanted);
  // Not by `localeCompare`: its first call loads the rules of all languages, a sixth of a second on a slow phone.
  const makers = [...new Set(wanted.map((one) => makerOf(one.name)))].sort((a, b) => (a.toLowerCase() < b.toLowerCase() ? -1 : 1));
  const option = (maker) => (one) => el("option", { value: one.name, text: one.name.slice(maker.length + 1) });
  const select = el(
    "select",
    {},
    makers.map((maker) => el("optgroup", { label: maker }, wanted.filter((one) => makerOf(one.name) === maker).map(option(maker)))),
  );
  const chosen = state.get("model");
  if (chosen && !wanted.some((one) => one.name === chosen)) select.prepend(el("option", { value: chosen, text: chosen }));
  select.value = chosen;
  return select;
}

/** Names of the models that ship of those that `isWanted` is true of; none before they are known. */
export const shippedNames = (isWanted) => shipped.filter(isWanted).map(({ name }) => name);

/** What is known of the chosen model, in words. */
export function modelFacts({ state }) {
  const model = modelOf({ state });
  if (!model) return [];
  const { parameters, active_parameters: active, layers, hidden, dtype, weights } = model;
  const each = active === parameters ? "" : `, ${digits(active / 1e9)} for each token`;
  const format = weights === dtype ? dtype : `${dtype}, weights ${weights}`;
  return [hint(`${digits(parameters / 1e9)} billion parameters${each}; ${layers} layers of width ${grouped(hidden)}; ${format}.`)];
}
