// One kernel on one device or several: what it takes, how sure that is, what binds, and how far from the limit.
import { NO_POWER, answersPart, cautions, coverageWords, rooflineParts, whenAnswered } from "../answers.js";
import { Refusal } from "../ask.js";
import { breakdownBars, figureOf, scaleFor } from "../bars.js";
import { plot } from "../charts.js";
import { pythonCall, pythonSpec, requestBlock } from "../copy.js";
import { el, table } from "../dom.js";
import { controlName, specForm, specOf } from "../form.js";
import { percent, show, showInterval } from "../format.js";

export const id = "predict";
export const title = "Predict";

const PATH = "v1/predict";

export function render(root, page) {
  const answers = answersPart();
  const form = specForm(page, { answers, changed: () => update(page, form, answers) });
  root.append(el("div", { class: "columns" }, form.element, answers));
  update(page, form, answers);
  return form.leave;
}

const bodyOf = (spec, devices) => {
  const { coverage, ...rest } = spec;
  if (devices.length === 1) return { ...rest, device: devices[0], ...(coverage ? { coverage } : {}) };
  return { requests: devices.map((device) => ({ ...rest, device })), ...(coverage ? { coverage } : {}) };
};

const callOf = ({ requests, coverage, ...spec }) =>
  requests
    ? pythonCall("predict_many", [requests], { coverage })
    : pythonCall("predict", [spec.family], { ...pythonSpec(spec), coverage });

async function update(page, form, answers) {
  const spec = specOf(page);
  const devices = page.catalogue.names(page.state.list("devices"));
  await whenAnswered(
    answers,
    async (stillAsked) => {
      if (!devices.length) throw new Refusal(0, { errors: [{ field: "devices", detail: "Choose a device." }] });
      const { found, refused } = await predictions(page, spec, devices);
      const good = devices.filter((_, i) => found[i]);
      // What cannot be drawn must not hide what can be said.
      const roofs = good.length
        ? await page
            .ask("roofline", "v1/roofline", { ...spec, devices: good })
            .catch((error) => (error instanceof Refusal ? null : Promise.reject(error)))
        : null;
      stillAsked();
      showAnswers(page, answers, spec, devices, {
        found,
        refused,
        roofs: new Map(good.map((name, i) => [name, roofs?.answers[i]])),
      });
    },
    form.problem,
  );
}

/** Answers by position, null where a device is refused; a refusal that is about no device is thrown. */
async function predictions(page, spec, devices) {
  const all = (answer) => (devices.length === 1 ? [answer] : answer.predictions);
  try {
    return { found: all(await page.ask("predict", PATH, bodyOf(spec, devices))), refused: [] };
  } catch (error) {
    const wrong = new Set((error.errors ?? []).map((one) => one.index));
    if (devices.length === 1 || wrong.has(undefined) || !wrong.size || wrong.size === devices.length) throw onePerField(error);
    const good = devices.filter((_, i) => !wrong.has(i));
    const answer = await page.ask("predict", PATH, bodyOf(spec, good));
    const rest = good.length === 1 ? [answer] : answer.predictions;
    return {
      found: devices.map((_, i) => (wrong.has(i) ? null : rest[good.indexOf(devices[i])])),
      refused: devices.map((_, i) => error.errors.find((one) => one.index === i)?.detail),
    };
  }
}

// Every device refuses for the same reason: it is said once.
function onePerField(error) {
  if (!(error instanceof Refusal)) return error;
  const byField = new Map(
    error.errors.map((one) => [controlName(one.field), { field: controlName(one.field), detail: one.detail }]),
  );
  return Object.assign(error, { errors: [...byField.values()] });
}

