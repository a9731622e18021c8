// The bars above and below the picture: brush, history, zoom, view.
import { fit, zoom } from "./canvas.js";
import { requestRefine } from "./refiner.js";
import { NONE, element, emit, on, state } from "./state.js";

const LARGEST_BRUSH = 200;

/** Place of the size slider 0..100 for a diameter 1..200, equal steps for equal ratios. */
const toPlace = (size) => Math.round((100 * Math.log(size)) / Math.log(LARGEST_BRUSH));
const toSize = (place) => Math.round(LARGEST_BRUSH ** (place / 100));

/** @param {number} size  diameter in the picture's pixels */
export function setBrush(size) {
  state.brush = Math.min(LARGEST_BRUSH, Math.max(1, size));
  emit("tool");
}

/** Make the brush a size larger (1) or smaller (-1). @param {number} sign */
export function stepBrush(sign) {
  const next = Math.round(state.brush * 1.25 ** sign);
  setBrush(next === state.brush ? state.brush + sign : next);
}

/** @param {boolean} erasing */
export function setErasing(erasing) {
  state.erasing = erasing;
  emit("tool");
}

/** @param {"undo" | "redo"} direction */
export function travel(direction) {
  const { scribbles } = state;
  if (!scribbles || scribbles.editing) return;
  const edit = scribbles[direction]();
  if (!edit) return;
  if (edit.labels) {
    state.labels = edit.labels[direction === "undo" ? 0 : 1];
    state.active = Math.min(state.active, state.labels.length - 1);
    emit("labels");
  }
  emit("scribbles");
  emit("history");
  if (state.live || (edit.labels && state.result)) requestRefine();
}

function clear() {
  if (!state.scribbles || state.scribbles.editing) return;
  state.scribbles.begin();
  state.scribbles.remap(new Uint8Array(256).fill(NONE));
  state.scribbles.commit();
  emit("scribbles");
  emit("history");
  if (state.live) requestRefine();
}

/** @param {string} name  overlay, labels, entropy or image */
export function setView(name) {
  state.view = name;
  emit("view");
}

/** Show the next of the four views. */
export function nextView() {
  const names = [...document.querySelectorAll("input[name=view]")].map((input) => input.value);
  setView(names[(names.indexOf(state.view) + 1) % names.length]);
}

/** Flip a checkbox as a click would. @param {string} id */
export const flip = (id) => element(id).click();

function showHistory() {
  element("undo").disabled = !state.scribbles?.done.length;
  element("redo").disabled = !state.scribbles?.undone.length;
  element("clear").disabled = !state.scribbles || state.scribbles.isEmpty;
}

on("history", showHistory);
on("tool", () => {
  element("brush").setAttribute("aria-pressed", String(!state.erasing));
  element("eraser").setAttribute("aria-pressed", String(state.erasing));
  element("size").value = String(toPlace(state.brush));
  element("size").setAttribute("aria-valuetext", `${state.brush} pixels`);
  element("size-text").textContent = `${state.brush} px`;
});
on("view", () => {
  document.querySelector(`input[name=view][value=${state.view}]`).checked = true;
  element("opacity").disabled = element("outlines").disabled = state.view !== "overlay";
});

element("brush").addEventListener("click", () => setErasing(false));
element("eraser").addEventListener("click", () => setErasing(true));
element("size").addEventListener("input", () => setBrush(toSize(Number(element("size").value))));
element("size").addEventListener("keydown", (event) => {
  const sign = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
  if (!sign) return;
  stepBrush(sign);
  event.preventDefault();
});
element("undo").addEventListener("click", () => travel("undo"));
element("redo").addEventListener("click", () => travel("redo"));
element("clear").addEventListener("click", clear);
element("zoom-in").addEventListener("click", () => zoom(1.25));
element("zoom-out").addEventListener("click", () => zoom(0.8));
element("zoom-fit").addEventListener("click", fit);
for (const input of document.querySelectorAll("input[name=view]")) {
  input.addEventListener("change", () => setView(input.value));
}
element("opacity").addEventListener("input", () => {
  state.opacity = Number(element("opacity").value) / 100;
  emit("view");
});
element("outlines").addEventListener("change", () => {
  state.outlines = element("outlines").checked;
  emit("view");
});
element("show-scribbles").addEventListener("change", () => {
  state.showScribbles = element("show-scribbles").checked;
  emit("scribbles");
});
element("live").addEventListener("change", () => {
  state.live = element("live").checked;
  if (state.live && state.image) requestRefine();
});
element("refine").addEventListener("click", () => requestRefine());
