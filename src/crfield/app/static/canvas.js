// The picture on the page: its layers, and how it is zoomed and moved.
import { drawPlane, emptyCanvas, entropyTable, labelTable, rampGradient } from "./compose.js";
import { cssColor, element, emit, on, state } from "./state.js";

const LARGEST_SCALE = 40;
const KEPT_IN_SIGHT = 48; // CSS pixels of the picture that moving it leaves on the stage
const CRISP_FROM = 3;

const stage = element("stage");
const sheet = element("sheet");
const entropyPixels = entropyTable();

/** Where the picture lies: CSS pixels per pixel, and the top left corner on the stage. */
export const view = { scale: 1, x: 0, y: 0, fitted: true };

function fitScale() {
  const { width, height } = state.image;
  const margin = 8;
  const scale = Math.min((stage.clientWidth - 2 * margin) / width,
    (stage.clientHeight - 2 * margin) / height);
  return Math.min(Math.max(scale, 1e-3), LARGEST_SCALE);
}

/** Show the whole picture, as large as it fits. */
export function fit() {
  if (!state.image) return;
  view.scale = fitScale();
  view.x = (stage.clientWidth - view.scale * state.image.width) / 2;
  view.y = (stage.clientHeight - view.scale * state.image.height) / 2;
  view.fitted = true;
  place();
}

/**
 * Zoom, holding a point of the stage fixed (its middle if none is given).
 * @param {number} factor @param {number} [x] @param {number} [y]
 */
export function zoom(factor, x = stage.clientWidth / 2, y = stage.clientHeight / 2) {
  if (!state.image) return;
  const least = Math.min(fitScale(), 1) / 2;
  const scale = Math.min(Math.max(view.scale * factor, least), LARGEST_SCALE);
  view.x = x - ((x - view.x) * scale) / view.scale;
  view.y = y - ((y - view.y) * scale) / view.scale;
  view.scale = scale;
  view.fitted = false;
  place();
}

/** @param {number} dx @param {number} dy  CSS pixels */
export function pan(dx, dy) {
  if (!state.image) return;
  view.x += dx;
  view.y += dy;
  view.fitted = false;
  place();
}

/** Move the picture just so far that one of its pixels is in sight. */
export function reveal(x, y) {
  const margin = 24;
  const need = (place, size) => Math.max(0, margin - place) - Math.max(0, place - size + margin);
  const dx = need(view.x + x * view.scale, stage.clientWidth);
  const dy = need(view.y + y * view.scale, stage.clientHeight);
  if (!view.fitted && (dx || dy)) pan(dx, dy);
}

/**
 * A point of the window in the picture's pixels.
 * @param {{clientX: number, clientY: number}} event
 */
export function toImage(event) {
  const box = stage.getBoundingClientRect();
  return {
    x: (event.clientX - box.left - stage.clientLeft - view.x) / view.scale,
    y: (event.clientY - box.top - stage.clientTop - view.y) / view.scale,
  };
}

function place() {
  const { width, height } = state.image;
  const kept = (offset, size, room) =>
    Math.min(Math.max(offset, KEPT_IN_SIGHT - size), room - KEPT_IN_SIGHT);
  if (!view.fitted) {
    view.x = kept(view.x, width * view.scale, stage.clientWidth);
    view.y = kept(view.y, height * view.scale, stage.clientHeight);
  }
  sheet.style.width = `${width * view.scale}px`;
  sheet.style.height = `${height * view.scale}px`;
  sheet.style.transform = `translate(${view.x}px, ${view.y}px)`;
  sheet.classList.toggle("crisp", view.scale >= CRISP_FROM);
  const percent = 100 * view.scale;
  element("zoom-text").textContent = `${percent < 10 ? percent.toFixed(1) : Math.round(percent)} %`;
  emit("place");
}

/** Thicker on a picture that is shown small, where one pixel would vanish. */
const outlineWidth = () => Math.max(1, Math.round(0.8 / view.scale));

/** Draw the layers of the refined and the initial labels as the view asks. */
export function drawResult() {
  const { planes, image } = state;
  const after = element("after");
  const before = element("before");
  const shown = Boolean(planes) && state.view !== "image";
  const withBefore = shown && state.view !== "entropy" && (state.comparing || state.peeking);
  after.hidden = !shown;
  before.hidden = !withBefore;
  element("legend").hidden = !shown || state.view !== "entropy";
  if (!shown) {
    emptyCanvas(after);
    emptyCanvas(before);
    return;
  }
  if (state.view === "entropy") {
    drawPlane(after, planes.entropy, image, entropyPixels);
    return;
  }
  const opacity = state.view === "labels" ? 1 : state.opacity;
  const outline = state.view === "overlay" && state.outlines ? outlineWidth() : 0;
  const table = labelTable(state.server.palette, opacity);
  drawPlane(after, planes.after, image, table, { outline });
  if (withBefore) drawPlane(before, planes.before, image, table, { outline });
  else emptyCanvas(before);
}

/** Draw the scribbles, or the part of them that changed. @param {any} [rect] */
export function drawScribbles(rect) {
  const canvas = element("scribbles");
  canvas.hidden = !state.showScribbles;
  if (!state.scribbles || !state.showScribbles) return;
  const outline = outlineWidth(); // a light edge, or dark labels would not show on dark pictures
  drawPlane(canvas, state.scribbles.plane, state.image, scribbleTable(), {
    outline, rect: rect && grown(rect, outline),
  });
}

/** A rectangle with the pixels left of and above it whose outline depends on it. */
const grown = ({ left, top, right, bottom }, by) =>
  ({ left: Math.max(0, left - by), top: Math.max(0, top - by), right, bottom });

/** @type {Uint32Array | undefined} */
let scribblePixels;
const scribbleTable = () => (scribblePixels ??= labelTable(state.server.palette, 0.92));

/** Put the ring that shows the brush around a point of the picture, or hide it. */
export function showRing(x, y) {
  const ring = element("ring");
  const size = state.brush * view.scale;
  ring.hidden = x === undefined || size < 7;
  element("pad").classList.toggle("round", size >= 7);
  if (ring.hidden) return;
  ring.style.width = ring.style.height = `${size}px`;
  ring.style.transform =
    `translate(${view.x + x * view.scale - size / 2}px, ${view.y + y * view.scale - size / 2}px)`;
  ring.style.setProperty("--brush", state.erasing ? "#fff" : cssColor(state.active));
}

let outlineDrawn = 1;
on("result view", drawResult);
on("place", () => {
  if (outlineWidth() === outlineDrawn) return;
  outlineDrawn = outlineWidth();
  drawResult();
  drawScribbles();
});
on("scribbles", () => drawScribbles());
on("image", () => {
  element("legend").style.setProperty("--ramp", rampGradient);
  element("after").hidden = element("before").hidden = true;
  drawScribbles();
  fit();
});

new ResizeObserver(() => {
  if (!state.image) return;
  if (view.fitted) fit();
  else place();
}).observe(stage);
