// Named places to start from: questions of a view, and kernels of well-known models.
import { button, el } from "./dom.js";

/** Buttons that set fields of the state: `presets` are fields by name. The one that the fields are at is pressed; `refresh()` is
 * to be called where fields change. `chosen()` is called after a button was. */
export function presetButtons({ state }, label, presets, chosen) {
  const buttons = Object.entries(presets).map(([name, fields]) => {
    const press = () => {
      state.set(fields);
      state.commit();
      refresh();
      chosen();
    };
    return [button(name, press, { class: "preset" }), fields];
  });
  function refresh() {
    for (const [one, fields] of buttons) {
      const isHere = Object.entries(fields).every(([name, value]) => state.get(name) === value);
      one.setAttribute("aria-pressed", String(isHere));
    }
  }
  refresh();
  const element = el("div", { class: "presets", role: "group", "aria-label": label }, buttons.map(([one]) => one));
  return { element, refresh };
}

// Widths as the models' config.json files say; heads, kv_heads and head_dim are of attention.
const MODELS = {
  "Llama 3.1 8B": { hidden: 4096, ffn: 14336, heads: 32, kv_heads: 8, head_dim: 128 },
  "Llama 3.1 70B": { hidden: 8192, ffn: 28672, heads: 64, kv_heads: 8, head_dim: 128 },
  "Qwen3 32B": { hidden: 5120, ffn: 25600, heads: 64, kv_heads: 8, head_dim: 128 },
};
const TOKENS = { "64 sequences": 64, "a prompt of 4096": 4096 };

const SHAPES = {
  gemm: ({ hidden, ffn }, m) => [
    ["MLP up and gate", { batch: 1, m, n: 2 * ffn, k: hidden }],
    ["MLP down", { batch: 1, m, n: hidden, k: ffn }],
  ],
  attention: ({ heads, kv_heads, head_dim }, m) => [
    m > 64
      ? ["prefill", { batch: 1, heads, kv_heads, q_len: m, kv_len: m, head_dim, window: 0 }]
      : ["decode after 4096", { batch: m, heads, kv_heads, q_len: 1, kv_len: 4096, head_dim, window: 0 }],
  ],
  layernorm: ({ hidden }, rows) => [["norm", { rows, cols: hidden }]],
};

/** Kernels of well-known models of a family: names and sizes. */
export function namedShapes(family) {
  const shapes = SHAPES[family];
  if (!shapes) return [];
  return Object.entries(MODELS).flatMap(([model, widths]) =>
    Object.entries(TOKENS).flatMap(([words, m]) => shapes(widths, m).map(([name, sizes]) => ({ name: `${model}: ${name}, ${words}`, sizes }))),
  );
}
