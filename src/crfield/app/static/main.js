// Start the page.
import { getState } from "./api.js";
import "./compare.js";
import { recover } from "./images.js";
import { status, toast } from "./notices.js";
import { buildOpening } from "./opening.js";
import { setUpRefiner } from "./refiner.js";
import "./results.js";
import { buildSettings, settingsForServer } from "./settings.js";
import { buildShortcuts } from "./shortcuts.js";
import { emit, state } from "./state.js";

/** For tests and the curious: the state, and the time from the last event to its picture in ms. */
window.crfield = { state, lastLatency: null, longestLatency: null, ready: false };

async function start() {
  state.server = await getState();
  setUpRefiner({ settings: settingsForServer, recover });
  buildSettings();
  buildOpening();
  buildShortcuts();
  for (const part of ["labels", "tool", "view"]) emit(part);
  status("Open an image to begin.");
  window.crfield.ready = true;
}

start().catch((error) => toast(error.message, "starting"));
