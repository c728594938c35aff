// The best configurations of one kernel on one device, and how many of them the ranking cannot tell apart.
import { NO_POWER, cautions } from "../answers.js";
import { Refusal, refusalAt } from "../ask.js";
import { figuresOf, intervalBar, scaleOf } from "../bars.js";
import { pythonCall, pythonSpec, requestBlock } from "../copy.js";
import { button, el, folded, headed, hint, lead, numberCell, panel, redraw, table, tag } from "../dom.js";
import { download } from "../download.js";
import { choice, field, group, specOf, specView } from "../form.js";
import { TARGETS, grouped, inWords, percent, show, showInterval } from "../format.js";
import { writeFragment } from "../state.js";

const PATH = "v1/rank";
const TOPS = ["5", "10", "20", "50", "100"];
const TOP = "20";
const EXAMPLE = '[{"tile_m": 64, "tile_n": 64, "tile_k": 32}]';

export function render(root, page) {
  return specView(root, page, { load, draw, extra: tileFields, devices: false, knobs: false }).leave;
}

const deviceOf = ({ state, catalogue }) =>
  catalogue.names([state.get("tiles.device") || state.list("devices")[0] || catalogue.devices[0].name])[0];

function tileFields(page) {
  const { state, catalogue } = page;
  // Refusals name the field as the API does, the address by the view it belongs to.
  const named = (apiName, element) => {
    element.dataset.field = apiName;
    return element;
  };
  const titles = Object.fromEntries(catalogue.devices.map((device) => [device.name, device.title]));
  const attributes = { rows: "4", spellcheck: "false", autocomplete: "off", placeholder: EXAMPLE };
  const configs = el("textarea", { ...attributes, value: state.get("tiles.configs") });
  return group(
    "Configurations",
    named("devices", field("tiles.device", "Device", choice(Object.keys(titles), deviceOf(page), titles))),
    named("top", field("tiles.top", "How many of the best", choice(TOPS, state.get("tiles.top", TOP)))),
    folded(
      { open: state.get("tiles.configs") !== "" },
      "Configurations of your own",
      named("configs", field("tiles.configs", "A JSON list; left empty, those known are ranked", configs)),
    ),
  );
}

function bodyOf(page) {
  const { config: _, coverage, ...spec } = specOf(page);
  const configs = ownConfigs(page.state.get("tiles.configs"));
  return {
    ...spec,
    device: deviceOf(page),
    top: Number(page.state.get("tiles.top", TOP)) || page.state.get("tiles.top"),
    ...(configs ? { configs } : {}),
    ...(coverage ? { coverage } : {}),
  };
}

function ownConfigs(text) {
  if (!text) return null;
  try {
    return [JSON.parse(text)].flat();
  } catch (error) {
    throw refusalAt("configs", `This is no JSON (${error.message}). Give a list such as ${EXAMPLE}.`);
  }
}

async function load(page) {
  const body = bodyOf(page);
  try {
    return { body, answer: await page.ask("rank", PATH, body) };
  } catch (error) {
    throw error instanceof Refusal ? atTheList(error) : error;
  }
}

/** What is wrong with one configuration stands at the list it is in. */
function atTheList(refusal) {
  const errors = refusal.errors.map(({ field: path, detail }) => {
    const [, place, knob] = /^configs\[(\d+)\](?:\.(.*))?$/.exec(path ?? "") ?? [];
    if (place === undefined) return { field: path, detail };
    return { field: "configs", detail: `${knob ? `${knob} of ` : ""}configuration ${Number(place) + 1}: ${detail}` };
  });
  return Object.assign(refusal, { errors });
}

/** Knobs that differ among the configurations, and those that are the same in all. */
function knobsOf(ranked) {
  const names = [...new Set(ranked.flatMap(({ config }) => Object.keys(config)))];
  const same = names.filter((name) => ranked.length > 1 && new Set(ranked.map(({ config }) => config[name])).size === 1);
  return { differ: names.filter((name) => !same.includes(name)), same };
}

