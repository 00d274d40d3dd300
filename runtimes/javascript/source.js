// A cell's text: its tokens, and its changes before it runs.
//
// Cells share one global scope, like a browser's console. So declarations at top level become those
// of `var`, which may be repeated, and `import` declarations become `await import(...)`. Every
// replacement keeps the lines.

const WORD = /[\p{ID_Start}$_#][\p{ID_Continue}$\u200c\u200d]*/uy;
const NUMBER = /0[xXbBoO][\da-fA-F_]+n?|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d[\d_]*)?n?/y;
const SPACE = /[^\S\n\r\u2028\u2029]+/y;
const STRING = /"(?:[^"\\\n]|\\[^])*"|'(?:[^'\\\n]|\\[^])*'/y;
const REGEXP = /\/(?:[^\/\\\[\n]|\\[^\n]|\[(?:[^\]\\\n]|\\[^\n])*\])+\/[\p{ID_Continue}$]*/uy;
const SIGN = />>>=|\.\.\.|===|!==|\*\*=|<<=|>>=|>>>|&&=|\|\|=|\?\?=|=>|==|!=|<=|>=|&&|\|\||\?\?|\?\.(?!\d)|\+\+|--|\+=|-=|\*=|\/=|%=|&=|\|=|\^=|<<|>>|\*\*|[^]/y;
const BEFORE_EXPRESSION = new Set(
  "return typeof case do else in of instanceof new void delete throw await yield extends default"
    .split(" "),
);
const CLOSING = { "(": ")", "[": "]", "{": "}" };

function at(pattern, source, position) {
  pattern.lastIndex = position;
  const found = pattern.exec(source);
  return found === null ? "" : found[0];
}

/**
 * Returns the tokens of a text: { kind, text, start, depth, newline, unclosed }.
 *
 * `kind` is word, number, string, template, regexp, sign or comment; `depth` says how many brackets
 * are open around it, `newline` whether a line ends before it. In an incomplete text, the last
 * token is `unclosed`.
 */
export function tokensOf(source) {
  const tokens = [];
  const open = [];
  let position = 0, newline = false, last;
  while (position < source.length) {
    const space = at(SPACE, source, position);
    if (space) {
      position += space.length;
      continue;
    }
    const character = source[position];
    if ("\n\r\u2028\u2029".includes(character)) {
      newline = true;
      position += 1;
      continue;
    }
    const token = { kind: "sign", text: "", start: position, depth: open.length, newline };
    read(token, source, last);
    if (token.kind === "sign") {
      if (token.text in CLOSING) open.push(token);
      else if (")]}".includes(token.text)) {
        const opened = open.pop();
        token.mismatched = opened === undefined || CLOSING[opened.text] !== token.text;
        token.depth = open.length;
      }
    }
    position += token.text.length;
    tokens.push(token);
    if (token.kind !== "comment") [last, newline] = [token, false];
    else newline ||= /[\n\r]/.test(token.text);
  }
  tokens.open = open.length;
  return tokens;
}

function read(token, source, last) {
  const character = source[token.start], next = source[token.start + 1];
  if (character === "/" && next === "/") {
    return take(token, "comment", at(/[^\n\r\u2028\u2029]*/y, source, token.start));
  }
  if (character === "/" && next === "*") {
    const end = source.indexOf("*/", token.start + 2);
    token.unclosed = end < 0;
    return take(token, "comment", source.slice(token.start, end < 0 ? source.length : end + 2));
  }
  if (character === "`") return readTemplate(token, source);
  if (character === '"' || character === "'") {
    const text = at(STRING, source, token.start);
    token.unclosed = text === "";
    return take(token, "string", text || at(/[^\n\r]*/y, source, token.start));
  }
  if (character === "/" && startsExpression(last, token.newline)) {
    const text = at(REGEXP, source, token.start);
    if (text) return take(token, "regexp", text);
  }
  const word = at(WORD, source, token.start);
  if (word) return take(token, "word", word);
  const number = /[\d.]/.test(character) ? at(NUMBER, source, token.start) : "";
  if (/\d/.test(number)) return take(token, "number", number);
  return take(token, "sign", at(SIGN, source, token.start));
}

function take(token, kind, text) {
  token.kind = kind;
  token.text = text;
}

