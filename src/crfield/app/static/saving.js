// Saving: the mask, the overlay, the scribbles, and the Python that makes them.
import { getFile } from "./api.js";
import { recover } from "./images.js";
import { settle, status, toast } from "./notices.js";
import { isCurrent, requestRefine, whenIdle } from "./refiner.js";
import { element, state } from "./state.js";

/** One of the server's files for the result that is shown, computed again if it forgot it. */
async function fetchFile(name) {
  await whenIdle();
  if (!isCurrent()) {
    requestRefine();
    await whenIdle();
    if (!isCurrent()) throw new Error("There is no result of what is painted now: refine first.");
  }
  try {
    return await getFile(state.image.id, name);
  } catch (error) {
    if (!(await recover(error))) throw error;
    requestRefine();
    await whenIdle();
    return getFile(state.image.id, name);
  }
}

/** Let the browser save bytes as a file. @param {Blob} blob @param {string} filename */
function download(blob, filename) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = filename;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  status(`Saved ${filename}.`);
}

/** @param {string} name  of the server's file */
export async function save(name) {
  if (!state.result) return;
  try {
    download(await fetchFile(name), name);
    settle("saving");
  } catch (error) {
    toast(error.message, "saving");
  }
}

/** @type {Blob | null} */
let script = null;

/** What the script reads, and so has to lie beside it. */
function companions() {
  const files = [
    state.image.source.file && state.image.name,
    !state.scribbles.isEmpty && "scribbles.png (save it here)",
    state.initial?.file.name,
    state.model && "the model as model.safetensors",
  ].filter(Boolean);
  return files.length ? `Keep it beside ${files.join(", ")}.` : "It needs no other file.";
}

async function showSnippet() {
  try {
    script = await fetchFile("snippet.py");
    element("snippet").textContent = await script.text();
    element("copy-snippet").textContent = "Copy";
    element("snippet-note").textContent = companions();
    element("snippet-dialog").showModal();
    settle("saving");
  } catch (error) {
    toast(error.message, "saving");
  }
}

async function copySnippet() {
  const text = element("snippet").textContent;
  try {
    await navigator.clipboard.writeText(text);
    element("copy-snippet").textContent = "Copied";
  } catch {
    // Without leave to use the clipboard the text is at least selected.
    getSelection().selectAllChildren(element("snippet"));
    element("copy-snippet").textContent = "Selected: copy it with Ctrl+C";
  }
}

for (const name of ["mask", "overlay", "scribbles"]) {
  element(`save-${name}`).addEventListener("click", () => save(`${name}.png`));
}
element("save-snippet").addEventListener("click", showSnippet);
element("copy-snippet").addEventListener("click", copySnippet);
element("download-snippet").addEventListener("click", () => download(script, "snippet.py"));
