// Small functions that replace parts of just-bash (just_bash.py).

const MOST = 500; // results that are kept
export const TRAP = "\0trap"; // begins the names of variables that hold the commands of `trap`; no script has such names
export const substitutions = { count: 0 }; // how many `$(...)` have begun

/** Returns a function whose results are kept, by its argument. */
export function once(make) {
  const kept = new Map();
  return (key) => {
    if (!kept.has(key)) {
      if (kept.size >= MOST) kept.clear();
      kept.set(key, make(key));
    }
    return kept.get(key);
  };
}

/** Returns the places and values of an array in order; they are kept until it changes. */
export function entriesOf(array) {
  if (array === undefined) return [];
  if (array.entries === undefined) {
    array.entries = [...array.elements].map(([place, value]) => [Number(place), value]);
    if (array.entries.some(([place], at) => at > 0 && place < array.entries[at - 1][0])) array.entries.sort(([a], [b]) => a - b);
  }
  return array.entries;
}

/** Returns the place behind an array's last element. */
export function nextPlace(array) {
  array.last ??= entriesOf(array).at(-1)[0];
  return array.last + 1;
}

/** Forgets what is kept of an array: an element has got a value, or, without a place, some have gone. */
export function changed(array, place) {
  if (array === undefined) return;
  array.entries = undefined;
  array.last = place === undefined || array.last === undefined ? undefined : Math.max(array.last, place);
}

const CHANGES = { U: (text) => text.toUpperCase(), L: (text) => text.toLowerCase(), E: (text) => text };
const SIGNS = { n: "\n", t: "\t", r: "\r" };

/** Returns the text that a replacement of `sed` makes of a match and its groups. */
export function filledIn(replacement, match, groups) {
  if (!/[\\&]/.test(replacement)) return replacement;
  let found = "", change = CHANGES.E, first = CHANGES.E;
  const add = (text) => {
    if (text === "") return;
    found += first(change(text[0])) + change(text.slice(1));
    first = CHANGES.E;
  };
  for (const [all, letter, code] of replacement.matchAll(/\\(x(?=[\da-f]{2})|[^])(?:(?<=x)([\da-f]{2}))?|&|\\$|[^\\&]+/gi)) {
    if (letter === undefined) add(all === "&" ? match : all);
    else if (code) add(String.fromCharCode(parseInt(code, 16)));
    else if (letter in CHANGES) [change, first] = [CHANGES[letter], CHANGES.E];
    else if (/[ul]/.test(letter)) first = CHANGES[letter.toUpperCase()];
    else if (/\d/.test(letter)) add(letter === "0" ? match : (groups[letter - 1] ?? ""));
    else add(SIGNS[letter] ?? letter);
  }
  return found;
}

/** Replaces a file, for `sed -i`; without enough space it stays as it was. */
export async function replaceFile(fs, path, text) {
  const beside = `${path.replace(/[^/]*$/, "")}sed${Math.random().toString(36).slice(2, 8)}`;
  try {
    await fs.writeFile(beside, text);
    await fs.mv(beside, path);
  } catch (problem) {
    await fs.rm(beside, { force: true });
    throw problem;
  }
}

/** Returns the reason of an error of the files, as bash words it. */
export function reasonOf({ message }) {
  const reason = /^E[A-Z]+: ([^,]+)/.exec(message)?.[1] ?? message;
  return reason[0].toUpperCase() + reason.slice(1);
}

const OWN = /^(SimpleCommand|Subshell|ArithmeticCommand|ConditionalCommand)$/; // other commands fail by a command inside of them

/** Runs the command of `trap COMMAND ERR` after commands that failed; in functions, `(...)` and `$(...)` only with `set -E`. */
export async function runErrorTrap(interpreter, { commands }, parse, textOf) {
  const { state } = interpreter.ctx, { env, lastExitCode } = state, name = `${TRAP}ERR`, command = env.get(name);
  const isOwn = commands.length > 1 || OWN.test(commands[0].type), isIn = state.options.errtrace || !state.funcNameStack?.length;
  if (!command || !isOwn || !isIn) return { stdout: "", stderr: "", exitCode: 0 };
  const line = commands[0].line ?? Number(/"line":(\d+)/.exec(JSON.stringify(commands[0]))?.[1]);
  env.delete(name); // a command that fails in the trap does not run the trap again
  env.set("BASH_COMMAND", commands.map(textOf).join(" | "));
  const script = JSON.parse(JSON.stringify(parse(command)), (key, value) => (key === "line" ? line : value));
  const result = await interpreter.executeScript(script);
  if (!state.env.has(name)) state.env.set(name, command);
  state.lastExitCode = lastExitCode;
  state.env.set("?", String(lastExitCode));
  return result;
}