/** Returns whether an expression may begin behind a token, so that a slash opens a regexp. */
function startsExpression(last, newline) {
  if (last === undefined) return true;
  if (last.kind === "word") return BEFORE_EXPRESSION.has(last.text);
  if (last.kind !== "sign") return false;
  return last.text === "}" ? newline : !")]".includes(last.text) && !["++", "--"].includes(last.text);
}

function readTemplate(token, source) {
  let position = token.start + 1;
  while (position < source.length) {
    const character = source[position];
    if (character === "\\") position += 2;
    else if (character === "`") return take(token, "template", source.slice(token.start, position + 1));
    else if (character === "$" && source[position + 1] === "{") {
      position = endOfSubstitution(source, position + 2);
      if (position < 0) break;
    } else position += 1;
  }
  token.unclosed = true;
  return take(token, "template", source.slice(token.start));
}

/** Returns the position behind the brace that ends a template's substitution; -1 if none does. */
function endOfSubstitution(source, start) {
  let position = start, depth = 0, last;
  while (position < source.length) {
    if (/\s/.test(source[position])) {
      position += 1;
      continue;
    }
    const token = { start: position, kind: "sign", text: "" };
    read(token, source, last);
    if (token.unclosed) return -1;
    position += token.text.length;
    if (token.kind === "sign" && token.text === "{") depth += 1;
    else if (token.kind === "sign" && token.text === "}" && depth-- === 0) return position;
    if (token.kind !== "comment") last = token;
  }
  return -1;
}

const significant = (tokens) => tokens.filter((token) => token.kind !== "comment");

/** Returns whether a statement may begin with a token. */
function beginsStatement(token, before) {
  if (before === undefined) return true;
  if (before.kind === "sign" && (before.text === ";" || before.text === "}")) return true;
  if (["export", "default", "abstract", "declare"].includes(before.text)) return true;
  if (!token.newline) return false;
  if (before.kind === "sign") return before.text === ")" || before.text === "]";
  return before.kind !== "word" || !BEFORE_EXPRESSION.has(before.text);
}

class Edits {
  constructor(source) {
    this.source = source;
    this.parts = [];
  }

  /** Replaces a piece of the text, with as many lines. */
  replace(start, end, text) {
    const lines = this.source.slice(start, end).split("\n").length - text.split("\n").length;
    this.parts.push([start, end, text + "\n".repeat(Math.max(0, lines))]);
  }

  done() {
    let result = "", last = 0;
    for (const [start, end, text] of this.parts.sort((one, other) => one[0] - other[0])) {
      if (start < last) continue;
      result += this.source.slice(last, start) + text;
      last = end;
    }
    return result + this.source.slice(last);
  }
}

const end = (token) => token.start + token.text.length;

/** Returns a text whose `import` and `export` declarations are those of a script. */
export function withoutModuleSyntax(source) {
  if (!/\b(?:import|export)\b/.test(source)) return source; // finding tokens takes time
  const tokens = significant(tokensOf(source));
  const edits = new Edits(source);
  for (let index = 0; index < tokens.length; index += 1) {
    const token = tokens[index];
    if (token.depth > 0 || token.kind !== "word" || !beginsStatement(token, tokens[index - 1])) continue;
    if (token.text === "import") index = importAt(tokens, index, edits);
    else if (token.text === "export") index = exportAt(tokens, index, edits);
  }
  return edits.done();
}

function importAt(tokens, index, edits) {
  const first = tokens[index + 1];
  if (first === undefined || first.text === "(" || first.text === ".") return index;
  let last = index + 1;
  while (last < tokens.length && tokens[last].kind !== "string") last += 1;
  if (last >= tokens.length || (last > index + 1 && tokens[last - 1].text !== "from")) return index;
  const clause = tokens.slice(index + 1, last - 1);
  const name = tokens[last].text;
  if (tokens[last + 1]?.text === "with" && tokens[last + 2]?.text === "{") {
    while (tokens[last].text !== "}") last += 1;
  }
  if (tokens[last + 1]?.text === ";") last += 1;
  const isType = first.text === "type" && clause.length > 1 && clause[1].text !== "from";
  const text = isType ? ";" : declarationOf(first.kind === "string" ? [] : clause, `await import(${name})`);
  edits.replace(tokens[index].start, end(tokens[last]), text);
  return last;
}

