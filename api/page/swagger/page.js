// The REST interface, read from the service's own OpenAPI document. All addresses are relative, for a proxy's prefix.
"use strict";

// Where the explorer page keeps its key and its theme too.
const KEY = "kernelcast-key";
const THEME = "kernelcast-theme";
const DOCUMENT = "../openapi.json";

function stored(storage, name) {
  try {
    return window[storage].getItem(name);
  } catch {
    return null; // storage is blocked
  }
}

let key = stored("sessionStorage", KEY);

// Swagger UI is dark where its root has this class.
const system = window.matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const chosen = stored("localStorage", THEME);
  const dark = ["light", "dark"].includes(chosen) ? chosen === "dark" : system.matches;
  document.documentElement.classList.toggle("dark-mode", dark);
}
applyTheme();
system.addEventListener("change", applyTheme);

function withKey(headers) {
  return key ? { ...headers, Authorization: `Bearer ${key}` } : headers;
}

function show() {
  window.SwaggerUIBundle({
    url: DOCUMENT,
    dom_id: "#operations",
    presets: [window.SwaggerUIBundle.presets.apis],
    deepLinking: true,
    validatorUrl: null, // no document is sent to anyone
    requestInterceptor: (request) => {
      // The key is for this service and no other address.
      const here = new URL(request.url, document.baseURI).origin === window.location.origin;
      return here && !request.headers.Authorization ? { ...request, headers: withKey(request.headers) } : request;
    },
  });
}

async function start() {
  const answer = await fetch(DOCUMENT, { headers: withKey({}) });
  if (answer.status === 401 || answer.status === 403) {
    document.getElementById("key-form").hidden = false;
    return;
  }
  if (!answer.ok) throw new Error(`openapi.json was answered with ${answer.status}`);
  document.getElementById("key-form").hidden = true;
  show();
}

function fail(error) {
  const problem = document.getElementById("problem");
  problem.textContent = `The description of the service cannot be shown: ${error.message}`;
  problem.hidden = false;
}

document.getElementById("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = document.getElementById("key").value.trim();
  try {
    window.sessionStorage.setItem(KEY, key);
  } catch {
    // Storage is blocked: the key holds until the page is left.
  }
  start().catch(fail);
});

start().catch(fail);
