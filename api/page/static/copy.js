// The same question outside the page: as curl, as Python, as JSON. A key is never written out, only where it is taken from.
import { storedKey } from "./ask.js";
import { el, freshId } from "./dom.js";

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Python's way of writing a JSON value. */
function pythonOf(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, one]) => `${JSON.stringify(name)}: ${pythonOf(one)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}

/** Where the service is, without the page's own state. */
function base() {
  return new URL(".", window.location.href.split("#", 1)[0]).href;
}

const WAYS = {
  curl: (path, body) => {
    const key = storedKey() ? ' \\\n  -H "authorization: Bearer $KERNELCAST_API_KEY"' : "";
    return `curl -s ${quoted(base() + path)} \\\n  -H 'content-type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(body))}`;
  },
  Python: (path, body, call) => {
    // The client takes a key from the environment by itself.
    const key = storedKey() ? "  # with the key in KERNELCAST_API_KEY" : "";
    return `from kernelcast.client import Client\n\nwith Client(${JSON.stringify(base().replace(/\/$/, ""))}) as client:${key}\n    answer = client.${call}\nprint(answer)`;
  },
  JSON: (path, body) => JSON.stringify(body, null, 2),
};

/** A call of a method of the Python client: positional values, then keywords; null ones are left out. */
export function pythonCall(method, positional, keywords) {
  const named = Object.entries(keywords).filter(([, value]) => value !== null && value !== undefined);
  const written = [...positional.map(pythonOf), ...named.map(([name, value]) => `${name}=${pythonOf(value)}`)];
  return `${method}(\n        ${written.join(", ")},\n    )`;
}

/** Keywords of the Python client for a spec: the sizes stand beside the other fields. */
export function pythonSpec({ family: _, sizes, ...rest }) {
  return { ...rest, ...sizes };
}

/** A block that shows a request in each way and copies it; `call` is the same question to the Python client. */
export function requestBlock(page, path, body, call) {
  const code = el("pre", { tabindex: "0", "aria-label": "The request" });
  const id = freshId("way");
  const copy = el("button", { type: "button", class: "copy", text: "Copy" });
  const pick = (way) => {
    code.textContent = WAYS[way](path, body, call);
  };
  const ways = el(
    "div",
    { class: "segments", role: "radiogroup", "aria-label": "Written as" },
    Object.keys(WAYS).map((way, i) =>
      el(
        "label",
        {},
        el("input", { type: "radio", name: id, value: way, checked: i === 0, onchange: () => pick(way) }),
        el("span", { text: way }),
      ),
    ),
  );
  copy.addEventListener("click", async () => {
    const done = await put(code.textContent, code);
    copy.textContent = done ? "Copied" : "Select and copy";
    page.say(done ? "Copied" : "The text is selected; copy it with your keyboard.");
    window.setTimeout(() => {
      copy.textContent = "Copy";
    }, 1600);
  });
  pick("curl");
  return el(
    "section",
    { class: "panel request" },
    el("div", { class: "row" }, el("h2", { text: "The same request from your own code" }), ways, copy),
    code,
  );
}

async function put(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers have no clipboard for pages without https, except on the same machine: the text is selected instead.
    window.getSelection().selectAllChildren(shown);
    return false;
  }
}
