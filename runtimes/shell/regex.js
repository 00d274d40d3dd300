// Regular expressions of scripts: the interpreter's own, in place of just-bash's re2js, which compiles a pattern anew
// for each line of `sed` and takes some hundred microseconds for it. The cell's time bounds a pattern that backtracks.

const MOST = 500; // patterns that are kept
const LITERAL = /^[^\\^$.*+?()[\]{}|]+$/;
const compiled = new Map();

const PART = /\\[^]|(\[\^?)(\](?=[^\]]*\]))?((?:\[:\w+:\]|\\[^]|[^\]])*)\]/g;
const EDGES = { "\\<": "\\b(?=\\w)", "\\>": "\\b(?<=\\w)" };
const NAMED = {
  alpha: "a-zA-Z", digit: "0-9", alnum: "a-zA-Z0-9", upper: "A-Z", lower: "a-z", space: "\\s", blank: " \\t", word: "\\w",
  punct: "!-\\/:-@\\[-`{-~", xdigit: "0-9A-Fa-f", print: "\\x20-\\x7e", cntrl: "\\x00-\\x1f\\x7f", graph: "\\x21-\\x7e",
};

/** Writes what JavaScript does not know: edges of words, classes such as `[^]]` and `[[:space:]]`. */
const translated = (pattern) =>
  pattern.replace(PART, (all, begin, bracket, inside) => {
    if (begin === undefined) return EDGES[all] ?? all;
    return `${begin}${bracket ? "\\]" : ""}${inside.replace(/\[:(\w+):\]/g, (name, key) => NAMED[key] ?? name)}]`;
  });

const TOKEN = /(?:\\[^]|\[\^?\]?(?:\[:\w+:\]|\\[^]|[^\]])*\]|\((?:\?:)?|[^])(?:[*+?]|\{\d*,?\d*\})*/g;

/** Puts alternatives that begin with others before them, as the longest match counts: `ab|a` for `a|ab`. */
export function longestFirst(pattern) {
  if (!pattern.includes("|")) return pattern;
  const levels = [[[]]], isOf = (other, each) => other.every((token, at) => token === each[at]);
  const closed = (choices) => {
    if (choices.flat().some((token) => /^\((?!\?:)/.test(token))) return choices.map((each) => each.join("")).join("|"); // groups keep their numbers
    const found = [];
    for (const each of choices) {
      const at = found.findIndex((other) => isOf(other, each));
      found.splice(at < 0 ? found.length : at, 0, each);
    }
    return found.map((each) => each.join("")).join("|");
  };
  for (const [token] of pattern.matchAll(TOKEN)) {
    if (token === "|") levels.at(-1).push([]);
    else if (/^\((\?:)?$/.test(token)) levels.push([[token]], [[]]);
    else if (token[0] === ")" && levels.length > 2) {
      const inside = closed(levels.pop()), [[begin]] = levels.pop();
      levels.at(-1).at(-1).push(begin + inside + token);
    } else levels.at(-1).at(-1).push(token);
  }
  return levels.length === 1 ? closed(levels[0]) : pattern;
}

/** Returns a compiled pattern, if possible one for which a character is a code point. */
function compile(given, flags) {
  const key = `${flags}/${given}`;
  let found = compiled.get(key);
  if (found === undefined) {
    const [begin, inline = ""] = /^\(\?([ims]+)\)/.exec(given) ?? [""], pattern = translated(given.slice(begin.length));
    const known = [...new Set(flags + inline)].filter((flag) => "dgims".includes(flag)).join("");
    try {
      found = new RegExp(pattern, `${known}u`);
    } catch {
      found = new RegExp(pattern, known);
    }
    if (compiled.size >= MOST) compiled.clear();
    compiled.set(key, found);
  }
  return found;
}

/** Returns the text that a replacement makes of a match: `$1`, `${name}`, and `\` before any other character. */
function filled(replacement, groups, names) {
  return replacement.replace(/\\([^])|\$\{(\w+)\}|\$(\d+)/g, (all, plain, name, digits) => {
    if (plain !== undefined) return plain;
    if (name !== undefined) return names && name in names ? names[name] ?? "" : all;
    let length = digits.length;
    while (length > 1 && Number(digits.slice(0, length)) >= groups.length) length -= 1;
    return (groups[Number(digits.slice(0, length))] ?? "") + digits.slice(length);
  });
}

/** A regular expression in the interface of just-bash's. Several may share a compiled pattern. */
export class UserRegex {
  constructor(pattern, flags = "") {
    this.source = pattern;
    this.flags = flags;
    this.native = compile(pattern, flags);
    this.lastIndex = 0;
    this.global = flags.includes("g");
    this.ignoreCase = flags.includes("i");
    this.multiline = flags.includes("m");
  }

  /** Returns the compiled pattern, at its beginning. */
  get fresh() {
    this.native.lastIndex = this.lastIndex = 0;
    return this.native;
  }

  test(text) {
    return this.fresh.test(text);
  }

  exec(text) {
    const { native } = this;
    native.lastIndex = this.global ? this.lastIndex : 0;
    const found = native.exec(text);
    if (this.global) this.lastIndex = found === null ? 0 : native.lastIndex + (found[0] === "");
    return found;
  }

  match(text) {
    return text.match(this.fresh);
  }

  replace(text, replacement) {
    if (typeof replacement !== "string") return text.replace(this.fresh, replacement);
    if (!/[$\\]/.test(replacement)) return text.replace(this.fresh, () => replacement);
    return text.replace(this.fresh, (...found) => {
      const names = typeof found.at(-1) === "object" ? found.pop() : undefined;
      return filled(replacement, found.slice(0, -2), names);
    });
  }

  split(text, limit) {
    if (LITERAL.test(this.source) && !this.ignoreCase) return text.split(this.source, limit);
    const parts = [], pattern = compile(this.source, this.global ? this.flags : `${this.flags}g`);
    let end = 0;
    pattern.lastIndex = 0;
    for (let found; parts.length !== limit && (found = pattern.exec(text)) !== null;) {
      parts.push(text.slice(end, found.index));
      end = pattern.lastIndex;
      if (found[0] === "") pattern.lastIndex += 1;
    }
    if (parts.length !== limit) parts.push(text.slice(end));
    return parts;
  }

  search(text) {
    return text.search(this.fresh);
  }

  matchAll(text) {
    if (!this.global) throw new Error("matchAll requires global flag");
    return text.matchAll(this.fresh);
  }
}

export const createUserRegex = (pattern, flags) => new UserRegex(pattern, flags);
