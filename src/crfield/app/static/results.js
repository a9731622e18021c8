// The numbers of a result: free energy, times.
import { brief, drawCurve, drawSteps } from "./charts.js";
import { element, on, state } from "./state.js";

const milliseconds = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

/** @param {[string, string][]} rows */
function list(rows) {
  element("times").replaceChildren(...rows.flatMap(([name, value]) => [
    Object.assign(document.createElement("dt"), { textContent: name }),
    Object.assign(document.createElement("dd"), { textContent: value }),
  ]));
}

function show() {
  const { result } = state;
  element("result-body").hidden = !result;
  element("result-empty").hidden = Boolean(result);
  for (const name of ["mask", "overlay", "scribbles", "snippet"]) {
    element(`save-${name}`).disabled = !result;
  }
  if (!result || !element("result-section").open) return;
  const { unary, inference, total, steps } = result.milliseconds;
  drawCurve(element("energy"), result.free_energies);
  drawSteps(element("steps"), steps);
  const step = steps.length ? steps.reduce((sum, time) => sum + time, 0) / steps.length : 0;
  list([
    ["Free energy", brief(result.free_energies.at(-1))],
    [state.initial ? "Costs" : "Color model", milliseconds(unary)],
    [result.converged ? "Steps, converged" : "Steps", String(result.n_iter)],
    ["Inference", milliseconds(inference)],
    ["A step", milliseconds(step)],
    ["Total", milliseconds(total)],
  ]);
}

on("result", show);
element("result-section").addEventListener("toggle", show);
