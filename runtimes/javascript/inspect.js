// Values as text, in the style of a console. No getter of a cell runs, and the work is bounded.

import { getOwnPropertyDescriptor, getPrototypeOf, ownKeys, required, settled, uncurry } from "wasm-kernel:host";

const MOST_ITEMS = 100, MOST_CHARACTERS = 10_000, MOST_TEXT = 200_000, WIDTH = 80, DEPTH = 4;
const LONG = 10_000; // items; other properties of a longer list are not shown
const TOLD = ["cause", "errors"]; // properties that an error's text contains
const MOST_CAUSES = 5, MOST_ERRORS = 10; // errors inside an error that are shown
const { toString: functionText } = Function.prototype;
export const brand = (prototype, name) => {
  const found = getOwnPropertyDescriptor(prototype, name);
  const read = uncurry(found.get ?? found.value);
  return (value) => {
    try {
      return read(value);
    } catch {
      return undefined;
    }
  };
};
export const TypedArray = getPrototypeOf(Uint8Array);
export const mapSize = brand(Map.prototype, "size"), setSize = brand(Set.prototype, "size");
export const time = brand(Date.prototype, "getTime"), pattern = brand(RegExp.prototype, "source");
const flags = "dgimsuvy".split("").map((letter, index) => [
  letter,
  brand(RegExp.prototype, "hasIndices global ignoreCase multiline dotAll unicode unicodeSets sticky".split(" ")[index]),
]);
export const typedName = brand(TypedArray.prototype, Symbol.toStringTag);
export const typedLength = brand(TypedArray.prototype, "length");
const bufferBytes = brand(ArrayBuffer.prototype, "byteLength");
const viewBytes = brand(DataView.prototype, "byteLength");
const unboxed = [Number, String, Boolean, Symbol, BigInt].map((kind) => [
  kind.name,
  brand(kind.prototype, "valueOf"),
]);
const mapEntries = uncurry(Map.prototype.entries), setValues = uncurry(Set.prototype.values);
export const sourceOf = uncurry(functionText), isoText = uncurry(Date.prototype.toISOString);
const exceptionName = brand(DOMException.prototype, "name"), exceptionText = brand(DOMException.prototype, "message");
export const isError = (value) => Error.isError(value) || exceptionName(value) !== undefined;
const { isArray } = Array;

/** Returns the length of an array or a typed array; undefined for anything else. */
function lengthOf(value) {
  return isArray(value) ? getOwnPropertyDescriptor(value, "length").value : typedLength(value);
}

/** Returns the keys of a value; none of a long list, which would take a text for each item. */
export const keysOf = (value) => (lengthOf(value) > LONG ? [] : ownKeys(value));

/** Returns the text of a value. */
export function inspect(value, { depth = DEPTH, width = WIDTH } = {}) {
  try {
    return new Inspection(depth, width).of(value, 0, 0);
  } catch {
    return `[a ${typeof value} that can't be read]`; // a proxy's traps are code of the cell
  }
}

class Inspection {
  constructor(depth, width) {
    this.depth = depth;
    this.width = width;
    this.above = [];
    this.circular = new Map();
    this.left = MOST_TEXT;
  }

  of(value, level, indent) {
    const text = this.any(value, level, indent);
    this.left -= text.length;
    return text;
  }

  any(value, level, indent) {
    if (typeof value === "string") return quoted(shortened(value));
    if (typeof value === "bigint") return `${value}n`;
    if (typeof value === "symbol") return value.toString();
    if (Object.is(value, -0)) return "-0";
    if (value === null || (typeof value !== "object" && typeof value !== "function")) return String(value);
    if (this.above.includes(value)) {
      if (!this.circular.has(value)) this.circular.set(value, this.circular.size + 1);
      return `[Circular *${this.circular.get(value)}]`;
    }
    this.above.push(value);
    try {
      const text = this.object(value, level, indent);
      return this.circular.has(value) ? `<ref *${this.circular.get(value)}> ${text}` : text;
    } finally {
      this.above.pop();
    }
  }

