// The way to the host, and what the agent needs of the language's own library.
//
// A cell may replace any global and any method of a prototype. What a turn can't do without is taken
// from here, as it was before the first cell.

const taken = {};
for (const name of Object.getOwnPropertyNames(globalThis)) {
  if (name.startsWith("wasmKernel_")) {
    taken[name.slice("wasmKernel_".length)] = globalThis[name];
    delete globalThis[name];
  }
}

export const { apply, getOwnPropertyDescriptor, getPrototypeOf, ownKeys } = Reflect;
export const uncurry = (method) => (self, ...args) => apply(method, self, args);
export const { parse, stringify } = JSON;
export const evaluateGlobally = eval; // called by this name, it runs in the global scope
export const then = uncurry(Promise.prototype.then);
export const toWellFormed = uncurry(String.prototype.toWellFormed);
export const slice = uncurry(String.prototype.slice);
export const startsWith = uncurry(String.prototype.startsWith);
const clock = performance.now.bind(performance);
let origin = 0;
/** Returns the milliseconds since the session began: the clock's own zero lies in the base image. */
export const now = () => clock() - origin;
export function beginTime() {
  origin = clock();
}
const text = String;
const MOST_FRAME = 64 * 1024 * 1024, PIECE = 1024 * 1024;

/** Sends a frame of the protocol (PROTOCOL.md), and returns the host's answer. */
export function send(frame) {
  const said = stringify(frame);
  if (said.length > MOST_FRAME) return { refused: "it is larger than 64 MiB" };
  return parse(taken.send(toWellFormed(said)));
}

/** Prints on standard output (1) or standard error (2), in pieces: the host keeps one at a time. */
export function print(stream, words) {
  let start = 0;
  do {
    let end = start + PIECE;
    if (end < words.length && isHighSurrogate(words, end - 1)) end += 1;
    const piece = toWellFormed(slice(words, start, end));
    if (stream === 1) taken.print1(piece);
    else taken.print2(piece);
    start = end;
  } while (start < words.length);
}

const codeAt = uncurry(String.prototype.charCodeAt);
const isHighSurrogate = (words, index) => (codeAt(words, index) & 0xfc00) === 0xd800;

/** Says which folder relative paths begin at. */
export const enter = (folder) => taken.enter(folder);
export const randomBytes = (count) => taken.random(text(count));
export const encode = (words) => taken.encode(toWellFormed(words));
export const decode = (data, label, fatal) => taken.decode(data, label, fatal ? "fatal" : "");

/** Returns undefined for a pending promise, else [whether it was fulfilled, its value]. */
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

export const moduleSource = (path) => taken.source(path);
/** Returns why the last import failed, in the host's words; empty if it does not know. */
export const moduleProblem = () => taken.problem();

/** Does something with files; throws an error with a `code`, as Node does. */
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
