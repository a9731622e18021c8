// The scribbles: a plane of labels with brush, eraser and history.
import { NONE } from "./state.js";

const HISTORY_BYTES = 1 << 26;

/**
 * @typedef {{left: number, top: number, right: number, bottom: number}} Rect  the latter excluded
 * @typedef {Object} Edit
 * @property {Rect | null} rect  what it touched
 * @property {Uint8Array} before  the labels there, row after row
 * @property {Uint8Array} after
 * @property {string[][] | null} labels  names of the labels before and after, if they changed
 */

export class Scribbles {
  /** @param {number} width @param {number} height @param {Uint8Array} [plane]  to start from */
  constructor(width, height, plane) {
    this.width = width;
    this.height = height;
    this.plane = plane ?? new Uint8Array(width * height).fill(NONE);
    /** @type {Edit[]} */ this.done = [];
    /** @type {Edit[]} */ this.undone = [];
    /** @type {Uint8Array | null} the plane when the current edit began */ this.base = null;
    /** @type {Rect | null} what the current edit touched */ this.touched = null;
  }

  get editing() {
    return this.base !== null;
  }

  /** Whether anything is painted. */
  get isEmpty() {
    const { plane } = this;
    for (let i = 0; i < plane.length; i++) if (plane[i] !== NONE) return false;
    return true;
  }

  /** Begin an edit: what follows until `commit` is undone at once. */
  begin() {
    this.base = this.plane.slice();
    this.touched = null;
  }

  /**
   * Paint a line with a round brush; coordinates in pixels, (0, 0) the top left corner's corner.
   * @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1
   * @param {number} diameter @param {number} label  NONE erases
   * @returns {Rect | null} what was touched, null if all of it lies outside
   */
  line(x0, y0, x1, y1, diameter, label) {
    const radius = diameter / 2;
    // Discs a quarter of the radius apart: their union is a line to within 1 % of its width.
    const steps = Math.ceil(Math.hypot(x1 - x0, y1 - y0) / Math.max(0.5, radius / 4));
    for (let step = 0; step <= steps; step++) {
      const share = steps ? step / steps : 1;
      this.#disc(x0 + share * (x1 - x0), y0 + share * (y1 - y0), radius, label);
    }
    const rect = clip({
      left: Math.floor(Math.min(x0, x1) - radius), right: Math.ceil(Math.max(x0, x1) + radius) + 1,
      top: Math.floor(Math.min(y0, y1) - radius), bottom: Math.ceil(Math.max(y0, y1) + radius) + 1,
    }, this.width, this.height);
    this.touched = union(this.touched, rect);
    return rect;
  }

  #disc(x, y, radius, label) {
    const { plane, width, height } = this;
    const row = Math.floor(y);
    const column = Math.floor(x);
    // The pixel under the brush is always painted, however thin the brush.
    if (row >= 0 && row < height && column >= 0 && column < width) {
      plane[row * width + column] = label;
    }
    const top = Math.max(0, Math.ceil(y - radius - 0.5));
    const bottom = Math.min(height - 1, Math.floor(y + radius - 0.5));
    for (let line = top; line <= bottom; line++) {
      const half = Math.sqrt(Math.max(0, radius * radius - (line + 0.5 - y) ** 2));
      const left = Math.max(0, Math.ceil(x - half - 0.5));
      const right = Math.min(width, Math.floor(x + half - 0.5) + 1);
      if (right > left) plane.fill(label, line * width + left, line * width + right);
    }
  }

  /** Replace every label by `table[label]`. @param {Uint8Array} table  (256) */
  remap(table) {
    const { plane } = this;
    for (let i = 0; i < plane.length; i++) plane[i] = table[plane[i]];
    this.touched = { left: 0, top: 0, right: this.width, bottom: this.height };
  }

  /**
   * End the edit and remember it.
   * @param {string[][] | null} labels  names of the labels before and after, if they changed
   */
  commit(labels = null) {
    const { base, touched } = this;
    this.base = null;
    if (!base || (!touched && !labels)) return;
    const before = touched ? cut(base, this.width, touched) : new Uint8Array(0);
    const after = touched ? cut(this.plane, this.width, touched) : new Uint8Array(0);
    if (!labels && before.every((label, i) => label === after[i])) return;
    this.undone = [];
    this.done.push({ rect: touched, before, after, labels });
    let bytes = this.done.reduce((sum, edit) => sum + 2 * edit.before.length, 0);
    while (bytes > HISTORY_BYTES && this.done.length > 1) {
      bytes -= 2 * this.done.shift().before.length;
    }
  }

  /** Give the current edit up. */
  revert() {
    if (this.base) this.plane.set(this.base);
    this.base = null;
  }

  /** @returns {Edit | null} the edit taken back */
  undo() {
    const edit = this.done.pop();
    if (!edit) return null;
    paste(this.plane, this.width, edit.rect, edit.before);
    this.undone.push(edit);
    return edit;
  }

  /** @returns {Edit | null} the edit done again */
  redo() {
    const edit = this.undone.pop();
    if (!edit) return null;
    paste(this.plane, this.width, edit.rect, edit.after);
    this.done.push(edit);
    return edit;
  }

  forget() {
    this.done = [];
    this.undone = [];
  }

  /** How many of the first `n` labels are painted somewhere, counted up to `enough`. */
  used(n, enough = 2) {
    let found = 0;
    for (let label = 0; label < n && found < enough; label++) {
      if (this.plane.includes(label)) found++;
    }
    return found;
  }
}

/** @param {Rect} rect @returns {Rect | null} */
function clip(rect, width, height) {
  const left = Math.max(0, rect.left);
  const top = Math.max(0, rect.top);
  const right = Math.min(width, rect.right);
  const bottom = Math.min(height, rect.bottom);
  return left < right && top < bottom ? { left, top, right, bottom } : null;
}

/** @param {Rect | null} a @param {Rect | null} b @returns {Rect | null} */
export function union(a, b) {
  if (!a || !b) return a ?? b;
  return {
    left: Math.min(a.left, b.left), top: Math.min(a.top, b.top),
    right: Math.max(a.right, b.right), bottom: Math.max(a.bottom, b.bottom),
  };
}

function cut(plane, width, { left, top, right, bottom }) {
  const patch = new Uint8Array((right - left) * (bottom - top));
  for (let y = top; y < bottom; y++) {
    patch.set(plane.subarray(y * width + left, y * width + right), (y - top) * (right - left));
  }
  return patch;
}

function paste(plane, width, rect, patch) {
  if (!rect) return;
  const { left, top, right, bottom } = rect;
  for (let y = top; y < bottom; y++) {
    const start = (y - top) * (right - left);
    plane.set(patch.subarray(start, start + right - left), y * width + left);
  }
}
