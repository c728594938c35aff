// Choosing devices: chips of those chosen, and a searchable list of all by maker and kind.
import { button, el, freshId } from "./dom.js";
import { grouped } from "./format.js";

const KINDS = { gpu: "GPUs", cpu: "CPUs" };
const MAKERS = { nvidia: "NVIDIA", amd: "AMD", intel: "Intel" };

const groupOf = (device) => `${MAKERS[device.vendor] ?? device.vendor} ${KINDS[device.kind] ?? device.kind}`;
const wordsOf = (device) =>
  [device.name, device.title, device.architecture, device.vendor, device.kind, ...device.aliases].join(" ").toLowerCase();

/** A control for the field `name` of the state, a list of devices; at most `most`; `nobody` is shown where none is chosen.
 * `changed` is called after the state has the new list. */
export function devicePicker(page, { name, label, most, nobody, coloured = true, changed }) {
  const { state, catalogue } = page;
  const id = freshId("devices");
  const chips = el("ul", { class: "chips", "aria-label": `Chosen: ${label}` });
  const search = el("input", {
    type: "search",
    placeholder: "Search name, maker, architecture",
    "aria-label": "Search devices",
    autocomplete: "off",
  });
  const matches = el("p", { class: "hint", role: "status" });
  const options = el("div", { class: "device-options" });
  const summary = el("summary", { text: "Choose devices" });
  const box = el("details", { class: "picker" }, summary, el("div", { class: "picker-body" }, search, matches, options));
  const element = el(
    "fieldset",
    { class: "field", "data-field": name, "aria-describedby": `${id}-error` },
    el("legend", { text: label }),
    chips,
    box,
    el("p", { class: "field-error", id: `${id}-error`, hidden: true }),
  );
  const boxes = new Map();

  const option = (device) => {
    const check = el("input", {
      type: "checkbox",
      value: device.name,
      onchange: () => choose(device.name, check.checked),
    });
    const row = el(
      "label",
      {},
      check,
      el("span", { text: device.title.replace(/^(NVIDIA|AMD|Intel) /, "") }),
      el("small", { text: device.architecture }),
    );
    boxes.set(device.name, { check, row, words: wordsOf(device) });
    return row;
  };
  const groupOfOptions = (group) => {
    const members = catalogue.devices.filter((device) => groupOf(device) === group);
    return el("fieldset", { class: "device-group" }, el("legend", { text: group }), members.map(option));
  };

  // A hundred devices take a slow phone a while; most people look at the first answer before.
  function build() {
    if (boxes.size) return;
    const groups = [...new Set(catalogue.devices.map(groupOf))].sort().reverse();
    options.append(...groups.map(groupOfOptions));
    draw();
  }
  summary.addEventListener("click", build);
  box.addEventListener("toggle", build);

  function chosen() {
    return catalogue.names(state.list(name));
  }

  function choose(device, on) {
    const now = chosen().filter((one) => one !== device);
    state.set({ [name]: (on ? [...now, device] : now).join(",") });
    state.commit();
    draw();
    changed();
  }

  function remove(device) {
    choose(device, false);
    summary.focus();
  }

  function draw() {
    const now = chosen();
    chips.replaceChildren(
      ...now.map((device, i) =>
        el(
          "li",
          { class: coloured ? `series-${i + 1}` : "" },
          coloured && el("span", { class: "swatch", "aria-hidden": "true" }),
          el("span", { text: catalogue.title(device) }),
          button("×", () => remove(device), { "aria-label": `Remove ${catalogue.title(device)}` }),
        ),
      ),
    );
    if (!now.length) chips.append(el("li", { class: "nobody", text: nobody }));
    for (const [device, { check }] of boxes) {
      check.checked = now.includes(device);
      check.disabled = !check.checked && now.length >= most;
    }
    filter();
  }

  function filter() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const { row, words } of boxes.values()) {
      row.hidden = !wanted.every((word) => words.includes(word));
      count += row.hidden ? 0 : 1;
    }
    for (const group of options.children) group.hidden = !group.querySelector("label:not([hidden])");
    const limit = chosen().length >= most ? `; ${most} are chosen, which is the most` : "";
    matches.textContent = `${grouped(count)} of ${catalogue.devices.length} devices${limit}`;
  }

  search.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && search.value) {
      search.value = "";
      filter();
      event.stopPropagation();
    }
    if (event.key !== "Enter") return;
    event.preventDefault();
    const shown = [...boxes.values()].filter(({ row }) => !row.hidden);
    if (shown.length === 1 && !shown[0].check.disabled) shown[0].check.click();
  });
  draw();
  return element;
}
