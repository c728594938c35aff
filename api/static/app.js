// The explorer: builds the form from /v1/kernels and /v1/devices and asks /v1/predict. No library, no inline code.
import { drawPlot } from "./plot.js";

const $ = (id) => document.getElementById(id);
const SCALES = {
  s: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
  w: [[1e3, "kW"], [1, "W"], [1e-3, "mW"]],
  j: [[1e3, "kJ"], [1, "J"], [1e-3, "mJ"], [1e-6, "µJ"], [1e-9, "nJ"]],
};
const SWEEP_STEPS = 6;
let kernels = {};
let asked = 0;

function format(value, unit) {
  if (!(value > 0)) return `0 ${SCALES[unit].at(-1)[1]}`;
  const [factor, name] = SCALES[unit].find(([f]) => value >= 0.9995 * f) ?? SCALES[unit].at(-1);
  const scaled = value / factor;
  return `${scaled >= 1000 ? scaled.toFixed(0) : Number(scaled.toPrecision(3))} ${name}`;
}

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function options(select, values, chosen) {
  select.replaceChildren(...values.map(([value, text]) => make("option", { value, textContent: text })));
  if (values.some(([value]) => value === chosen)) select.value = chosen;
}

function numberField(name, value, title, holder) {
  const input = make("input", { id: `n-${name}`, value, inputMode: "numeric", title });
  input.dataset.name = name;
  holder.append(make("div", {}, make("label", { htmlFor: input.id, textContent: name, title }), input));
}

function showFamily(given = {}) {
  const schema = kernels[$("family").value];
  const { sizes, config, variant, dtype } = schema.properties;
  const example = schema.examples[0];
  $("family-doc").textContent = schema.description.split("\n")[0];
  const formats = ["fp32", "bf16", "fp16", "fp8", "tf32", "fp8_block", "nvfp4", "int8", "int32", "int64", "fp64"];
  const known = formats.filter((name) => dtype.enum.includes(name)).map((name) => [name, name]);
  options($("dtype"), known, given.dtype ?? $("dtype").value);
  if (!given.dtype && !$("dtype").dataset.touched) $("dtype").value = example.dtype;
  options($("kv_dtype"), [["", "as above"], ...known], given.kv_dtype ?? "");
  options($("variant"), variant.enum.map((name) => [name, name || (schema.required.includes("variant") || !("default" in variant) ? "by the sizes" : "plain")]), given.variant ?? variant.default ?? (variant.enum.includes("") ? "" : example.variant));
  $("variant-field").hidden = variant.enum.length < 2;
  $("sizes").replaceChildren();
  for (const [name, one] of Object.entries(sizes.properties)) {
    numberField(name, given.sizes?.[name] ?? example.sizes[name] ?? one.default ?? one.minimum, one.description, $("sizes"));
  }
  $("config").replaceChildren();
  for (const name of Object.keys(config.properties)) numberField(name, given.config?.[name] ?? "", "tuning number, empty: not given", $("config"));
  const names = Object.keys(sizes.properties);
  const telling = names.find((name) => example.sizes[name] > 8) ?? names[0];
  options($("sweep"), names.map((name) => [name, name]), names.includes(given.sweep) ? given.sweep : telling);
}

function numbers(holder) {
  const found = {};
  for (const input of holder.querySelectorAll("input")) {
    const text = input.value.trim();
    if (text === "") continue;
    // What is no number goes out as it is, and the service says what is wrong with it.
    found[input.dataset.name] = /^-?\d+$/.test(text) ? Number(text) : text;
  }
  return found;
}

function request() {
  const spec = { family: $("family").value, device: $("device").value, dtype: $("dtype").value, sizes: numbers($("sizes")) };
  if ($("variant").value) spec.variant = $("variant").value;
  if ($("impl").value.trim()) spec.impl = $("impl").value.trim();
  if ($("kv_dtype").value) spec.kv_dtype = $("kv_dtype").value;
  if ($("threads").value.trim()) spec.threads = Number($("threads").value) || $("threads").value;
  if ($("cache_state").value !== "hot") spec.cache_state = $("cache_state").value;
  const config = numbers($("config"));
  if (Object.keys(config).length) spec.config = config;
  return spec;
}

