// The variables of a memory, for a question to a guest that ends with the answer.
//
// No code of a cell runs for it: no getter, no `toString`, and no trap of a proxy, as `Proxy` itself notes what it
// makes. Methods and lists are those from before the first cell, or have no prototype.

import { apply, construct, defineProperty, getOwnPropertyDescriptor, getPrototypeOf, ownKeys, slice, stringify, uncurry } from "wasm-kernel:host";
import { brand, mapSize, pattern, setSize, sourceOf, time, TypedArray, typedLength } from "wasm-kernel:inspect";

const MOST_NAMES = 300; // the newest variables
const MOST_VALUES = 3000, LEAST_VALUES = 20; // values that are looked at: of all variables, of each
const STEPS = { __proto__: null, 0: 20, 1: 100, 2: 500 }; // values after which a trace is taken
const MOST_SHOWN = 60, MOST_LOOKED_AT = 1000; // characters of a text that are shown, bytes that are compared
const ENOUGH = {};
const text = String, { imul } = Math, { isArray } = Array, { hasOwn } = Object;
const codeAt = uncurry(String.prototype.charCodeAt), typedBytes = brand(TypedArray.prototype, "byteLength");
const has = uncurry(Set.prototype.has), add = uncurry(Set.prototype.add);
const isNoted = uncurry(WeakSet.prototype.has), note = uncurry(WeakSet.prototype.add);
const proxies = new WeakSet(), before = new Set();
const noted = (proxy) => (note(proxies, proxy), proxy);

const { Proxy: Original } = globalThis;
const { revocable } = Original;
Original.revocable = function (target, traps) {
  const made = apply(revocable, Original, [target, traps]);
  noted(made.proxy);
  return made;
};
globalThis.Proxy = new Original(Original, { __proto__: null, construct: (kind, given, made) => noted(construct(kind, given, made)) });

/** Notes the globals that do not belong to a cell. */
export function noteGlobals() {
  for (const name of ownKeys(globalThis)) before.add(name);
}

/** Returns the newest variables, oldest first; `more` if there are others. */
export function variables() {
  const all = ownKeys(globalThis), names = list();
  let more = false;
  for (let index = all.length - 1; index >= 0 && !more; index -= 1) {
    if (typeof all[index] !== "string" || has(before, all[index])) continue;
    if (names.length === MOST_NAMES) more = true;
    else append(names, all[index]);
  }
  const found = [], most = imul(MOST_VALUES / (names.length || 1), 1);
  for (let index = names.length - 1; index >= 0; index -= 1) {
    put(found, described(names[index], getOwnPropertyDescriptor(globalThis, names[index]), most < LEAST_VALUES ? LEAST_VALUES : most));
  }
  return { status: "ok", variables: found, more };
}

const list = () => ({ __proto__: null, length: 0 });

/** Returns the value of a property; undefined for a getter, whatever a cell has made of `Object.prototype`. */
function valueAt(object, key) {
  const held = getOwnPropertyDescriptor(object, key);
  return held !== undefined && hasOwn(held, "value") ? held.value : undefined;
}

function append(values, value) {
  values[values.length] = value;
  values.length += 1;
}

/** Adds to an array, whatever a cell has made of `Array.prototype`. */
function put(array, value) {
  defineProperty(array, array.length, { __proto__: null, value, writable: true, enumerable: true, configurable: true });
}

function described(name, held, most) {
  const isGetter = held === undefined || !hasOwn(held, "value");
  const { type, shown } = isGetter ? { type: "getter", shown: "" } : summary(held.value);
  const measures = measured(isGetter ? undefined : held.value, most);
  return { name: slice(name, 0, 200), type: slice(type, 0, 200), text: shown, ...measures };
}

/** Returns the type of a value, and a short text. */
function summary(value) {
  const type = value === null ? "null" : typeof value;
  if (type === "string") {
    const more = value.length > MOST_SHOWN ? "..." : "";
    return { type, shown: stringify(slice(value, 0, MOST_SHOWN)) + more };
  }
  if (type === "bigint" || type === "symbol") return { type, shown: "" }; // a number may have millions of digits
  if (isNoted(proxies, value)) return { type: "Proxy", shown: "" };
  if (type === "function") return { type, shown: "" };
  if (type !== "object") return { type, shown: text(value) };
  const count = isArray(value) ? lengthOf(value) : (typedLength(value) ?? mapSize(value) ?? setSize(value));
  const shown = count === undefined ? "" : text(count) + (count === 1 ? " item" : " items");
  return { type: kindOf(value), shown };
}

/** Returns the name of an object's class, as far as no proxy is asked for it. */
function kindOf(value) {
  let prototype = getPrototypeOf(value);
  for (let steps = 0; steps < 100 && prototype !== null && !isNoted(proxies, prototype); steps += 1) {
    const made = valueAt(prototype, "constructor");
    if (typeof made === "function") {
      const name = isNoted(proxies, made) ? "" : valueAt(made, "name");
      return typeof name === "string" && name !== "" ? name : "Object";
    }
    prototype = getPrototypeOf(prototype);
  }
  return "Object";
}

