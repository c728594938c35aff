// One kernel on every device: a table that sorts, the same numbers as a picture, and what it costs at a price per hour.
import { answersPart, awaitAnother, whenAnswered } from "../answers.js";
import { rangeRows } from "../bars.js";
import { pythonCall, pythonSpec, requestBlock } from "../copy.js";
import { devicePicker } from "../devices.js";
import { el } from "../dom.js";
import { choice, specForm, specOf } from "../form.js";
import { percent, show, showInterval } from "../format.js";

export const id = "compare";
export const title = "Compare";

const PATH = "v1/compare";
const PRICE = "price_per_hour.";
const SETTLE_MS = 400;

// What a row has, by the name in the address: words, how to read it, how to show it.
const COLUMNS = {
  latency_s: { words: "Latency", of: (row) => row.prediction?.latency_s ?? null, unit: "s" },
  power_w: { words: "Power", of: (row) => row.prediction?.power_w ?? null, unit: "w" },
  energy_j: { words: "Energy", of: (row) => row.prediction?.energy_j ?? null, unit: "j" },
  flops_per_s: { words: "Attained", of: (row) => row.flops_per_s, unit: "flop/s" },
  joules_per_flop: { words: "Energy per FLOP", of: (row) => row.joules_per_flop, unit: "j/flop" },
  cost_per_million_calls: { words: "Cost of a million calls", of: (row) => row.cost_per_million_calls, unit: "money" },
};
const PICTURES = ["latency_s", "energy_j", "joules_per_flop", "cost_per_million_calls", "power_w", "flops_per_s"];
const OTHERS = { device: (row) => row.title, of_bound: (row) => row.of_bound };

export function render(root, page) {
  const answers = answersPart();
  const view = { page, answers, answer: null, timer: 0 };
  view.ask = () => update(view);
  view.form = specForm(page, {
    answers,
    devices: false,
    changed: view.ask,
    extra: () =>
      devicePicker(page, {
        name: "among",
        label: "Devices",
        most: 256,
        nobody: "all of the catalogue",
        coloured: false,
        changed: view.ask,
      }),
  });
  root.append(el("div", { class: "columns" }, view.form.element, answers));
  view.ask();
  return () => {
    view.form.leave();
    window.clearTimeout(view.timer);
  };
}

function bodyOf(page) {
  const among = page.catalogue.names(page.state.list("among"));
  const compared = (device) => !among.length || among.includes(device);
  const prices = page.state
    .under(PRICE)
    .map(([device, text]) => [device, Number(text)])
    .filter(([device, price]) => Number.isFinite(price) && compared(device));
  return {
    ...specOf(page),
    ...(among.length ? { devices: among } : {}),
    ...(prices.length ? { price_per_hour: Object.fromEntries(prices) } : {}),
  };
}

async function update(view) {
  const { page, answers, form } = view;
  await whenAnswered(
    answers,
    async (stillAsked) => {
      const body = bodyOf(page);
      view.answer = await page.ask("compare", PATH, body);
      stillAsked();
      draw(view, body);
    },
    form.problem,
  );
}

const order = (page) => ({ by: page.state.get("sort", "latency_s"), down: page.state.get("descending") === "true" });

function sorted(rows, { by, down }) {
  const key = Object.hasOwn(COLUMNS, by)
    ? (row) => COLUMNS[by].of(row)?.value ?? null
    : Object.hasOwn(OTHERS, by)
      ? OTHERS[by]
      : () => null;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  // Whatever is unknown comes last, whichever way the rest is sorted.
  return rows.toSorted((a, b) => {
    const [one, two] = [key(a), key(b)];
    if (one === null || two === null) return (one === null) - (two === null);
    return down ? compare(two, one) : compare(one, two);
  });
}

function draw(view, body) {
  const { page, answers, answer } = view;
  const focused = document.activeElement?.getAttribute?.("data-keep");
  const rows = sorted(
    answer.answers.filter((row) => row.prediction),
    order(page),
  );
  const refused = answer.answers.filter((row) => !row.prediction);
  answers.replaceChildren(
    el(
      "p",
      { class: "lead" },
      el("strong", { text: answer.family }),
      ` ${show(answer.flops, "flop")}, ${show(answer.bytes, "b")}; ${rows.length} ${rows.length === 1 ? "device answers" : "devices answer"}${refused.length ? `, ${refused.length} cannot` : ""}`,
    ),
    picturePanel(view, rows, body),
    el(
      "section",
      { class: "panel" },
      el("h2", { text: "Table" }),
      el("p", {
        class: "hint",
        text: "Type what an hour of a device costs you, in any currency; the cost of a million calls follows.",
      }),
      rows.length ? tableOf(view, rows, body) : "",
    ),
    refused.length
      ? el(
          "section",
          { class: "panel refused" },
          el("h2", { text: "No answer" }),
          el(
            "dl",
            {},
            refused.map((row) => [el("dt", { text: row.title }), el("dd", { text: row.refusal })]),
          ),
        )
      : "",
    requestBlock(page, PATH, body, pythonCall("compare", [body.family], pythonSpec(body))),
  );
  if (focused) answers.querySelector(`[data-keep="${CSS.escape(focused)}"]`)?.focus();
  const best = rows[0];
  if (best)
    page.say(
      `${rows.length} devices; first by ${order(page).by}: ${best.title}, ${showInterval(best.prediction.latency_s, "s").text}`,
    );
}

