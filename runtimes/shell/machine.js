// Commands about the machine, as far as a script has one: one processor, the session's memory and files, one user.

import { defineCommand } from "just-bash";
import { fileCall } from "wasm-kernel:host";
import { refused } from "wasm-kernel:options";

const USER = "user"; // as just-bash has it for `whoami`
export const ID = 0; // the user and the group that all files belong to, as in Python's `os.stat` and `os.getuid`
const SYSTEM = { s: "wasi", n: "localhost", r: "0.0.0", v: "0.0.0", m: "wasm32", o: "WASI" }; // as in Python's `os.uname`
export const SYSTEM_VARIABLES = { HOSTTYPE: "wasm32", OSTYPE: "wasi", MACHTYPE: "wasm32-unknown-wasi" };
const SYSTEM_NAMES = { "--all": "-a", "--kernel-name": "-s", "--nodename": "-n", "--kernel-release": "-r", "--machine": "-m", "--operating-system": "-o" };
const UNITS = { b: 1, k: 1024, m: 1024 ** 2, g: 1024 ** 3 };

export const memory = { most: 0, used: 0 }; // in bytes; the script's request has them

const printed = (...lines) => ({ stdout: lines.map((line) => `${line}\n`).join(""), stderr: "", exitCode: 0 });
const unknown = (name, option) => refused(name, `the option ${option} is not known here`);

const system = defineCommand("uname", async (args) => {
  const letters = args.map((word) => SYSTEM_NAMES[word] ?? word).join("").replace(/-/g, "").replace("p", "m") || "s";
  const wrong = /[^asnrvmio]/.exec(letters);
  if (wrong) return unknown("uname", wrong[0]);
  return printed(Object.keys(SYSTEM).filter((key) => letters.includes("a") || letters.includes(key)).map((key) => SYSTEM[key]).join(" "));
});

const processors = defineCommand("nproc", async () => printed(1));

const identity = defineCommand("id", async (args) => {
  const letters = args.filter((word) => word.startsWith("-")).join("").replace(/-/g, "");
  if (/[^ugGnr]/.test(letters)) return unknown("id", args[0]);
  if (/[ugG]/.test(letters)) return printed(letters.includes("n") ? USER : ID);
  return printed(`uid=${ID}(${USER}) gid=${ID}(${USER}) groups=${ID}(${USER})`);
});

/** Returns a number of bytes as `-h` has it. */
function short(bytes, ending = "") {
  let unit = 0;
  while (bytes >= 1024 && unit < 4) [bytes, unit] = [bytes / 1024, unit + 1];
  return unit === 0 ? `${bytes}${ending ? "B" : ""}` : `${bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)}${"KMGT"[unit - 1]}${ending}`;
}

/** Returns the function that writes bytes as the options ask for, in kibibytes without any; and the options that are left. */
function unitOf(args, ending) {
  const letters = args.map((word) => word.replace("--human-readable", "-h").replace("--human", "-h").replace(/^-BM/, "-m").replace(/^-BG/, "-g"));
  const unit = letters.join("").match(/[hbkmg]/)?.[0] ?? "k";
  return unit === "h" ? (bytes) => short(bytes, ending) : (bytes) => String(Math.ceil(bytes / UNITS[unit]));
}

const space = defineCommand("df", async (args) => {
  const options = args.filter((word) => word.startsWith("-")), wrong = options.find((word) => !/^-[hkmgPT]+$|^-B[MG]$|^--human-readable$/.test(word));
  if (wrong) return unknown("df", wrong);
  const [most, used] = fileCall("space", ["/app"]), free = Math.max(0, most - used), shown = unitOf(options, "");
  const title = options.some((word) => /h/.test(word)) ? "Size" : options.some((word) => /[mgB]/.test(word)) ? "Blocks" : "1K-blocks";
  const row = (words) => words.map((word, at) => (at === 0 ? word.padEnd(10) : at === 5 ? word : word.padStart(10))).join(" ");
  return printed(
    row(["Filesystem", title, "Used", "Available", "Use%", "Mounted on"]),
    row(["session", shown(most), shown(used), shown(free), most ? `${Math.ceil((100 * used) / most)}%` : "-", "/app"]),
  );
});

const memoryUse = defineCommand("free", async (args) => {
  const wrong = args.find((word) => !/^-[hbkmgt]$|^--human$/.test(word));
  if (wrong) return unknown("free", wrong);
  const { most, used } = memory, shown = unitOf(args, "i"), row = (words) => words.map((word) => word.padStart(11)).join(" ");
  const total = args.includes("-t") ? [`Total:${row([most, used, most - used].map(shown)).slice(2)}`] : [];
  return printed(
    `    ${row(["total", "used", "free", "shared", "buff/cache", "available"])}`,
    `Mem:${row([most, used, most - used, 0, 0, most - used].map(shown))}`,
    `Swap:${row([0, 0, 0].map(shown)).slice(1)}`,
    ...total,
  );
});

/** Takes a mask, which changes nothing: there are no modes. */
const mask = defineCommand("umask", async (args) => printed(...(args.length === 0 ? ["0022"] : [])));

/** Prints files as `cat` does: there is no terminal to page through. */
const pager = (name) =>
  defineCommand(name, (args, context) => {
    const { cwd, stdin, signal } = context;
    return context.exec("cat", { cwd, stdin, stdinKind: "bytes", signal, args: args.filter((word) => !/^[-+]./.test(word)) });
  });

export const MACHINE = [system, processors, identity, space, memoryUse, mask, pager("less"), pager("more")];
