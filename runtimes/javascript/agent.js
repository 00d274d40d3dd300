// The agent: one turn after another, each a request from the host and a reply to it.
//
// The host calls `step`, does what it returns, then calls it again with the result. Within these calls no code
// of a cell runs unless it must, such as a timer's callback. `step` returns one of these:
// "" the turn is over; "e" and a name of 11 characters and a script: evaluate it; "t" and a text: take
// the types out of it; "p" and a text: find the token that is wrong in TypeScript; "j": run the reactions of promises; "w" and a number: wait this many milliseconds.

import { AbortController, AbortSignal } from "wasm-kernel:abort";
import "wasm-kernel:builtins";
import { console } from "wasm-kernel:console";
import { bundleOf, display } from "wasm-kernel:display";
import { fetch, Headers, Request, Response } from "wasm-kernel:fetch";
import { forgetCalls, hasCalls, Interrupted, offerFunctions, waitForCalls } from "wasm-kernel:functions";
import { enter, evaluateGlobally, moduleProblem, now, parse, print, rejections, send, settled, slice, startsWith, then } from "wasm-kernel:host";
import { errorMessage, errorName, errorText, inspect, isError } from "wasm-kernel:inspect";
import { answerQuery, remember } from "wasm-kernel:queries";
import { currentFolder, lend, process } from "wasm-kernel:process";
import { require } from "wasm-kernel:require";
import { atMarkedLines, hasTypeArguments, placeOf, tokenEnds, withGlobalDeclarations, withLineMarks, withoutModuleSyntax } from "wasm-kernel:source";
import { clearAll, hasTimeouts, nextDue, takeDue, timers } from "wasm-kernel:timers";
import { URL, URLSearchParams } from "wasm-kernel:url";
import { noteGlobals } from "wasm-kernel:variables";
import * as web from "wasm-kernel:web";

const NAME_LENGTH = 11; // characters of a script's name in stacks
const COMMAND = /^%(\w+)(?:[ \t]+(\S.*))?$/;
const MISPLACED = /^\s*%%?\w/m;
const SHELL = /^\s*!\w+(?:[ \t]+[\w-]|[ \t]*$)/m;
const NO_SHELL = ". There is no shell here, and no ! commands: files are read with require(\"fs\"), packages come with %npm install NAME.";
const INSTEAD = {
  __proto__: null,
  pip: "brings packages of Python, for cells in Python. %npm install NAME brings packages of JavaScript.",
  conda: "brings packages of Python, for cells in Python. %npm install NAME brings packages of JavaScript.",
  yarn: "is not needed: %npm install NAME brings packages.",
  who: "lists the variables of Python. Here, Object.keys(globalThis) does.",
  whos: "lists the variables of Python. Here, Object.keys(globalThis) does.",
  time: "measures Python. Here, console.time(NAME) and console.timeEnd(NAME) do.",
  timeit: "measures Python. Here, console.time(NAME) and console.timeEnd(NAME) do.",
  ls: "lists files for cells in Python. Here, require(\"fs\").readdirSync(\".\") does.",
  cat: "shows a file to cells in Python. Here, require(\"fs\").readFileSync(NAME, \"utf8\") does.",
  cd: "is Python's. Here, process.chdir(FOLDER) does it.",
  pwd: "is Python's. Here, process.cwd() says it.",
  env: "is Python's. Here, process.env has the variables.",
  run: "runs files of Python. Here, await import(\"./FILE.js\") does.",
};
const HINT = ". Commands such as %undo stand at the top of a cell, each on a line of its own; there are no %% ones.";
const INTERRUPTED = "KeyboardInterrupt";
const MOST_ROUNDS = 1; // rounds of 100,000 reactions, after the cell has its value
const MOST_TOLD = 10; // rejected promises that are reported
const WAITS = "The cell awaits a promise that nothing is left to settle: no timer and no call is pending. A call of the host ends with its cell.";

let cell; // the running cell

class UsageError extends Error {}

function step(event, value) {
  if (event === "mark") return withLineMarks(value); // the host asks for these while a cell imports TypeScript
  if (event === "lay") return atMarkedLines(value);
  if (event === "tokens") return tokenEnds(value);
  if (event === "place") return placeIn(value);
  try {
    switch (event) {
      case "begin": return begin();
      case "promise": return started(value);
      case "uncompiled": return uncompiled(value);
      case "stripped": return evaluation(withGlobalDeclarations(atMarkedLines(value)));
      case "unstripped": return misread(value);
      case "placed": return failed(syntaxError(value));
      case "jobs": return afterJobs(value);
      case "waited": return runTimer();
      default: return interrupted();
    }
  } catch (problem) {
    return event === "interrupted" ? "" : failed(problem);
  }
}

function begin() {
  cell = undefined;
  const request = send({ op: "next" });
  enter(currentFolder());
  if (request.op === "execute") return execute(request);
  cell = { __proto__: null, request: undefined };
  return done(request.op === "start" ? begun(request) : answerQuery(request));
}

function begun(request) {
  process.begin(request.env, request.folder, request.fresh);
  offerFunctions(request.functions ?? []);
  return { status: "ok" };
}