function draw(page, answers, { body, answer }) {
  const { ranked, tied } = answer;
  const [best] = ranked;
  const { differ, same } = knobsOf(ranked);
  const kind = [answer.impl, body.dtype].filter(Boolean).join(" ");
  const device = page.catalogue.title(answer.device);
  const bestWords = inWords(best.config) || "the default";
  const scales = Object.fromEntries(Object.keys(TARGETS).map((target) => [target, scaleOf([best], target)]));
  const configs = JSON.stringify(ranked.map(({ config }) => config), null, 1);
  redraw(
    answers,
    lead(
      `${answer.family} ${kind}`,
      `on ${device}: ${grouped(answer.considered)} configurations considered. Ranked by: ${answer.method}.`,
    ),
    el(
      "article",
      { class: "panel card" },
      el("h2", { text: "The best" }),
      el("p", { class: "config", text: bestWords }),
      figuresOf(best, scales, { noPower: NO_POWER }),
      cautions({ ...best, in_domain: best.in_domain ?? true }),
    ),
    panel(
      headed(
        `The first ${ranked.length}`,
        button("Download JSON", () => download(`${answer.family}-tiles.json`, "application/json", configs), { class: "copy" }),
      ),
      el("p", { class: "tied", text: tiedWords(tied, ranked.length) }),
      same.length
        ? hint(`The same in all: ${same.map((name) => `${name} ${best.config[name] ?? "not given"}`).join(", ")}.`)
        : "",
      ranking(page, body, answer, differ),
    ),
    requestBlock(page, PATH, body, callOf(body)),
  );
  page.say(
    `${ranked.length} configurations on ${device}. The best: ${bestWords}, ${showInterval(best.latency_s, "s").text}. ${tiedWords(tied, ranked.length)}`,
  );
}

const callOf = ({ device, configs, top, ...spec }) =>
  pythonCall("rank", [spec.family], { ...pythonSpec(spec), device, configs, top });

function tiedWords(tied, shown) {
  if (tied <= 1) return "The first is faster than the others by more than the error of the ranking.";
  const which =
    tied > shown ? `All of these, and ${tied - shown} more,` : tied === shown ? "All of these" : `The first ${tied}, marked “tied”,`;
  return `${which} differ by less than the error of the ranking, so their order is uncertain. Measure them and keep the fastest.`;
}

function ranking(page, body, answer, knobs) {
  const { ranked } = answer;
  // A mark on every row would tell none from another; the sentence above says it of all.
  const tied = answer.tied > 1 && answer.tied < ranked.length ? answer.tied : 0;
  const energy = ranked.some((one) => one.energy_j);
  const scale = scaleOf(ranked, "latency_s");
  const columns = ["Place", "Latency", "Slower by", ...knobs.map(breakable), ...(energy ? ["Energy"] : []), "Binds", "More"];
  const energyCell = (joules) => el("td", { class: joules ? "number" : "number unknown", text: show(joules?.value ?? null, "j") });
  const rows = ranked.map((one, i) => [
    el("th", { scope: "row" }, `${i + 1}`, i < tied ? el("span", { class: "badge", text: "tied" }) : ""),
    el(
      "td",
      { class: "bar-cell" },
      intervalBar(one.latency_s, scale),
      el("span", { text: showInterval(one.latency_s, "s").text }),
    ),
    numberCell(one.slower_than_best === 0 ? "best" : `+${percent(one.slower_than_best)}`),
    ...knobs.map((name) => numberCell(one.config[name] ?? "—")),
    ...(energy ? [energyCell(one.energy_j)] : []),
    one.bound,
    el(
      "td",
      {},
      el("a", {
        href: predictHref(page, body, answer, one.config),
        "aria-label": `Predict configuration ${i + 1}`,
        text: "Predict",
      }),
      one.in_domain === false || one.notes.length ? tag(one.in_domain === false ? "extrapolated" : "note", one.notes) : "",
    ),
  ]);
  return el(
    "div",
    {},
    table("Configurations, the quickest first", columns, rows, {
      kind: "ranking",
      number: (i) => i === 2 || (i > 2 && i < 3 + knobs.length),
      rowClass: (i) => (i < tied ? "together" : null),
    }),
    hint(
      scale.log
        ? "The bars are on a logarithmic scale; the band is the interval."
        : "The bars start at zero; the band is the interval, the mark the prediction.",
    ),
  );
}

/** A knob's name, which may break behind its first word, so that all columns fit. */
function breakable(name) {
  const [first, ...rest] = name.split("_");
  return el("span", {}, first, rest.map((word) => ["_", el("wbr"), word]));
}

function predictHref({ state }, body, answer, config) {
  const fields = new Map([...state.fields].filter(([name]) => !name.startsWith("config.")));
  fields.set("devices", body.device);
  if (answer.impl) fields.set("impl", answer.impl);
  for (const [name, value] of Object.entries(config)) fields.set(`config.${name}`, String(value));
  return writeFragment("predict", fields);
}
