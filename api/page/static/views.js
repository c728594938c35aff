// The views, in the order of their tabs. A new one is one line here, see docs/explorer.md. All but the first come when they are
// looked at.
import * as llm from "./views/llm.js";

/** What people come with: the view that answers it, and what that says. */
export const QUESTIONS = [
  ["llm", "An LLM service", "throughput, latency, power and cost by GPU"],
  ["model", "A model on GPUs", "time, memory and energy of one step"],
  ["predict", "A kernel", "latency, power and energy of one call"],
];

/** Fields that addresses may have; views share them. */
export const FIELDS =
  /^(family|devices?|dtype|variant|impl|kv_dtype|cache_state|timing|threads|power_limit_w|clock_hz|grid|caps|beside|coverage|model|config|phase|batch|length|source|weights|engine|input_tokens|output_tokens|concurrency|speculate|acceptance|draft|picture|bars|among|sort|descending|text|function|compiler|plan\.(tp|gpus|tpot_s|ttft_s|against)|llm\.(axes|devices|tp)|model\.(devices|picture)|sweep\.(dim|from|to|points|scale|target|y)|tiles\.(configs|device|top)|mlir\.where|accuracy\.(family|split|target)|nights\.offset|(sizes|beside\.sizes|config|bind|data|price_per_hour)\..+)$/;

/** Views by the name in the address: the title of the tab, what gets the module, and whether it needs the kernels' schemas. */
export const VIEWS = [
  { id: "llm", title: "LLM service", load: async () => llm },
  { id: "model", title: "Model on GPUs", load: () => import("./views/model.js") },
  { id: "predict", title: "Kernel", load: () => import("./views/predict.js"), kernels: true },
  { id: "sweep", title: "Sweep", load: () => import("./views/sweep.js"), kernels: true },
  { id: "compare", title: "Compare", load: () => import("./views/compare.js"), kernels: true },
  { id: "tiles", title: "Tiles", load: () => import("./views/tiles.js"), kernels: true },
  { id: "mlir", title: "MLIR", load: () => import("./views/mlir.js") },
  { id: "data", title: "Data", load: () => import("./views/data.js"), kernels: true },
  { id: "accuracy", title: "Accuracy", load: () => import("./views/accuracy.js") },
  { id: "device", title: "Device", load: () => import("./views/device.js") },
  { id: "nights", title: "Nights", load: () => import("./views/nights.js") },
  { id: "card", title: "Model card", load: () => import("./views/card.js") },
];
