// Commands on lines, around those of just-bash.

import { defineCommand } from "just-bash";
import { textOfLatin1 } from "wasm-kernel:bytes";
import { formatted } from "wasm-kernel:numbers";
import { bytesOf, contentOf, optionsOf, refused } from "wasm-kernel:options";

const MOST = 500_000_000; // characters of an output
const YES_LINES = 10_000; // for a reader that does not say how many
export const READER = "\0reader"; // stands between the words of `yes` and those of the `head` that reads them

// -- xargs

const XARGS = { null: "0", "no-run-if-empty": "r", verbose: "t", "max-args": "n", "max-procs": "P", "max-lines": "L", delimiter: "d", "arg-file": "a", replace: "I" };
const BLANKS = /\s+|\\([^])|"([^"\n]*)"|'([^'\n]*)'|(["'])|[^\s\\"']+/g;
const SIGNS = { n: "\n", t: "\t", r: "\r", 0: "\0", "\\": "\\" };

/** Returns the words of a text, in which quotes keep blanks. */
function wordsOf(text) {
  const found = [];
  let word;
  for (const [all, escaped, double, single, open] of text.matchAll(BLANKS)) {
    if (open) throw new Error(`unmatched ${open === '"' ? "double" : "single"} quote; use -0, or -d '\\n' for lines`);
    if (/^\s/.test(all)) {
      if (word !== undefined) found.push(word);
      word = undefined;
    } else word = (word ?? "") + (escaped ?? double ?? single ?? all);
  }
  if (word !== undefined) found.push(word);
  return found;
}

/** Returns the words that each run gets. */
function runsOf(options, text) {
  const { I, L, n, r } = options, lines = () => text.split("\n").filter((line) => line.trim() !== "");
  const end = options[0] ? "\0" : options.d?.replace(/\\([ntr0\\])/g, (_, sign) => SIGNS[sign]);
  if (L !== undefined && end === undefined) return chunks(lines().map(wordsOf), Number(L)).map((rows) => rows.flat());
  const items = end === undefined ? (I === undefined ? wordsOf(text) : lines().map((line) => wordsOf(line.trimStart().replace(/ /g, "\\ ")).join(" "))) : text.split(end);
  if (end !== undefined && items.at(-1) === "") items.pop();
  if (I !== undefined || n !== undefined || L !== undefined) return chunks(items, I === undefined ? Number(n ?? L) : 1);
  return items.length > 0 || !r ? [items] : [];
}

function chunks(items, size) {
  if (!(size >= 1)) throw new Error("a number of at least 1 is needed");
  return Array.from({ length: Math.ceil(items.length / size) }, (_, at) => items.slice(at * size, (at + 1) * size));
}

/** Runs a command with the words that it reads. A number of processes (`-P`) changes nothing. */
const repeat = defineCommand("xargs", async (args, context) => {
  const all = { stdout: "", stderr: "", exitCode: 0, stdoutKind: "bytes" };
  let options, command, runs;
  try {
    const found = optionsOf(args, "0rtn:P:L:d:a:I:s:", XARGS, { stops: true });
    [options, command] = [Object.fromEntries(found.options.map(([letter, value]) => [letter, value ?? true])), found.names];
    runs = runsOf(options, textOfLatin1(await contentOf(context, options.a ?? "-")));
  } catch (problem) {
    return refused("xargs", problem.message.startsWith("ENOENT") ? `${options.a}: No such file or directory` : problem.message);
  }
  if (command.length === 0) command.push("echo");
  for (const items of runs) {
    const [name, ...words] = options.I === undefined ? [...command, ...items] : command.map((word) => word.split(options.I).join(items[0]));
    if (options.t) all.stderr += `${[name, ...words].join(" ")}\n`;
    const { cwd, signal } = context, found = await context.exec(`'${name.replaceAll("'", "'\\''")}'`, { cwd, signal, args: words });
    all.stdout += bytesOf(found);
    all.stderr += found.stderr;
    if (found.exitCode !== 0) all.exitCode = [126, 127].includes(found.exitCode) ? found.exitCode : found.exitCode === 255 ? 124 : 123;
    if (all.exitCode > 123) break;
  }
  return all;
});

// -- head and tail

const SIZES = { b: 512, k: 1024, K: 1024, M: 1024 ** 2, G: 1024 ** 3 };

/** Writes the numbers of `head` and `tail` as `-n` and `-c`, each in words of their own. */
export const counted = (args) =>
  args.flatMap((word) => {
    const [, unit, count] = /^--(lines|bytes)=(.*)$/.exec(word) ?? [];
    if (unit) return [unit === "lines" ? "-n" : "-c", count];
    const [, flags, letter, value] = /^-([qv]*)([nc]?)(.*)$/.exec(word) ?? [];
    if (flags === undefined || !(flags || letter) || (!letter && value)) return [word];
    return [...[...flags].map((flag) => `-${flag}`), ...(letter ? [`-${letter}`] : []), ...(value ? [value] : [])];
  }).map((word, at, all) =>
    (/^-[nc]$/.test(all[at - 1]) ? word.replace(/^([-+]?\d+)([bkKMG])B?$/, (_, number, size) => `${number.match(/^[-+]/)?.[0] ?? ""}${Math.abs(number) * SIZES[size]}`) : word));

