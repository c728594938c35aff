// The frame around the views: tabs, address, live region, and what every view is given to work with.
import { Stale, ask, storeKey, storedKey } from "./ask.js";
import { loadCatalogue } from "./catalogue.js";
import { el } from "./dom.js";
import { State } from "./state.js";
import { FIELDS, QUESTIONS, VIEWS } from "./views.js";

const MODEL_AFTER_MS = 1500;
const byId = (id) => document.getElementById(id);
const state = new State(window.location.hash, (words) => remark(words));

/** Say above the view that something in the address is not what is shown. */
function remark(words) {
  const place = byId("remarks");
  place.hidden = false;
  place.append(el("p", { text: words }));
}

/** Remarks on an address that was followed, and none of the one before. */
function checkAddress() {
  const place = byId("remarks");
  place.replaceChildren();
  place.hidden = true;
  const unknown = [...state.fields.keys()].filter((name) => !FIELDS.test(name));
  if (unknown.length) remark(`The address has fields that this page does not know: ${unknown.map((name) => name.slice(0, 60)).join(", ")}.`);
  if (state.view && !VIEWS.some((one) => one.id === state.view))
    remark(`There is no view \u201c${state.view.slice(0, 60)}\u201d; ${VIEWS[0].title} is shown.`);
}

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
    show();
    byId("panel").focus();
  },
};

let leave = null;
let turn = 0;

async function render() {
  const view = VIEWS.find((one) => one.id === state.view) ?? VIEWS[0];
  state.view = view.id;
  turn += 1;
  const here = turn;
  leave?.();
  leave = null;
  const root = byId("panel");
  root.replaceChildren(el("p", { class: "hint", text: "Loading…" }));
  root.setAttribute("aria-labelledby", `tab-${view.id}`);
  document.title = `${view.title} · kernelcast`;
  showChosen(view);
  const [module] = await Promise.all([view.load(), view.kernels ? page.catalogue.loadKernels() : null]);
  if (here !== turn) return;
  root.replaceChildren();
  leave = module.render(root, page) ?? null;
  state.commit(true);
}

/** Show a view; where it cannot be loaded, say so. */
function show() {
  render().catch(failed);
}

/** Mark the tab and the question of a view as the chosen ones. */
function showChosen(view) {
  for (const tab of byId("tabs").children) {
    const chosen = tab.id === `tab-${view.id}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) tab.scrollIntoView({ block: "nearest", inline: "center" });
  }
  byId("questions").hidden = !QUESTIONS.some(([one]) => one === view.id);
  for (const link of byId("questions").children) {
    if (link.dataset.view === view.id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** Links to the views that answer what people come with; the fields of the state stay. */
function buildQuestions() {
  byId("questions").append(
    ...QUESTIONS.map(([view, question, words]) =>
      el("a", { href: `#/${view}`, "data-view": view }, el("strong", { text: question }), el("span", { text: words })),
    ),
  );
  byId("questions").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    page.go(link.dataset.view);
  });
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
    show();
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
  buildQuestions();
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
  checkAddress();
  show();
  tabFromTheTop();
  window.addEventListener("popstate", () => {
    state.load(window.location.hash);
    checkAddress();
    show();
  });
  // The page works without saying whose answers it shows, which comes with the model's long manifest.
  window.setTimeout(() => {
    showModel().catch((error) => {
      byId("model").textContent = `Which model answers is not known: ${error.message}`;
    });
  }, MODEL_AFTER_MS);
}

/** Tab begins with the first link, where nothing has the focus yet: browsers begin where a script last changed the page. */
function tabFromTheTop() {
  if (document.activeElement !== document.body) return;
  document.body.tabIndex = -1;
  document.body.focus({ preventScroll: true });
  document.body.removeAttribute("tabindex");
}

function failed(error) {
  if (error instanceof Stale) return;
  byId("panel").replaceChildren(el("p", { class: "alert", role: "alert", text: `The page could not start. ${error.message}` }));
}

start().catch(failed);