function showAnswers(page, answers, spec, devices, { found, refused, roofs }) {
  const known = found.filter(Boolean);
  const scale = (target, more = []) =>
    scaleFor([...more, ...known.flatMap((one) => (one[target] ? [one[target].lower, one[target].upper] : []))]);
  // Watts are drawn against the devices' power limits, seconds and joules against the largest of them.
  const limits = known.map(({ device }) => page.catalogue.device(device)?.facts.tdp_w?.value ?? 0);
  const scales = { latency_s: scale("latency_s"), power_w: scale("power_w", limits), energy_j: scale("energy_j") };
  const cards = devices.map((device, i) =>
    found[i]
      ? card(page, found[i], scales, { series: i + 1, roofline: roofs.get(device), several: devices.length > 1 })
      : el(
          "article",
          { class: "panel card refused" },
          el("h2", { text: page.catalogue.title(device) }),
          el("p", { text: refused[i] }),
        ),
  );
  const drawn = devices
    .map((device, i) => ({ title: page.catalogue.title(device), series: i + 1, roofline: roofs.get(device) }))
    .filter(({ roofline }) => roofline);
  const log = known.length > 1 && Object.values(scales).some(({ log: one }) => one);
  answers.replaceChildren(
    el(
      "p",
      { class: "lead" },
      el("strong", { text: spec.family }),
      ` ${sizesInWords(spec)}, ${spec.dtype}; ${known.length ? coverageWords(known[0].coverage) : "no answer"}${log ? "; bars are logarithmic" : ""}`,
    ),
    el("div", { class: devices.length > 1 ? "cards several" : "cards" }, cards),
    drawn.length ? rooflinePanel(drawn) : "",
    requestBlock(page, PATH, bodyOf(spec, devices), callOf(bodyOf(spec, devices))),
  );
  page.say(
    known.map((one) => `${page.catalogue.title(one.device)}: ${showInterval(one.latency_s, "s").text}`).join("; ") ||
      "No device answered.",
  );
}

const sizesInWords = (spec) =>
  Object.entries(spec.sizes)
    .map(([name, size]) => `${name}\u00a0${size}`)
    .join(" · ");

function card(page, found, scales, { series, roofline, several }) {
  const limit = Math.max(...Object.values(found.breakdown));
  const tdp = page.catalogue.device(found.device)?.facts.tdp_w?.value ?? null;
  return el(
    "article",
    { class: `panel card series-${series}${found.in_domain ? "" : " guess"}` },
    el("h2", {}, el("span", { class: "swatch", "aria-hidden": "true" }), page.catalogue.title(found.device)),
    el(
      "div",
      { class: "figures" },
      figureOf("Latency", found.latency_s, "s", scales.latency_s, { limit }),
      figureOf("Power", found.power_w, "w", scales.power_w, { limit: tdp, unknown: NO_POWER }),
      figureOf("Energy", found.energy_j, "j", scales.energy_j, { unknown: "Energy is latency times power." }),
    ),
    cautions(found),
    el(
      "details",
      { class: "why", open: !several },
      el(
        "summary",
        {},
        el("strong", { text: found.bound }),
        " binds",
        roofline
          ? el("span", {}, "; the lower bound is ", el("strong", { text: percent(roofline.of_limit) }), " of the predicted time")
          : "",
      ),
      breakdownBars(found.breakdown, found.bound, found.latency_s.value),
      el("p", {
        class: "hint",
        text: `The dotted mark in the bar of latency is the least time the limits allow, in that of power the device's power limit. Each bar here is what that limit alone would take on paper. Method: ${found.method}.`,
      }),
    ),
  );
}

function rooflinePanel(drawn) {
  const parts = rooflineParts(drawn);
  const rows = drawn.map(({ title: name, roofline }) => [
    name,
    show(roofline.intensity, "flop/b"),
    roofline.attained_flops_per_s ? showInterval(roofline.attained_flops_per_s, "flop/s").text : "unknown",
    `${show(roofline.peak_flops_per_s.value, "flop/s")} (${roofline.peak_flops_per_s.source})`,
    `${show(roofline.bandwidth_b_per_s.value, "b/s")} (${roofline.bandwidth_b_per_s.source})`,
    show(roofline.ridge_intensity, "flop/b"),
    percent(roofline.of_limit),
  ]);
  return el(
    "section",
    { class: "panel" },
    el("h2", { text: "Roofline" }),
    parts
      ? plot({
          label: "Roofline",
          describe: parts.stops.map((stop) => stop.text.join(", ")).join(". "),
          x: { title: "arithmetic intensity, FLOP per byte", log: true },
          y: { log: true, quantity: "flop/s" },
          ...parts,
          legend: drawn.map(({ title: text, series }) => ({ text, series, mark: "dot" })),
        })
      : el("p", { class: "hint", text: "This kernel counts no arithmetic, so it has no place under a roofline." }),
    el(
      "details",
      {},
      el("summary", { text: "Values as a table" }),
      table("Roofline", ["Device", "Intensity", "Attained", "Peak", "Memory bandwidth", "Ridge", "Of the limit"], rows),
    ),
  );
}
