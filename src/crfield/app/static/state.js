// What the page knows, in one object, and who is told when a part of it changes.

/**
 * @typedef {Object} Picture
 * @property {string} id  the server's name for it
 * @property {number} width
 * @property {number} height
 * @property {string} name
 * @property {{file?: File, sample?: string}} source  to open it again
 */

export const NONE = 255; // a pixel without a scribble
export const FIRST_LABELS = ["background", "object"];

export const state = {
  /** @type {any} what GET /api/state answered */ server: null,
  /** @type {Picture | null} */ image: null,
  /** @type {import("./painting.js").Scribbles | null} */ scribbles: null,
  /** @type {string[]} a name for each label */ labels: [...FIRST_LABELS],
  active: 0,
  erasing: false,
  brush: 12,
  view: "overlay",
  opacity: 0.5,
  outlines: true,
  showScribbles: true,
  comparing: false,
  divider: 0.5,
  peeking: false,
  live: true,
  /** @type {any} the sliders' values, see settings.js */ settings: {},
  /** @type {any} */ initial: null,
  /** @type {any} */ model: null,
  /** @type {any} the last Result of the server */ result: null,
  /** @type {{after: Uint8Array, before: Uint8Array, entropy: Uint8Array} | null} */ planes: null,
  /** How many results were drawn, and whether one is being computed. */
  drawn: 0,
  busy: false,
};

const listeners = new Map();

/**
 * Call `listener` whenever one of the named parts changed.
 * @param {string} names  separated by spaces
 * @param {() => void} listener
 */
export function on(names, listener) {
  for (const name of names.split(" ")) {
    listeners.set(name, [...(listeners.get(name) ?? []), listener]);
  }
}

/** @param {string} name  the part that changed */
export function emit(name) {
  for (const listener of listeners.get(name) ?? []) listener();
}

/**
 * The element with this id.
 * @param {string} id
 * @returns {any}
 */
export const element = (id) => document.getElementById(id);

/** The color of a label as [r, g, b]. @param {number} label */
export const colorOf = (label) => state.server.palette[label % state.server.palette.length];

/** The color of a label for CSS. @param {number} label */
export const cssColor = (label) => `rgb(${colorOf(label).join(" ")})`;
