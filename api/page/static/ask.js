// Asking the service: one place for keys, refusals and answers that came too late.
import { setInvalid } from "./dom.js";

const KEY = "kernelcast-key";
// How often a question is asked again where the service says to come back later: it is busy, or still loads its model.
const MOST_RETRIES = 5;
const running = new Map();

/** A refusal of the service (problem+json), or that it could not be reached; `errors` names the fields at fault. */
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `the service answered ${status}`);
    this.status = status;
    this.errors = problem.errors ?? [];
  }
}

/** A refusal of the page itself, at one field. */
export const refusalAt = (field, detail) => new Refusal(0, { errors: [{ field, detail }] });

/** The answer to a question that a view can do without, or the refusal of it. */
export async function orRefusal(question) {
  try {
    return await question;
  } catch (error) {
    if (error instanceof Refusal) return error;
    throw error;
  }
}

/** Thrown by `ask` where a newer question of the same slot was asked meanwhile; nothing is to be shown. */
export class Stale extends Error {}

/** The API key of this tab, or null. It is kept for the tab only, and never in an address or a copied command. */
export function storedKey() {
  try {
    return window.sessionStorage.getItem(KEY);
  } catch {
    return null; // Storage is switched off: the key is asked for again on every load.
  }
}

/** Keep a key for this tab; null forgets it. */
export function storeKey(key) {
  try {
    if (key === null) window.sessionStorage.removeItem(KEY);
    else window.sessionStorage.setItem(KEY, key);
  } catch {
    lastKey = key;
  }
  window.dispatchEvent(new Event("kernelcast-key"));
}

let lastKey = null;
let asking = null;

/** Answer of the service to `body` (POST), or of a GET where there is none; `slot` names what the answer is for, and a
 * newer question of the same slot ends this one with `Stale`. `type` is the body's media type, where it is no JSON. */
export async function ask(slot, path, body, { type = "application/json", text = false } = {}) {
  running.get(slot)?.abort();
  const control = new AbortController();
  running.set(slot, control);
  try {
    for (let retries = 0; ; ) {
      const response = await send(path, body, type, control.signal);
      if (response.status === 401) {
        await keyFor(response, control.signal);
        continue;
      }
      const wait_s = response.status === 503 && retries < MOST_RETRIES ? Number(response.headers.get("retry-after")) : 0;
      if (wait_s > 0) {
        retries += 1;
        await pause(wait_s, control.signal);
        continue;
      }
      if (!response.ok) throw new Refusal(response.status, await problemOf(response));
      return text ? await response.text() : await jsonOf(response, control.signal);
    }
  } catch (error) {
    if (control.signal.aborted) throw new Stale();
    throw error;
  } finally {
    if (running.get(slot) === control) running.delete(slot);
  }
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = window.setTimeout(resolve, 1000 * seconds);
    signal.addEventListener("abort", () => {
      window.clearTimeout(timer);
      reject(new Stale());
    });
  });
}

async function send(path, body, type, signal) {
  const key = storedKey() ?? lastKey;
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const content = body === undefined ? {} : { method: "POST", body: typeof body === "string" ? body : JSON.stringify(body) };
  if (body !== undefined) headers["content-type"] = type;
  try {
    return await fetch(path, { ...content, headers, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Refusal(0, { detail: `The service did not answer (${error.message}). Is it still running?` });
  }
}

async function jsonOf(response, signal) {
  try {
    return await response.json();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Refusal(response.status, { detail: `What came back is no answer of this service (${error.message}).` });
  }
}

async function problemOf(response) {
  try {
    return await response.json();
  } catch {
    return { detail: `the service answered ${response.status} ${response.statusText}` };
  }
}

// All questions that were refused wait for one dialog.
async function keyFor(response, signal) {
  const refused = storedKey() ?? lastKey;
  const { detail } = await problemOf(response);
  asking ??= askForKey(refused ? detail : "").finally(() => {
    asking = null;
  });
  await asking;
  if (signal.aborted) throw new Stale();
}

function askForKey(trouble) {
  const dialog = document.getElementById("key-dialog");
  const form = dialog.querySelector("form");
  const input = dialog.querySelector("input");
  const problem = dialog.querySelector(".field-error");
  problem.textContent = trouble;
  problem.hidden = !trouble;
  setInvalid(input, Boolean(trouble));
  input.value = "";
  dialog.showModal();
  return new Promise((resolve, reject) => {
    const done = (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (event.type === "submit" && !key) return;
      form.removeEventListener("submit", done);
      dialog.removeEventListener("cancel", done);
      dialog.close();
      if (event.type === "cancel")
        return reject(new Refusal(401, { detail: "This service asks for an API key; reload the page to enter one." }));
      storeKey(key);
      return resolve();
    };
    form.addEventListener("submit", done);
    dialog.addEventListener("cancel", done);
  });
}
