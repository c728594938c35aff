// The views, in the order of their tabs. A new one is one line here, see docs/explorer.md.
import * as accuracy from "./views/accuracy.js";
import * as card from "./views/card.js";
import * as compare from "./views/compare.js";
import * as data from "./views/data.js";
import * as device from "./views/device.js";
import * as mlir from "./views/mlir.js";
import * as model from "./views/model.js";
import * as nights from "./views/nights.js";
import * as predict from "./views/predict.js";
import * as sweep from "./views/sweep.js";
import * as tiles from "./views/tiles.js";

export const VIEWS = [predict, sweep, compare, tiles, model, mlir, data, accuracy, device, nights, card];