async function ask(body) {
  const response = await fetch("v1/predict", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  return [response.ok, await response.json()];
}

function card(title, target, unit, coverage) {
  const box = make("div", { className: "card" }, make("h3", { textContent: title }));
  if (target === null) {
    box.append(make("p", { className: "hint", textContent: "Unknown: too few rows of this family with power were measured on devices like this." }));
    return box;
  }
  const mark = make("i");
  mark.style.left = `${(100 * (target.value - target.lower)) / (target.upper - target.lower || 1)}%`;
  box.append(
    make("strong", { textContent: format(target.value, unit) }),
    make("div", { className: "interval", title: `${Math.round(coverage * 100)} % of cases fall inside` }, mark),
    make("div", { className: "ends" }, make("span", { textContent: format(target.lower, unit) }), make("span", { textContent: format(target.upper, unit) })),
  );
  return box;
}

function showAnswer(found) {
  $("result").hidden = false;
  $("result").classList.remove("stale");
  $("device-line").textContent = `${found.family} on ${found.device}; ${Math.round(found.coverage * 100)} % of cases fall inside the intervals`;
  $("targets").replaceChildren(card("Latency", found.latency_s, "s", found.coverage), card("Power", found.power_w, "w", found.coverage), card("Energy", found.energy_j, "j", found.coverage));
  $("bound").textContent = `— ${found.bound} binds`;
  const longest = Math.max(...Object.values(found.breakdown));
  $("breakdown").replaceChildren(...Object.entries(found.breakdown).map(([name, seconds]) => {
    const bar = make("span");
    bar.style.width = `${Math.max(0.5, (100 * seconds) / longest)}%`;
    return make("div", { className: name === found.bound ? "limit binds" : "limit" }, make("b", { textContent: name }), bar, make("em", { textContent: format(seconds, "s") }));
  }));
  $("method").textContent = `Method: ${found.method}. ${found.in_domain ? "Cases like this were measured." : "Outside what was measured; the interval is wider."}`;
  $("notes").replaceChildren(...found.notes.map((textContent) => make("li", { textContent })));
}

function showProblem(problem) {
  $("problem").hidden = problem === null;
  for (const input of document.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  if (problem === null) return;
  $("problem").textContent = problem.detail;
  $("result").classList.add("stale");
  for (const { field } of problem.errors ?? []) {
    const name = field.split(".").at(-1);
    ($(`n-${name}`) ?? $(name))?.setAttribute("aria-invalid", "true");
  }
}

function sweepValues(start, minimum) {
  const values = new Set([start]);
  for (let e = -SWEEP_STEPS; e <= SWEEP_STEPS; e += 0.5) values.add(Math.max(minimum, 1, Math.round(start * 2 ** e)));
  return [...values].sort((a, b) => a - b);
}

async function showSweep(spec, coverage, turn) {
  const name = $("sweep").value;
  const size = kernels[spec.family].properties.sizes.properties[name];
  if (!size || typeof spec.sizes[name] !== "number") return;
  let values = sweepValues(Math.max(1, spec.sizes[name]), size.minimum);
  const batch = (list) => ({ requests: list.map((value) => ({ ...spec, sizes: { ...spec.sizes, [name]: value } })), coverage });
  let [good, answer] = await ask(batch(values));
  if (!good && answer.errors?.every((error) => "index" in error)) {
    // Sizes that do not go together (heads not a multiple of kv_heads) are left out of the sweep.
    const bad = new Set(answer.errors.map((error) => error.index));
    values = values.filter((_, i) => !bad.has(i));
    if (values.length > 1) [good, answer] = await ask(batch(values));
  }
  if (turn !== asked || !good) return;
  const points = answer.predictions.map((p, i) => ({ x: values[i], ...p.latency_s, least: Math.max(...Object.values(p.breakdown)) }));
  drawPlot($("plot"), points, spec.sizes[name], name, (value) => format(value, "s"));
}

async function update() {
  const turn = ++asked;
  const spec = request();
  const coverage = Number($("coverage").value);
  const body = { ...spec, ...(coverage === 0.9 ? {} : { coverage }) };
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  $("curl").textContent = `curl -s ${location.origin}${location.pathname}v1/predict \\\n  -H 'content-type: application/json' \\\n  -d '${quoted}'`;
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify({ ...spec, sweep: $("sweep").value }))}`);
  try {
    const [good, answer] = await ask(body);
    if (turn !== asked) return;
    showProblem(good ? null : answer);
    if (good) {
      showAnswer(answer);
      await showSweep(spec, coverage, turn);
    }
  } catch (error) {
    if (turn === asked) showProblem({ detail: `The service did not answer: ${error.message}` });
  }
}

function remembered() {
  try {
    const found = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    return typeof found === "object" && found !== null ? found : {};
  } catch {
    return {};
  }
}

async function start() {
  const [kernelList, deviceList] = await Promise.all(["v1/kernels", "v1/devices"].map(async (path) => (await fetch(path)).json()));
  kernels = kernelList.kernels;
  const given = remembered();
  options($("family"), Object.keys(kernels).map((name) => [name, name]), kernels[given.family] ? given.family : "gemm");
  options($("device"), deviceList.devices.map((one) => [one.name, one.title]), given.device ?? "nvidia-h200-sxm-141gb");
  $("impl").value = given.impl ?? "";
  $("threads").value = given.threads ?? "";
  $("cache_state").value = given.cache_state ?? "hot";
  showFamily(given.family === $("family").value ? given : {});
  let timer = 0;
  $("family").addEventListener("change", () => showFamily());
  $("dtype").addEventListener("change", () => { $("dtype").dataset.touched = "1"; });
  for (const part of [$("spec"), $("sweep")]) {
    part.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(update, 120); });
  }
  $("spec").addEventListener("submit", (event) => event.preventDefault());
  $("copy").addEventListener("click", () => navigator.clipboard?.writeText($("curl").textContent));
  window.addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(update, 250); });
  await update();
}

start().catch((error) => showProblem({ detail: `The page could not start: ${error.message}` }));
