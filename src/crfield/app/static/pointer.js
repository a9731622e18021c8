// Painting, zooming and moving with mouse, pen, fingers and the keyboard.
import { drawScribbles, pan, reveal, showRing, toImage, view, zoom } from "./canvas.js";
import { requestRefine } from "./refiner.js";
import { NONE, element, emit, on, state } from "./state.js";

const pad = element("pad");
const crosshair = element("crosshair");

/** Fingers, pens and mice that are down. @type {Map<number, PointerEvent>} */
const pointers = new Map();
/** @type {{id: number, label: number, x: number, y: number} | null} */
let stroke = null;
/**
 * Where the last stroke ended: Shift draws a line from there.
 * @type {{x: number, y: number} | null}
 */
let lastPlace = null;
let panningWith = -1;
let spaceHeld = false;
/** Where the mouse or pen is over the picture. @type {{clientX: number, clientY: number} | null} */
let hover = null;
/** The keyboard's brush. */
const cursor = { x: 0, y: 0, painting: false };

/** Tell the pointer whether the space bar, which turns painting into moving, is held. */
export function holdSpace(held) {
  spaceHeld = held;
  pad.classList.toggle("panning", held);
}

/** Paint from one place to another as part of the current edit. */
function paint(from, to, label, time) {
  const rect = state.scribbles.line(from.x, from.y, to.x, to.y, state.brush, label);
  lastPlace = { x: to.x, y: to.y };
  if (!rect) return;
  drawScribbles(rect);
  if (state.live && !isLarge()) requestRefine(time);
}

/**
 * Whether the picture is refined at the end of a stroke only: each move would send all its pixels
 * and begin anew what takes seconds, and the server's work slow the stroke down.
 */
const isLarge = () => state.image.width * state.image.height > state.server.max_live_pixels;

/** The brush is lifted. @param {number} [time] */
function endEdit(time) {
  const { touched } = state.scribbles;
  state.scribbles.commit();
  emit("history");
  if (touched && state.live && isLarge()) requestRefine(time);
}

function startStroke(event) {
  const erases = state.erasing || event.button === 2 || (event.buttons & 32) !== 0;
  const label = erases ? NONE : state.active;
  const { x, y } = toImage(event);
  const from = event.shiftKey && lastPlace ? lastPlace : { x, y };
  state.scribbles.begin();
  stroke = { id: event.pointerId, label, x, y };
  paint(from, stroke, label, event.timeStamp);
}

function extendStroke(event) {
  const events = event.getCoalescedEvents?.() ?? [];
  for (const part of events.length ? events : [event]) {
    const to = toImage(part);
    paint(stroke, to, stroke.label, event.timeStamp);
    stroke.x = to.x;
    stroke.y = to.y;
  }
}

function endStroke(time) {
  if (!stroke) return;
  stroke = null;
  endEdit(time);
}

/** A second finger: what the first one painted was meant as the start of a pinch. */
function abandonStroke() {
  if (!stroke) return;
  stroke = null;
  state.scribbles.revert();
  emit("scribbles");
  if (state.live && !isLarge()) requestRefine();
}

/** Middle and distance of the two fingers, in the stage's CSS pixels. */
function pinchOf() {
  const [a, b] = [...pointers.values()];
  const box = pad.getBoundingClientRect();
  return {
    x: (a.clientX + b.clientX) / 2 - box.left,
    y: (a.clientY + b.clientY) / 2 - box.top,
    distance: Math.max(1, Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY)),
  };
}

function pointerDown(event) {
  if (!state.image) return;
  // Focus stays where the keyboard left it, but no text field may swallow the shortcuts.
  if (document.activeElement !== pad) document.activeElement?.blur();
  event.preventDefault();
  pad.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, event);
  if (event.pointerType === "touch" && pointers.size > 1) {
    abandonStroke();
  } else if (event.button === 1 || (event.button === 0 && spaceHeld)) {
    panningWith = event.pointerId;
    pad.classList.add("panning");
  } else if (!stroke && !state.scribbles.editing && [0, 2, 5].includes(event.button)) {
    startStroke(event);
  }
}

