// How devices are set, what they cost and where their electricity is from: fields that views share, named as in the API, and
// what they add to answers.
import { Refusal, orRefusal } from "./ask.js";
import { el, freshId, hint, setInvalid } from "./dom.js";
import { field, numberField, numberOrText } from "./form.js";
import { showInterval } from "./format.js";

const SETTINGS = ["power_limit_w", "clock_hz"];

/** Names of the fields. */
export const POWER_FIELDS = [...SETTINGS, "grid"];

/** Whether the address has one of them. */
export const hasPower = ({ state }) => POWER_FIELDS.some((name) => state.get(name));

/** The fields side by side. */
export function powerFields({ state, ask }) {
  const names = el("datalist", { id: freshId("grids") });
  const grid = el("input", { value: state.get("grid"), autocomplete: "off", placeholder: "such as de, us or 380", maxlength: "60", list: names.id });
  const suggest = async () => {
    const grids = await orRefusal(ask("grids", "static/grids.json"));
    if (!(grids instanceof Refusal)) names.replaceChildren(...Object.entries(grids).map(([value, text]) => el("option", { value, text })));
  };
  // Names to choose from are not worth bytes before anybody is here; without them a name can still be typed.
  grid.addEventListener("focus", suggest, { once: true });
  return el(
    "div",
    { class: "grid" },
    numberField(state, "power_limit_w", "Power limit (W)", "Of each GPU; without one, its own", "the board's own"),
    numberField(state, "clock_hz", "Clock (Hz)", "That compute units of each GPU are locked to, such as 1.2e9", "not locked"),
    names,
    field("grid", "Grid, or g CO2e per kWh", grid, "Where the electricity is from: a grid by name, or grams of CO2 equivalents per kilowatt-hour"),
  );
}

const sent = (state, names) =>
  Object.fromEntries(names.filter((name) => state.get(name)).map((name) => [name, numberOrText(state.get(name).replace(",", "."))]));

/** What a request has of the setting alone, and of all fields. */
export const settingOf = ({ state }) => sent(state, SETTINGS);
export const powerOf = ({ state }) => sent(state, POWER_FIELDS);

/** The setting in words, to stand behind others; nothing where the boards are as they come. */
export function settingWords({ power_limit_w: limit, clock_hz: clock }) {
  return `${limit === undefined ? "" : `; power limit ${limit}\u00a0W`}${clock === undefined ? "" : `; clock ${clock / 1e6}\u00a0MHz`}`;
}

/** CO2 equivalents in words. */
export const carbonWords = ({ carbon_g: carbon }) => `${showInterval(carbon, "g").text} CO2e`;

/** Whose electricity amounts of CO2 are of. */
export const gridHint = ({ grid, g_per_kwh: grams, source }) => hint(`CO2e of the electricity alone: ${grid}, ${grams} g per kWh (${source}).`);

const PRICE = "price_per_hour.";
const MOST_PRICE = 1_000_000;
const isPrice = (text) => text !== "" && Number(text) >= 0 && Number(text) <= MOST_PRICE;

/** Prices of an hour of those devices that the state has one of, by device. */
export function pricesOf({ state, catalogue }, isAsked) {
  const prices = state.under(PRICE).map(([device]) => [catalogue.names([device])[0], state.checked(PRICE + device, isPrice)]);
  const asked = prices.filter(([device, text]) => text && isAsked(device));
  return Object.fromEntries(asked.map(([device, text]) => [device, Number(text)]));
}

/** The price of an hour of a row's device, and a place for what is wrong with it; `priced` is called when another one
 * is typed. */
export function priceInput(page, row, priced) {
  const { state } = page;
  const name = PRICE + row.device;
  const error = el("p", { class: "field-error", id: freshId("price"), hidden: true });
  const input = el("input", {
    class: "price",
    type: "text",
    inputmode: "decimal",
    value: state.get(name),
    placeholder: "—",
    "aria-label": `Price per hour of ${row.title}`,
    "aria-describedby": error.id,
    "data-keep": name,
    maxlength: "12",
  });
  input.addEventListener("input", () => {
    const text = input.value.trim().replace(",", ".");
    const good = text === "" || isPrice(text);
    setInvalid(input, !good);
    error.hidden = good;
    if (!good) {
      const kept = state.get(name);
      error.textContent = `A price is a number from 0 to ${MOST_PRICE}.${kept && ` The cost is still that of ${kept}.`}`;
      return page.say(error.textContent);
    }
    state.set({ [name]: text });
    return priced();
  });
  input.addEventListener("change", () => state.commit());
  return el("div", {}, input, error);
}
