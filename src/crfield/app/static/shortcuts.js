// Keys: one table, from which the help dialog lists them.
import { fit, pan, zoom } from "./canvas.js";
import { compare, peek } from "./compare.js";
import { addLabel, chooseLabel } from "./labels.js";
import { cancelWork, dismissToasts } from "./notices.js";
import { holdSpace } from "./pointer.js";
import { requestRefine } from "./refiner.js";
import { save } from "./saving.js";
import { element, state } from "./state.js";
import { flip, nextView, setErasing, stepBrush, travel } from "./tools.js";

const PAN_STEP = 40;
const SINGLE_KEYS = "crfield-single-keys";

const showHelp = () => element("help-dialog").open || element("help-dialog").showModal();
const move = (dx, dy) => () => pan(PAN_STEP * dx, PAN_STEP * dy);

/** Shown keys, what they do, and what runs for each `event.key`. */
const SHORTCUTS = [
  ["1 … 9", "choose a label", Object.fromEntries(
    Array.from({ length: 9 }, (_, i) => [String(i + 1), () => chooseLabel(i)]))],
  ["N", "add a label", { n: addLabel }],
  ["B", "brush", { b: () => setErasing(false) }],
  ["E", "eraser on and off", { e: () => setErasing(!state.erasing) }],
  ["[  ]", "smaller and larger brush", { "[": () => stepBrush(-1), "]": () => stepBrush(1) }],
  ["Ctrl+Z", "undo", { "ctrl+z": () => travel("undo") }],
  ["Ctrl+Shift+Z", "redo, Ctrl+Y as well", {
    "ctrl+shift+z": () => travel("redo"), "ctrl+y": () => travel("redo") }],
  ["R", "refine now", { r: () => requestRefine() }],
  ["Esc", "cancel what is under way, else put messages away", { escape: () => cancelWork() || dismissToasts() }],
  ["Space", "hold it: the labels before refinement; with a drag: move the picture", {}],
  ["C", "before and after, side by side", { c: () => compare(!state.comparing) }],
  ["V", "next view: overlay, labels, entropy, image", { v: nextView }],
  ["O", "outlines on and off", { o: () => flip("outlines") }],
  ["S", "scribbles on and off", { s: () => flip("show-scribbles") }],
  ["+  -  0", "zoom in, zoom out, fit; Ctrl and the wheel as well", {
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: fit }],
  ["Arrows", "move the picture; the crosshair when the painting area has the focus", {
    arrowleft: move(1, 0), arrowright: move(-1, 0), arrowup: move(0, 1), arrowdown: move(0, -1) }],
  ["Ctrl+Arrows", "move the picture, always", {
    "ctrl+arrowleft": move(1, 0), "ctrl+arrowright": move(-1, 0),
    "ctrl+arrowup": move(0, 1), "ctrl+arrowdown": move(0, -1) }],
  ["Enter", "paint at the crosshair; hold it and move to draw", {}],
  ["Shift+Enter", "a line from where the last stroke ended, Shift and click as well", {}],
  ["Ctrl+O", "open an image", { "ctrl+o": () => element("image-file").click() }],
  ["Ctrl+S", "save the mask", { "ctrl+s": () => save("mask.png") }],
  ["H  ?", "this help", { h: showHelp, "?": showHelp }],
];

const actions = new Map(SHORTCUTS.flatMap(([, , keys]) => Object.entries(keys)));
const NEEDS_IMAGE = new Set(["r", "v", "c", "ctrl+s"]);

/** A key event's name in the table: modifiers, then the key. @param {KeyboardEvent} event */
function nameOf(event) {
  const key = event.key.toLowerCase();
  const control = event.ctrlKey || event.metaKey ? "ctrl+" : "";
  // Shift counts with Ctrl only: alone it is part of the character.
  return `${control}${control && event.shiftKey ? "shift+" : ""}${key}`;
}

/** Combinations that no field needs itself. */
const ALWAYS = new Set(["escape", "ctrl+s", "ctrl+o"]);

/** Whether the element with the focus needs this key itself. */
function belongsToControl(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  const type = target.tagName === "INPUT" ? target.type : target.tagName.toLowerCase();
  if (["text", "number", "select", "textarea"].includes(type)) return !ALWAYS.has(nameOf(event));
  if (event.key.startsWith("Arrow") && !event.ctrlKey) {
    return ["range", "radio"].includes(type) || target.role === "slider" || type === "pre";
  }
  return event.key === " " && ["button", "checkbox", "radio", "summary"].includes(type);
}

function keyDown(event) {
  if (event.defaultPrevented || event.altKey || document.querySelector("dialog[open]")) return;
  if (belongsToControl(event)) return;
  if (event.key === " ") {
    peek(true);
    holdSpace(true);
    event.preventDefault();
    return;
  }
  const name = nameOf(event);
  const action = actions.get(name);
  if (!action || (NEEDS_IMAGE.has(name) && !state.image)) return;
  const single = event.key.length === 1 && !name.startsWith("ctrl+");
  if (single && !element("single-keys").checked) return;
  if (name.startsWith("arrow") && !state.image) return;
  action();
  event.preventDefault();
}

/** Whether the pointer was used last, not the keyboard. */
let byPointer = false;

/**
 * What the pointer has used gives the keys back: else Space would press a button again, and letters
 * would choose from a list.
 */
function giveKeysBack(event) {
  const kinds = event.type === "change" ? "select"
    : "button, summary, input[type=checkbox], input[type=radio]";
  const control = byPointer && event.target.closest?.(kinds);
  if (control && !control.closest("dialog")) control.blur();
}

function release() {
  peek(false);
  holdSpace(false);
}

/** @param {string} keys */
function keyCell(keys) {
  const cell = document.createElement("td");
  for (const part of keys.split("  ")) {
    cell.append(Object.assign(document.createElement("kbd"), { textContent: part }), " ");
  }
  return cell;
}

function rememberSingleKeys() {
  const box = element("single-keys");
  try {
    box.checked = localStorage.getItem(SINGLE_KEYS) !== "off";
  } catch {
    // Storage is closed to the page: they are on.
  }
  box.addEventListener("change", () => {
    try {
      localStorage.setItem(SINGLE_KEYS, box.checked ? "on" : "off");
    } catch {
      // The choice holds until the page is closed.
    }
  });
}

/** Listen to the keyboard and fill the help dialog. */
export function buildShortcuts() {
  addEventListener("keydown", keyDown);
  addEventListener("keyup", (event) => event.key === " " && release());
  addEventListener("blur", release);
  addEventListener("pointerdown", () => { byPointer = true; }, { capture: true });
  addEventListener("keydown", () => { byPointer = false; }, { capture: true });
  addEventListener("click", giveKeysBack);
  addEventListener("change", giveKeysBack);
  element("help").addEventListener("click", showHelp);
  element("shortcuts").tBodies[0].append(...SHORTCUTS.map(([keys, text]) => {
    const row = document.createElement("tr");
    row.append(keyCell(keys), Object.assign(document.createElement("td"), { textContent: text }));
    return row;
  }));
  rememberSingleKeys();
}
