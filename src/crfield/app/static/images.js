// Opening images, label maps, probabilities and models: by button, drop, paste or as a sample.
import * as api from "./api.js";
import { borrowLabels, returnLabels, setLabels } from "./labels.js";
import { hint, settle, status, toast, track } from "./notices.js";
import { Scribbles } from "./painting.js";
import { requestRefine, stopRefining } from "./refiner.js";
import { useInference } from "./settings.js";
import { FIRST_LABELS, NONE, element, emit, state } from "./state.js";

/** @type {AbortController | null} the file that is being opened */
let opening = null;

/**
 * Run one step of opening something, the only one at a time, with progress and cancel.
 * @param {string} text
 * @param {(signal: AbortSignal) => Promise<void>} step
 */
async function exclusively(text, step) {
  opening?.abort();
  const controller = new AbortController();
  opening = controller;
  const job = track(text, () => controller.abort());
  try {
    await step(controller.signal);
    if (!controller.signal.aborted) settle("opening");
  } catch (error) {
    if (!controller.signal.aborted) toast(error.message, "opening");
    else if (opening === controller) status("Cancelled.");
  } finally {
    job.done();
    if (opening === controller) opening = null;
  }
}

/** @param {File} file */
function checkSize(file) {
  const most = state.server.max_bytes;
  if (file.size <= most) return;
  const shown = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MB`;
  throw new Error(`Expected a file of at most ${shown(most)}, ${file.name} has ` +
    `${shown(file.size)}: make it smaller.`);
}

/** @param {{file?: File, sample?: string}} source @param {AbortSignal} signal */
function upload({ file, sample }, signal) {
  if (!file) return api.openSample(sample, signal);
  checkSize(file);
  return api.sendImage(file, signal);
}

/** Show an image. @param {{file?: File, sample?: string}} source */
export const openImage = (source) => exclusively("Opening", async (signal) => {
  const answer = await upload(source, signal);
  const blob = await api.getFile(answer.id, "picture.png", signal);
  const plane = answer.scribbles ? await readScribbles(answer, signal) : undefined;
  const picture = await decodePicture(blob);
  if (signal.aborted) return;
  stopRefining();
  element("picture").replaceWith(picture);
  state.image = {
    id: answer.id, width: answer.width, height: answer.height, source,
    name: source.file?.name || answer.name, defaults: answer.defaults,
  };
  state.scribbles = new Scribbles(answer.width, answer.height, plane);
  state.result = state.planes = null;
  const labels = labelsFor(answer, plane);
  state.initial = null;
  setLabels(labels);
  state.brush = brushFor(answer);
  for (const id of ["sheet", "pad"]) element(id).hidden = false;
  element("welcome").hidden = true;
  element("stage").classList.remove("empty");
  element("latency").textContent = "";
  element("image-name").textContent =
    `${state.image.name}, ${answer.width} × ${answer.height}`;
  for (const part of ["initial", "image", "result", "history", "tool"]) emit(part);
  hint("");
  requestRefine();
});

/** A brush that is neither a hair nor a flood on this picture. */
const brushFor = ({ width, height }) => Math.round(Math.min(200,
  Math.max(1, Math.min(Math.max(width, height) / 40, Math.min(width, height) / 4))));

/** Names of the labels to start with: what came with the image, or those of the image before. */
function labelsFor(answer, plane) {
  // The names of a label map's labels are its numbers, which only it has.
  const before = state.initial?.kind === "labels" ? FIRST_LABELS : state.labels;
  const known = answer.names ?? (plane ? FIRST_LABELS : before);
  let count = known.length;
  for (const label of plane ?? []) {
    if (label !== NONE && label >= count) count = label + 1;
  }
  return namedLabels(state.model?.n_labels ?? count, known);
}

/** So many names, those that are known first. */
const namedLabels = (count, known) =>
  Array.from({ length: count }, (_, i) => known[i] ?? `label ${i + 1}`);

/** The picture ready to be drawn, so that it can take the place of another at once. */
async function decodePicture(blob) {
  const picture = Object.assign(new Image(), { id: "picture", alt: "" });
  picture.src = URL.createObjectURL(blob);
  try {
    await picture.decode();
  } catch {
    throw new Error("The browser cannot show this picture: try a smaller one.");
  } finally {
    URL.revokeObjectURL(picture.src);
  }
  return picture;
}

/** The labels of the scribbles that come with a sample, (height * width) bytes. */
async function readScribbles({ id, width, height }, signal) {
  const blob = await api.getFile(id, "scribbles.png", signal);
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" });
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  const plane = new Uint8Array(width * height);
  for (let i = 0; i < plane.length; i++) plane[i] = data[4 * i];
  return plane;
}

/**
 * The server forgets images and models after a while: send them again.
 * @param {any} error @returns {Promise<boolean>} whether asking once more may help
 */
export async function recover(error) {
  if (error.status !== 404 || !state.image) return false;
  try {
    const { image, initial, model } = state;
    image.id = (await upload(image.source)).id;
    if (initial) await api.sendInitial(image.id, initial.kind, initial.file);
    if (model) model.id = (await api.sendModel(model.file)).id;
    return true;
  } catch {
    return false;
  }
}

/**
 * Whether a file holds logits, as the user says, labels or probabilities; the server tells the last
 * two apart where the name does not. @param {File} file
 */
async function kindOf(file) {
  if (element("logits").checked) return "logits";
  const name = file.name.toLowerCase();
  if (name.endsWith(".npz")) return "probabilities";
  if (!name.endsWith(".npy")) return "labels";
  // The header of .npy is text: 'shape': (375, 500, 3).
  const head = new TextDecoder("latin1").decode(await file.slice(0, 512).arrayBuffer());
  const shape = /'shape': \(([^)]*)\)/.exec(head)?.[1].split(",").filter((part) => part.trim());
  return shape?.length === 3 ? "probabilities" : "labels";
}

/** Start from a label map or probabilities. @param {File} file */
export const openInitial = (file) => exclusively("Opening", async (signal) => {
  const { image } = state;
  if (!image) throw new Error("Open an image first, then its label map or probabilities.");
  checkSize(file);
  const kind = await kindOf(file);
  const send = () => api.sendInitial(image.id, kind, file, signal);
  const answer = await send().catch(async (error) => {
    if (signal.aborted || !(await recover(error))) throw error;
    return send();
  });
  if (state.image !== image) return;
  if (state.model && state.model.n_labels !== answer.n_labels) {
    state.model = null;
    emit("model");
  }
  state.initial = { ...answer, file };
  borrowLabels(answer.names);
  emit("initial");
  requestRefine();
});

/** Go back to the scribbles alone. */
export const closeInitial = () => exclusively("Opening", async () => {
  const { image } = state;
  await api.dropInitial(image.id).catch((error) => {
    if (error.status !== 404) throw error;
  });
  if (state.image !== image) return;
  state.initial = null;
  returnLabels();
  emit("initial");
  requestRefine();
});

/** Use a learned model's kernels. @param {File} file */
export const openModel = (file) => exclusively("Opening", async (signal) => {
  checkSize(file);
  const answer = await api.sendModel(file, signal);
  if (state.initial && state.initial.n_labels !== answer.n_labels) {
    throw new Error(`The model is for ${answer.n_labels} labels, ${state.initial.file.name} has ` +
      `${state.initial.n_labels}: load a model for as many, or go back to scribbles first.`);
  }
  state.model = { ...answer, name: file.name, file };
  useInference(answer);
  if (!state.initial) {
    borrowLabels(namedLabels(answer.n_labels, state.labels));
  }
  emit("model");
  if (state.image) requestRefine();
});

/** Back to the sliders' kernels. */
export function closeModel() {
  state.model = null;
  returnLabels();
  emit("model");
  if (state.image) requestRefine();
}

/** Open whatever the file is by its name. @param {File} file */
export function openFile(file) {
  const name = file.name.toLowerCase();
  if (name.endsWith(".safetensors")) return openModel(file);
  if (/\.np[yz]$/.test(name)) return openInitial(file);
  return openImage({ file });
}