/** Prints the ends of files, also from a byte on; what would follow (`-f`) does not come. */
const tail = defineCommand("tail", async (args, context) => {
  const isToFollow = (word) => /^-[fF]$|^--follow/.test(word), follows = args.some(isToFollow);
  const given = counted(args.filter((word) => !isToFollow(word)).map((word, at) => (at === 0 ? word.replace(/^\+\d+$/, "-n$&") : word)));
  const words = given.map((word, at) => (/^-[nc]$/.test(given[at - 1]) ? word.replace(/^-/, "") : word)), at = words.indexOf("-c");
  let found;
  if (at < 0 || !words[at + 1]?.startsWith("+")) found = await context.origCommand(words);
  else {
    const { stdout, ...rest } = await context.exec("cat", { cwd: context.cwd, stdin: context.stdin, stdinKind: "bytes", args: words.toSpliced(at, 2) });
    found = { ...rest, stdout: stdout.slice(Math.max(0, Number(words[at + 1]) - 1)) };
  }
  return follows ? { ...found, stderr: `${found.stderr}tail: nothing follows: commands run one after another\n` } : found;
});

/** Writes as many lines as the `head` that reads them prints; for another reader 10,000, which an error tells. */
const agree = defineCommand("yes", async (args) => {
  const at = args.indexOf(READER), line = `${(at < 0 ? args : args.slice(0, at)).join(" ") || "y"}\n`;
  const reader = at < 0 ? ["-n", "-"] : counted(args.slice(at + 1).map((word) => word.replace(/^-(\d+)$/, "-n$1")));
  const [, unit = "-n", number = "10"] = /(-[nc]) (\S+)/.exec(reader.join(" ")) ?? [];
  const count = /^\d+$/.test(number) ? Math.ceil(Number(number) / (unit === "-c" ? bytesOf({ stdout: line }).length : 1)) : YES_LINES;
  if (count * line.length > MOST) return refused("yes", `${count} lines do not fit into memory`);
  const told = `yes: ended after ${YES_LINES} lines: commands of a pipe run one after another\n`;
  return { stdout: line.repeat(count), stderr: number === "-" ? told : "", exitCode: number === "-" ? 1 : 0 };
});

// -- sed

const LOOP = ":z\n$!{\nN\nbz\n}\n"; // makes one record of all lines
const swapped = (text) => text.replace(/[\n\0]/g, (sign) => (sign === "\n" ? "\0" : "\n"));

/** Runs a script on all of a text, as `sed -z` does: records end with bytes that are 0. */
async function editWhole(words, at, files, context) {
  const { cwd, stdin } = context, found = await context.exec("cat", { cwd, stdin, stdinKind: "bytes", args: files });
  if (found.exitCode !== 0) return found;
  const text = bytesOf(found), run = (script, input) => context.exec("sed", { cwd, stdin: input, stdinKind: "bytes", args: words.with(at, script) });
  if (!text.includes("\0")) return run(LOOP + (text.endsWith("\n") ? "G\n" : "") + words[at], text.replace(/\n$/, ""));
  const done = await run(words[at], swapped(text));
  return { ...done, stdout: swapped(bytesOf(done)), stdoutKind: "bytes", stdoutEncoding: undefined };
}

/** Takes options that just-bash does not know; keeps files under other names before `sed -i.bak` changes them. */
const edit = defineCommand("sed", async (args, context) => {
  const words = args.flatMap((word) => {
    const [, name, value] = /^--(expression|file)=([^]*)$/.exec(word) ?? [];
    return name ? [`-${name[0]}`, value] : [{ "--separate": "-s", "--null-data": "-z", "--unbuffered": "-u" }[word] ?? word];
  });
  const flags = words.filter((word) => /^-[nErsuz]+$/.test(word)).join("");
  const plain = words.map((word) => (/^-[nErsuz]+$/.test(word) ? word.replace(/[suz]/g, "") : word)).filter((word) => word !== "-" || args.includes("-"));
  const isValue = (at) => /^-[ef]$|^-[nErsz]+e$/.test(plain[at - 1] ?? "");
  const isInPlace = plain.some((word) => /^(-i|--in-place)/.test(word)), script = plain.findIndex((word, at) => (plain.some((_, each) => isValue(each)) ? isValue(at) : !word.startsWith("-")));
  const files = plain.filter((word, at) => at !== script && !isValue(at) && !/^-./.test(word)), rest = plain.filter((word, at) => at === script || isValue(at) || /^-./.test(word));
  if (flags.includes("z")) return isInPlace ? refused("sed", "-z and -i are not known here together") : editWhole(rest, rest.indexOf(plain[script]), files, context);
  if (flags.includes("s") && !isInPlace && files.length > 1) {
    const all = { stdout: "", stderr: "", exitCode: 0, stdoutKind: "bytes" };
    for (const file of files) {
      const found = await context.origCommand([...rest, file]);
      Object.assign(all, { stdout: all.stdout + bytesOf(found), stderr: all.stderr + found.stderr, exitCode: Math.max(all.exitCode, found.exitCode) });
    }
    return all;
  }
  const ending = plain.map((word) => /^(?:-i|--in-place=)(?![nErsz]+$)(.+)$/.exec(word)?.[1]).find(Boolean);
  if (ending === undefined) return context.origCommand(plain);
  for (const word of files) {
    const path = context.fs.resolvePath(context.cwd, word);
    if (!(await context.fs.exists(path)) || !(await context.fs.stat(path)).isFile) continue;
    await context.fs.cp(path, `${path}${ending}`);
  }
  return context.origCommand(plain.map((word) => (/^(-i|--in-place=)/.test(word) && word.endsWith(ending) ? "-i" : word)));
});

