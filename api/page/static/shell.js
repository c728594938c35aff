// The frame around the views: tabs, address, live region, and what every view is given to work with.
import { Stale, ask, storeKey, storedKey } from "./ask.js";
import { loadCatalogue } from "./catalogue.js";
import { el } from "./dom.js";
import { State } from "./state.js";
import { VIEWS } from "./views.js";

const byId = (id) => document.getElementById(id);
const state = new State(window.location.hash);

/** What a view works with, handed to its `render(root, page)`. */
const page = {
  state,
  catalogue: null,
  ask,
  /** Read out by screen readers, shown to nobody else. */
  say(text) {
    byId("said").textContent = text;
  },
  /** Go to another view, the fields kept, with `changes`. */
  go(view, changes = {}) {
    state.set(changes);
    state.view = view;
    state.commit();
    render();
    byId("panel").focus();
  },
};

let leave = null;

function render() {
  const view = VIEWS.find((one) => one.id === state.view) ?? VIEWS[0];
  state.view = view.id;
  leave?.();
  const root = byId("panel");
  root.replaceChildren();
  root.setAttribute("aria-labelledby", `tab-${view.id}`);
  document.title = `${view.title} · kernelcast`;
  leave = view.render(root, page) ?? null;
  state.commit(true);
  for (const tab of byId("tabs").children) {
    const chosen = tab.id === `tab-${view.id}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

function buildTabs() {
  const list = byId("tabs");
  list.append(
    ...VIEWS.map((view) =>
      el("a", { role: "tab", id: `tab-${view.id}`, href: `#/${view.id}`, "aria-controls": "panel", text: view.title }),
    ),
  );
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (!tab || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    state.view = tab.id.slice("tab-".length);
    state.commit();
    render();
  });
  list.addEventListener("keydown", (event) => {
    const tabs = [...list.children];
    const at = tabs.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (event.key === " ") document.activeElement.click();
    else if (to !== undefined) tabs.at(to % tabs.length).focus();
    else return;
    event.preventDefault();
  });
  // An opened copy of a tab is to show the same fields, whatever they are by then.
  list.addEventListener("pointerdown", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) tab.href = state.href(tab.id.slice("tab-".length));
  });
}

async function showModel() {
  const { models } = await ask("models", "v1/models");
  if (!models.length) return byId("model").replaceChildren("No model is loaded yet.");
  const [{ name, manifest, problem }] = models;
  const day = manifest?.created?.slice(0, 10);
  const words = (day ? ` of ${day}` : "") + (problem ? `; a newer one was not taken: ${problem}` : "");
  return byId("model").replaceChildren(el("span", {}, "Answers come from the model ", el("strong", { text: name }), words));
}

async function start() {
  buildTabs();
  const keyShown = () => {
    byId("forget").hidden = storedKey() === null;
  };
  window.addEventListener("kernelcast-key", keyShown);
  keyShown();
  byId("forget").addEventListener("click", () => {
    storeKey(null);
    page.say("The key was forgotten.");
  });
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("panel").focus();
  });
  page.catalogue = await loadCatalogue();
  render();
  window.addEventListener("popstate", () => {
    state.load(window.location.hash);
    render();
  });
  // The page works without saying whose answers it shows.
  showModel().catch((error) => {
    byId("model").textContent = `Which model answers is not known: ${error.message}`;
  });
}

start().catch((error) => {
  if (error instanceof Stale) return;
  byId("panel").replaceChildren(el("p", { class: "alert", role: "alert", text: `The page could not start. ${error.message}` }));
});
