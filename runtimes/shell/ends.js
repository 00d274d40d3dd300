// The beginnings and the ends of files: `head` and `tail`; and `yes`, which writes what the `head` behind it reads.

import { defineCommand } from "just-bash";
import { Misuse, bytesOf, command, contentOf, optionsOf, refused } from "wasm-kernel:options";

const SIZE = /^([-+]?)(\d+)(?:(b)|([KMGTPE])(B|iB)?)?$/i;
const LONG = { lines: "n", bytes: "c", quiet: "q", silent: "q", verbose: "v", follow: "f", "zero-terminated": "z" };
const MOST = 500_000_000; // characters of an output
const YES_LINES = 10_000; // for a reader that does not say how many
export const READER = "\0reader"; // stands between the words of `yes` and those of the `head` that reads them

/** Returns what the words of `head` or `tail` ask for. */
function asked(args) {
  const isValue = (at) => /^-[qvz]*[nc]$|^--(lines|bytes)$/.test(args[at - 1]);
  const words = args.map((word, at) => (isValue(at) ? word : word.replace(/^-(\d+[bkKMG]?)$/, "-n$1")));
  const { options, names } = optionsOf(words, "n:c:qvfFz", LONG), letters = options.map(([letter]) => letter).join("");
  const [unit, number] = options.findLast(([letter]) => letter === "n" || letter === "c") ?? ["n", "10"];
  const [, sign, digits, block, size = "", ending] = SIZE.exec(number) ?? [];
  if (digits === undefined) throw new Misuse(`invalid number of ${unit === "c" ? "bytes" : "lines"}: '${number}'`);
  const count = Number(digits) * (block ? 512 : (ending === "B" ? 1000 : 1024) ** ` KMGTPE`.indexOf(size.toUpperCase() || " "));
  return { names, letters, sign, count, end: unit === "c" ? undefined : letters.includes("z") ? "\0" : "\n" };
}

/** Returns the place behind a number of lines, or of bytes without an end of lines. */
function after(text, count, end) {
  if (end === undefined) return count;
  let at = 0;
  for (let left = count; left > 0 && at < text.length; left -= 1) at = (text.indexOf(end, at) + 1) || text.length;
  return at;
}

/** Returns the place of the last lines or bytes. */
function before(text, count, end) {
  if (end === undefined || count === 0) return Math.max(0, text.length - count);
  let at = text.endsWith(end) ? text.length - 1 : text.length;
  for (let left = count; left > 0 && at >= 0; left -= 1) at = at === 0 ? -1 : text.lastIndexOf(end, at - 1);
  return at + 1;
}

const PARTS = {
  head: (text, { sign, count, end }) => text.slice(0, sign === "-" ? before(text, count, end) : after(text, count, end)),
  tail: (text, { sign, count, end }) => text.slice(sign === "+" ? after(text, Math.max(0, count - 1), end) : before(text, count, end)),
};

/** Prints parts of files. What `head` leaves of its standard input is for the next command. */
const ends = (name) =>
  command(name, async (args, context) => {
    const wanted = asked(name === "tail" ? args.map((word, at) => (at === 0 ? word.replace(/^\+\d+$/, "-n$&") : word)) : args);
    const { letters } = wanted, names = wanted.names.length > 0 ? wanted.names : ["-"], result = { stdout: "", stderr: "", exitCode: 0, stdoutKind: "bytes" };
    const isTitled = letters.includes("v") || (names.length > 1 && !letters.includes("q"));
    for (const each of names) {
      try {
        const part = PARTS[name](await contentOf(context, each), wanted);
        if (isTitled) result.stdout += `${result.stdout && "\n"}==> ${each === "-" ? "standard input" : each} <==\n`;
        result.stdout += part;
        if (each === "-" && name === "head") result.internalStdinConsumed = part.length;
      } catch (problem) {
        const isFolder = problem.message.includes("EISDIR"), why = isFolder ? `error reading '${each}': Is a directory` : `cannot open '${each}' for reading: No such file or directory`;
        Object.assign(result, { stderr: `${result.stderr}${name}: ${why}\n`, exitCode: 1 });
      }
    }
    if (/f/i.test(letters)) result.stderr += "tail: nothing follows: commands run one after another\n";
    return result;
  });

/** Writes as many lines as the `head` that reads them prints; for another reader 10,000, which an error tells. */
const agree = defineCommand("yes", async (args) => {
  const at = args.indexOf(READER), words = at < 0 ? args : args.slice(0, at), line = `${words.length > 0 ? words.join(" ") : "y"}\n`;
  const { count, sign, end } = at < 0 ? { sign: "-" } : asked(args.slice(at + 1)), isKnown = sign !== "-";
  const lines = isKnown ? Math.ceil(count / (end === undefined ? bytesOf({ stdout: line }).length : 1)) : YES_LINES;
  if (lines * line.length > MOST) return refused("yes", `${lines} lines do not fit into memory`);
  const told = `yes: ended after ${YES_LINES} lines: commands of a pipe run one after another\n`;
  return { stdout: line.repeat(lines), stderr: isKnown ? "" : told, exitCode: isKnown ? 0 : 1 };
});

export const ENDS = [ends("head"), ends("tail"), agree];
