// The functions of the host: cells call them, and the program that owns the sandbox runs them. A call sends
// its arguments as plain data (PROTOCOL.md), and waits for the host's answer.

import { joined, send } from "wasm-kernel:host";

const MARK = "$"; // the key of an object that stands for a value which JSON has not
const { isArray } = Array;
const isWellFormed = Function.prototype.call.bind(String.prototype.isWellFormed);
const NETWORK = "wasm_kernel_network_"; // begins the names of functions for connections
const SLICE = 0.05; // seconds between two looks for timers and interrupts
const made = new Map(); // the offered functions, by name, with their descriptions
const network = new Map(); // those for connections, by their short names
const awaited = new Map(); // the calls that the host has begun, by number
const REST = 2, KEYWORD = 3; // kinds of parameters: the rest of the arguments, and those by name
const TABLE = "the function returned a table, which cells in JavaScript can't read; let it return a list of records";

class HostFunctionError extends Error {}
HostFunctionError.prototype.name = "HostFunctionError";

/** Is thrown in a cell, and in functions of the host that it calls, at an interrupt. */
export class Interrupted extends Error {}

/** Makes globals of the host's functions, in place of those made before. */
export function offerFunctions(all) {
  network.clear();
  const described = [];
  for (const each of all) {
    if (each.name.startsWith(NETWORK)) network.set(each.name.slice(NETWORK.length), functionOf(each));
    else described.push(each);
  }
  const texts = new Map(described.map((each) => [each.name, JSON.stringify(each)]));
  for (const [name, { text, called }] of made) {
    if (texts.get(name) === text) continue;
    if (globalThis[name] === called) delete globalThis[name];
    made.delete(name);
  }
  for (const each of described) {
    if (made.has(each.name)) continue;
    const called = functionOf(each), shown = `${shownCall(each)}${each.doc && `\n\n${each.doc}`}`;
    Object.defineProperty(called, "name", { value: each.name });
    Object.defineProperty(called, "toString", { value: () => shown, writable: true, configurable: true });
    Object.defineProperty(globalThis, each.name, { value: called, writable: true, configurable: true, enumerable: false });
    made.set(each.name, { text: texts.get(each.name), called });
  }
}

/** Returns the functions for connections; none if the sandbox has no network. */
export const networkCalls = () => network;

/** Returns whether a cell awaits a call. */
export const hasCalls = () => awaited.size > 0;

/** Forgets the calls of an earlier cell, which end with it: code that awaits one never goes on. */
export const forgetCalls = () => awaited.clear();

/** Waits for one of the awaited calls, up to this many milliseconds. */
export function waitForCalls(milliseconds) {
  const answer = send({ op: "finished", seconds: Math.min(milliseconds / 1000, SLICE) });
  for (const [number, found] of answer.finished ?? []) {
    found.raw = answer.raw;
    const settle = awaited.get(number);
    awaited.delete(number);
    settle?.(found);
  }
}

const isNamed = ({ kind }) => kind === KEYWORD;

/** Returns a call of a function with its parameters, as it is written in a cell. */
function shownCall({ name, parameters, returns }) {
  const words = parameters.map(({ name: word, kind, type, default: value }) =>
    `${kind === REST ? "..." : ""}${word}${type ? `: ${type}` : ""}${value === undefined ? "" : ` = ${value}`}`);
  const named = words.filter((_, at) => isNamed(parameters[at])), others = words.filter((_, at) => parameters[at].kind < KEYWORD);
  const all = named.length > 0 ? [...others, `{ ${named.join(", ")} }`] : others;
  return `${name}(${all.join(", ")})${returns ? `: ${returns}` : ""}`;
}

/** Returns the arguments by name: a function that has such parameters takes an object with their names behind the others. */
function popNamed(values, parameters) {
  const last = values.at(-1), names = parameters.filter(isNamed).map((each) => each.name);
  const isObject = typeof last === "object" && last !== null && Object.getPrototypeOf(last) === Object.prototype;
  const keys = isObject ? Object.keys(last) : [];
  return keys.length > 0 && keys.every((key) => names.includes(key)) ? values.pop() : {};
}

