// The shell: just-bash over the session's files, for one script at a time.
//
// The host calls `step` as it calls that of the JavaScript agent. A turn ends when the script ends, or when it needs
// Python: the next turn brings the program's result. Each shell is a guest of its own, and forgets everything
// at the end of its script.

import "wasm-kernel:environment";
import { Bash, InMemoryFs, MountableFs, defineCommand } from "just-bash";
import { latin1, send } from "wasm-kernel:host";
import { bytesOfText, textOfBytes, textOfLatin1, withBytes } from "wasm-kernel:bytes";
import { SessionFolder } from "wasm-kernel:folders";
import { ENDS, READER } from "wasm-kernel:ends";
import { LINES } from "wasm-kernel:lines";
import { ID, MACHINE, SYSTEM_VARIABLES, memory } from "wasm-kernel:machine";
import { command, contentOf, optionsOf, refused } from "wasm-kernel:options";
import { TRAP } from "wasm-kernel:pieces";
import { SEARCH } from "wasm-kernel:search";
import { nextDue, takeDue } from "wasm-kernel:timers";

const UNLIMITED = [
  "CommandCount", "LoopIterations", "AwkIterations", "SedIterations", "JqIterations", "WorkUnits", "TraversalWork",
  "TraversalEntries", "GlobOperations", "ExecutionTimeMs", "InputBytes", "LiveBytes", "StringLength", "ArrayElements",
  "OutputSize", "BraceExpansionResults", "CsvRows", "CsvCells", "HeredocSize", "SourceBytes",
]; // the cell's own limits hold instead
const BY_PYTHON = [
  "python", "python3", "pip", "pip3", "gzip", "gunzip", "zcat", "bzip2", "bunzip2", "bzcat", "xz", "unxz", "xzcat", "tar", "zip", "unzip",
  "md5sum", "sha1sum", "sha256sum", "sha512sum", "sort", "tr", "cut", "diff", "uniq", "join", "du", "ls", "stat", "awk", "gawk", "mawk", "date", "od", "shuf", "bc", "realpath", "mktemp", "install",
];
const isOfSession = (args, { cwd, fs }) =>
  [cwd, ...args.filter((word) => !word.startsWith("-"))].every((word) => {
    const path = fs.resolvePath(cwd, word);
    return script.folders.some((folder) => path === folder || path.startsWith(`${folder}/`));
  });
const PARTLY_BY_PYTHON = {
  touch: (args) => args.some((word) => /^-./.test(word)),
  ls: isOfSession, // Python has no /bin
  stat: isOfSession,
};
const LEFT_OUT = ["html-to-markdown"]; // it needs a module that is not in this build
const MOST = 2 ** 31 - 2; // a larger number would be none for `split` of texts
const READ_ONLY = ["writeFile", "appendFile", "mkdir", "rm", "cp", "mv", "chmod", "symlink", "link", "utimes"];

const PATH = "/usr/bin:/bin", IFS = " \t\n";

let script; // the running script
const waiting = []; // the programs that the script waits for; the first one runs

/** Runs a program in the session's Python, for which the output of `<(...)` is a file. */
const byPython = (name) =>
  defineCommand(name, async (args, context) => {
    if (PARTLY_BY_PYTHON[name]?.(args, context) === false) return context.origCommand(args);
    const { cwd, stdin, exportedEnv, fs } = context, made = [];
    const words = args.map((word) => (word === "/dev/stdin" ? "-" : word));
    for (const [at, word] of words.entries()) {
      if (!/^\/dev\/fd\/\d+$/.test(word)) continue;
      words[at] = `/tmp/.${word.slice(5).replace("/", "-")}-${waiting.length}`;
      made.push(words[at]);
      await fs.writeFile(words[at], await fs.readFile(word, "binary"), "binary");
    }
    const found = await new Promise((resolve) => {
      waiting.push({ resolve, frame: { op: "program", argv: [name, ...words], cwd, stdin, env: exportedEnv ?? {} } });
    });
    for (const path of made) await fs.rm(path);
    return found;
  });

/** Says whether scripts can be read: `bash -n`. */
async function checked(context, names, isText) {
  try {
    bash.transform(isText ? names[0] : textOfLatin1(await contentOf(context, names[0] ?? "-")));
    return { stdout: "", stderr: "", exitCode: 0 };
  } catch ({ message }) {
    return refused("bash", /^E[A-Z]+:/.test(message) ? `${names[0]}: No such file or directory` : `syntax error: ${message}`, 2);
  }
}

