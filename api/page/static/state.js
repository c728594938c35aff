// What the page shows, as the part of its address behind the `#`: `#/predict?family=gemm&sizes.m=512`.
// Fields are named as in the API, so that an error, a control and a part of the address have one name. The part behind
// the `#` never leaves the browser, so nobody's shapes end up in a log.

/** The view and fields of an address's fragment; what cannot be read is left out. */
function readFragment(fragment) {
  const [path, query = ""] = fragment.replace(/^#\/?/, "").split("?", 2);
  return { view: path, fields: new Map([...new URLSearchParams(query)].filter(([, value]) => value !== "")) };
}

/** The fragment of a view and its fields. */
export function writeFragment(view, fields) {
  const query = new URLSearchParams([...fields].filter(([, value]) => value !== ""));
  const text = query.toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
  return `#/${view}${text ? `?${text}` : ""}`;
}

/** Fields by name, as text, and the browser's history of them. */
export class State {
  /** `replaced(words)` is called where something that an address asks for is not what is shown. */
  constructor(fragment, replaced) {
    this.replaced = replaced;
    this.load(fragment);
  }

  /** Take over what an address says. */
  load(fragment) {
    ({ view: this.view, fields: this.fields } = readFragment(fragment));
  }

  /** The text of a field that `isGood` is true of, else `otherwise`; a text that it is not true of is removed, and said. */
  checked(name, isGood, otherwise = "", shown = otherwise) {
    const text = this.get(name);
    if (text === "" || isGood(text)) return text || otherwise;
    this.fields.delete(name);
    this.replaced(`${name} cannot be \u201c${text.slice(0, 60)}\u201d; ${shown ? `${shown} is shown` : "nothing is taken for it"}.`);
    return otherwise;
  }

  /** A field that is one of `values`, else `otherwise`, which is said where the address asks for another. */
  oneOf(name, values, otherwise) {
    return this.checked(name, (text) => values.includes(text), otherwise);
  }

  /** The text of a field; `otherwise` where it is not given. */
  get(name, otherwise = "") {
    return this.fields.get(name) ?? otherwise;
  }

  /** A field that lists names. */
  list(name) {
    return this.get(name).split(",").filter(Boolean);
  }

  /** Fields whose names start with `prefix`, without it. */
  under(prefix) {
    return [...this.fields]
      .filter(([name]) => name.startsWith(prefix))
      .map(([name, value]) => [name.slice(prefix.length), value]);
  }

  /** Change fields; null and "" remove one. The address follows with `commit`. */
  set(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === "") this.fields.delete(name);
      else this.fields.set(name, String(value));
    }
  }

  /** Remove every field whose name starts with `prefix`. */
  drop(prefix) {
    for (const name of [...this.fields.keys()]) if (name.startsWith(prefix)) this.fields.delete(name);
  }

  /** The address of this state, or of another view with the same fields. */
  href(view = this.view) {
    return writeFragment(view, this.fields);
  }

  /** Make the browser's address that of this state: a new step of its history, or the same step where `replace`. */
  commit(replace = false) {
    const href = this.href();
    if (href === window.location.hash) return;
    window.history[replace ? "replaceState" : "pushState"](null, "", href);
  }
}