/** Forgets the commands of `trap` in a shell in another. */
function resetTraps({ env, options }) {
  env.delete(`${TRAP}EXIT`);
  if (!options.errtrace) env.delete(`${TRAP}ERR`);
}

/** Runs a script's body, and the command that it has set for its end. */
export async function runWithTrap(interpreter, state, body, parse, Exit) {
  const run = async (execute) => {
    try {
      return await execute();
    } catch (problem) {
      if (!(problem instanceof Exit)) throw problem;
      return { stdout: problem.stdout, stderr: problem.stderr, exitCode: problem.exitCode, env: Object.fromEntries(state.env), hasExited: true };
    }
  };
  resetTraps(state);
  const { hasExited, ...result } = await run(body), command = state.env.get(`${TRAP}EXIT`);
  if (!command) return result;
  state.env.delete(`${TRAP}EXIT`);
  state.lastExitCode = result.exitCode;
  state.env.set("?", String(result.exitCode));
  const last = await run(() => interpreter.executeScript(parse(command)));
  const exitCode = last.hasExited ? last.exitCode : result.exitCode;
  return { ...result, stdout: result.stdout + last.stdout, stderr: result.stderr + last.stderr, exitCode };
}

/** Runs the script of `$(...)`: `set -e` does not end it, and options that it sets end with it. */
export async function substituted(context, script) {
  const { state } = context, { options, shoptOptions } = state;
  resetTraps(state);
  state.options = { ...options, errexit: false };
  state.shoptOptions = { ...shoptOptions };
  try {
    return await context.executeScript(script);
  } finally {
    Object.assign(state, { options, shoptOptions });
  }
}

const ATTRIBUTES = ["readonly", "declared", "integer", "lowercase", "uppercase"].map((name) => `${name}Vars`);

/** Returns what a state says of its variables, for a script of its own. */
export function ownAttributes(state) {
  const names = [...ATTRIBUTES, "associativeArrays", "namerefs", "boundNamerefs", "invalidNamerefs"].filter((name) => state[name]);
  return { shoptOptions: { ...state.shoptOptions }, ...Object.fromEntries(names.map((name) => [name, new Set(state[name])])) };
}

const jobs = new Map(); // the statuses of ended jobs, by their numbers

/** Runs a statement that ends in `&`, to its end, in a shell of its own. */
export async function runJob(interpreter, statement) {
  const { state } = interpreter.ctx, job = state.nextVirtualPid;
  const result = await interpreter.executeCommand({ type: "Subshell", body: [{ ...statement, background: false }], redirections: [] }, "");
  jobs.set(String(job), result.exitCode);
  Object.assign(state, { lastBackgroundPid: job, lastExitCode: 0 });
  state.env.set("?", "0");
  return { ...result, exitCode: 0 };
}

/** Returns the result of `wait`: the status of the last job that it names. */
export function waited(words) {
  const named = words.filter((word) => !word.startsWith("-")), [first] = jobs.keys();
  const job = named.at(-1)?.replace(/^%(\d+)$/, (_, at) => [...jobs.keys()][at - 1]) ?? (words.includes("-n") ? first : undefined);
  if (job === undefined && !words.includes("-n")) jobs.clear();
  const exitCode = jobs.get(job) ?? (words.length > 0 ? 127 : 0);
  if (named.length === 0) jobs.delete(job);
  const stderr = named.length > 0 && !jobs.has(job) ? `bash: wait: pid ${job} is not a child of this shell\n` : "";
  return { stdout: "", stderr, exitCode };
}

/** Returns what `time` prints by a format: the seconds, of which the processor's are not known. */
export function timesOf(format, seconds) {
  const text = format.replace(/%(?:%|([0-9])?(l)?([RUS])|P)/g, (all, digits = 3, isLong, kind) => {
    if (kind === undefined) return all === "%%" ? "%" : "0.00";
    const time = kind === "R" ? seconds : 0, places = Math.min(digits, 3);
    return isLong ? `${Math.floor(time / 60)}m${(time % 60).toFixed(places)}s` : time.toFixed(places);
  });
  return format && `${text}\n`;
}
