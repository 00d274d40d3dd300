// The parts of `process` that programs use: the environment, the current folder, a version.

import { beginTime, enter, fileCall, now, print } from "wasm-kernel:host";
import { URL } from "wasm-kernel:url";

const { hasOwn, keys } = Object;
const { set, deleteProperty } = Reflect;
const given = {};
let lent = { __proto__: null };
let folder = "/app";

export const currentFolder = () => folder;

/** Returns a path as an absolute one, without `.` and `..`. */
export function absolute(path) {
  const text = path instanceof URL ? decodeURIComponent(path.pathname) : String(path);
  const parts = [];
  for (const part of (text.startsWith("/") ? text : `${folder}/${text}`).split("/")) {
    if (part === "..") parts.pop();
    else if (part !== "" && part !== ".") parts.push(part);
  }
  return `/${parts.join("/")}${text.endsWith("/") && parts.length > 0 ? "/" : ""}`;
}

export const process = {
  argv: ["javascript"],
  env: {},
  platform: "wasi",
  arch: "wasm32",
  pid: 1,
  version: "v0.0.0",
  versions: { quickjs: "0.15" },
  cwd: currentFolder,
  chdir(path) {
    const target = absolute(path).replace(/(.)\/$/, "$1");
    if (fileCall("status", [target, true]).kind !== "folder") {
      throw Object.assign(new Error(`ENOTDIR: not a directory, chdir '${target}'`), { code: "ENOTDIR" });
    }
    folder = target;
    enter(folder);
  },
  nextTick: (callback, ...values) => queueMicrotask(() => callback(...values)),
  uptime: () => now() / 1000,
  hrtime: Object.assign(
    (since = [0, 0]) => {
      const nanoseconds = Math.round(now() * 1e6) - since[0] * 1e9 - since[1];
      return [Math.floor(nanoseconds / 1e9), nanoseconds % 1e9];
    },
    { bigint: () => BigInt(Math.round(now() * 1e6)) },
  ),
  stdout: { write: (text) => (print(1, String(text)), true), isTTY: false },
  stderr: { write: (text) => (print(2, String(text)), true), isTTY: false },
  on: () => process,
  once: () => process,
  off: () => process,
  emitWarning: (text) => print(2, `Warning: ${text}\n`),
};

/** Sets the variables and the folder that the host names. */
process.begin = (env, where, fresh) => {
  for (const name of Object.keys(env)) {
    if (given[name] !== env[name]) process.env[name] = given[name] = env[name];
  }
  if (!fresh) return;
  folder = where;
  beginTime();
};
Object.defineProperty(process, "begin", { enumerable: false });

/** Sets the variables of one cell alone, in place of those of the cell before. */
export function lend(env) {
  const before = lent;
  lent = { __proto__: null };
  for (let index = 0, names = keys(before); index < names.length; index += 1) {
    const name = names[index];
    if (before[name] === undefined) deleteProperty(process.env, name);
    else set(process.env, name, before[name]);
  }
  for (let index = 0, names = keys(env); index < names.length; index += 1) {
    const name = names[index];
    lent[name] = hasOwn(process.env, name) ? process.env[name] : undefined;
    set(process.env, name, env[name]);
  }
}