/** Takes options of `bash` and `sh`: those of `set`, and those about startup files, of which there are none. */
const shell = (name) =>
  defineCommand(name, async (args, context) => {
    const words = [...args], settings = [];
    let hasText = false, isChecked = false;
    while (!hasText && /^(-[celnsux]*o?|--(login|noprofile|norc))$/.test(words[0])) {
      const flags = words.shift();
      if (flags.startsWith("--")) continue;
      hasText = /[cs]/.test(flags);
      isChecked ||= flags.includes("n");
      if (flags.includes("s")) words.splice(0, Number(words[0] === "--"), textOfLatin1(context.stdin), name);
      const kept = flags.replace(/[clns]/g, "");
      if (kept !== "-") settings.push(kept, ...(kept.endsWith("o") ? [words.shift()] : []));
    }
    if (isChecked) return checked(context, words, hasText);
    if (settings.length > 0 && words.length > 0) {
      words.unshift(`set ${settings.join(" ")}\n${hasText ? words.shift() : '. "$0" "$@"'}`);
      hasText = true;
    }
    const { stdout, stderr, exitCode } = await context.origCommand(hasText ? ["-c", ...words] : words);
    return { stdout, stderr, exitCode }; // without just-bash's counts, which are wrong for output that is not ASCII
  });

/** Gives `printf` and `echo -e` the bytes that escapes name. */
const print = (name) =>
  defineCommand(name, async (args, context) => {
    const at = name === "printf" ? args.findIndex((word) => !/^--?v?$/.test(word)) : args.length;
    const isTold = name === "printf" || args.some((word) => /^-[neE]*e[neE]*$/.test(word));
    const isAll = name === "echo" || /^(%b|%%|[^%])*$/.test(args[at] ?? "");
    const words = isTold ? args.map((word, index) => (index === at || isAll ? withBytes(word, isAll && index !== at) : word)) : args;
    const found = await context.origCommand(words);
    return found.stdout.isWellFormed() ? found : { ...found, stdout: textOfBytes(bytesOfText(found.stdout)) };
  });

const COPY = { recursive: "r", archive: "a", force: "f", "no-clobber": "n", preserve: "p", verbose: "v", "target-directory": "t" };
const COPIED = { a: "-rp", r: "-r", R: "-r", n: "-n", p: "-p", v: "-v" };

/** Takes options of `cp` and `mv` that just-bash does not know, and names the place that is not there. */
const placed = (name, letters, wrong) =>
  command(name, async (args, context) => {
    const { options, names } = optionsOf(args, letters, COPY), [, folder] = options.findLast(([letter]) => letter === "t") ?? [], { cwd, fs } = context;
    if (folder !== undefined) names.push(folder);
    const flags = options.map(([letter]) => COPIED[letter]).filter(Boolean), [source, target] = names;
    const at = (path) => fs.resolvePath(cwd, path), isKnown = names.length === 2 && (await fs.exists(at(source)));
    const isOfFile = isKnown && target.endsWith("/") && !(await fs.stat(at(source))).isDirectory;
    return !isKnown || (await fs.exists(at(isOfFile ? target : `${target}/..`))) ? context.origCommand([...flags, "--", ...names]) : refused(name, `${wrong(source, target)}: No such file or directory`);
  });
const copy = placed("cp", "rRafnpvdTt:", (_, target) => `cannot create regular file '${target}'`);
const move = placed("mv", "fnvTt:", (source, target) => `cannot move '${source}' to '${target}'`);

