// Questions of a front end: completion, inspection, completeness, history.

import { getOwnPropertyDescriptor, getPrototypeOf } from "wasm-kernel:host";
import { find, inspect, keysOf, nameOf } from "wasm-kernel:inspect";
import { completeness } from "wasm-kernel:source";
import { variables } from "wasm-kernel:variables";

const MOST_MATCHES = 500, MOST_CELLS = 10_000, MOST_CHARACTERS = 1000;
const PATH = /([\p{ID_Start}$_][\p{ID_Continue}$]*(?:\??\.[\p{ID_Start}$_][\p{ID_Continue}$]*)*)\??\.([\p{ID_Continue}$]*)$/u;
const WORD = /[\p{ID_Start}$_][\p{ID_Continue}$]*$/u;
const WHOLE = /[\p{ID_Start}$_][\p{ID_Continue}$.]*$/u;
const COMMANDS = "checkpoint checkpoints fork fuel npm policy redo restore session_info session_path session_publish timeline undo".split(" ");
const KEYWORDS = (
  "async await break case catch class const continue debugger default delete do else export extends false finally for " +
  "function if import in instanceof let new null of return static super switch this throw true try typeof undefined " +
  "var void while with yield"
).split(" ");

const history = [];

/** Notes a cell's text under its number. */
export function remember(number, code) {
  history.push([number, code]);
  if (history.length > MOST_CELLS) history.shift();
}

const EMPTY = {
  complete: (request) => ({ status: "ok", matches: [], cursor_start: request.cursor_pos, cursor_end: request.cursor_pos, metadata: {} }),
  inspect: () => ({ status: "ok", found: false, data: {}, metadata: {} }),
  is_complete: () => ({ status: "unknown" }),
  history: () => ({ status: "ok", history: [] }),
  comms: () => ({ status: "ok", comms: {}, targets: [] }),
  comm: () => ({ status: "ok" }),
  variables: () => ({ status: "error" }),
};
const ANSWERS = { complete, inspect: inspected, is_complete: isComplete, history: earlier, variables };

/** Returns the reply to a question; an empty reply if that fails. */
export function answerQuery(request) {
  const { op } = request;
  if (EMPTY[op] === undefined) return { status: "error", ename: "ProtocolError", evalue: `unknown request: ${op}`, traceback: [] };
  try {
    return (ANSWERS[op] ?? EMPTY[op])(request);
  } catch {
    return EMPTY[op](request);
  }
}

/** Returns the position at which this number of code points ends in a text. */
function unitsOf(text, points) {
  let units = 0;
  for (const character of text) {
    if (points-- <= 0) break;
    units += character.length;
  }
  return units;
}

/** Returns the value to which a path of names leads, without running a getter; otherwise undefined. */
function follow(path) {
  const [first, ...rest] = path.replaceAll("?.", ".").split(".");
  let value = getOwnPropertyDescriptor(globalThis, first)?.value;
  for (const name of rest) value = find(value, name)?.value;
  return value;
}

function namesOf(value) {
  const names = new Set();
  let holder = value === null || value === undefined ? null : Object(value);
  for (let steps = 0; holder !== null && steps < 20; steps += 1) {
    for (const key of keysOf(holder)) {
      if (typeof key === "string" && /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(key)) names.add(key);
    }
    holder = getPrototypeOf(holder);
  }
  return [...names];
}

function typeOf(value) {
  if (typeof value !== "function") return "instance";
  return /^class\b/.test(Function.prototype.toString.call(value)) ? "class" : "function";
}

function complete({ code, cursor_pos: cursor }) {
  const end = unitsOf(code, cursor);
  const before = code.slice(Math.max(0, end - MOST_CHARACTERS), end);
  const line = before.slice(before.lastIndexOf("\n") + 1);
  const command = /^\s*%(\w*)$/.exec(line);
  const path = PATH.exec(before);
  const begun = command?.[1] ?? path?.[2] ?? WORD.exec(before)?.[0] ?? "";
  let found;
  if (command !== null) found = COMMANDS.map((name) => [name, "magic"]);
  else if (path !== null) {
    const holder = follow(path[1]);
    found = namesOf(holder).map((name) => [name, typeOf(find(holder, name)?.value)]);
  } else {
    const globals = namesOf(globalThis).map((name) => [name, typeOf(getOwnPropertyDescriptor(globalThis, name)?.value)]);
    found = [...globals, ...KEYWORDS.map((name) => [name, "keyword"])];
  }
  const seen = new Set();
  const fitting = found
    .filter(([name]) => name.startsWith(begun) && !seen.has(name) && seen.add(name))
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .slice(0, MOST_MATCHES);
  const types = fitting.map(([text, type]) => ({ text, type, start: cursor - [...begun].length, end: cursor }));
  return {
    status: "ok", matches: fitting.map(([name]) => name), cursor_start: cursor - [...begun].length,
    cursor_end: cursor, metadata: { _jupyter_types_experimental: types },
  };
}

function inspected({ code, cursor_pos: cursor, detail_level: detail }) {
  const at = unitsOf(code, cursor);
  const rest = /^[\p{ID_Continue}$]*/u.exec(code.slice(at))[0];
  const path = WHOLE.exec(code.slice(Math.max(0, at - MOST_CHARACTERS), at).replace(/\($/, "") + (code[at - 1] === "(" ? "" : rest))?.[0];
  if (path === undefined) return EMPTY.inspect();
  const [first, ...names] = path.split(".");
  let found = getOwnPropertyDescriptor(globalThis, first);
  for (const name of names) found = find(found?.value, name);
  if (found === undefined) return EMPTY.inspect();
  const text = "value" in found ? described(path, found.value, detail) : `${path}: a getter`;
  return { status: "ok", found: true, data: { "text/plain": text }, metadata: {} };
}

function described(path, value, detail) {
  const kind = value === null ? "null" : typeof value === "object" ? nameOf(value) || "object" : typeof value;
  if (typeof value !== "function") return `${path}: ${kind}\n\n${inspect(value)}`;
  const source = Function.prototype.toString.call(value);
  const whole = detail > 0 || source.length < 400 ? source : `${source.slice(0, 400)}…`;
  const count = getOwnPropertyDescriptor(value, "length")?.value;
  return `${path}: ${typeOf(value)} of ${count ?? "some"} argument${count === 1 ? "" : "s"}\n\n${whole}`;
}

function isComplete({ code }) {
  const [status, indent] = completeness(code.replace(/^\s*%\w+[^\n]*$/gm, ""));
  return status === "incomplete" ? { status, indent } : { status };
}

function earlier({ hist_access_type: how, start, stop, n, pattern = "*", unique, output }) {
  let found = history;
  if (how === "range") found = found.filter(([number]) => number >= (start || 1) && (!stop || number < stop));
  if (how === "search") {
    const escaped = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", "[^]*").replaceAll("?", "[^]");
    const fits = new RegExp(`^${escaped}$`);
    found = found.filter(([, code]) => fits.test(code));
    if (unique) found = found.filter(([, code], index) => found.findLastIndex((other) => other[1] === code) === index);
  }
  if (how !== "range" && n !== null && n !== undefined) found = found.slice(-n);
  return { status: "ok", history: found.map(([number, code]) => [0, number, output ? [code, null] : code]) };
}