const lengthOf = (array) => getOwnPropertyDescriptor(array, "length").value;

/** Returns an estimate of the bytes of a value with its content, and numbers that change with the content. */
function measured(value, most) {
  const queue = list(), seen = new Set(), traces = [];
  let size = 0, trace = 7, step = 0;
  append(queue, value);
  for (let count = 0; count < queue.length; count += 1) {
    if (count === STEPS[step]) step = put(traces, trace) ?? step + 1;
    if (count === most) return { size, traces, whole: false };
    const each = queue[count], isObject = (typeof each === "object" && each !== null) || typeof each === "function";
    if (isObject && has(seen, each)) continue;
    if (isObject) add(seen, each);
    const look = { __proto__: null, size: 8, mark: 0, queue, most: most + 1 };
    if (isObject) lookInto(each, look);
    else lookAt(each, look);
    size += look.size;
    trace = mixed(trace, look.mark);
  }
  put(traces, trace);
  return { size, traces, whole: true };
}

const mixed = (trace, more) => (imul(trace ^ (more | 0), 16777619) >>> 0);

function hashed(words, most = MOST_LOOKED_AT) {
  let hash = words.length;
  const half = most / 2;
  for (let index = 0; index < words.length; index += 1) {
    if (index === half && words.length > most) index = words.length - half;
    hash = mixed(hash, codeAt(words, index));
  }
  return hash;
}

function lookAt(value, look) {
  if (typeof value === "string") look.size = 16 + value.length;
  if (typeof value === "bigint") value = value & 0xffffffffffffffffn;
  look.mark = hashed(typeof value + (typeof value === "symbol" ? "" : typeof value === "string" ? value : text(value)));
}

function lookInto(value, look) {
  if (isNoted(proxies, value)) return;
  look.size = 32;
  if (typeof value === "function") look.mark = hashed(sourceOf(value));
  else if (isArray(value)) lookIntoArray(value, look);
  else if (!lookIntoBuiltin(value, look)) lookIntoObject(value, look);
}

/**
 * Looks into an object of a builtin class; returns false for others.
 *
 * The prototypes say which class to try: a method that refuses an object makes an error, which takes long.
 */
function lookIntoBuiltin(value, look) {
  let prototype = getPrototypeOf(value);
  for (let steps = 0; steps < 100 && prototype !== null && !isNoted(proxies, prototype); steps += 1) {
    const lookInside = builtinAt(builtins, prototype);
    if (lookInside !== undefined) return lookInside(value, look);
    prototype = getPrototypeOf(prototype);
  }
  return false;
}

function lookAtNumbers(numbers, look) {
  const count = typedLength(numbers), half = MOST_LOOKED_AT / 2;
  if (count === undefined) return false;
  look.size += typedBytes(numbers);
  look.mark = count;
  for (let index = 0; index < count; index += 1) {
    if (index === half && count > MOST_LOOKED_AT) index = count - half;
    look.mark = mixed(look.mark, hashed(text(numbers[index])));
  }
  return true;
}

function lookAtDate(date, look) {
  const moment = time(date);
  if (moment === undefined) return false;
  look.mark = hashed(text(moment));
  return true;
}

function lookAtPattern(expression, look) {
  const source = pattern(expression);
  if (source === undefined) return false;
  lookIntoObject(expression, look);
  look.mark = hashed(source);
  return true;
}

function lookIntoArray(array, look) {
  const length = lengthOf(array);
  look.size += 8 * length;
  look.mark = length;
  for (let index = 0; index < length && look.queue.length < look.most; index += 1) {
    append(look.queue, valueAt(array, index));
  }
}

const looksIntoAll = (sizeOf, each) => (value, look) => {
  const count = sizeOf(value);
  if (count === undefined) return false;
  look.size += 16 * count;
  look.mark = count;
  try {
    each(value, (held, key) => {
      if (look.queue.length >= look.most) throw ENOUGH;
      append(look.queue, key);
      append(look.queue, held);
    });
  } catch (problem) {
    if (problem !== ENOUGH) throw problem;
  }
  return true;
};

function lookIntoObject(value, look) {
  const keys = ownKeys(value);
  look.size += 16 * keys.length;
  look.mark = hashed(text(keys.length));
  for (let index = 0; index < keys.length && look.queue.length < look.most; index += 1) {
    append(look.queue, keys[index]);
    append(look.queue, valueAt(value, keys[index]));
  }
}

const builtins = new Map([
  [TypedArray.prototype, lookAtNumbers],
  [Date.prototype, lookAtDate],
  [RegExp.prototype, lookAtPattern],
  [Map.prototype, looksIntoAll(mapSize, uncurry(Map.prototype.forEach))],
  [Set.prototype, looksIntoAll(setSize, uncurry(Set.prototype.forEach))],
]);
const builtinAt = uncurry(Map.prototype.get);
