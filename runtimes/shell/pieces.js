// Small parts that stand in just-bash for others (just_bash.py).

const MOST = 500; // results that are kept
export const TRAP = "\0trap"; // no script has a variable of this name

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
  for (const [all, letter] of replacement.matchAll(/\\([^])|&|\\$|[^\\&]+/g)) {
    if (letter === undefined) add(all === "&" ? match : all);
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

/** Runs a script, and the command that it has set for its end. */
export async function runWithTrap(interpreter, script, state, parse, Exit) {
  const run = async (tree) => {
    try {
      return await interpreter.executeScript(tree);
    } catch (problem) {
      if (!(problem instanceof Exit)) throw problem;
      return { stdout: problem.stdout, stderr: problem.stderr, exitCode: problem.exitCode, env: Object.fromEntries(state.env), hasExited: true };
    }
  };
  const { hasExited, ...result } = await run(script), command = state.env.get(TRAP);
  if (!command) return result;
  state.env.delete(TRAP);
  state.lastExitCode = result.exitCode;
  state.env.set("?", String(result.exitCode));
  const last = await run(parse(command));
  const exitCode = last.hasExited ? last.exitCode : result.exitCode;
  return { ...result, stdout: result.stdout + last.stdout, stderr: result.stderr + last.stderr, exitCode };
}
