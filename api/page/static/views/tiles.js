// The best configurations of one kernel on one device, and how many of them the ranking cannot tell apart.
import { NO_POWER, answersPart, cautions, whenAnswered } from "../answers.js";
import { Refusal } from "../ask.js";
import { figureOf, intervalBar, scaleFor } from "../bars.js";
import { pythonCall, pythonSpec, requestBlock } from "../copy.js";
import { el } from "../dom.js";
import { download } from "../download.js";
import { choice, field, specForm, specOf } from "../form.js";
import { grouped, percent, show, showInterval } from "../format.js";
import { writeFragment } from "../state.js";

export const id = "tiles";
export const title = "Tiles";

const PATH = "v1/rank";
const TOPS = ["5", "10", "20", "50", "100"];
const TOP = "20";
const EXAMPLE = '[{"tile_m": 64, "tile_n": 64, "tile_k": 32}]';

export function render(root, page) {
  const answers = answersPart();
  const ask = () => update(page, form, answers);
  const form = specForm(page, { answers, devices: false, knobs: false, extra: () => tileFields(page), changed: ask });
  root.append(el("div", { class: "columns" }, form.element, answers));
  ask();
  return form.leave;
}

const deviceOf = ({ state, catalogue }) =>
  catalogue.names([state.get("tiles.device") || state.list("devices")[0] || catalogue.devices[0].name])[0];

