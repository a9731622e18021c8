// The list of labels: choose, name, add and remove them.
import { drawScribbles } from "./canvas.js";
import { settle, toast } from "./notices.js";
import { requestRefine } from "./refiner.js";
import { NONE, colorOf, cssColor, element, emit, on, state } from "./state.js";

const list = element("labels");
const FEWEST = 2;

/** Whether the number of labels is given by something that was loaded. */
const isFixed = () => Boolean(state.initial || state.model);

/** Choose a label to paint with. @param {number} label */
export function chooseLabel(label) {
  if (label >= state.labels.length) return;
  state.active = label;
  state.erasing = false;
  emit("tool");
}

/**
 * Labels and scribbles before a label map, probabilities or a model brought other labels.
 * @type {{scribbles: any, names: string[], plane: Uint8Array} | null}
 */
let aside = null;

/** Take the labels of something that was loaded; those it has no room for come back after it. */
export function borrowLabels(names) {
  const { scribbles } = state;
  if (scribbles && aside?.scribbles !== scribbles) {
    aside = { scribbles, names: state.labels, plane: scribbles.plane.slice() };
  }
  settle("labels");
  const lost = state.labels.filter((_, i) => i >= names.length);
  setLabels(names);
  if (lost.length) {
    toast(`There are only ${names.length} labels now: ${lost.join(", ")} with what was painted ` +
      "of it comes back when you put away what was loaded.", "labels");
  }
}

/** Bring back the labels from before, once nothing that is loaded asks for others. */
export function returnLabels() {
  const kept = aside;
  if (isFixed()) return;
  aside = null;
  settle("labels");
  if (!kept || kept.scribbles !== state.scribbles) return;
  const count = state.labels.length;
  const { plane } = state.scribbles;
  for (let i = 0; i < plane.length; i++) {
    if (plane[i] === NONE && kept.plane[i] !== NONE && kept.plane[i] >= count) {
      plane[i] = kept.plane[i];
    }
  }
  // Of labels that came with what was loaded, those stay that something is painted of.
  let painted = 0;
  for (const label of plane) if (label !== NONE && label >= painted) painted = label + 1;
  setLabels([...kept.names, ...state.labels.slice(kept.names.length, painted)]);
}

/**
 * Replace all labels; scribbles of labels that are gone go, and so does the history.
 * @param {string[]} names
 */
export function setLabels(names) {
  state.labels = [...names];
  state.active = Math.min(state.active, names.length - 1);
  if (state.scribbles) {
    const table = Uint8Array.from({ length: 256 }, (_, i) => (i < names.length ? i : NONE));
    state.scribbles.remap(table);
    state.scribbles.forget();
    emit("scribbles");
    emit("history");
  }
  emit("labels");
}

/** Change the list together with the scribbles, as one step of the history. */
function edit(names, table) {
  const before = state.labels;
  state.labels = names;
  state.active = Math.min(state.active, names.length - 1);
  if (state.scribbles) {
    state.scribbles.begin();
    if (table) state.scribbles.remap(table);
    state.scribbles.commit([before, names]);
    drawScribbles();
    emit("history");
    // Without it the picture would show the numbers that labels had before.
    if (state.live || (table && state.result)) requestRefine();
  }
  emit("labels");
}

export function addLabel() {
  const count = state.labels.length;
  if (isFixed() || count >= state.server.max_labels || state.scribbles?.editing) return;
  edit([...state.labels, `label ${count + 1}`]);
  chooseLabel(count);
}

/** @param {number} label */
function removeLabel(label) {
  if (isFixed() || state.labels.length <= FEWEST || state.scribbles?.editing) return;
  const table = Uint8Array.from({ length: 256 }, (_, i) =>
    i === label ? NONE : i > label && i !== NONE ? i - 1 : i);
  if (state.active > label) state.active -= 1;
  edit(state.labels.filter((_, i) => i !== label), table);
  list.querySelectorAll("input[type=radio]")[state.active].focus();
}

/** The better of black and white on a color. @param {number[]} rgb */
const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 128 ? "#101418" : "#fff");