  object(value, level, indent) {
    const name = nameOf(value);
    const [head, open, close, items] = this.parts(value, name, level, indent);
    if (items === null) return head;
    if (level > this.depth || this.left <= 0) return isArray(value) ? "[Array]" : `[${name || "Object"}]`;
    const all = [...items(), ...this.properties(value, level, indent)];
    const front = head ? `${head} ` : "";
    if (all.length === 0) return open === "" ? head : `${front}${open}${close}`;
    return `${front}${laid(all, open || "{", close || "}", indent, this.width - front.length)}`;
  }

  /** Returns a head, brackets, and a function that returns the items between them. */
  parts(value, name, level, indent) {
    const inner = (item) => this.of(item, level + 1, indent + 2);
    const none = () => [];
    const length = lengthOf(value), typed = typedName(value);
    if (typed !== undefined || isArray(value)) {
      const head = name === "Array" ? "" : `${typed ?? (name || "[null prototype]")}(${length})`;
      return [head, "[", "]", () => this.elements(value, length, inner)];
    }
    if (isError(value)) return [errorText(value), "", "", none];
    if (typeof value === "function") return [functionHead(value), "", "", none];
    if (mapSize(value) !== undefined) {
      const pairs = ([key, held]) => `${inner(key)} => ${inner(held)}`;
      return [`${name || "Map"}(${mapSize(value)})`, "{", "}", () => this.each(mapEntries(value), mapSize(value), pairs)];
    }
    if (setSize(value) !== undefined) {
      return [`${name || "Set"}(${setSize(value)})`, "{", "}", () => this.each(setValues(value), setSize(value), inner)];
    }
    const moment = time(value);
    if (moment !== undefined) return [Number.isNaN(moment) ? "Invalid Date" : isoText(value), "", "", none];
    if (pattern(value) !== undefined) return [regularExpression(value), "", "", none];
    if (getPrototypeOf(value) !== null && value instanceof Promise) return this.promise(value, name, inner);
    const bytes = bufferBytes(value) ?? viewBytes(value);
    if (bytes !== undefined) return [name, "{", "}", () => [`byteLength: ${bytes}`]];
    for (const [kind, read] of unboxed) {
      const held = read(value);
      if (held !== undefined) return [`[${kind}: ${this.of(held, level + 1, indent)}]`, "", "", none];
    }
    if (name === "WeakMap" || name === "WeakSet" || name === "WeakRef") return [name, "{", "}", () => ["<items unknown>"]];
    return [name === "Object" ? "" : name || "[Object: null prototype]", "{", "}", none];
  }

  promise(value, name, inner) {
    const state = settled(value);
    const held = () => {
      if (state === undefined) return ["<pending>"];
      return [state[0] ? inner(state[1]) : `<rejected> ${inner(state[1])}`];
    };
    return [name || "Promise", "{", "}", held];
  }

  elements(value, length, inner) {
    const found = [];
    let holes = 0;
    const told = () => {
      if (holes > 0) found.push(`<${holes} empty item${holes === 1 ? "" : "s"}>`);
      holes = 0;
    };
    for (let index = 0; index < length && found.length < MOST_ITEMS && this.left > 0; index += 1) {
      const property = getOwnPropertyDescriptor(value, index);
      if (property === undefined) {
        holes += 1;
        if (holes < 100_000) continue;
        holes = length - found.length;
        break;
      }
      told();
      found.push("value" in property ? inner(property.value) : accessor(property));
    }
    told();
    if (found.length >= MOST_ITEMS && length > found.length) found.push(more(length - found.length));
    return found;
  }

  each(iterator, size, shown) {
    const found = [];
    for (const item of iterator) {
      if (found.length >= MOST_ITEMS || this.left <= 0) {
        found.push(more(size - found.length));
        break;
      }
      found.push(shown(item));
    }
    return found;
  }