function pointerMove(event) {
  if (!state.image) return;
  const known = pointers.get(event.pointerId);
  if (event.pointerType !== "touch") {
    hover = { clientX: event.clientX, clientY: event.clientY };
    followPointer();
  }
  if (!known) return;
  if (pointers.size === 2 && !stroke && event.pointerType === "touch") {
    const old = pinchOf();
    pointers.set(event.pointerId, event);
    const now = pinchOf();
    pan(now.x - old.x, now.y - old.y);
    zoom(now.distance / old.distance, now.x, now.y);
    return;
  }
  pointers.set(event.pointerId, event);
  if (event.pointerId === panningWith) {
    pan(event.clientX - known.clientX, event.clientY - known.clientY);
  } else if (event.pointerId === stroke?.id) {
    extendStroke(event);
  }
}

function pointerUp(event) {
  pointers.delete(event.pointerId);
  if (event.pointerId === panningWith) {
    panningWith = -1;
    pad.classList.toggle("panning", spaceHeld);
  }
  if (event.pointerId === stroke?.id) endStroke(event.timeStamp);
}

function wheel(event) {
  if (!state.image) return;
  const unit = event.deltaMode === 1 ? 18 : 1;
  if (event.ctrlKey || event.metaKey) {
    const box = pad.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY * unit * 0.002 * (event.deltaMode === 0 ? 1 : 2)),
      event.clientX - box.left, event.clientY - box.top);
  } else if (!view.fitted) {
    pan(-event.deltaX * unit, -event.deltaY * unit);
  } else {
    return; // nothing to move: let the page scroll
  }
  event.preventDefault();
}

/** The brush's ring where the pointer is, if it is over the picture. */
function followPointer() {
  if (!hover) return showRing();
  const { x, y } = toImage(hover);
  showRing(x, y);
}

function showCrosshair() {
  crosshair.hidden = !state.image || document.activeElement !== pad;
  if (crosshair.hidden) return;
  crosshair.style.transform = `translate(${view.x + cursor.x * view.scale}px, ` +
    `${view.y + cursor.y * view.scale}px)`;
  showRing(cursor.x, cursor.y);
}

function moveCursor(dx, dy, time) {
  const old = { x: cursor.x, y: cursor.y };
  const inside = (place, size) => Math.min(Math.max(place, 0.5), size - 0.5);
  cursor.x = inside(cursor.x + dx, state.image.width);
  cursor.y = inside(cursor.y + dy, state.image.height);
  if (cursor.painting) paint(old, cursor, state.erasing ? NONE : state.active, time);
  reveal(cursor.x, cursor.y);
  showCrosshair();
}

const DIRECTIONS = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
};

function keyDown(event) {
  if (!state.image || event.ctrlKey || event.metaKey || event.altKey) return;
  const direction = DIRECTIONS[event.key];
  if (direction) {
    // A step of about four CSS pixels, whatever the zoom.
    const step = Math.max(1, Math.round(4 / view.scale)) * (event.shiftKey ? 10 : 1);
    moveCursor(step * direction[0], step * direction[1], event.timeStamp);
  } else if (event.key === "Enter") {
    if (!cursor.painting && !state.scribbles.editing) {
      state.scribbles.begin();
      cursor.painting = true;
      const from = event.shiftKey && lastPlace ? lastPlace : { x: cursor.x, y: cursor.y };
      paint(from, cursor, state.erasing ? NONE : state.active, event.timeStamp);
    }
  } else {
    return;
  }
  event.preventDefault();
  event.stopPropagation();
}

function liftKey(time) {
  if (!cursor.painting) return;
  cursor.painting = false;
  endEdit(time);
}

pad.addEventListener("pointerdown", pointerDown);
pad.addEventListener("pointermove", pointerMove);
pad.addEventListener("pointerup", pointerUp);
pad.addEventListener("pointercancel", pointerUp);
pad.addEventListener("pointerleave", () => {
  hover = null;
  showRing();
});
pad.addEventListener("contextmenu", (event) => event.preventDefault());
pad.addEventListener("wheel", wheel, { passive: false });
pad.addEventListener("keydown", keyDown);
pad.addEventListener("keyup", (event) => event.key === "Enter" && liftKey(event.timeStamp));
pad.addEventListener("focus", showCrosshair);
pad.addEventListener("blur", () => {
  liftKey();
  crosshair.hidden = true;
  showRing();
});

on("image", () => {
  // A stroke on the picture before this one is over.
  stroke = null;
  lastPlace = null;
  cursor.painting = false;
  cursor.x = state.image.width / 2;
  cursor.y = state.image.height / 2;
  pad.setAttribute("aria-label", `Painting area, ${state.image.name}, ` +
    `${state.image.width} by ${state.image.height} pixels`);
});
on("place tool", () => {
  if (!state.image) return;
  followPointer();
  showCrosshair();
});