function done(reply) {
  cell = undefined;
  send({ op: "done", reply });
  return "";
}

// -- a cell

function execute(request) {
  cell = {
    __proto__: null, request, count: request.execution_count, source: "", value: undefined, problem: undefined,
    place: undefined, settled: false, failed: false, stripped: false, finishing: false, shown: false, rounds: 0,
  };
  forgetCalls();
  lend(request.env);
  if (request.store_history) {
    for (let index = 0; index < request.alone.length; index += 1) remember(request.alone[index][0], request.alone[index][1]);
    remember(cell.count, request.code);
  }
  cell.code = withoutCommands(request.code);
  if (cell.code.trim() === "") return finish();
  cell.source = withoutModuleSyntax(cell.code);
  if (hasTypeArguments(cell.source)) return stripping();
  return evaluation(withGlobalDeclarations(cell.source));
}

/** Runs the commands at the top of a cell; returns the rest, with as many lines. */
function withoutCommands(code) {
  const lines = code.split("\n");
  for (let index = 0; index < lines.length; index += 1) {
    const line = lines[index].trim();
    if (line === "" || startsWith(line, "//")) continue;
    const found = COMMAND.exec(line);
    if (found === null) break;
    runCommand(found[1], found[2] ?? "");
    lines[index] = "";
  }
  return lines.join("\n");
}

function runCommand(name, line) {
  if (INSTEAD[name] !== undefined) throw new UsageError(`%${name} ${INSTEAD[name]}`);
  const answer = send({ op: "command", name, line });
  if (answer.interrupted) throw new Interrupted();
  if (answer.refused !== undefined) throw new UsageError(answer.refused);
  const { value } = answer;
  if (value === null || value === undefined) return;
  if (value.said !== undefined) print(1, value.said.endsWith("\n") ? value.said : `${value.said}\n`);
  if (value.shown !== undefined) send({ op: "display", data: value.shown });
  if (value.said === undefined && value.shown === undefined) print(1, `${inspect(value)}\n`);
}

const stripping = () => {
  cell.stripped = true;
  return `t${withLineMarks(cell.source)}`;
};

const evaluation = (script) => `e${`In[${cell.count}]`.padEnd(NAME_LENGTH)}${script}`;

function uncompiled(problem) {
  if (cell.stripped) return failed(problem);
  cell.problem = problem;
  return stripping();
}

/** Asks for the mistake in a text that is neither JavaScript nor TypeScript. */
function misread(problem) {
  cell.problem = problem;
  return `p${cell.code}`;
}

/** Returns the error of such a text, from the number of tokens that are right. */
function syntaxError(count) {
  try {
    const { text, line, column } = placeOf(cell.code, Number(count), cell.problem);
    if (line !== undefined) cell.place = `In[${cell.count}]:${line}:${column}`;
    return new SyntaxError(text);
  } catch {
    return new SyntaxError(cell.problem); // a cell has broken something that this needs
  }
}

/** Returns the mistake in a module's text, and its place. */
function placeIn(told) {
  const { text, line, column } = placeOf(...parse(told));
  return line === undefined ? text : `${text}, at ${line}:${column}`;
}

function started(promise) {
  const running = cell;
  then(
    promise,
    ({ value }) => settle(running, value),
    (problem) => {
      running.failed = true;
      running.problem = problem;
      running.settled = true;
    },
  );
  return "j";
}

function settle(running, value) {
  running.value = value;
  running.settled = true;
}

function afterJobs(count) {
  // endless reactions, maybe of an earlier cell, must not keep this cell from its end
  if (!(cell.settled || cell.shown)) cell.rounds = 0;
  const isBusy = count !== "0";
  if (isBusy && nextDue() === 0) return runTimer();
  if (isBusy && (cell.rounds += 1) <= MOST_ROUNDS) return "j";
  if (cell.finishing) return cell.shown ? finished() : failed(cell.problem ?? new Error(WAITS));
  if (cell.failed) return failed(cell.problem);
  const due = nextDue();
  if (cell.settled && !hasTimeouts() && !hasCalls()) return finish();
  if (due !== 0 && hasCalls()) {
    waitForCalls(due ?? Infinity);
    return "j";
  }
  if (due === undefined) return failed(new Error(WAITS));
  return due > 0 ? `w${due}` : runTimer();
}

function runTimer() {
  const timer = takeDue();
  if (timer === undefined) return "j";
  try {
    timer.callback(...timer.values);
  } catch (problem) {
    cell.failed = true;
    cell.problem = problem;
  }
  return "j";
}

/** Shows the value, which may take promises of its own, and ends the cell. */
function finish() {
  const { request, value } = cell;
  cell.finishing = true;
  cell.shown = true;
  if (request.silent || value === undefined) return finished();
  cell.shown = false;
  const running = cell;
  then(
    Promise.resolve(bundleOf(value)),
    (data) => {
      const answer = send({ op: "result", execution_count: running.count, data, metadata: {} });
      if (answer.refused !== undefined) running.problem = new Error(`The value was not shown: ${answer.refused}`);
      else running.shown = true;
    },
    (problem) => {
      running.problem = problem;
    },
  );
  return "j";
}