function tileFields(page) {
  const { state, catalogue } = page;
  // Refusals name the field as the API does, the address by the view it belongs to.
  const named = (apiName, made) => {
    made.dataset.field = apiName;
    return made;
  };
  const titles = Object.fromEntries(catalogue.devices.map(({ name, title: text }) => [name, text]));
  const own = el("textarea", { rows: "4", spellcheck: "false", autocomplete: "off", placeholder: EXAMPLE });
  own.value = state.get("tiles.configs");
  return el(
    "fieldset",
    { class: "group" },
    el("legend", { text: "Configurations" }),
    named("devices", field("tiles.device", "Device", choice(Object.keys(titles), deviceOf(page), titles))),
    named("top", field("tiles.top", "How many of the best", choice(TOPS, state.get("tiles.top", TOP)))),
    el(
      "details",
      { open: state.get("tiles.configs") !== "" },
      el("summary", { text: "Configurations of your own" }),
      named("configs", field("tiles.configs", "A JSON list; left empty, those known are ranked", own)),
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
    const found = JSON.parse(text);
    return Array.isArray(found) ? found : [found];
  } catch (error) {
    throw new Refusal(0, {
      errors: [{ field: "configs", detail: `This is no JSON (${error.message}). Give a list such as ${EXAMPLE}.` }],
    });
  }
}

async function update(page, form, answers) {
  await whenAnswered(
    answers,
    async (stillAsked) => {
      const body = bodyOf(page);
      const answer = await page.ask("rank", PATH, body);
      stillAsked();
      draw(page, answers, body, answer);
    },
    (refusal) => form.problem(atTheList(refusal)),
  );
}

/** What is wrong with one configuration stands at the list it is in. */
function atTheList(refusal) {
  if (!refusal) return null;
  const errors = refusal.errors.map(({ field: path, detail }) => {
    const found = /^configs\[(\d+)\](?:\.(.*))?$/.exec(path ?? "");
    return found
      ? { field: "configs", detail: `${found[2] ? `${found[2]} of ` : ""}configuration ${Number(found[1]) + 1}: ${detail}` }
      : { field: path, detail };
  });
  return Object.assign(refusal, { errors });
}

/** Knobs that differ among the configurations, and those that are the same in all. */
function knobsOf(ranked) {
  const names = [...new Set(ranked.flatMap(({ config }) => Object.keys(config)))];
  const same = names.filter((name) => new Set(ranked.map(({ config }) => config[name])).size === 1);
  return ranked.length > 1 ? { differ: names.filter((name) => !same.includes(name)), same } : { differ: names, same: [] };
}

function draw(page, answers, body, answer) {
  const { ranked, tied } = answer;
  const [best] = ranked;
  const { differ, same } = knobsOf(ranked);
  const kind = [answer.impl, body.dtype].filter(Boolean).join(" ");
  answers.replaceChildren(
    el(
      "p",
      { class: "lead" },
      el("strong", { text: `${answer.family} ${kind}` }),
      ` on ${page.catalogue.title(answer.device)}: ${grouped(answer.considered)} configurations considered. Ranked by: ${answer.method}.`,
    ),
    el(
      "article",
      { class: "panel card" },
      el("h2", { text: "The best" }),
      el("p", { class: "config", text: inWords(best.config) }),
      el(
        "div",
        { class: "figures" },
        figureOf("Latency", best.latency_s, "s", scaleFor([best.latency_s.lower, best.latency_s.upper])),
        figureOf("Power", best.power_w, "w", best.power_w && scaleFor([best.power_w.lower, best.power_w.upper]), {
          unknown: NO_POWER,
        }),
        figureOf("Energy", best.energy_j, "j", best.energy_j && scaleFor([best.energy_j.lower, best.energy_j.upper]), {
          unknown: "Energy is latency times power.",
        }),
      ),
      cautions({ ...best, in_domain: best.in_domain ?? true }),
    ),
    el(
      "section",
      { class: "panel" },
      el(
        "div",
        { class: "row" },
        el("h2", { text: `The first ${ranked.length}` }),
        el("button", {
          type: "button",
          class: "copy",
          text: "Download JSON",
          onclick: () =>
            download(
              `${answer.family}-tiles.json`,
              "application/json",
              JSON.stringify(
                ranked.map(({ config }) => config),
                null,
                1,
              ),
            ),
        }),
      ),
      el("p", { class: "tied", text: tiedWords(tied, ranked.length) }),
      same.length
        ? el("p", {
            class: "hint",
            text: `The same in all: ${same.map((name) => `${name} ${best.config[name] ?? "not given"}`).join(", ")}.`,
          })
        : "",
      ranking(page, body, answer, differ),
    ),
    requestBlock(page, PATH, body, callOf(body)),
  );
  page.say(
    `${ranked.length} configurations on ${page.catalogue.title(answer.device)}. The best: ${inWords(best.config)}, ${showInterval(best.latency_s, "s").text}. ${tiedWords(tied, ranked.length)}`,
  );
}

const inWords = (config) =>
  Object.entries(config)
    .map(([name, value]) => `${name}\u00a0${value}`)
    .join(" · ") || "the default";

const callOf = ({ device, configs, top, ...spec }) =>
  pythonCall("rank", [spec.family], { ...pythonSpec(spec), device, configs, top });

function tiedWords(tied, shown) {
  if (tied <= 1) return "The first is faster than the others by more than the error of the ranking.";
  const which = tied > shown ? `All of these, and ${tied - shown} more,` : `The first ${tied}, marked “tied”,`;
  return `${which} differ by less than the error of the ranking, so their order is uncertain. Measure them and keep the fastest.`;
}

function ranking(page, body, answer, knobs) {
  const { ranked, tied } = answer;
  const energy = ranked.some((one) => one.energy_j);
  const scale = scaleFor(ranked.flatMap(({ latency_s: one }) => [one.lower, one.upper]));
  const line = (one, i) =>
    el(
      "tr",
      { class: i < tied ? "together" : null },
      el("th", { scope: "row" }, `${i + 1}`, i < tied && tied > 1 ? el("span", { class: "badge", text: "tied" }) : ""),
      el(
        "td",
        { class: "bar-cell" },
        intervalBar(one.latency_s, scale),
        el("span", { text: showInterval(one.latency_s, "s").text }),
      ),
      el("td", { class: "number", text: one.slower_than_best === 0 ? "best" : `+${percent(one.slower_than_best)}` }),
      knobs.map((name) => el("td", { class: "number", text: one.config[name] ?? "—" })),
      energy
        ? el("td", { class: one.energy_j ? "number" : "number unknown", text: show(one.energy_j?.value ?? null, "j") })
        : null,
      el("td", { text: one.bound }),
      el(
        "td",
        {},
        el("a", {
          href: predictHref(page, body, answer, one.config),
          "aria-label": `Predict configuration ${i + 1}`,
          text: "Predict",
        }),
        one.in_domain === false || one.notes.length
          ? el(
              "details",
              { class: "tag" },
              el("summary", { text: one.in_domain === false ? "extrapolated" : "note" }),
              el(
                "ul",
                {},
                one.notes.map((note) => el("li", { text: note })),
              ),
            )
          : "",
      ),
    );
  return el(
    "div",
    {},
    el(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Configurations, the quickest first" },
      el(
        "table",
        { class: "ranking" },
        el("caption", { class: "unseen", text: "Configurations, the quickest first" }),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ["Place", "Latency", "Slower by", ...knobs, ...(energy ? ["Energy"] : []), "Binds", "More"].map((words) =>
              el("th", { scope: "col", class: knobs.includes(words) || words === "Slower by" ? "number" : null, text: words }),
            ),
          ),
        ),
        el("tbody", {}, ranked.map(line)),
      ),
    ),
    el("p", {
      class: "hint",
      text: scale.log
        ? "The bars are on a logarithmic scale; the band is the interval."
        : "The bars start at zero; the band is the interval, the mark the prediction.",
    }),
  );
}

function predictHref({ state }, body, answer, config) {
  const fields = new Map([...state.fields].filter(([name]) => !name.startsWith("config.")));
  fields.set("devices", body.device);
  if (answer.impl) fields.set("impl", answer.impl);
  for (const [name, value] of Object.entries(config)) fields.set(`config.${name}`, String(value));
  return writeFragment("predict", fields);
}
