// Small drawings in SVG.

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 320;

/**
 * @param {string} name @param {Record<string, string | number>} attributes
 * @param {string} [text]
 */
function shape(name, attributes, text) {
  const node = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  if (text !== undefined) node.textContent = text;
  return node;
}

/** A number in few characters. @param {number} value */
export function brief(value) {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(4)}k`;
  return String(Number(value.toPrecision(4)));
}

/** Whole numbers from 0 to `last`, at most five. @param {number} last */
function ticks(last) {
  const step = Math.max(1, Math.ceil(last / 4));
  const list = [];
  for (let value = 0; value <= last; value += step) list.push(value);
  return list;
}

/**
 * The free energy after each iteration, the start first.
 * @param {SVGElement} svg @param {number[]} values
 */
export function drawCurve(svg, values) {
  const height = 118;
  const box = { left: 56, right: WIDTH - 10, top: 10, bottom: height - 32 };
  const finite = values.filter(Number.isFinite);
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  const last = Math.max(1, values.length - 1);
  const x = (i) => box.left + (i / last) * (box.right - box.left);
  const y = (value) => box.bottom - ((value - low) / span) * (box.bottom - box.top);
  const parts = [];
  for (const value of finite.length > 1 ? [low, low + span] : [low]) {
    parts.push(gridLine(box, y(value)));
    parts.push(textAt(box.left - 6, y(value) + 4, "end", brief(value)));
  }
  for (const i of ticks(last)) {
    parts.push(textAt(x(i), box.bottom + 15, "middle", String(i)));
  }
  parts.push(textAt((box.left + box.right) / 2, height - 3, "middle", "iteration"));
  const name = textAt(0, 0, "middle", "free energy");
  name.setAttribute("transform", `translate(10 ${(box.top + box.bottom) / 2}) rotate(-90)`);
  parts.push(name);
  const points = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`);
  parts.push(shape("polyline", { class: "curve", points: points.join(" ") }));
  const radius = values.length > 30 ? 2 : 3;
  values.forEach((value, i) => {
    const dot = shape("circle", { class: "dot", cx: x(i), cy: y(value), r: radius });
    dot.append(shape("title", {}, `iteration ${i}: ${brief(value)}`));
    parts.push(dot);
  });
  finish(svg, height, parts, `Free energy: from ${brief(values[0])} to ${brief(values.at(-1))} ` +
    `in ${values.length - 1} iterations`);
}

/**
 * The time of each iteration.
 * @param {SVGElement} svg @param {number[]} values  milliseconds
 */
export function drawSteps(svg, values) {
  const height = 66;
  const box = { left: 56, right: WIDTH - 10, top: 8, bottom: height - 30 };
  const most = Math.max(...values, 1e-3);
  const room = (box.right - box.left) / Math.max(1, values.length);
  const parts = [
    gridLine(box, box.bottom),
    textAt(box.left - 6, box.top + 8, "end", `${Number(most.toPrecision(2))} ms`),
    textAt(box.left - 6, box.bottom + 2, "end", "0"),
    textAt((box.left + box.right) / 2, height - 3, "middle", "time of each step"),
  ];
  const width = Math.min(room * 0.8, 40);
  const left = (i) => box.left + i * room + room * 0.1;
  values.forEach((value, i) => {
    const size = (value / most) * (box.bottom - box.top);
    const column = shape("rect", {
      class: "column", x: left(i), y: box.bottom - size, width, height: size,
    });
    column.append(shape("title", {}, `step ${i + 1}: ${value.toFixed(1)} ms`));
    parts.push(column);
  });
  const stride = Math.ceil(values.length / 10);
  for (let i = 0; i < values.length; i += stride) {
    parts.push(textAt(left(i) + width / 2, box.bottom + 13, "middle", String(i + 1)));
  }
  finish(svg, height, parts, `Time of each step: at most ${most.toFixed(1)} ms`);
}

const textAt = (x, y, anchor, text) => shape("text", { x, y, "text-anchor": anchor }, text);
const gridLine = ({ left, right }, y) =>
  shape("line", { class: "grid", x1: left, x2: right, y1: y, y2: y });

function finish(svg, height, parts, description) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  svg.setAttribute("aria-label", description);
  svg.replaceChildren(...parts);
}
