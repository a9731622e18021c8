// Planes of bytes to pixels: 32-bit writes into one strip of pixels that every layer shares.

const STRIP_PIXELS = 1 << 19; // a whole 375 x 500 picture, a few rows of a huge one
const OUTLINE = rgba(255, 255, 255, 217);

// Of `crfield.entropy_map`: near black over violet and orange to pale yellow.
const RAMP = [
  [8, 7, 21], [25, 10, 49], [48, 12, 70], [74, 13, 85], [103, 14, 94], [132, 18, 96],
  [160, 27, 93], [186, 43, 85], [208, 65, 74], [225, 90, 63], [237, 118, 58], [243, 147, 67],
  [244, 175, 92], [244, 202, 129], [243, 226, 172], [248, 247, 224],
];

/** One pixel as a 32-bit number (little-endian, as everywhere browsers run). */
function rgba(red, green, blue, alpha) {
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/**
 * Pixels for each label, those past the palette transparent.
 * @param {number[][]} palette @param {number} opacity  0..1
 * @returns {Uint32Array} (256)
 */
export function labelTable(palette, opacity) {
  const table = new Uint32Array(256);
  palette.forEach(([r, g, b], label) => {
    table[label] = rgba(r, g, b, Math.round(255 * opacity));
  });
  return table;
}

/** Pixels for each entropy 0..255. @returns {Uint32Array} (256) */
export function entropyTable() {
  return Uint32Array.from({ length: 256 }, (_, value) => {
    const place = (value / 255) * (RAMP.length - 1);
    const low = Math.min(Math.floor(place), RAMP.length - 2);
    const [r, g, b] = RAMP[low].map((c, i) => c + (place - low) * (RAMP[low + 1][i] - c));
    return rgba(Math.round(r), Math.round(g), Math.round(b), 255);
  });
}

/** The entropy's colors for CSS. */
export const rampGradient = `linear-gradient(90deg, ${RAMP.map((c) => `rgb(${c})`).join(", ")})`;

let strip = { width: 0, rows: 0, image: null, pixels: null };

function stripOf(width, height) {
  const rows = Math.min(height, Math.max(1, Math.floor(STRIP_PIXELS / width)));
  if (strip.width !== width || strip.rows !== rows) {
    const image = new ImageData(width, rows);
    strip = { width, rows, image, pixels: new Uint32Array(image.data.buffer) };
  }
  return strip;
}

/**
 * Draw a part of a plane.
 * @param {HTMLCanvasElement} canvas  of the plane's size, resized if it is not
 * @param {Uint8Array} plane  (height * width)
 * @param {{width: number, height: number}} size
 * @param {Uint32Array} table  (256), a pixel for each value
 * @param {{outline?: number, rect?: import("./painting.js").Rect}} options
 *   outline: width of the light line where values change, 0 for none
 */
export function drawPlane(canvas, plane, { width, height }, table, { outline = 0, rect } = {}) {
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
    rect = undefined;
  }
  const context = canvas.getContext("2d");
  const { left, top, right, bottom } = rect ?? { left: 0, top: 0, right: width, bottom: height };
  const { rows, image, pixels } = stripOf(width, height);
  for (let start = top; start < bottom; start += rows) {
    const end = Math.min(bottom, start + rows);
    for (let y = start; y < end; y++) {
      const source = y * width;
      const target = (y - start) * width;
      for (let x = left; x < right; x++) pixels[target + x] = table[plane[source + x]];
      if (!outline) continue;
      // Lighten what has another value to its right or below; the last rows have nothing below.
      const below = y + outline < height ? outline * width : 0;
      for (let x = left; x < right; x++) {
        const place = source + x;
        const value = plane[place];
        if (value !== plane[place + below] ||
            (x + outline < width && value !== plane[place + outline])) {
          pixels[target + x] = OUTLINE;
        }
      }
    }
    context.putImageData(image, 0, start, left, 0, right - left, end - start);
  }
}

/** @param {HTMLCanvasElement} canvas  freed of its pixels */
export function emptyCanvas(canvas) {
  canvas.width = 0;
  canvas.height = 0;
}