function functionOf({ name, parameters, is_async: isAsync, is_stream: isStream }) {
  const ask = ({ raw, ...frame }) => answerOf(name, send({ ...frame, function: name }, raw));
  const call = (values) => {
    const data = [], named = Object.entries(popNamed(values, parameters)), args = values.map((each) => encoded(each, data));
    const kwargs = Object.fromEntries(named.map(([key, value]) => [textOf(key), encoded(value, data)]));
    return { op: "call", args, kwargs, raw: data.length > 0 ? joined(data) : undefined };
  };
  const later = async (frame) => {
    const { call: number } = ask({ ...frame, later: true });
    return answerOf(name, await new Promise((settle) => void awaited.set(number, settle)));
  };
  function* items(...values) {
    const { stream } = ask(call(values));
    let answer;
    try {
      while ((answer = ask({ op: "item", stream })).value !== undefined) yield decoded(answer.value, answer.raw);
    } finally {
      if (answer?.value !== undefined) send({ op: "drop", number: stream });
    }
  }
  async function* awaitedItems(...values) {
    const { stream } = ask(call(values));
    let answer;
    try {
      while ((answer = await later({ op: "item", stream })).value !== undefined) yield decoded(answer.value, answer.raw);
    } finally {
      if (answer?.value !== undefined) send({ op: "drop", number: stream });
    }
  }
  if (isStream) return isAsync ? awaitedItems : items;
  const valueOf = ({ value, raw }) => decoded(value, raw);
  if (isAsync) return async (...values) => valueOf(await later(call(values)));
  return (...values) => valueOf(ask(call(values)));
}

function answerOf(name, answer) {
  if (answer.interrupted) throw new Interrupted("interrupted");
  if (answer.refused !== undefined) throw new HostFunctionError(`${name}: ${answer.refused}`);
  if (answer.raised === undefined) return answer;
  const problem = new Error(answer.raised.text);
  Object.defineProperty(problem, "name", { value: answer.raised.type, writable: true, configurable: true });
  throw problem;
}

// -- plain data

/** Returns a value as JSON, and adds its bytes to `data`, an array of them. */
function encoded(value, data) {
  switch (typeof value) {
    case "boolean": return value;
    case "string": return textOf(value);
    case "undefined": return null;
    case "bigint": return { [MARK]: "int", value: String(value) };
    case "number": return Number.isFinite(value) ? value : { [MARK]: "float", value: floatText(value) };
    case "object": return value === null ? null : objectOf(value, data);
    default: throw new TypeError(`the host takes plain data, not a ${typeof value}`);
  }
}

function textOf(value) {
  if (!isWellFormed(value)) throw new TypeError("a text with a lone surrogate can't be sent to the host");
  return value;
}

const floatText = (value) => (Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf");

function objectOf(value, data) {
  if (isArray(value) || value instanceof Set) return [...value].map((each) => encoded(each, data));
  if (value instanceof Date) return value.toISOString();
  if (value instanceof ArrayBuffer) return bytesOf(new Uint8Array(value), data);
  if (ArrayBuffer.isView(value)) return bytesOf(new Uint8Array(value.buffer, value.byteOffset, value.byteLength), data);
  const pairs = (value instanceof Map ? [...value] : Object.entries(value)).map(([key, held]) => [textOf(String(key)), encoded(held, data)]);
  return pairs.some(([key]) => key === MARK) ? { [MARK]: "object", value: pairs } : Object.fromEntries(pairs);
}

function bytesOf(bytes, data) {
  const start = data.reduce((sum, { length }) => sum + length, 0);
  data.push(bytes);
  return { [MARK]: "bytes", value: [start, bytes.length] };
}

function decoded(value, raw = new Uint8Array()) {
  if (isArray(value)) return value.map((each) => decoded(each, raw));
  if (typeof value !== "object" || value === null) return value;
  const kind = value[MARK], content = value.value;
  switch (kind) {
    case undefined: return Object.fromEntries(Object.entries(value).map(([key, held]) => [key, decoded(held, raw)]));
    case "object": return Object.fromEntries(content.map(([key, held]) => [key, decoded(held, raw)]));
    case "bytes": return raw.slice(content[0], content[0] + content[1]);
    case "int": return BigInt(content);
    case "table": throw new TypeError(TABLE);
    default: return { nan: NaN, inf: Infinity, "-inf": -Infinity }[content];
  }
}
