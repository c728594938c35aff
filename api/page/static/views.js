// The views, in the order of their tabs. A new one is one line here, see docs/explorer.md.
import * as accuracy from "./views/accuracy.js";
import * as card from "./views/card.js";
import * as compare from "./views/compare.js";
import * as data from "./views/data.js";
import * as device from "./views/device.js";
import * as llm from "./views/llm.js";
import * as mlir from "./views/mlir.js";
import * as model from "./views/model.js";
import * as nights from "./views/nights.js";
import * as predict from "./views/predict.js";
import * as sweep from "./views/sweep.js";
import * as tiles from "./views/tiles.js";

/** What people come with: the view that answers it, and what that says. */
export const QUESTIONS = [
  ["llm", "An LLM service", "throughput, latency, power and cost by GPU"],
  ["model", "A model on GPUs", "time, memory and energy of one step"],
  ["predict", "A kernel", "latency, power and energy of one call"],
];

/** Fields that addresses may have; views share them. */
export const FIELDS =
  /^(family|devices?|dtype|variant|impl|kv_dtype|cache_state|timing|threads|coverage|model|config|phase|batch|length|plan\.tp|weights|engine|input_tokens|output_tokens|concurrency|picture|bars|among|sort|descending|text|function|compiler|(sizes|config|sweep|tiles|model|llm|mlir|bind|data|accuracy|nights|price_per_hour)\..+)$/;

export const VIEWS = [llm, model, predict, sweep, compare, tiles, mlir, data, accuracy, device, nights, card];
