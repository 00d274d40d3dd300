// The channel to the host, and the functions of the standard library that the agent needs.
//
// A cell may replace any global and any method of a prototype. A turn takes the functions that it needs
// from here, as they were before the first cell.

const taken = {};
for (const name of Object.getOwnPropertyNames(globalThis)) {
  if (name.startsWith("wasmKernel_")) {
    taken[name.slice("wasmKernel_".length)] = globalThis[name];
    delete globalThis[name];
  }
}

export const { apply, construct, defineProperty, getOwnPropertyDescriptor, getPrototypeOf, ownKeys } = Reflect;
const { setPrototypeOf } = Object, { isArray } = Array;
export const uncurry = (method) => (self, ...args) => apply(method, self, args);
export const { parse, stringify } = JSON;
export const evaluateGlobally = eval; // under this name it runs in the global scope
export const then = uncurry(Promise.prototype.then);
export const toWellFormed = uncurry(String.prototype.toWellFormed);
export const slice = uncurry(String.prototype.slice);
const includes = uncurry(String.prototype.includes);
export const startsWith = uncurry(String.prototype.startsWith);
const clock = performance.now.bind(performance);
let origin = 0;
/** Returns the milliseconds since the session began: the clock's own zero lies in the base image. */
export const now = () => clock() - origin;
export function beginTime() {
  origin = clock();
}
const text = String;
const MOST_FRAME = 64 * 1024 * 1024, PIECE = 1024 * 1024, MOST_RANDOM = 65_536;

/** Sends a frame of the protocol (PROTOCOL.md) with its bytes, and returns the host's answer; its bytes are `raw`. */
export function send(frame, raw) {
  let said = written(frame);
  // JSON would write half a character like this, which no frame may hold
  if (includes(said, "\\ud")) said = written(frame, toWellFormed);
  if (said.length > MOST_FRAME) return { refused: "it is larger than 64 MiB" };
  const answer = raw === undefined ? taken.send(said) : taken.send(said, raw);
  if (typeof answer === "string") return setPrototypeOf(parse(answer), null);
  const found = setPrototypeOf(parse(answer[0]), null);
  found.raw = answer[1];
  return found;
}

/**
 * Returns the agent's own objects as JSON, without any `toJSON` that a cell has given to a
 * prototype. Values below `data` and `metadata` are the cell's, and their `toJSON` is used.
 */
function written(value, mend, isShown = false) {
  if (typeof value === "string" && mend !== undefined) return stringify(mend(value));
  if (typeof value !== "object" || value === null) return stringify(value);
  const names = isArray(value) ? undefined : ownKeys(value), count = (names ?? value).length;
  let text = "";
  for (let index = 0; index < count; index += 1) {
    const key = names === undefined ? index : names[index], held = value[key];
    const piece = isShown && typeof held === "object" ? shownText(held, mend) : written(held, mend, key === "data" || key === "metadata");
    if (piece === undefined || typeof key === "symbol") continue;
    // not a template: QuickJS reads one as a call of `String.prototype.concat`
    text += (text && ",") + (names === undefined ? "" : written(key, mend) + ":") + piece;
  }
  return names === undefined ? "[" + text + "]" : "{" + text + "}";
}

const shownText = (value, mend) =>
  stringify(value, mend === undefined ? undefined : (_, held) => (typeof held === "string" ? mend(held) : held));

/** Prints to standard output (1) or standard error (2), in pieces: the host keeps one at a time. */
export function print(stream, words) {
  if (words.length <= PIECE) return void show(stream, toWellFormed(words));
  for (const piece of piecesOf(words)) show(stream, piece);
}

function show(stream, piece) {
  if (stream === 1) taken.print1(piece);
  else taken.print2(piece);
}

/** Yields a text in well-formed pieces. */
function* piecesOf(words) {
  let start = 0;
  while (start < words.length) {
    let end = start + PIECE;
    if (end < words.length && isHighSurrogate(words, end - 1)) end += 1;
    yield toWellFormed(slice(words, start, end));
    start = end;
  }
}

const codeAt = uncurry(String.prototype.charCodeAt);
const isHighSurrogate = (words, index) => (codeAt(words, index) & 0xfc00) === 0xd800;

/** Sets the folder at which relative paths begin. */
export const enter = (folder) => taken.enter(folder);
/** Returns a text as UTF-8. */
export function encode(words) {
  if (words.length <= PIECE) return taken.encode(toWellFormed(words));
  const pieces = [...piecesOf(words)].map((piece) => taken.encode(piece));
  return joined(pieces);
}
/**
 * Returns a text of some megabytes at most in another form: "latin-1", with one byte for each character, or "escaped", for
 * JSON in which lone surrogates stand for bytes that are not part of UTF-8. Undefined if the text has no such form.
 */
export const encodeAs = (words, form) => taken.encode(words, form);
/** Decodes some megabytes at most in an encoding; undefined if the bytes are invalid. If `how` is "escaped", it is JSON. */
export const decode = (data, label, how) => taken.decode(data, label, how === true ? "fatal" : how || "");
/** Returns random bytes, at most as many as the host gives at once. */
const someBytes = (count) => taken.random(text(count));
export function randomBytes(count) {
  if (count <= MOST_RANDOM) return someBytes(count);
  const pieces = [];
  for (let left = count; left > 0; left -= MOST_RANDOM) pieces.push(someBytes(left < MOST_RANDOM ? left : MOST_RANDOM));
  return joined(pieces);
}

/** Returns several typed arrays of bytes as one. */
export function joined(pieces) {
  let length = 0;
  for (const piece of pieces) length += piece.length;
  const all = new Uint8Array(length);
  length = 0;
  for (const piece of pieces) {
    all.set(piece, length);
    length += piece.length;
  }
  return all;
}

/** Returns bytes as a text with one character for each. */
export function latin1(bytes) {
  let found = "";
  for (let at = 0; at < bytes.length; at += PIECE) found += decode(bytes.slice(at, at + PIECE), "latin-1");
  return found;
}

/** Returns undefined for a pending promise, otherwise [whether it was fulfilled, its value]. */
export function settled(promise) {
  const found = taken.promise(promise);
  return found === undefined ? undefined : [found[0] === "1", found[1]];
}

/** Returns the full name of a module; throws if there is none. */
export function resolveModule(base, name) {
  const found = parse(taken.resolve(base, name));
  if (found.path === undefined) throw new Error(found.problem);
  return found.path;
}

/** The files that were run by `require`; stacks know them by their index here, as `req[000001]`. */
export const required = [];
/** Returns ["function" or "text" or "problem", VALUE] of a file to be run; undefined if it can't be read. */
export const moduleSource = (path) => taken.source(path, text(required.push(path) - 1));
/** Returns the host's reason for the last failed import; empty if it does not know one. */
export const moduleProblem = () => taken.problem();

/** Returns the rejected promises without a handler; each is returned once. */
export const rejections = () => taken.rejections();

/** Does a file operation; throws an error with a `code`, as Node does. */
export function fileCall(act, words, data) {
  const answer = data === undefined
    ? taken.file(act, stringify(words))
    : taken.file(act, stringify(words), data);
  if (typeof answer !== "string") return answer;
  const found = parse(answer);
  if (found.code === undefined) return found.value;
  const names = words.filter((word) => typeof word === "string").map((word) => `'${word}'`);
  const problem = new Error(`${found.code}: ${found.message}, ${act} ${names.join(" -> ")}`);
  throw Object.assign(problem, { code: found.code, errno: found.errno, syscall: act, path: words[0] });
}
