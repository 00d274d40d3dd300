// The options and files of commands, and results in which they fail.

import { defineCommand } from "just-bash";
import { latin1OfText } from "wasm-kernel:bytes";

export const refused = (name, why, exitCode = 1) => ({ stdout: "", stderr: `${name}: ${why}\n`, exitCode });

/** An error of the words with which a command was called. */
export class Misuse extends Error {}

/** Returns a command that refuses its misuse in words. */
export const command = (name, run, status = 1) =>
  defineCommand(name, async (args, context) => {
    try {
      return await run(args, context);
    } catch (problem) {
      if (!(problem instanceof Misuse)) throw problem;
      return refused(name, problem.message, status);
    }
  });

export const bytesOf = ({ stdout, stdoutKind, stdoutEncoding }) =>
  stdoutKind === "bytes" || stdoutEncoding === "binary" ? stdout : latin1OfText(stdout);

/** Returns the bytes of a file, with one character for each; `-` is the standard input. */
export const contentOf = async ({ stdin, fs, cwd }, name) => (name === "-" ? stdin : fs.readFile(fs.resolvePath(cwd, name), "binary"));

/** Returns the options of a command, each a letter and its value, and its other words; `:` follows letters with values, `?` those with one in the same word. */
export function optionsOf(args, letters, long = {}, { stops = false } = {}) {
  const options = [], names = [], words = [...args];
  while (words.length > 0) {
    const word = words.shift(), [, name, given] = /^--([a-z-]+)(?:=([^]*))?$/.exec(word) ?? [];
    const isName = word === "-" || word[0] !== "-";
    if (isName) names.push(word);
    if (word === "--" || (isName && stops)) {
      names.push(...words);
      break;
    }
    let rest = isName ? "" : name === undefined ? word.slice(1) : long[name];
    if (rest === undefined) throw new Misuse(`unrecognized option '${word}'`);
    while (rest !== "") {
      const letter = rest[0], at = letters.indexOf(letter);
      rest = rest.slice(1);
      if (at < 0 || ":?".includes(letter)) throw new Misuse(`invalid option -- '${letter}'`);
      if (!":?".includes(letters[at + 1] ?? " ")) options.push([letter, given]);
      else {
        const value = given ?? (rest || (letters[at + 1] === ":" ? words.shift() : ""));
        if (value === undefined) throw new Misuse(`option requires an argument -- '${letter}'`);
        options.push([letter, value]);
        rest = "";
      }
    }
  }
  return { options, names };
}