function picturePanel(view, rows, body) {
  const { state } = view.page;
  const shown = Object.hasOwn(COLUMNS, state.get("picture")) ? state.get("picture") : "latency_s";
  const select = choice(PICTURES, shown, Object.fromEntries(PICTURES.map((name) => [name, COLUMNS[name].words])));
  select.setAttribute("aria-label", "Picture of");
  select.setAttribute("data-keep", "picture");
  select.addEventListener("change", () => {
    state.set({ picture: select.value });
    state.commit();
    draw(view, body);
  });
  const { words, of, unit } = COLUMNS[shown];
  const missing = rows.filter((row) => !of(row)).length;
  return el(
    "section",
    { class: "panel" },
    el("div", { class: "row" }, el("h2", { text: words }), select),
    rangeRows(
      `${words} by device`,
      rows.map((row) => ({ title: row.title, interval: of(row), guess: !row.prediction.in_domain })),
      unit,
    ),
    missing
      ? el("p", {
          class: "hint",
          text:
            shown === "cost_per_million_calls"
              ? `${missing} ${missing === 1 ? "device has" : "devices have"} no price yet; type one in the table.`
              : `Unknown for ${missing} of them.`,
        })
      : "",
  );
}

function tableOf(view, rows, body) {
  const { page } = view;
  const { by, down } = order(page);
  const heads = {
    device: "Device",
    latency_s: "Latency",
    power_w: "Power",
    energy_j: "Energy",
    flops_per_s: "Attained",
    of_bound: "Of the limit",
    joules_per_flop: "Energy per FLOP",
    price: "Price per hour",
    cost_per_million_calls: "Cost of a million calls",
  };
  const head = (name, words) => {
    if (name === "price") return el("th", { scope: "col", text: words });
    const chosen = by === name;
    const button = el(
      "button",
      {
        type: "button",
        class: "sort",
        "data-keep": `sort-${name}`,
        onclick: () => {
          page.state.set({ sort: name === "latency_s" ? null : name, descending: chosen && !down ? "true" : null });
          page.state.commit();
          draw(view, body);
        },
      },
      words,
      el("span", { "aria-hidden": "true", text: chosen ? (down ? " ↓" : " ↑") : " ↕" }),
    );
    return el("th", { scope: "col", "aria-sort": chosen ? (down ? "descending" : "ascending") : null }, button);
  };
  const number = (interval, unit) => {
    if (!interval) return el("td", { class: "number unknown", text: unit === "money" ? "—" : "unknown" });
    const text = showInterval(interval, unit);
    return el(
      "td",
      { class: "number" },
      el("strong", { text: `${text.value}\u00a0${text.unit}` }),
      el("small", { text: `${text.lower.split("\u00a0")[0]} to ${text.upper.split("\u00a0")[0]}` }),
    );
  };
  const cell = (row) => (name) => number(COLUMNS[name].of(row), COLUMNS[name].unit);
  const line = (row) =>
    el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        row.title,
        row.prediction.in_domain
          ? ""
          : el(
              "details",
              { class: "tag" },
              el("summary", { text: "extrapolated" }),
              el(
                "ul",
                {},
                row.prediction.notes.map((note) => el("li", { text: note })),
              ),
            ),
      ),
      ["latency_s", "power_w", "energy_j", "flops_per_s"].map(cell(row)),
      el("td", { class: "number", text: row.of_bound === null ? "unknown" : percent(row.of_bound) }),
      cell(row)("joules_per_flop"),
      el("td", {}, priceInput(view, row)),
      cell(row)("cost_per_million_calls"),
    );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Devices compared" },
    el(
      "table",
      { class: "compare" },
      el("caption", { class: "unseen", text: "Devices compared; the buttons in the heads sort" }),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          Object.entries(heads).map(([name, words]) => head(name, words)),
        ),
      ),
      el("tbody", {}, rows.map(line)),
    ),
  );
}

function priceInput(view, row) {
  const { state } = view.page;
  const name = PRICE + row.device;
  const input = el("input", {
    class: "price",
    type: "text",
    inputmode: "decimal",
    value: state.get(name),
    placeholder: "—",
    "aria-label": `Price per hour of ${row.title}`,
    "data-keep": name,
    maxlength: "12",
  });
  input.addEventListener("input", () => {
    const text = input.value.trim().replace(",", ".");
    const good = text === "" || (Number.isFinite(Number(text)) && Number(text) >= 0);
    input.toggleAttribute("aria-invalid", false);
    if (!good) {
      input.setAttribute("aria-invalid", "true");
      view.page.say("A price is a number from 0.");
      return;
    }
    state.set({ [name]: text });
    window.clearTimeout(view.timer);
    view.timer = window.setTimeout(view.ask, SETTLE_MS);
    awaitAnother(view.answers);
  });
  input.addEventListener("change", () => state.commit());
  return input;
}
