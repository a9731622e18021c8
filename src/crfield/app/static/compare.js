// Before and after: a divider to drag or to move with the keyboard, and a peek while a key is held.
import { view } from "./canvas.js";
import { element, emit, on, state } from "./state.js";

const stage = element("stage");
const divider = element("divider");

/** The part of the stage that shows the picture, in CSS pixels from the stage's left. */
function visibleSpan() {
  const left = Math.max(0, view.x);
  const right = Math.min(stage.clientWidth, view.x + state.image.width * view.scale);
  return { left, width: Math.max(1, right - left) };
}

/** Whether the view shows labels, of which there are some before and some after. */
const showsLabels = () => ["overlay", "labels"].includes(state.view);

/** Whether there is a refined picture to compare with the initial one. */
const comparable = () => Boolean(state.planes) && showsLabels();

function update() {
  element("compare").disabled = !state.image || !showsLabels();
  if (!state.image) return;
  const dividing = state.comparing && !state.peeking && comparable();
  divider.hidden = !dividing;
  element("peek-note").hidden = !(state.peeking && comparable());
  element("compare").setAttribute("aria-pressed", String(state.comparing));
  const after = element("after");
  const before = element("before");
  if (!dividing) {
    after.style.clipPath = state.peeking ? "inset(0 0 0 100%)" : "";
    before.style.clipPath = "";
    return;
  }
  const { left, width } = visibleSpan();
  const x = left + state.divider * width;
  const share = ((x - view.x) / (state.image.width * view.scale)) * 100;
  before.style.clipPath = `inset(0 ${100 - share}% 0 0)`;
  after.style.clipPath = `inset(0 0 0 ${share}%)`;
  divider.style.transform = `translateX(${x}px)`;
  const percent = Math.round(100 * state.divider);
  divider.setAttribute("aria-valuenow", String(percent));
  divider.setAttribute("aria-valuetext", `before on the left ${percent} %, after on the rest`);
}

/** @param {number} share  0: all after, 1: all before */
function move(share) {
  state.divider = Math.min(1, Math.max(0, share));
  update();
}

/** @param {boolean} on */
export function compare(on) {
  if (element("compare").disabled) return;
  state.comparing = on;
  emit("view");
}

/** Show the labels before refinement while `on`. @param {boolean} on */
export function peek(on) {
  if (state.peeking === on || (on && !state.planes)) return;
  state.peeking = on;
  emit("view");
}

divider.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  divider.setPointerCapture(event.pointerId);
  divider.focus({ preventScroll: true });
  event.preventDefault();
});
divider.addEventListener("pointermove", (event) => {
  if (!divider.hasPointerCapture(event.pointerId)) return;
  const { left, width } = visibleSpan();
  move((event.clientX - stage.getBoundingClientRect().left - stage.clientLeft - left) / width);
});
divider.addEventListener("keydown", (event) => {
  const step = event.shiftKey ? 0.1 : 0.02;
  const target = {
    ArrowLeft: state.divider - step, ArrowDown: state.divider - step,
    ArrowRight: state.divider + step, ArrowUp: state.divider + step,
    PageDown: state.divider - 0.2, PageUp: state.divider + 0.2, Home: 0, End: 1,
  }[event.key];
  if (target === undefined) return;
  move(target);
  event.preventDefault();
  event.stopPropagation();
});
element("compare").addEventListener("click", () => compare(!state.comparing));
on("view result place image", update);
