// The buttons, drops and pastes that open files, and the notes about what is open.
import { closeInitial, closeModel, openFile, openImage, openInitial, openModel } from "./images.js";
import { element, on, state } from "./state.js";

/** A button that asks for a file. @param {string} button @param {string} input */
function chooseWith(button, input, open) {
  element(button).addEventListener("click", () => element(input).click());
  element(input).addEventListener("change", () => {
    const [file] = element(input).files;
    // The same file chosen again must count as a change.
    element(input).value = "";
    if (file) open(file);
  });
}

function addSamples() {
  const list = element("samples");
  const chips = element("welcome-samples");
  if (state.server.samples.length) chips.append("Samples:");
  for (const { name, title } of state.server.samples) {
    list.append(new Option(title, name));
    const chip = Object.assign(document.createElement("button"), {
      type: "button", textContent: title,
    });
    chip.addEventListener("click", () => openImage({ sample: name }));
    chips.append(chip);
  }
  list.addEventListener("change", () => {
    if (list.value) openImage({ sample: list.value }).finally(showChosen);
  });
  const showChosen = () => {
    list.value = state.image?.source.sample ?? "";
  };
  on("image", showChosen);
}

function acceptDrops() {
  const note = element("drop-note");
  let depth = 0;
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  const show = (change) => {
    depth = Math.max(0, depth + change);
    note.hidden = depth === 0;
  };
  addEventListener("dragenter", (event) => holdsFiles(event) && show(1));
  addEventListener("dragleave", (event) => holdsFiles(event) && show(-1));
  addEventListener("dragover", (event) => {
    if (holdsFiles(event)) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    show(-depth);
    const [file] = event.dataTransfer.files;
    const onStart = event.target.closest?.("#start-section");
    if (file && onStart && !file.name.endsWith(".safetensors")) openInitial(file);
    else if (file) openFile(file);
  });
}

/** Ask before painted work goes with the page. */
function guardWork() {
  addEventListener("beforeunload", (event) => {
    if (state.scribbles?.done.length) event.preventDefault();
  });
}

function acceptPastes() {
  addEventListener("paste", (event) => {
    const [file] = event.clipboardData?.files ?? [];
    if (file) openFile(file);
  });
}

function describeInitial() {
  const { initial } = state;
  element("clear-initial").hidden = !initial;
  const kind = initial?.kind === "labels" ? "a label map" : "probabilities";
  element("source-note").textContent = initial
    ? `Starts from ${kind} with ${initial.n_labels} labels` +
      ` (${initial.file.name}); scribbles correct it.`
    : "Starts from the scribbles: each label's colors are learned from them.";
}

function describeModel() {
  const { model } = state;
  element("clear-model").hidden = !model;
  element("model-terms").replaceChildren(...(model?.terms ?? []).map((term) =>
    Object.assign(document.createElement("li"), { textContent: term })));
  element("model-note").textContent = model
    ? `${model.name}, ${model.n_labels} labels:`
    : "A model made by crfield learn brings its own kernels.";
  const note = element("kernels-note");
  note.hidden = !model;
  note.textContent = "The learned model brings its own kernels: put it away to use these sliders.";
}

/** Connect the controls; the server's answer must be there. */
export function buildOpening() {
  chooseWith("open", "image-file", (file) => openImage({ file }));
  chooseWith("load-initial", "initial-file", openInitial);
  chooseWith("load-model", "model-file", openModel);
  element("welcome-open").addEventListener("click", () => element("image-file").click());
  element("clear-initial").addEventListener("click", closeInitial);
  element("clear-model").addEventListener("click", closeModel);
  addSamples();
  acceptDrops();
  acceptPastes();
  guardWork();
  on("initial", describeInitial);
  on("model", describeModel);
  describeInitial();
}
