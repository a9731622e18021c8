// The sliders: one table says what there is, from it the controls and the server's Settings.
import { requestRefine } from "./refiner.js";
import { element, emit, on, state } from "./state.js";

const RANGE_STEPS = 1000;

/**
 * @typedef {Object} Slider
 * @property {string} key
 * @property {string} label
 * @property {number} min
 * @property {number} max
 * @property {boolean} [log]  equal steps of the slider multiply the value
 * @property {number} [step]  the value is a multiple of it
 * @property {string} [title]
 */

/** @type {{title: string, key: string, text: string, sliders: Slider[]}[]} */
const KERNELS = [
  {
    title: "Smoothness", key: "spatial_on", text: "neighbors agree",
    sliders: [
      { key: "spatial", label: "Width, pixels", min: 0.5, max: 100, log: true },
      { key: "spatial_weight", label: "Weight", min: 0.1, max: 100, log: true },
    ],
  },
  {
    title: "Appearance", key: "bilateral_on", text: "like colors agree",
    sliders: [
      { key: "bilateral_xy", label: "Width, pixels", min: 1, max: 500, log: true },
      { key: "bilateral_rgb", label: "Width, colors", min: 1, max: 128, log: true },
      { key: "bilateral_weight", label: "Weight", min: 0.1, max: 100, log: true },
    ],
  },
];

/** @type {Slider[]} */
const INFERENCE = [
  { key: "max_iter", label: "Most iterations", min: 1, max: 500, log: true, step: 1 },
  { key: "tol", label: "Tolerance", min: 1e-6, max: 0.1, log: true,
    title: "Stop once no probability changes by more than this" },
];

/** @type {Slider[]} */
const COLORS = [
  { key: "components", label: "Colors per label", min: 1, max: 8, step: 1,
    title: "Components of each label's mixture of Gaussians" },
  { key: "strength", label: "Trust in colors", min: 0, max: 1, step: 0.01,
    title: "How much the colors of the strokes count" },
  { key: "nearness", label: "Nearness", min: 0, max: 10, step: 0.1,
    title: "How much the nearest stroke counts" },
];

/** @type {Slider[]} */
const LABEL_MAP = [
  { key: "confidence", label: "Trust in labels", min: 0.5, max: 0.999, step: 0.001,
    title: "The probability that a label of the map is right" },
];

/** What the server expects, from what the sliders say. */
export function settingsForServer() {
  const s = state.settings;
  return {
    n_labels: state.labels.length,
    source: state.initial ? "initial" : "scribbles",
    algorithm: s.algorithm, max_iter: s.max_iter, tol: s.tol,
    spatial: s.spatial_on ? s.spatial : null, spatial_weight: s.spatial_weight,
    bilateral: s.bilateral_on ? [s.bilateral_xy, s.bilateral_rgb] : null,
    bilateral_weight: s.bilateral_weight,
    components: s.components, strength: s.strength, nearness: s.nearness,
    confidence: s.confidence,
    model: state.model?.id ?? null,
  };
}

/** What the sliders say, from the server's Settings. */
function fromServer(settings) {
  const [xy, rgb] = settings.bilateral ?? [40, 10];
  return {
    ...settings, spatial_on: settings.spatial !== null, spatial: settings.spatial ?? 3,
    bilateral_on: settings.bilateral !== null, bilateral_xy: xy, bilateral_rgb: rgb,
  };
}

/** The server's defaults for what is open: a segmentation, an image to paint on, or nothing. */
const defaults = () =>
  fromServer((state.initial ?? state.image ?? state.server).defaults);

/** The defaults that the sliders which nobody has moved are at. */
let followed = {};

/** Put every slider where the defaults are. */
function useDefaults() {
  followed = defaults();
  state.settings = { ...followed };
  emit("settings");
}

/** Move the sliders that nobody has moved to the defaults for what is open now. */
function followDefaults() {
  const next = defaults();
  for (const key of Object.keys(next)) {
    if (state.settings[key] === followed[key]) state.settings[key] = next[key];
  }
  followed = next;
  emit("settings");
}

/** What a learned model says of how to apply it, if it does. */
export function useInference({ algorithm, max_iter: most }) {
  if (state.server.algorithms.includes(algorithm)) state.settings.algorithm = algorithm;
  if (most !== null) state.settings.max_iter = tidy(INFERENCE[0], most);
  emit("settings");
}

function change(key, value, time) {
  if (state.settings[key] === value) return;
  state.settings[key] = value;
  emit("settings");
  if (state.image && state.live) requestRefine(time, "change");
}

/** @param {Slider} slider @param {number} value */
const toPlace = ({ min, max, log }, value) => Math.round(RANGE_STEPS *
  (log ? Math.log(value / min) / Math.log(max / min) : (value - min) / (max - min)));

