// Parts of the web platform that programs expect and the interpreter lacks.

import { decode, encode, joined, randomBytes } from "wasm-kernel:host";

const ENCODINGS = {
  "utf-8": ["utf-8", "utf8", "unicode-1-1-utf-8", "x-unicode20utf8"],
  "utf-16-le": ["utf-16", "utf-16le", "ucs-2", "unicode", "iso-10646-ucs-2", "csunicode"],
  "utf-16-be": ["utf-16be"],
  cp1252: ["latin1", "iso-8859-1", "windows-1252", "ascii", "us-ascii", "l1", "cp1252"],
};
const SHOWN = { "utf-8": "utf-8", "utf-16-le": "utf-16le", "utf-16-be": "utf-16be", cp1252: "windows-1252" };
const PIECE = 8 * 1024 * 1024; // bytes that are decoded at once
const MARKS = { "utf-8": [0xef, 0xbb, 0xbf], "utf-16-le": [0xff, 0xfe], "utf-16-be": [0xfe, 0xff] };

export class TextEncoder {
  get encoding() {
    return "utf-8";
  }

  encode(text = "") {
    return encode(String(text));
  }

  encodeInto(text, target) {
    let read = 0, written = 0;
    for (const character of String(text)) {
      const bytes = encode(character);
      if (written + bytes.length > target.length) break;
      target.set(bytes, written);
      written += bytes.length;
      read += character.length;
    }
    return { read, written };
  }
}

export class TextDecoder {
  #name;
  #kept = new Uint8Array();
  #begun = false;

  constructor(label = "utf-8", { fatal = false, ignoreBOM = false } = {}) {
    const wanted = String(label).trim().toLowerCase();
    this.#name = Object.keys(ENCODINGS).find((name) => ENCODINGS[name].includes(wanted));
    if (this.#name === undefined) throw new RangeError(`The encoding ${wanted} is not known here.`);
    this.fatal = Boolean(fatal);
    this.ignoreBOM = Boolean(ignoreBOM);
  }

  get encoding() {
    return SHOWN[this.#name];
  }

  decode(input = new Uint8Array(), { stream = false } = {}) {
    let data = this.#kept.length > 0 ? joined([this.#kept, bytesOf(input)]) : bytesOf(input);
    const whole = stream ? completeLength(data, this.#name) : data.length;
    this.#kept = data.slice(whole);
    data = data.subarray(0, whole);
    const mark = MARKS[this.#name];
    if (!this.#begun && !this.ignoreBOM && mark?.every((byte, index) => data[index] === byte)) data = data.subarray(mark.length);
    this.#begun = stream && (this.#begun || whole > 0);
    return textOf(data, this.#name, this.fatal);
  }
}

/** Decodes bytes in an encoding. */
export function textOf(data, name, fatal = false) {
  let text = "";
  for (let start = 0, end; start < data.length; start = end) {
    const rest = data.subarray(start, start + PIECE);
    end = start + (rest.length < PIECE ? rest.length : completeLength(rest, name));
    const piece = decode(new Uint8Array(data.subarray(start, end)), name, fatal);
    if (piece === undefined) throw new TypeError("The encoded data was not valid.");
    text += piece;
  }
  return text;
}

/** Returns the bytes of a buffer or of a view of one. */
export function bytesOf(source) {
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (source instanceof ArrayBuffer || source instanceof SharedArrayBuffer) return new Uint8Array(source);
  throw new TypeError("A buffer is needed, or a view of one.");
}

/** Returns the number of bytes that form whole characters: the rest waits for the next piece. */
export function completeLength(data, name) {
  if (name === "cp1252") return data.length;
  if (name !== "utf-8") {
    const even = data.length - (data.length % 2), high = data[even - (name === "utf-16-le" ? 1 : 2)];
    return high >= 0xd8 && high <= 0xdb ? even - 2 : even;
  }
  for (let back = 1; back <= Math.min(3, data.length); back += 1) {
    const byte = data[data.length - back];
    if (byte >= 0xc0) {
      const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return needed > back ? data.length - back : data.length;
    }
    if (byte < 0x80) break;
  }
  return data.length;
}

const uncloneable = (value) =>
  new DOMException(`${typeof value === "symbol" ? "A symbol" : "This value"} could not be cloned.`, "DataCloneError");
const ERRORS = { Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };

export function structuredClone(value, { transfer = [] } = {}) {
  const made = new Map();
  const clone = (held) => {
    if (typeof held === "symbol" || typeof held === "function") throw uncloneable(held);
    if (typeof held !== "object" || held === null) return held;
    if (!made.has(held)) cloneInto(held, made, clone);
    return made.get(held);
  };
  const result = clone(value);
  for (const buffer of transfer) if (buffer instanceof ArrayBuffer) buffer.transfer();
  return result;
}

function cloneInto(held, made, clone) {
  const note = (copy) => {
    made.set(held, copy);
    return copy;
  };
  if (Array.isArray(held)) copyProperties(held, note(new Array(held.length)), clone);
  else if (held instanceof Date) note(new Date(held.getTime()));
  else if (held instanceof RegExp) note(new RegExp(held.source, held.flags));
  else if (held instanceof Map) {
    const copy = note(new Map());
    for (const [key, each] of [...held]) copy.set(clone(key), clone(each));
  } else if (held instanceof Set) {
    const copy = note(new Set());
    for (const each of [...held]) copy.add(clone(each));
  } else if (held instanceof ArrayBuffer) note(held.slice(0));
  else if (ArrayBuffer.isView(held)) {
    const buffer = clone(held.buffer), length = held instanceof DataView ? held.byteLength : held.length;
    note(new held.constructor(buffer, held.byteOffset, length));
  } else if (held instanceof Error) {
    const copy = note(new (ERRORS[held.name] ?? Error)(held.message));
    Object.defineProperty(copy, "stack", { value: held.stack, configurable: true, writable: true });
    if (Object.hasOwn(held, "cause")) copy.cause = clone(held.cause);
  } else if ([Number, String, Boolean, BigInt].some((kind) => held instanceof kind)) note(Object(held.valueOf()));
  else if (held instanceof Promise || held instanceof WeakMap || held instanceof WeakSet || held instanceof WeakRef) {
    throw uncloneable(held);
  } else copyProperties(held, note({}), clone);
}

function copyProperties(held, copy, clone) {
  for (const key of Object.keys(held)) {
    Object.defineProperty(copy, key, { value: clone(held[key]), writable: true, enumerable: true, configurable: true });
  }
}

const INTEGERS = [Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, BigInt64Array, BigUint64Array];

export const crypto = {
  getRandomValues(array) {
    if (!INTEGERS.some((kind) => array instanceof kind)) {
      throw new DOMException("A typed array of integers is needed.", "TypeMismatchError");
    }
    if (array.byteLength > 65_536) throw new DOMException("At most 65,536 bytes at once.", "QuotaExceededError");
    if (array.byteLength > 0) bytesOf(array).set(randomBytes(array.byteLength));
    return array;
  },
  randomUUID() {
    const bytes = randomBytes(16);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
  },
};