  properties(value, level, indent) {
    const found = [];
    const isList = lengthOf(value) !== undefined, keys = keysOf(value), toldOf = isError(value) ? TOLD : [];
    let count = 0;
    for (const key of keys) {
      if (toldOf.includes(key)) continue;
      if (isList && typeof key === "string" && /^\d+$/.test(key)) continue;
      const property = getOwnPropertyDescriptor(value, key);
      if (property === undefined || !property.enumerable) continue;
      count += 1;
      if (count > MOST_ITEMS || this.left <= 0) {
        found.push(more(keys.length - MOST_ITEMS));
        break;
      }
      const shown = "value" in property ? this.of(property.value, level + 1, indent + 2) : accessor(property);
      found.push(`${keyText(key)}: ${shown}`);
    }
    return found;
  }
}

const more = (count) => `... ${count} more item${count === 1 ? "" : "s"}`;
const shortened = (text) =>
  text.length > MOST_CHARACTERS
    ? `${text.slice(0, MOST_CHARACTERS)}... ${text.length - MOST_CHARACTERS} more characters`
    : text;

function quoted(text) {
  const mark = !text.includes("'") ? "'" : !text.includes('"') ? '"' : !text.includes("`") ? "`" : "'";
  const escaped = JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"');
  return mark + (mark === '"' ? escaped : escaped.replaceAll(mark, `\\${mark}`)) + mark;
}

function accessor({ get, set }) {
  return get && set ? "[Getter/Setter]" : get ? "[Getter]" : "[Setter]";
}

function keyText(key) {
  if (typeof key === "symbol") return `[${key.toString()}]`;
  return /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(key) ? key : quoted(key);
}

/** Returns the descriptor of a value's property, which it may inherit; undefined if there is none. */
export function find(value, name) {
  let holder = value === null || value === undefined ? null : Object(value);
  for (let steps = 0; holder !== null && steps < 100; steps += 1) {
    const found = getOwnPropertyDescriptor(holder, name);
    if (found !== undefined) return found;
    holder = getPrototypeOf(holder);
  }
  return undefined;
}

/** Returns the name of a value's class; empty if it has none. */
export function nameOf(value) {
  let prototype = value;
  for (let steps = 0; steps < 100 && prototype !== null; steps += 1) {
    const found = getOwnPropertyDescriptor(prototype, "constructor");
    if (typeof found?.value === "function" && steps > 0) return ownName(found.value) || "Object";
    prototype = getPrototypeOf(prototype);
  }
  return "";
}

function ownName(made) {
  const found = getOwnPropertyDescriptor(made, "name");
  return typeof found?.value === "string" ? found.value : "";
}

function functionHead(value) {
  const name = ownName(value), source = sourceOf(value);
  if (!source.startsWith("class")) {
    const kind = source.startsWith("async") ? "AsyncFunction" : /^(?:function)?\s*\*/.test(source) ? "GeneratorFunction" : "Function";
    return name ? `[${kind}: ${name}]` : `[${kind} (anonymous)]`;
  }
  const above = getPrototypeOf(value);
  const base = typeof above === "function" ? ownName(above) : "";
  return `[class ${name || "(anonymous)"}${base ? ` extends ${base}` : ""}]`;
}

function regularExpression(value) {
  return `/${pattern(value)}/${flags.filter(([, read]) => read(value)).map(([letter]) => letter).join("")}`;
}

/** Returns the texts and stacks of an error and its causes, without the sandbox's own lines. */
export function errorText(error) {
  const lines = [];
  for (let count = 0, each = error; isError(each) && count < MOST_CAUSES; count += 1) {
    const title = `${count > 0 ? "[cause]: " : ""}${titleOf(each)}`, blanks = "  ".repeat(count);
    const own = [title, ...stackLines(data(each, "stack")), ...errorsOf(each)].join("\n");
    lines.push(blanks + own.replaceAll("\n", `\n${blanks}`));
    each = getOwnPropertyDescriptor(each, "cause")?.value;
  }
  return lines.join("\n");
}

function titleOf(error) {
  const name = errorName(error), message = errorMessage(error);
  return message ? `${name}: ${message}` : name;
}