/** Takes `paste -sd+`, and standard input without the name of a file. */
const paste = defineCommand("paste", (args, context) => {
  const words = args.flatMap((word) => {
    const found = /^-(s?)d(.*)$/.exec(word);
    return found ? [...(found[1] ? ["-s"] : []), "-d", ...(found[2] ? [found[2]] : [])] : [word];
  });
  const ends = words.indexOf("-d") + 1;
  if (ends > 0) words[ends] = words[ends]?.replace(/\\(.)/g, (_, letter) => ({ t: "\t", n: "\n" })[letter] ?? letter);
  const isNamed = words.some((word, at) => (!word.startsWith("-") || word === "-") && words[at - 1] !== "-d");
  return context.origCommand(isNamed ? words : [...words, "-"]);
});

const FORMAT = /^((?:[^%]|%%)*)(%[-0+]*\d*(?:\.\d+)?[fge])((?:[^%]|%%)*)$/;

/** Returns the function that writes a number in a format such as `%03g` or `%.2f`; undefined if it is none. */
function formatter(format) {
  const [found, before, specifier, after] = FORMAT.exec(format) ?? [], plain = (text) => text.replaceAll("%%", "%");
  return found === undefined ? undefined : (number) => plain(before) + formatted(specifier, Number(number)) + plain(after);
}

const zeroed = (text, width) => text.replace(/\d.*/, (digits) => digits.padStart(width - (text.length - digits.length), "0"));

/** Counts. Numbers that can't fit into memory are refused at once. */
const sequence = defineCommand("seq", async (args) => {
  const wrong = (why) => refused("seq", why), numbers = [];
  let separator = "\n", isEven = false, format;
  for (let at = 0; at < args.length; at += 1) {
    const word = args[at], [, name, value] = /^(-w?[sf]|--separator=|--format=)([^]*)$/.exec(word) ?? [];
    isEven ||= /^(-w.*|--equal-width)$/.test(word);
    if (name === undefined && /^(-w|--equal-width)$/.test(word)) continue;
    if (name === undefined && word !== "--") numbers.push(word);
    else if (name?.includes("s")) separator = value || (args[(at += 1)] ?? "");
    else if (name !== undefined) format = value || (args[(at += 1)] ?? "");
  }
  const odd = numbers.find((word) => word.trim() === "" || !Number.isFinite(Number(word)));
  if (odd !== undefined) return wrong(`invalid floating point argument: '${odd}'`);
  if (numbers.length === 0 || numbers.length > 3) return wrong(numbers.length === 0 ? "missing operand" : `extra operand '${numbers[3]}'`);
  const first = numbers.length > 1 ? numbers[0] : "1", step = numbers.length > 2 ? numbers[1] : "1";
  const isExact = numbers.every((word) => /^-?\d+$/.test(word)) && numbers.some((word) => !Number.isSafeInteger(Number(word)));
  const of = isExact ? BigInt : Number, begin = of(first), by = of(step);
  if (Number(by) === 0) return wrong(`invalid Zero increment value: '${step}'`);
  const places = Math.max(...[first, step].map((word) => word.split(".")[1]?.length ?? 0));
  const steps = (of(numbers.at(-1)) - begin) / by, count = isExact ? Number(steps) + 1 : Math.floor(steps + 1e-10) + 1;
  let write = format === undefined ? (number) => (places > 0 ? number.toFixed(places) : String(number)) : formatter(format);
  if (write === undefined) return wrong(`format '${format}' is not known here`);
  if (count <= 0) return { stdout: "", stderr: "", exitCode: 0 };
  const plain = write, width = Math.max(plain(begin).length, plain(begin + of(count - 1) * by).length);
  if (count * (width + separator.length) > MOST) return wrong(`${count} numbers do not fit into memory`);
  if (isEven) write = (number) => zeroed(plain(number), width);
  const pieces = [];
  for (let start = 0; start < count; start += 10_000) {
    const piece = Array.from({ length: Math.min(10_000, count - start) }, (_, at) => write(begin + of(start + at) * by));
    pieces.push(piece.join(separator));
  }
  return { stdout: `${pieces.join(separator)}\n`, stderr: "", exitCode: 0 };
});


export const LINES = [repeat, tail, agree, edit, paste, sequence];