/** @param {string} name @param {number} label */
function makeRow(name, label) {
  const row = document.createElement("div");
  row.className = "label";
  const swatch = document.createElement("label");
  swatch.className = "swatch";
  swatch.style.setProperty("--color", cssColor(label));
  swatch.style.setProperty("--ink", inkOn(colorOf(label)));
  const value = state.initial?.kind === "labels" ? state.initial.names[label] : label;
  swatch.title = `Value ${value} in the mask${label < 9 ? `, key ${label + 1}` : ""}`;
  const radio = Object.assign(document.createElement("input"), { type: "radio", name: "label" });
  radio.setAttribute("aria-label", `Paint ${name}`);
  radio.addEventListener("change", () => chooseLabel(label));
  swatch.append(radio, String(label + 1));
  const text = Object.assign(document.createElement("input"), {
    type: "text", value: name, maxLength: 60, autocomplete: "off",
  });
  text.setAttribute("aria-label", `Name of label ${label + 1}`);
  text.addEventListener("input", () => {
    state.labels = state.labels.map((old, i) => (i === label ? text.value : old));
    radio.setAttribute("aria-label", `Paint ${text.value || `label ${label + 1}`}`);
    remove.setAttribute("aria-label", `Remove ${text.value || `label ${label + 1}`}`);
    showSwatches();
  });
  const share = document.createElement("span");
  share.className = "share";
  const remove = Object.assign(document.createElement("button"), {
    type: "button", className: "icon", title: "Remove the label and its scribbles",
    disabled: isFixed() || state.labels.length <= FEWEST,
  });
  remove.innerHTML = '<svg><use href="#i-close"/></svg>';
  remove.setAttribute("aria-label", `Remove ${name}`);
  remove.addEventListener("click", () => removeLabel(label));
  row.append(swatch, text, share, remove);
  return row;
}

function showActive() {
  [...list.children].forEach((row, label) => {
    const active = label === state.active && !state.erasing;
    row.classList.toggle("active", active);
    row.querySelector("input[type=radio]").checked = active;
  });
}

function showShares() {
  const counts = state.result?.counts;
  const total = counts?.reduce((sum, count) => sum + count, 0) || 1;
  [...list.children].forEach((row, label) => {
    const share = row.querySelector(".share");
    share.replaceChildren();
    if (counts?.length !== state.labels.length) return;
    const percent = (100 * (counts[label] ?? 0)) / total;
    const bar = document.createElement("i");
    bar.style.setProperty("--share", `${percent}%`);
    share.append(`${percent.toFixed(1)} %`, bar);
    share.title = `${counts[label] ?? 0} pixels`;
  });
}

on("labels", () => {
  list.replaceChildren(...state.labels.map(makeRow));
  const fixed = isFixed();
  element("add-label").disabled = fixed || state.labels.length >= state.server.max_labels;
  const note = element("labels-note");
  note.hidden = !fixed;
  note.textContent = state.initial
    ? "These labels come with the label map or the probabilities."
    : `The model is for ${state.model?.n_labels} labels: put it away to add or remove labels.`;
  showActive();
  showShares();
});
/** A row of labels above the picture, for screens on which the list is out of sight. */
function showSwatches() {
  element("swatches").replaceChildren(...state.labels.map((name, label) => {
    const button = Object.assign(document.createElement("button"), {
      type: "button", className: "icon", textContent: String(label + 1), title: name,
    });
    button.style.setProperty("--color", cssColor(label));
    button.style.setProperty("--ink", inkOn(colorOf(label)));
    button.setAttribute("aria-label", `Paint ${name || `label ${label + 1}`}`);
    const active = label === state.active && !state.erasing;
    button.setAttribute("aria-pressed", String(active));
    button.addEventListener("click", () => chooseLabel(label));
    return button;
  }));
}

on("initial model", () => emit("labels"));
on("labels tool", showSwatches);
on("tool", showActive);
on("result", showShares);
element("add-label").addEventListener("click", addLabel);
