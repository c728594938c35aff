// The views, in the order of their tabs. A new one is one line here, see docs/explorer.md.
import * as compare from "./views/compare.js";
import * as predict from "./views/predict.js";
import * as sweep from "./views/sweep.js";

export const VIEWS = [predict, sweep, compare];