function finished() {
  const { request, count } = cell;
  tellRejections();
  const expressions = {}, names = Object.keys(request.user_expressions);
  for (let index = 0; index < names.length; index += 1) {
    expressions[names[index]] = expressionValue(request.user_expressions[names[index]]);
  }
  return done({ status: "ok", execution_count: count, user_expressions: expressions, payload: [] });
}

function expressionValue(source) {
  try {
    const value = evaluateGlobally(source);
    return { status: "ok", data: { "text/plain": inspect(value) }, metadata: {} };
  } catch (problem) {
    return { status: "error", ename: nameOfThrown(problem), evalue: textOfThrown(problem), traceback: [] };
  }
}

// -- errors

function nameOfThrown(problem) {
  if (problem instanceof Interrupted) return INTERRUPTED;
  return isError(problem) ? errorName(problem) : "Uncaught";
}

/** Prints the reasons of rejected promises without a handler, unless the cell shows the promise itself. */
function tellRejections() {
  try {
    const found = rejections();
    for (let index = 0; index < found.length; index += 1) {
      if (found[index] === cell.value) continue;
      if (index === MOST_TOLD) return print(2, `... ${found.length - index} or more further promises are rejected.\n`);
      const reason = settled(found[index])[1];
      print(2, `Uncaught (in promise) ${isError(reason) ? errorText(reason) : inspect(reason)}\n`);
    }
  } catch {
    // a cell has broken something that this needs
  }
}

function textOfThrown(problem) {
  if (!isError(problem)) return inspect(problem);
  return errorMessage(problem);
}

function failed(problem) {
  if (cell === undefined || cell.request === undefined) {
    return done({ status: "error", ename: "Error", evalue: "", traceback: [] });
  }
  let ename = "Error", evalue = "", traceback = [];
  try {
    ename = nameOfThrown(problem);
    evalue = textOfThrown(problem);
    if (/^Error (?:resolving|loading) module/.test(evalue)) evalue = moduleProblem() || evalue;
    if (ename === "SyntaxError" && evalue === "unexpected token in expression: ''") evalue = "Unexpected end of the text";
    if (/^(?:Syntax|Reference)Error$/.test(ename) && MISPLACED.test(cell.code)) evalue += HINT;
    if (/^(?:Syntax|Reference)Error$/.test(ename) && SHELL.test(cell.code)) evalue += NO_SHELL;
    traceback = tracebackOf(problem, ename, evalue);
  } catch {
    traceback = [ename + ": " + evalue]; // not a template, which would call `concat`
  }
  clearAll();
  tellRejections();
  const memory = ename === "InternalError" && evalue === "out of memory";
  if (!cell.request.silent) send({ op: "error", ename, evalue, traceback, memory });
  return done({
    status: "error", execution_count: cell.count, ename, evalue, traceback, user_expressions: {}, payload: [],
  });
}

function tracebackOf(problem, ename, evalue) {
  const title = `\u001b[0;31m${ename}\u001b[0m${evalue ? `: ${evalue}` : ""}`;
  if (!isError(problem) || problem instanceof UsageError || problem instanceof Interrupted) return [title];
  const lines = cell.place !== undefined
    ? [`    at ${cell.place}`]
    : errorText(problem).split("\n").slice(errorMessage(problem).split("\n").length);
  // the interpreter knows the line of an error in compiling, but gives another token's column
  if (ename === "SyntaxError" && cell.place === undefined) lines[0] = lines[0]?.replace(/^( +at [^ ]+:\d+):\d+$/, "$1") ?? "";
  return [title, ...excerpt(lines), ...lines];
}

/** Returns the line of this cell in the innermost frame. */
function excerpt(lines) {
  const place = /In\[(\d+)\]:(\d+):(\d+)/.exec(lines[0] ?? "");
  if (place === null || Number(place[1]) !== cell.count) return [];
  const text = cell.request.code.split("\n")[Number(place[2]) - 1];
  return text === undefined || text.trim() === "" ? [] : [`\u001b[0;32m${place[2]} |\u001b[0m ${slice(text, 0, 200)}`];
}

function interrupted() {
  return failed(new Interrupted());
}

// -- the globals of cells

function prompt(question = "", { password = false } = {}) {
  const answer = send({ op: "input", prompt: String(question), password });
  if (answer.interrupted) throw new Interrupted("interrupted");
  if (answer.refused !== undefined) throw new Error(answer.refused);
  return answer.value;
}

const performance = { now, timeOrigin: 0, toJSON: () => ({ timeOrigin: 0 }) };
const found = {
  ...timers, performance, ...web, AbortController, AbortSignal, console, display, fetch, Headers, prompt, process, Request, require, Response,
  URL, URLSearchParams,
};
delete found.bytesOf;
delete found.textOf;
for (const name of Object.keys(found)) {
  Object.defineProperty(globalThis, name, { value: found[name], writable: true, configurable: true, enumerable: false });
}
Object.defineProperty(globalThis, Symbol.for("wasm-kernel"), { value: { require } });
globalThis.wasmKernel_step = step; // the host finds it there
noteGlobals();
