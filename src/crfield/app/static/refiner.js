// Live refinement: one request under way, and behind it only the newest state.
import { isAbort, refine } from "./api.js";
import { hint, settle, status, toast, track } from "./notices.js";
import { element, emit, state } from "./state.js";

// A request that has been under way for so long, in ms, makes room for a newer one.
const PATIENCE = 1000;

/** @type {AbortController | null} */
let running = null;
let startedAt = 0;
/** What the result that is shown was made from. @type {{settings: string, plane: Uint8Array} | null} */
let source = null;
let wanted = false;
/**
 * The first and the last event that the next request will be the first to contain.
 * @type {{what: string, oldest: number, newest: number} | null}
 */
let events = null;
let idle = Promise.resolve();
/** @type {{settings: () => Object, recover: (error: any) => Promise<boolean>}} */
let hooks;

/**
 * @param {typeof hooks} given  settings: what to send; recover: opens again what the server forgot
 *   and says whether asking once more may help
 */
export function setUpRefiner(given) {
  hooks = given;
}

/**
 * Refine with the state as it will be when the request is sent.
 * @param {number} [eventTime]  of the pointer or key event that changed it, as performance.now()
 * @param {string} what  it changed
 */
export function requestRefine(eventTime, what = "stroke") {
  if (eventTime !== undefined) {
    events = { what, oldest: events?.oldest ?? eventTime, newest: eventTime };
  }
  wanted = true;
  if (!running) idle = run();
  else if (performance.now() - startedAt > PATIENCE) running.abort();
}

/** Whether the result that is shown is that of the settings and scribbles as they are. */
export function isCurrent() {
  if (!state.result || !source || source.settings !== JSON.stringify(hooks.settings())) return false;
  const { plane } = state.scribbles;
  return plane.length === source.plane.length && plane.every((v, i) => v === source.plane[i]);
}

/** Resolves once nothing is under way or waiting. */
export async function whenIdle() {
  while (running) await idle;
}

/** Give up what is under way and what waits, for instance because the picture changes. */
export function stopRefining() {
  wanted = false;
  running?.abort();
}

/** Why the state cannot be refined yet, or an empty string. */
function obstacle() {
  if (!state.image) return "Open an image first.";
  if (state.initial) return "";
  const used = state.scribbles.used(state.labels.length);
  if (used === 0) return "Paint a stroke on each of two or more labels.";
  return used === 1 ? "Now choose another label and paint a stroke of it." : "";
}

async function run() {
  while (wanted) {
    wanted = false;
    const reason = obstacle();
    if (reason) {
      events = null;
      showNothing(reason);
      continue;
    }
    hint("");
    running = new AbortController();
    startedAt = performance.now();
    state.busy = true;
    emit("busy");
    try {
      await once(running, true);
    } finally {
      running = null;
      state.busy = false;
      emit("busy");
    }
  }
}

function showNothing(reason) {
  hint(state.image ? reason : "");
  state.result = null;
  state.planes = null;
  element("latency").textContent = "";
  status(reason);
  if (state.image) emit("result");
}

async function once(controller, mayRecover) {
  const { image } = state;
  const shown = events;
  events = null;
  const job = track("Refining", stopRefining);
  const settings = hooks.settings();
  const plane = state.scribbles.plane.slice();
  try {
    const answer = await refine(image, settings, plane, {
      signal: controller.signal,
      onProgress: ({ iteration, max_iter: most }) =>
        job.progress(iteration / most, `step ${iteration} of ${most}`),
    });
    if (state.image !== image || controller.signal.aborted) return;
    source = { settings: JSON.stringify(settings), plane };
    show(answer, shown);
  } catch (error) {
    if (isAbort(error)) {
      events = merged(shown, events);
      if (state.image === image && !wanted) status("Cancelled: paint, or choose Refine now.");
    } else if (mayRecover && state.image === image && (await hooks.recover(error))) {
      job.done();
      await once(controller, false);
    } else if (state.image === image) {
      toast(error.message, "refining");
      status("Not refined, see the message.");
    }
  } finally {
    job.done();
  }
}

/** Events of a request that came to nothing, together with those since. */
function merged(before, after) {
  return before && after ? { ...after, oldest: before.oldest } : after;
}

/** @param {any} answer @param {typeof events} shown  the events whose effect is in it */
function show(answer, shown) {
  state.result = answer.result;
  state.planes = answer;
  state.drawn += 1;
  hint("");
  settle("refining", "saving"); // what could not be saved for want of a result now can be
  emit("result");
  status(answer.result.status);
  if (!shown) return;
  afterPaint(() => {
    const now = performance.now();
    window.crfield.lastLatency = now - shown.newest;
    window.crfield.longestLatency = now - shown.oldest;
    element("latency").textContent =
      `${shown.what} to picture: ${Math.round(window.crfield.lastLatency)} ms`;
  });
}

/** Call back once the browser has drawn the next frame. @param {() => void} callback */
function afterPaint(callback) {
  requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = callback;
    port2.postMessage(null);
  });
}