/** Returns the declaration of the names that an import clause binds to a module. */
function declarationOf(clause, module) {
  const names = [];
  let space = "";
  for (let index = 0; index < clause.length; index += 1) {
    const token = clause[index];
    if (token.text === "*") {
      space = clause[index + 2]?.text ?? "";
      index += 2;
    } else if (token.depth === 0 && token.kind === "word") names.push(`default: ${token.text}`);
    else if (token.depth === 1 && token.kind !== "sign") {
      if (token.text === "type" && clause[index + 1]?.kind === "word" && clause[index + 1].text !== "as") {
        index += clause[index + 2]?.text === "as" ? 3 : 1;
      } else if (clause[index + 1]?.text === "as") {
        names.push(`${token.text}: ${clause[index + 2]?.text}`);
        index += 2;
      } else names.push(token.text);
    }
  }
  if (space === "" && clause.length === 0) return `${module};`;
  const all = `{ ${names.join(", ")} }`;
  if (space === "") return `var ${all} = ${module};`;
  return `var ${space} = ${module}${names.length > 0 ? `, ${all} = ${space}` : ""};`;
}

function exportAt(tokens, index, edits) {
  const token = tokens[index], next = tokens[index + 1];
  if (next === undefined) return index;
  if (next.text === "default") {
    edits.replace(token.start, end(next), "");
    return index;
  }
  if (next.text !== "{" && next.text !== "*") {
    edits.replace(token.start, end(token), "");
    return index;
  }
  let last = index + 1;
  if (next.text === "{") while (last < tokens.length && tokens[last].text !== "}") last += 1;
  if (tokens[last + 1]?.text === "from") last += 2;
  else if (next.text === "*") while (last < tokens.length && tokens[last].kind !== "string") last += 1;
  if (tokens[last + 1]?.text === ";") last += 1;
  if (last >= tokens.length) return index;
  edits.replace(token.start, end(tokens[last]), ";");
  return last;
}

/** Returns a text whose declarations at top level may be repeated in another cell. */
export function withGlobalDeclarations(source) {
  if (!/\b(?:const|let|class)\b/.test(source)) return source;
  const tokens = significant(tokensOf(source));
  const edits = new Edits(source);
  for (let index = 0; index < tokens.length; index += 1) {
    const token = tokens[index], before = tokens[index - 1], next = tokens[index + 1];
    if (token.depth > 0 || token.kind !== "word" || next === undefined) continue;
    if (!beginsStatement(token, before)) continue;
    if (token.text === "const" && next.text !== "enum") edits.replace(token.start, end(token), "var  ");
    else if (token.text === "let" && (next.kind === "word" || "[{".includes(next.text))) {
      edits.replace(token.start, end(token), "var");
      clearNames(tokens, index + 1, edits);
    } else if (token.text === "class" && next.kind === "word") classAt(tokens, index, edits);
  }
  return edits.done();
}

/** Lets names of `let` without a value begin as undefined, also if the cell runs again. */
function clearNames(tokens, start, edits) {
  for (let index = start; tokens[index]?.kind === "word"; index += 2) {
    const name = tokens[index], next = tokens[index + 1];
    const ends = next === undefined || next.text === ";" || next.text === ",";
    if (!ends && !(next.newline && next.kind === "word" && !["in", "of", "instanceof"].includes(next.text))) return;
    edits.replace(end(name), end(name), " = void 0");
    if (next?.text !== ",") return;
  }
}

function classAt(tokens, index, edits) {
  const token = tokens[index], name = tokens[index + 1].text;
  if (name === "extends") return;
  let last = index + 1;
  while (last < tokens.length && !(tokens[last].text === "{" && tokens[last].depth === 0)) last += 1;
  while (last < tokens.length && !(tokens[last].text === "}" && tokens[last].depth === 0)) last += 1;
  if (last >= tokens.length) return;
  edits.replace(token.start, token.start, `var ${name} = `);
  edits.replace(end(tokens[last]), end(tokens[last]), ";");
}

/**
 * Returns whether a text contains a call with types, `f<T>(x)`, which only TypeScript knows: JavaScript
 * would read comparisons, and not complain.
 */
