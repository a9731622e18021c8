// What the page tells: errors, the status line, progress of long work, dialogs.
import { element } from "./state.js";

const SHOW_PROGRESS_AFTER = 300;
const ANNOUNCE_AFTER = 700;

/**
 * Show an error until it is dismissed or settled, in the place of an older one with its cause.
 * @param {string} sentence @param {string} cause  what failed: opening, refining, saving, ...
 */
export function toast(sentence, cause) {
  settle(cause);
  sentence = sentence[0].toUpperCase() + sentence.slice(1);
  const note = document.createElement("div");
  note.className = "toast";
  note.dataset.cause = cause;
  const text = document.createElement("p");
  text.textContent = sentence;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "icon";
  close.title = "Dismiss";
  close.innerHTML = '<svg><use href="#i-close"/></svg><span class="hidden">Dismiss</span>';
  close.addEventListener("click", () => note.remove());
  note.append(text, close);
  element("toasts").append(note);
}

/** Put away the errors of what has now succeeded. @param {...string} causes */
export function settle(...causes) {
  for (const note of [...element("toasts").children]) {
    if (causes.includes(note.dataset.cause)) note.remove();
  }
}

/** Put all errors away. */
export const dismissToasts = () => element("toasts").replaceChildren();

let announceTimer = 0;

/**
 * Write the status line; screen readers hear it once it has stood for a while, not with every dab.
 * @param {string} sentence
 */
export function status(sentence) {
  element("status").textContent = sentence;
  clearTimeout(announceTimer);
  announceTimer = setTimeout(() => {
    element("announce").textContent = sentence;
  }, ANNOUNCE_AFTER);
}

/** @param {string} sentence  shown over the picture; empty: none */
export function hint(sentence) {
  const note = element("hint");
  note.hidden = !sentence;
  note.textContent = sentence;
}

/** Work that is under way, the newest last. */
const jobs = [];

function showJob() {
  const job = jobs.at(-1);
  element("work").hidden = !job?.visible;
  if (!job) return;
  const bar = element("progress");
  if (job.share === null) bar.removeAttribute("value");
  else bar.value = job.share;
  element("progress-text").textContent = job.text;
}

/**
 * Show progress and a cancel button for work that takes longer than 300 ms.
 * @param {string} text
 * @param {() => void} cancel
 */
export function track(text, cancel) {
  const job = { text, cancel, share: null, visible: false };
  jobs.push(job);
  const timer = setTimeout(() => {
    job.visible = true;
    showJob();
  }, SHOW_PROGRESS_AFTER);
  return {
    /** @param {number} share  0..1 @param {string} words */
    progress(share, words) {
      job.share = share;
      job.text = words;
      if (job.visible) showJob();
    },
    done() {
      clearTimeout(timer);
      if (jobs.includes(job)) jobs.splice(jobs.indexOf(job), 1);
      showJob();
    },
  };
}

/** Stop whatever is under way. @returns {boolean} whether anything was */
export function cancelWork() {
  const running = [...jobs];
  for (const job of running) job.cancel();
  return running.length > 0;
}

element("cancel").addEventListener("click", cancelWork);
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  // A click beside the dialog's contents lands on the dialog itself.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog && outside(dialog, event)) dialog.close();
  });
}

function outside(dialog, event) {
  const box = dialog.getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right ||
    event.clientY < box.top || event.clientY > box.bottom;
}
