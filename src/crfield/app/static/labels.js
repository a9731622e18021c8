// The list of labels: choose, name, add and remove them.
import { drawScribbles } from "./canvas.js";
import { requestRefine } from "./refiner.js";
import { NONE, colourOf, cssColour, element, emit, on, state } from "./state.js";

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
 * Replace all labels; scribbles of labels that are gone go, and there is no way back.
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
    if (state.live) requestRefine();
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

/** The better of black and white on a colour. @param {number[]} rgb */
const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 128 ? "#101418" : "#fff");

/** @param {string} name @param {number} label */
function makeRow(name, label) {
  const row = document.createElement("div");
  row.className = "label";
  const swatch = document.createElement("label");
  swatch.className = "swatch";
  swatch.style.setProperty("--colour", cssColour(label));
  swatch.style.setProperty("--ink", inkOn(colourOf(label)));
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
    radio.setAttribute("aria-label", `Paint ${text.value}`);
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
    if (!counts) return;
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
    : "The model was learned for so many labels.";
  showActive();
  showShares();
});
on("initial model", () => emit("labels"));
on("tool", showActive);
on("result", showShares);
element("add-label").addEventListener("click", addLabel);