/** Returns the titles of the errors in an `AggregateError`. */
function errorsOf(error) {
  const errors = getOwnPropertyDescriptor(error, "errors")?.value;
  if (!isArray(errors)) return [];
  const found = [], length = lengthOf(errors);
  for (let index = 0; index < length && index < MOST_ERRORS; index += 1) {
    const each = getOwnPropertyDescriptor(errors, index)?.value;
    found.push(`  [errors]: ${isError(each) ? titleOf(each) : typeof each === "object" ? "[Object]" : String(each)}`);
  }
  if (length > MOST_ERRORS) found.push(`  [errors]: ${more(length - MOST_ERRORS)}`);
  return found;
}

/** Returns an error's message; empty if only a getter knows it. */
export function errorMessage(error) {
  const found = find(error, "message");
  return typeof found?.value === "string" ? found.value : exceptionText(error) ?? "";
}

/** Returns an error's name, from its classes. */
export function errorName(error) {
  const native = exceptionName(error);
  if (native !== undefined) return native;
  const found = find(error, "name");
  if (found === undefined) return "Error";
  const own = typeof found.value === "string" ? found.value : "Error";
  return own === "Error" ? nameOf(error) || own : own;
}

const data = (holder, name) => {
  const found = getOwnPropertyDescriptor(holder, name)?.value;
  return typeof found === "string" ? found : "";
};

const named = (whole, index) => required[Number(index)] ?? whole;

/** Returns the lines of a stack that lie in cells and their modules. */
export function stackLines(stack) {
  return stack
    .split("\n")
    .filter((line) => line.trim() && !/\((?:wasm-kernel|node:)/.test(line) && !/ at (?:wasm-kernel|node:)/.test(line))
    .map((line) => `    ${line.trim().replace(/(In\[\d+\]) *:/, "$1:").replace(/req\[(\d{6})\]/, named).replace("<eval> (", "(").replace(/at \((.*)\)$/, "at $1")}`);
}

/** Lays out items on one line, or on one line each if that is too long. */
function laid(items, open, close, indent, width) {
  const length = items.reduce((sum, item) => sum + item.length + 2, 0);
  if (length + indent <= width && !items.some((item) => item.includes("\n"))) {
    return open === "[" ? `[ ${items.join(", ")} ]` : `{ ${items.join(", ")} }`;
  }
  const blanks = " ".repeat(indent + 2);
  const cut = items.at(-1).startsWith("... ") ? [items.at(-1)] : [];
  const short = items.slice(0, items.length - cut.length);
  if (open === "[" && short.length > 6 && short.every((item) => item.length <= 6)) {
    const rows = [inRows(short, width - indent, blanks), ...cut].join(`,\n${blanks}`);
    return `[\n${blanks}${rows}\n${" ".repeat(indent)}]`;
  }
  return `${open}\n${blanks}${items.join(`,\n${blanks}`)}\n${" ".repeat(indent)}${close}`;
}

function inRows(items, width, blanks) {
  const widest = Math.max(...items.map((item) => item.length));
  const count = Math.max(1, Math.min(16, Math.floor(width / (widest + 2))));
  const rows = [];
  for (let index = 0; index < items.length; index += count) {
    rows.push(items.slice(index, index + count).map((item) => item.padStart(widest)).join(", "));
  }
  return rows.join(`,\n${blanks}`);
}

/** Returns the text of a console call: the filled format, and the arguments that it does not use. */
export function format(...values) {
  const [first, ...rest] = values;
  if (typeof first !== "string") return values.map(shown).join(" ");
  const used = first.replace(/%([sdifjoOc%])/g, (whole, letter) => {
    if (letter === "%") return "%";
    if (rest.length === 0) return whole;
    const value = rest.shift();
    if (letter === "c") return "";
    if (letter === "s") return typeof value === "string" ? value : inspect(value, { depth: 0 });
    if (letter === "j") return JSON.stringify(value);
    if (letter === "o" || letter === "O") return inspect(value);
    if (typeof value === "symbol" || (typeof value === "object" && value !== null)) return "NaN";
    if (letter === "f") return String(Number.parseFloat(value));
    return typeof value === "bigint" ? `${value}n` : String(letter === "i" ? Number.parseInt(value, 10) : Number(value));
  });
  return [used, ...rest.map(shown)].join(" ");
}

const shown = (value) => (typeof value === "string" ? value : inspect(value));
