// `grep` and its kin, around just-bash's: several patterns, names of files, and GNU's options.

import { defineCommand } from "just-bash";
import { Misuse, command, optionsOf } from "wasm-kernel:options";

const LETTERS = "abcEFGhHiIlLnoPqrRsUvwxyZe:f:m:A:B:C:+:%:@:~";
const LONG = {
  text: "a", count: "c", "extended-regexp": "E", "fixed-strings": "F", "perl-regexp": "P", "basic-regexp": "G", "no-filename": "h", "with-filename": "H",
  "ignore-case": "i", "files-with-matches": "l", "files-without-match": "L", "line-number": "n", "only-matching": "o", quiet: "q", silent: "q", recursive: "r",
  "dereference-recursive": "R", "no-messages": "s", "line-buffered": "U", "invert-match": "v", "word-regexp": "w", "line-regexp": "x", null: "Z", regexp: "e",
  file: "f", "max-count": "m", "after-context": "A", "before-context": "B", context: "C", include: "+", exclude: "%", "exclude-dir": "@", color: "~", colour: "~",
};
const NAMED = { "+": "include", "%": "exclude", "@": "exclude-dir" };
const EDGES = { "<": "\\b", ">": "\\b" }, BASIC = { ...EDGES, "+": "\\{1,\\}", "?": "\\{0,1\\}" }; // which just-bash knows

async function search(args, context) {
  const flags = new Set(), words = [], patterns = [];
  const end = args.indexOf("--"), isOption = (at) => (end < 0 || at < end) && args[at - 1] !== "-e";
  const { options, names } = optionsOf(args.map((word, at) => (isOption(at) ? word.replace(/^-(\d+)$/, "-C$1") : word)), LETTERS, LONG);
  for (const [letter, value] of options) {
    if (letter === "e") patterns.push(value);
    else if (letter in NAMED) words.push(`--${NAMED[letter]}=${value}`);
    else if ("ABC".includes(letter) && !/^\d+$/.test(value)) throw new Misuse(`${value}: invalid context length argument`);
    else if ("fmABC".includes(letter)) words.push(`-${letter}`, value);
    else flags.add(letter === "y" ? "i" : letter);
  }
  if (flags.has("b")) throw new Misuse("the option -b is not known here");
  if (patterns.length === 0 && !words.includes("-f")) patterns.push(names.shift() ?? "");
  if (patterns[0] === "" && args.length === 0) throw new Misuse("a pattern is needed");
  const hasContext = !flags.has("c") && options.some(([letter]) => "ABC".includes(letter));
  const isOfNames = flags.has("l") || flags.has("L");
  const signs = flags.has("F") || flags.has("P") ? {} : flags.has("E") ? EDGES : BASIC;
  const known = (pattern) => pattern.replace(/\\([^])/g, (all, letter) => signs[letter] ?? all);
  if ((flags.has("r") || flags.has("R")) && names.length === 0) names.push(""); // this folder
  if (names.length === 1 && (await isFile(names[0], context))) ["r", "R"].forEach((flag) => flags.delete(flag)); // its name is not told
  if (flags.has("H")) names.push(...(names.length === 0 ? ["-"] : []), "/dev/null"); // with several files, grep names the one with a match
  const isNamed = !flags.has("h") && (flags.has("r") || flags.has("R") || names.length > 1);
  const kept = [...flags].filter((flag) => !"aHIsUZ~G".includes(flag)).map((flag) => `-${flag}`);
  const sought = patterns.length > 0 ? ["-e", patterns.map(known).join("\n")] : [];
  const ask = (more) => context.origCommand([...more, ...kept, ...words, ...sought, "--", ...names]);
  const found = await ask([]);
  for (const name of flags.has("r") || flags.has("R") ? names.filter((each) => !"-".includes(each)) : []) {
    if (await context.fs.exists(context.fs.resolvePath(context.cwd, name))) continue;
    Object.assign(found, { stderr: `${found.stderr}grep: ${name}: No such file or directory\n`, exitCode: 2 });
  }
  if (flags.has("s")) found.stderr = "";
  if (flags.has("I")) found.stdout = found.stdout.replace(/^[^\n]*\0[^\n]*\n/gm, ""); // lines of no text
  if (flags.has("Z") && isOfNames) found.stdout = found.stdout.replaceAll("\n", "\0");
  else if (flags.has("Z") && isNamed) found.stdout = withZeros(found.stdout, hasContext && (await ask(["-l"])).stdout);
  return found;
}

const isFile = (name, { fs, cwd }) => fs.stat(fs.resolvePath(cwd, name)).then((found) => found.isFile, () => false);

/** Lines whose names end with a zero byte. Around matches, lines have `-` after the name: there, `list` says the names. */
function withZeros(lines, list) {
  if (!list) return lines.replace(/^([^:\n]*):/gm, "$1\0");
  const names = list.split(/[\n\0]/).filter(Boolean).sort((a, b) => b.length - a.length); // `f-1` before `f`
  return lines.replace(new RegExp(`^(${names.map((name) => name.replace(/\W/g, "\\$&")).join("|")})[:-]`, "gm"), "$1\0");
}

/** `egrep` and `fgrep`. */
const kin = (name, flag) =>
  defineCommand(name, (args, { exec, cwd, stdin, signal }) => exec("grep", { cwd, stdin, stdinKind: "bytes", signal, args: [flag, ...args] }));

/** `rg`, which passes over options about colours and the like; with `-0`, it names each file. */
const rg = defineCommand("rg", async (args, context) => {
  const has = (letters, long) => args.some((word) => new RegExp(`^-[^-efgtTmABCMjErd]*[${letters}]|^--(${long})$`).test(word));
  const hasZeros = has("0", "null") && !has("lI", "files.*|no-filename"); // just-bash itself does that in lists of names
  const kept = args.filter((word, at) =>
    !/^--$|^--(no-config|no-messages|line-buffered|colou?r|encoding)\b/.test(word) && !/^--(colou?r|encoding)$/.test(args[at - 1]))
    .map((word) => word.replace(/^--(after-|before-)?context(=|$)/, (all, side = "context") => `-${side[0].toUpperCase()}`));
  const found = await context.origCommand(hasZeros ? ["-H", ...kept] : kept);
  if (!hasZeros) return found;
  const list = has("ABC", "(after-|before-)?context.*") && (await context.origCommand(["-l", ...kept])).stdout;
  return { ...found, stdout: withZeros(found.stdout, list) };
});

export const SEARCH = [command("grep", search, 2), kin("egrep", "-E"), kin("fgrep", "-F"), rg];