export function hasTypeArguments(source) {
  if (!/[\w$)]\s*<[^<=]/.test(source) || !/>\s*[(`]/.test(source)) return false;
  const tokens = significant(tokensOf(source));
  for (let index = 1; index < tokens.length; index += 1) {
    if (tokens[index].text === "<" && tokens[index - 1].kind === "word" && closes(tokens, index)) return true;
  }
  return false;
}

function closes(tokens, start) {
  let depth = 0;
  for (let index = start; index < Math.min(tokens.length, start + 200); index += 1) {
    const { text, kind } = tokens[index];
    if (text === "<") depth += 1;
    else if (/^>+$/.test(text)) depth -= text.length;
    else if (kind === "regexp" || (kind === "sign" && !"()[]{},.:;|&?=>".includes(text))) return false;
    if (depth <= 0) {
      const next = tokens[index + 1];
      return depth === 0 && next !== undefined && (next.text === "(" || next.kind === "template");
    }
  }
  return false;
}

/** Returns a text with its line number in front of each line, as a comment. */
export function withLineMarks(source) {
  const edits = new Edits(source);
  let line = 1, position = 0, marked = 0;
  for (const token of tokensOf(source)) {
    for (; position < token.start; position += 1) if (source[position] === "\n") line += 1;
    if (line > marked) {
      edits.parts.push([token.start, token.start, `/*@${line}*/`]);
      marked = line;
    }
  }
  return edits.done();
}

/** Returns a text with such marks, laid out so that each piece is on its own line again. */
export function atMarkedLines(source) {
  let result = "", line = 1, behind;
  for (const token of tokensOf(source)) {
    if (token.kind === "comment") {
      const mark = /^\/\*@(\d+)\*\/$/.exec(token.text);
      while (mark !== null && line < Number(mark[1])) {
        result += "\n";
        line += 1;
      }
      continue;
    }
    if (behind !== undefined && token.start > behind) result += " ";
    result += token.text;
    line += token.text.split("\n").length - 1;
    behind = end(token);
  }
  return result.replace(/\s*export \{\s*\};?\s*$/, "");
}

const wrongOnes = (tokens) => tokens.filter((token) => token.kind !== "comment" || token.unclosed);

/** Returns the positions at which the tokens of a text end, as JSON. */
export const tokenEnds = (source) => `[${wrongOnes(tokensOf(source)).map(end).join()}]`;

/**
 * Returns the mistake in a text and its place: { text, line, column }, counted from 1.
 *
 * `count` tokens are right, and `problem` is the parser's message. Without a line the place is not known: the
 * text is too long to search (-1), or the parser complains of its meaning, such as a `return` outside of functions.
 */
export function placeOf(source, count, problem) {
  if (count < 0) return { text: problem };
  const tokens = wrongOnes(tokensOf(source));
  const token = problem.includes("`EOF`") ? undefined : tokens[count];
  const isUnexpected = problem === "Unexpected token";
  let text = problem.replace("`EOF`", "the end of the text");
  if (!/^(?:Unexpected|Expected|Unterminated|Invalid|Identifier expected)/.test(text)) return { text };
  if (isUnexpected) text = token === undefined ? "Unexpected end of the text" : `${text} '${token.text.slice(0, 40)}'`;
  const position = token?.start ?? (tokens.length > 0 ? end(tokens.at(-1)) : 0);
  const before = source.slice(0, position).split("\n");
  return { text, line: before.length, column: before.at(-1).length + 1 };
}

const GOES_ON = new Set(
  "= + - * / % ** && || ?? ? : , . => += -= *= /= == === != !== < > <= >= & | ^ << >> >>> ! ~ ( [ { ?."
    .split(" "),
);

/** Returns `complete`, `incomplete` or `invalid`, and the indentation of the next line. */
export function completeness(source) {
  const tokens = tokensOf(source);
  if (tokens.some((token) => token.mismatched)) return ["invalid", ""];
  const last = significant(tokens).at(-1);
  const cut = tokens.some((token) => token.unclosed && token.kind !== "string");
  if (tokens.some((token) => token.unclosed && token.kind === "string")) return ["invalid", ""];
  const goesOn = last?.kind === "sign" && GOES_ON.has(last.text);
  if (cut || tokens.open > 0 || goesOn) return ["incomplete", cut ? "" : "  ".repeat(tokens.open)];
  return ["complete", ""];
}
