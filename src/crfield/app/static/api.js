// Requests to the server; every failure becomes an ApiError with a sentence to show.

export class ApiError extends Error {
  /** @param {string} sentence @param {number} status  0: the server did not answer */
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

/** Whether an error only says that somebody stopped the request. @param {any} error */
export const isAbort = (error) => error?.name === "AbortError" || error?.cancelled === true;

/**
 * @param {string} path
 * @param {{method?: string, body?: BodyInit, signal?: AbortSignal}} options
 * @returns {Promise<Response>}
 */
async function request(path, { method = "GET", body, signal } = {}) {
  const headers = method === "GET" ? {} : { "X-Crfield": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/octet-stream";
  let response;
  try {
    response = await fetch(path, { method, body, signal, headers, cache: "no-store" });
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError("The server does not answer: see whether crfield app still runs.", 0);
  }
  if (response.ok) return response;
  let sentence = `The server answered ${response.status} to ${path}.`;
  try {
    sentence = (await response.json()).error ?? sentence;
  } catch {
    // An answer without JSON: the number has to do.
  }
  throw new ApiError(sentence, response.status);
}

/** What to call a file in the Python script. @param {File} file */
const nameOf = (file) => new URLSearchParams({ name: file.name });
const json = async (path, options) => (await request(path, options)).json();

export const getState = () => json("/api/state");
export const sendImage = (file, signal) =>
  json(`/api/images?${nameOf(file)}`, { method: "POST", body: file, signal });
export const openSample = (name, signal) =>
  json(`/api/samples/${encodeURIComponent(name)}`, { method: "POST", signal });
export const sendInitial = (id, kind, file, signal) =>
  json(`/api/images/${id}/initial?kind=${kind}&${nameOf(file)}`,
    { method: "POST", body: file, signal });
export const dropInitial = (id) => request(`/api/images/${id}/initial`, { method: "DELETE" });
export const sendModel = (file, signal) =>
  json("/api/models", { method: "POST", body: file, signal });

/**
 * One of the files made of an image: picture.png, mask.png, snippet.py, ...
 * @param {string} id @param {string} name @param {AbortSignal} [signal]
 * @returns {Promise<Blob>}
 */
export async function getFile(id, name, signal) {
  return (await request(`/api/images/${id}/${name}`, { signal })).blob();
}

/**
 * The frames of a streamed answer, one after another.
 * @param {ReadableStream<Uint8Array>} stream
 * @returns {AsyncGenerator<{kind: number, payload: Uint8Array}>}
 */
async function* frames(stream) {
  const reader = stream.getReader();
  const head = new Uint8Array(5);
  let filled = 0;
  let payload = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    let offset = 0;
    while (offset < value.length || payload?.length === 0) {
      const target = payload ?? head;
      const taken = Math.min(target.length - filled, value.length - offset);
      target.set(value.subarray(offset, offset + taken), filled);
      filled += taken;
      offset += taken;
      if (filled < target.length) break;
      filled = 0;
      if (payload) {
        yield { kind: head[0], payload };
        payload = null;
      } else {
        payload = new Uint8Array(new DataView(head.buffer).getUint32(1, true));
      }
    }
  }
  if (payload || filled) throw new ApiError("The server's answer broke off: try again.", 0);
}

const decoder = new TextDecoder();
const parse = (bytes) => JSON.parse(decoder.decode(bytes));

/**
 * Refine an image.
 * @param {{id: string, width: number, height: number}} image
 * @param {Object} settings
 * @param {Uint8Array} scribbles  (height * width), a label or 255
 * @param {{signal: AbortSignal, onProgress: (progress: any) => void}} options
 * @returns {Promise<{result: any, after: Uint8Array, before: Uint8Array, entropy: Uint8Array}>}
 */
export async function refine(image, settings, scribbles, { signal, onProgress }) {
  const text = new TextEncoder().encode(JSON.stringify(settings));
  const body = new Uint8Array(4 + text.length + scribbles.length);
  new DataView(body.buffer).setUint32(0, text.length, true);
  body.set(text, 4);
  body.set(scribbles, 4 + text.length);
  const path = `/api/images/${image.id}/refine`;
  const response = await request(path, { method: "POST", body, signal });
  let answer = null;
  try {
    for await (const { kind, payload } of frames(response.body)) {
      if (kind === 1) onProgress(parse(payload));
      else if (kind === 2) answer = readResult(payload, image.width * image.height);
      else if (kind === 3) throw streamError(parse(payload));
    }
  } catch (error) {
    if (error instanceof ApiError || isAbort(error)) throw error;
    throw new ApiError("The connection to the server broke off: try again.", 0);
  }
  if (!answer) throw new ApiError("The server's answer broke off: try again.", 0);
  return answer;
}

/** @param {Uint8Array} payload @param {number} n  pixels */
function readResult(payload, n) {
  const length = new DataView(payload.buffer, payload.byteOffset).getUint32(0, true);
  const start = 4 + length;
  const plane = (index) => payload.subarray(start + index * n, start + (index + 1) * n);
  return {
    result: parse(payload.subarray(4, start)),
    after: plane(0), before: plane(1), entropy: plane(2),
  };
}

function streamError({ error, cancelled }) {
  return Object.assign(new ApiError(error, 422), { cancelled: cancelled === true });
}
