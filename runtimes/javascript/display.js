// Rich output: MIME bundles of values, and `display`.

import { latin1, print, send } from "wasm-kernel:host";
import { inspect, typedName } from "wasm-kernel:inspect";
import { tableHtml, tableText } from "wasm-kernel:tables";

const JUPYTER = Symbol.for("Jupyter.display");
const BYTES_OF = {
  "image/png": [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a],
  "image/jpeg": [0xff, 0xd8, 0xff],
};

/** Returns the MIME bundle of a value, or a promise of it. */
export function bundleOf(value) {
  const own = ownBundle(value);
  if (own instanceof Promise) return own.then((found) => (isBundle(found) ? found : plainBundle(value)));
  return isBundle(own) ? own : plainBundle(value);
}

const isBundle = (found) => typeof found === "object" && found !== null;

function plainBundle(value) {
  const html = tableHtml(value);
  if (html !== undefined) return { "text/plain": tableText(value), "text/html": html };
  const image = imageOf(value);
  const text = { "text/plain": inspect(value) };
  return image === undefined ? text : { ...text, ...image };
}

/** Returns a value's own MIME bundle; undefined if it has none. */
function ownBundle(value) {
  if (value === null || value === undefined) return undefined;
  let shows;
  try {
    shows = value[JUPYTER];
  } catch {
    return undefined;
  }
  return typeof shows === "function" ? shows.call(value) : undefined;
}

function imageOf(value) {
  if (typedName(value) !== "Uint8Array") return undefined;
  for (const [mime, bytes] of Object.entries(BYTES_OF)) {
    if (bytes.every((byte, at) => value[at] === byte)) return { [mime]: btoa(latin1(value)) };
  }
  return undefined;
}

function show(data, { metadata = {}, id, update = false } = {}) {
  const transient = id === undefined ? {} : { display_id: String(id) };
  const answer = send({ op: update ? "update_display" : "display", data, metadata, transient });
  if (answer.refused !== undefined) throw new Error(`The output was not shown: ${answer.refused}`);
}

/** Shows a value as a notebook's output; `raw` takes it for a MIME bundle. */
export function display(value, { raw = false, ...options } = {}) {
  const found = raw || hasMimeTypes(value) ? value : bundleOf(value);
  if (!(found instanceof Promise)) return show(found, options);
  found.then((data) => show(data, options)).catch((problem) => print(2, `${inspect(problem)}\n`));
}

const hasMimeTypes = (value) => {
  const keys = isBundle(value) ? Object.keys(value) : [];
  return keys.length > 0 && keys.every((key) => /^[a-z]+\/[\w.+-]+$/.test(key));
};

const png = (value) => (typeof value === "string" ? value : btoa(latin1(value)));
display.html = (text, options) => show({ "text/html": String(text), "text/plain": String(text) }, options);
display.markdown = (text, options) => show({ "text/markdown": String(text), "text/plain": String(text) }, options);
display.svg = (text, options) => show({ "image/svg+xml": String(text), "text/plain": "[SVG]" }, options);
display.json = (value, options) => show({ "application/json": value, "text/plain": inspect(value) }, options);
display.png = (data, options) => show({ "image/png": png(data), "text/plain": "[PNG]" }, options);
display.text = (text, options) => show({ "text/plain": String(text) }, options);
display.clear = (wait = false) => void send({ op: "clear_output", wait: Boolean(wait) });
