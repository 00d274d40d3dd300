// Commands on lines, around those of just-bash.

import { defineCommand } from "just-bash";
import { textOfLatin1 } from "wasm-kernel:bytes";
import { formatted } from "wasm-kernel:numbers";
import { reasonOf } from "wasm-kernel:pieces";
import { Misuse, bytesOf, command, contentOf, optionsOf, refused } from "wasm-kernel:options";

const MOST = 500_000_000; // characters of an output

// -- xargs

const XARGS = { null: "0", "no-run-if-empty": "r", verbose: "t", "max-args": "n", "max-procs": "P", "max-lines": "L", delimiter: "d", "arg-file": "a", replace: "I" };
const BLANKS = /\s+|\\([^])|"([^"\n]*)"|'([^'\n]*)'|(["'])|[^\s\\"']+/g;
const SIGNS = { n: "\n", t: "\t", r: "\r", 0: "\0", "\\": "\\" };

/** Returns the words of a text, in which quotes keep blanks. */
function wordsOf(text) {
  const found = [];
  let word;
  for (const [all, escaped, double, single, open] of text.matchAll(BLANKS)) {
    if (open) throw new Misuse(`unmatched ${open === '"' ? "double" : "single"} quote; use -0, or -d '\\n' for lines`);
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

/** Splits the words of a run so that no line of a command is longer. */
function fitting(items, room) {
  const runs = [[]];
  let left = room;
  for (const item of items) {
    if (item.length + 1 > room) throw new Misuse("argument line too long");
    if (item.length + 1 > left) {
      runs.push([]);
      left = room;
    }
    runs.at(-1).push(item);
    left -= item.length + 1;
  }
  return runs;
}

function chunks(items, size) {
  if (!(size >= 1)) throw new Misuse("a number of at least 1 is needed");
  return Array.from({ length: Math.ceil(items.length / size) }, (_, at) => items.slice(at * size, (at + 1) * size));
}

/** Runs a command with the words that it reads. A number of processes (`-P`) changes nothing. */
const repeat = command("xargs", async (args, context) => {
  const all = { stdout: "", stderr: "", exitCode: 0, stdoutKind: "bytes" };
  const found = optionsOf(args, "0rtn:P:L:d:a:I:s:", XARGS, { stops: true }), given = found.names.length > 0 ? found.names : ["echo"];
  const options = Object.fromEntries(found.options.map(([letter, value]) => [letter, value ?? true]));
  const content = await contentOf(context, options.a ?? "-").catch((problem) => { throw new Misuse(`${options.a}: ${reasonOf(problem)}`); });
  const runs = runsOf(options, textOfLatin1(content)), room = Number(options.s) - given.join(" ").length - 1;
  for (const items of options.s === undefined || options.I !== undefined ? runs : runs.flatMap((run) => fitting(run, room))) {
    const [name, ...words] = options.I === undefined ? [...given, ...items] : given.map((word) => word.split(options.I).join(items[0]));
    if (options.t) all.stderr += `${[name, ...words].join(" ")}\n`;
    const { cwd, signal } = context, found = await context.exec(`'${name.replaceAll("'", "'\\''")}'`, { cwd, signal, args: words });
    all.stdout += bytesOf(found);
    all.stderr += found.stderr;
    if (found.exitCode !== 0) all.exitCode = [126, 127].includes(found.exitCode) ? found.exitCode : found.exitCode === 255 ? 124 : 123;
    if (all.exitCode > 123) break;
  }
  return all;
});

// -- sed

const LOOP = ":z\n$!{\nN\nbz\n}\n"; // makes one record of all lines
const swapped = (text) => text.replace(/[\n\0]/g, (sign) => (sign === "\n" ? "\0" : "\n"));

/** Runs a script on all of a text, as `sed -z` does: records end with bytes that are 0. */
async function editWhole(flags, script, files, context) {
  const { cwd, stdin } = context, found = await context.exec("cat", { cwd, stdin, stdinKind: "bytes", args: files });
  if (found.exitCode !== 0) return found;
  const text = bytesOf(found), run = (own, input) => context.exec("sed", { cwd, stdin: input, stdinKind: "bytes", args: [...flags, "-e", own] });
  if (!text.includes("\0")) return run(LOOP + (text.endsWith("\n") ? "G\n" : "") + script, text.replace(/\n$/, ""));
  const done = await run(script, swapped(text));
  return { ...done, stdout: swapped(bytesOf(done)), stdoutKind: "bytes", stdoutEncoding: undefined };
}

const SED = { expression: "e", file: "f", quiet: "n", silent: "n", "regexp-extended": "E", separate: "s", "null-data": "z", unbuffered: "u", "in-place": "i" };

/** Takes options that just-bash does not know; keeps files under other names before `sed -i.bak` changes them. */
const edit = command("sed", async (args, context) => {
  if (args.includes("--help")) return context.origCommand(args);
  const { options, names } = optionsOf(args, "nErsuzi?e:f:", SED), has = (letter) => options.some(([each]) => each === letter), ending = options.find(([each]) => each === "i")?.[1];
  const scripts = options.filter(([letter]) => "ef".includes(letter));
  if (scripts.length === 0 && names.length > 0) scripts.push(["e", names.shift()]);
  const flags = ["n", "E", "r", "i"].filter(has).map((letter) => `-${letter}`), script = scripts.flatMap(([letter, value]) => [`-${letter}`, value]);
  if (has("z")) {
    const isPlain = !has("i") && !has("f");
    return isPlain ? editWhole(flags, scripts.map(([, value]) => value).join("\n"), names, context) : refused("sed", "-z and -i or -f are not known here together");
  }
  if (has("s") && !has("i") && names.length > 1) {
    const all = { stdout: "", stderr: "", exitCode: 0, stdoutKind: "bytes" };
    for (const name of names) {
      const one = await context.origCommand([...flags, ...script, name]);
      Object.assign(all, { stdout: all.stdout + bytesOf(one), stderr: all.stderr + one.stderr, exitCode: Math.max(all.exitCode, one.exitCode) });
    }
    return all;
  }
  for (const name of ending ? names : []) {
    const path = context.fs.resolvePath(context.cwd, name);
    if ((await context.fs.exists(path)) && (await context.fs.stat(path)).isFile) await context.fs.cp(path, `${path}${ending}`);
  }
  return context.origCommand([...flags, ...script, ...names]);
});

/** Takes `paste -sd+`, and standard input without the name of a file. */
const paste = command("paste", (args, context) => {
  const { options, names } = optionsOf(args, "sd:", { serial: "s", delimiters: "d" }), { d } = Object.fromEntries(options);
  const between = d?.replace(/\\(.)/g, (_, letter) => ({ t: "\t", n: "\n" })[letter] ?? letter);
  const words = [...(options.some(([letter]) => letter === "s") ? ["-s"] : []), ...(d === undefined ? [] : ["-d", between])];
  return context.origCommand([...words, ...(names.length > 0 ? names : ["-"])]);
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


export const LINES = [repeat, edit, paste, sequence];