/** @param {Slider} slider @param {number} place */
function toValue(slider, place) {
  const share = place / RANGE_STEPS;
  const { min, max, log, step } = slider;
  const value = log ? min * (max / min) ** share : min + share * (max - min);
  return tidy(slider, step ? Math.round(value / step) * step : Number(value.toPrecision(2)));
}

/** @param {Slider} slider @param {number} value */
function tidy({ min, max, step }, value) {
  const whole = step && step >= 1 ? Math.round(value) : Number(value.toPrecision(4));
  return Math.min(max, Math.max(min, whole));
}

/** @param {Slider} slider @returns {HTMLElement} */
function makeSlider(slider) {
  const box = document.createElement("div");
  box.className = "slider";
  const label = document.createElement("label");
  label.textContent = slider.label;
  label.htmlFor = `set-${slider.key}`;
  if (slider.title) box.title = slider.title;
  const range = Object.assign(document.createElement("input"), {
    type: "range", id: `set-${slider.key}`, min: "0", max: String(RANGE_STEPS), step: "1",
  });
  const number = Object.assign(document.createElement("input"), {
    type: "number", id: `number-${slider.key}`, min: String(slider.min), max: String(slider.max),
    step: slider.step && slider.step >= 1 ? "1" : "any",
  });
  number.setAttribute("aria-label", `${slider.label}, value`);
  range.addEventListener("input", (event) =>
    change(slider.key, toValue(slider, Number(range.value)), event.timeStamp));
  range.addEventListener("keydown", (event) => stepRange(event, slider));
  number.addEventListener("change", (event) => {
    if (number.value !== "") {
      change(slider.key, tidy(slider, Number(number.value)), event.timeStamp);
    }
    emit("settings");
  });
  on("settings", () => {
    const value = state.settings[slider.key];
    range.value = String(toPlace(slider, value));
    // Defaults may have more digits than anybody wants to read.
    number.value = String(tidy(slider, value));
    range.setAttribute("aria-valuetext", number.value);
  });
  box.append(label, range, number);
  return box;
}

/** Arrow keys move a slider by a step of its value that can be seen, not by a thousandth. */
function stepRange(event, slider) {
  const sign = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
  if (!sign) return;
  const value = state.settings[slider.key];
  const { step = 0.01 } = slider;
  const next = slider.log ? value * 1.1 ** sign : value + sign * step;
  const moved = step >= 1 && Math.round(next) === value ? value + sign : next;
  const rounded = step >= 1 ? moved : Number(moved.toPrecision(3));
  change(slider.key, tidy(slider, rounded), event.timeStamp);
  event.preventDefault();
}

function makeKernel(kernel) {
  const set = document.createElement("fieldset");
  set.className = "kernel";
  const legend = document.createElement("legend");
  legend.className = "hidden";
  legend.textContent = kernel.title;
  const label = document.createElement("label");
  label.className = "check kernel-head";
  const box = Object.assign(document.createElement("input"), {
    type: "checkbox", id: `set-${kernel.key}`,
  });
  box.addEventListener("change", (event) => change(kernel.key, box.checked, event.timeStamp));
  const text = document.createElement("span");
  text.className = "quiet";
  text.textContent = kernel.text;
  label.append(box, kernel.title, text);
  const sliders = document.createElement("fieldset");
  sliders.append(...kernel.sliders.map(makeSlider));
  set.append(legend, label, sliders);
  on("settings", () => {
    box.checked = state.settings[kernel.key];
    sliders.disabled = !box.checked;
  });
  on("model", () => {
    set.disabled = Boolean(state.model);
  });
  return set;
}

function makeAlgorithm() {
  const label = document.createElement("label");
  label.className = "setting";
  const select = Object.assign(document.createElement("select"), { id: "set-algorithm" });
  select.append(...state.server.algorithms.map((name) => new Option(name)));
  select.addEventListener("change", (event) => change("algorithm", select.value, event.timeStamp));
  on("settings", () => {
    select.value = state.settings.algorithm;
  });
  label.append("Algorithm", select);
  return label;
}

function makeReset() {
  const button = Object.assign(document.createElement("button"), {
    type: "button", id: "defaults", textContent: "All to defaults",
  });
  button.addEventListener("click", (event) => {
    useDefaults();
    if (state.image && state.live) requestRefine(event.timeStamp, "change");
  });
  return button;
}

/** Build the controls; the server's answer must be there. */
export function buildSettings() {
  element("kernels").append(...KERNELS.map(makeKernel));
  element("inference").append(makeAlgorithm(), ...INFERENCE.map(makeSlider), makeReset());
  const colors = document.createElement("div");
  colors.append(...COLORS.map(makeSlider));
  const map = document.createElement("div");
  map.append(...LABEL_MAP.map(makeSlider));
  element("source").append(colors, map);
  on("initial", () => {
    followDefaults();
    colors.hidden = Boolean(state.initial);
    map.hidden = state.initial?.kind !== "labels";
  });
  useDefaults();
  emit("initial");
}