/** Escapes what is not ASCII for `jq -a`. */
const query = defineCommand("jq", async (args, context) => {
  const words = args.map((word) => (word === "--ascii-output" ? "-a" : word)), found = await context.origCommand(words);
  const escaped = (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return words.some((word) => /^-\w*a\w*$/.test(word)) ? { ...found, stdout: found.stdout.replace(/[^\0-\x7f]/g, escaped) } : found;
});

const compare = defineCommand("cmp", async (args, context) => {
  const isQuiet = args.some((word) => /^-s$|^--(silent|quiet)$/.test(word)), wrong = args.find((word) => /^-./.test(word));
  if (wrong && !isQuiet) return refused("cmp", `the option ${wrong} is not known here`, 2);
  const [first, second = "-"] = args.filter((word) => !/^-./.test(word)), contents = [];
  for (const name of [first, second]) {
    try {
      contents.push(await contentOf(context, name));
    } catch {
      return refused("cmp", `${name}: No such file or directory`, 2);
    }
  }
  const [one, other] = contents, length = Math.min(one.length, other.length);
  if (one === other || isQuiet) return { exitCode: Number(one !== other), stdout: "", stderr: "" };
  let at = 0;
  while (at < length && one[at] === other[at]) at += 1;
  const line = one.slice(0, at).split("\n").length;
  if (at < length) return { exitCode: 1, stdout: `${first} ${second} differ: byte ${at + 1}, line ${line}\n`, stderr: "" };
  return refused("cmp", `EOF on ${one.length === length ? first : second} ${at === 0 ? "which is empty" : `after byte ${at}, line ${line}`}`);
});

const literal = (value) => ({ type: "Word", parts: [{ type: "Literal", value }] });
const nameOf = (node) => (node?.name?.parts?.length === 1 ? node.name.parts[0].value : undefined);

/** Tells `yes` how many lines the `head` behind it prints: commands of a pipe run one after another. */
function tellReader({ commands }) {
  for (const [at, command] of commands.entries()) {
    const reader = commands[at + 1];
    if (nameOf(command) === "yes" && nameOf(reader) === "head") command.args.push(literal(READER), ...reader.args);
  }
}

const RUNNERS = { py: "python3", sh: "bash" }; // the programs that run files, by the ends of the files' names
const GIVEN = { type: "Word", parts: [{ type: "DoubleQuoted", parts: [{ type: "ParameterExpansion", parameter: "@", operation: null }] }] };

/** Puts all behind `exec > >(...)` into a group with these redirections: a command gets its input when it is whole. */
function group(statements) {
  const at = statements.findIndex(({ pipelines: [{ commands: [command] }] }) =>
    nameOf(command) === "exec" && command.redirections.some(({ target }) => target.parts?.[0]?.type === "ProcessSubstitution"));
  if (at < 0 || at === statements.length - 1) return;
  const [{ commands }] = statements[at].pipelines, { redirections } = commands[0];
  commands[0] = { type: "Group", body: statements.splice(at + 1), redirections };
}

/** Writes parts of a script in a way in which just-bash does what bash does. */
function rewrite(node) {
  if (node === null || typeof node !== "object") return;
  const [part, ...rest] = node.type === "SimpleCommand" ? (node.name?.parts ?? []) : [];
  const runner = part?.type === "Literal" && rest.length === 0 ? RUNNERS[/\/.*\.(py|sh)$/.exec(part.value)?.[1]] : undefined;
  if (runner) {
    node.args.unshift(node.name);
    node.name = literal(runner);
  }
  if (node.type === "Script") group(node.statements);
  if (node.type === "Pipeline") tellReader(node);
  if (node.type === "For" && node.words === null) node.words = [GIVEN];
  if (nameOf(node) === "local" && node.args.some(({ parts: [option] }) => /^-[a-z]*[Ailu]/.test(option?.value))) node.name = literal("declare");
  Object.values(node).forEach(rewrite);
}

/** Takes parts of a second without a zero, such as `.3`. */
const rest = defineCommand("sleep", (args, context) => context.origCommand(args.map((word) => word.replace(/^\./, "0."))));

/** Runs a command as it is: there are no priorities, and no terminal that closes. */
const plain = (name) =>
  command(name, (args, { cwd, stdin, signal, exec }) => {
    const { names } = optionsOf(args, "n:i:o:e:", { adjustment: "n" }, { stops: true });
    return names.length === 0 ? refused(name, "missing operand", 125) : exec("command", { cwd, stdin, stdinKind: "bytes", signal, args: names });
  }, 125);

/** Runs a command with other variables, or prints them: those that are exported, where just-bash's own has all. */
const withVariables = defineCommand("env", async (args, context) => {
  const words = [...args], own = { ...context.exportedEnv }, { exportedVars } = bash.state, kept = [...exportedVars];
  for (; /^-|=/.test(words[0]); words.shift()) {
    const [, name, value] = /^([^-=][^=]*)=([^]*)$/.exec(words[0]) ?? [], [isUnset, unset] = /^(?:-u|--unset=)([^]*)$/.exec(words[0]) ?? [];
    if (name) own[name] = value;
    else if (/^(-|-i|--ignore-environment)$/.test(words[0])) Object.keys(own).forEach((each) => delete own[each]);
    else if (isUnset) delete own[unset || (words.shift(), words[0])];
    else if (words[0] === "--") {
      words.shift();
      break;
    } else return refused("env", `the option ${words[0]} is not known here`, 125);
  }
  if (words.length === 0) return listed(own, Object.keys(own));
  const { cwd, stdin, signal } = context, env = { PATH, IFS, OPTIND: "1", ...own };
  exportedVars.clear();
  Object.keys(own).forEach((name) => exportedVars.add(name));
  try {
    return await context.exec("command", { cwd, stdin, stdinKind: "bytes", signal, env, replaceEnv: true, args: words });
  } finally {
    exportedVars.clear();
    kept.forEach((name) => exportedVars.add(name));
  }
});

const listed = (env, names) => ({ stdout: names.map((name) => `${name}=${env[name]}\n`).join(""), stderr: "", exitCode: 0 });
const printVariables = defineCommand("printenv", async (names, { exportedEnv }) => {
  if (names.length === 0) return listed(exportedEnv, Object.keys(exportedEnv));
  const found = names.filter((name) => name in exportedEnv);
  return { stdout: found.map((name) => `${exportedEnv[name]}\n`).join(""), stderr: "", exitCode: Number(found.length < names.length) };
});

const SIGNALS = ["EXIT", ..."HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM".split(" "), "ERR"]; // by number
const nameOfSignal = (word) => SIGNALS.find((name, number) => [name, `SIG${name}`, String(number)].includes(word.toUpperCase()) && word !== "16");

/** Sets commands for the end of a script and for commands that fail, or lists them; signals do not come. `just_bash.py` asks for them by their names. */
const trap = defineCommand("trap", async (args, { env }) => {
  const words = args.filter((word) => word !== "--"), isList = words.length === 0 || words[0] === "-p";
  const named = words.slice(isList || words.length > 1 ? 1 : 0), result = { stdout: "", stderr: "", exitCode: 0 };
  for (const word of isList && named.length === 0 ? SIGNALS : named) {
    const name = nameOfSignal(word), key = `${TRAP}${name}`, title = /^E/.test(name) ? name : `SIG${name}`;
    if (name === undefined) Object.assign(result, { stderr: `${result.stderr}trap: ${word} is not known here\n`, exitCode: 1 });
    else if (isList && env.has(key)) result.stdout += `trap -- '${env.get(key).replaceAll("'", "'\\''")}' ${title}\n`;
    else if (!isList && (words.length === 1 || words[0] === "-")) env.delete(key);
    else if (!isList) env.set(key, words[0]);
  }
  return result;
});

const COUNTS = { l: (text) => text.split("\n").length - 1, w: (text) => text.match(/[^ \n\t\r\v\f]+/g)?.length ?? 0 };
COUNTS.m = (text) => textOfLatin1(text).replace(/[\u{10000}-\u{10ffff}]/gu, ".").length;
COUNTS.c = (text) => text.length;
COUNTS.L = (text) => Math.max(...textOfLatin1(text).split("\n").map((line) => line.length));
const LONG_COUNTS = { lines: "l", words: "w", chars: "m", bytes: "c", "max-line-length": "L" };

const measure = command("wc", async (args, context) => {
  const { options, names } = optionsOf(args, "lwmcL", LONG_COUNTS), wanted = options.length > 0 ? options.flat() : ["l", "w", "c"];
  const kinds = Object.keys(COUNTS).filter((kind) => wanted.includes(kind)), rows = [], result = { stdout: "", stderr: "", exitCode: 0 };
  let bytes = 0;
  for (const name of names.length > 0 ? names : ["-"]) {
    try {
      const text = await contentOf(context, name);
      rows.push([kinds.map((kind) => COUNTS[kind](text)), names.length > 0 ? ` ${name}` : ""]);
      bytes += text.length;
    } catch (problem) {
      const reason = problem.message.includes("EISDIR") ? "Is a directory" : "No such file or directory";
      Object.assign(result, { stderr: `${result.stderr}wc: ${name}: ${reason}\n`, exitCode: 1 });
    }
  }
  const sum = (kind, all) => (kind === "L" ? Math.max(...all) : all.reduce((one, other) => one + other));
  if (names.length > 1) rows.push([kinds.map((kind, at) => sum(kind, [0, ...rows.map(([counts]) => counts[at])])), " total"]);
  const isPlain = kinds.length === 1 && rows.length === 1;
  const width = isPlain ? 1 : names.length === 0 || names.includes("-") ? 7 : String(bytes).length;
  for (const [counts, title] of rows) result.stdout += `${counts.map((n) => String(n).padStart(width)).join(" ")}${title}\n`;
  return result;
});

const base = new InMemoryFs({ "/dev/null": new Uint8Array(0) });
const files = new MountableFs({ base });
const bash = new Bash({
  fs: files,
  cwd: "/",
  processInfo: { uid: ID, gid: ID },
  customCommands: [
    ...MACHINE, ...LINES, ...ENDS, copy, move, query, compare, rest, plain("nohup"), plain("nice"), plain("stdbuf"), trap, withVariables, printVariables, measure, ...SEARCH, print("printf"), print("echo"), shell("bash"), shell("sh"),
    ...[...BY_PYTHON, ...Object.keys(PARTLY_BY_PYTHON)].map(byPython),
  ],
  executionLimits: {
    ...Object.fromEntries(UNLIMITED.map((name) => [`max${name}`, MOST])),
    maxCallDepth: 1000, // deeper calls could use up the guest's stack
  },
  defenseInDepth: false, // the sandbox itself is the defence
});
bash.registerTransformPlugin({
  name: "rewrite",
  transform: ({ ast }) => {
    rewrite(ast);
    return { ast };
  },
});
await bash.exec("true");
bash.state.env.delete("HOME"); // a script has the HOME of its environment
for (const name of bash.commands.keys()) { // so that /bin/sh and /usr/bin/env are found by their paths
  if (LEFT_OUT.includes(name)) continue;
  for (const folder of ["/bin", "/usr/bin"]) base.writeFileSync(`${folder}/${name}`, new Uint8Array(0), undefined, { mode: 0o755 });
}
for (const name of READ_ONLY) {
  base[name] = async (path) => {
    if (path !== "/dev/null") throw new Error("Read-only file system");
  };
}

function step(event, value) {
  if (event === "interrupted") return done({ stdout: "", stderr: "", exitCode: 130 });
  if (event === "begin") begin(send({ op: "next" }));
  else if (event === "waited") runTimer();
  if (script.result !== undefined) return done(script.result);
  if (event !== "jobs" || value !== "0") return "j";
  if (waiting.length > 0) {
    send(waiting[0].frame);
    return "";
  }
  const due = nextDue();
  if (due === undefined) return done(broken("nothing is left to wait for"));
  if (due > 0) return `w${due}`;
  runTimer();
  return "j";
}

function begin(request) {
  if (request.script === undefined) {
    waiting.shift().resolve({ ...request, stdoutKind: "bytes" });
    return;
  }
  script = { result: undefined, folders: request.folders };
  for (const folder of request.folders) files.mount(folder, new SessionFolder(folder));
  const { cwd, env, stdin } = request;
  Object.assign(memory, request.memory);
  bash.state.startTime = Date.now(); // $SECONDS begins at 0
  const all = { PATH, ...env, PWD: cwd, OLDPWD: cwd, IFS, OPTIND: "1", ...SYSTEM_VARIABLES };
  for (const name of Object.keys(env)) {
    if (!name.includes("COLOR")) bash.state.exportedVars.add(name); // colours are for cells, not for pipes
  }
  bash.exec(request.script, { cwd, env: all, stdin, stdinKind: "bytes", rawScript: true }).then(
    (result) => { script.result = result; },
    (problem) => { script.result = broken(problem.message); },
  );
}

const broken = (text) => refused("bash", text);

function runTimer() {
  const timer = takeDue();
  timer?.callback(...timer.values);
}

function done({ stdout, stderr, exitCode }) {
  const told = stderr.replace(/, increase executionLimits\.\w+/g, ""); // no user can increase them
  send({ op: "done", stdout: latin1(bytesOfText(stdout)), stderr: latin1(bytesOfText(told)), exitCode });
  return "";
}

globalThis.wasmKernel_step = step; // the host finds it there
