// Files, in the style of Node's `fs`: the calls are synchronous; `node:fs/promises` makes promises of them.

import { encode, fileCall, latin1 } from "wasm-kernel:host";
import { absolute } from "wasm-kernel:process";
import { bytesOf, textOf as decoded } from "wasm-kernel:web";

const PIECE = 32 * 1024 * 1024; // bytes that the host holds at once
const MOST_LINKS = 40; // as on Linux
const optionsOf = (options) => (typeof options === "string" ? { encoding: options } : options ?? {});
const textOf = (data, encoding) => {
  const name = String(encoding).toLowerCase();
  if (name === "utf8" || name === "utf-8") return decoded(data, "utf-8");
  if (name === "latin1" || name === "binary") return latin1(data);
  if (name === "base64") return btoa(latin1(data));
  if (name === "hex") return Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
  throw new TypeError(`The encoding ${name} is not known here.`);
};
const dataOf = (content) => (typeof content === "string" ? encode(content) : bytesOf(content));

export function readFile(path, options) {
  const { encoding } = optionsOf(options);
  const target = absolute(path);
  let data = fileCall("read", [target, 0, PIECE]);
  if (data.length === PIECE) data = restOf(target, data);
  return encoding ? textOf(data, encoding) : data;
}

/** Returns a file that takes more than one piece. */
function restOf(path, first) {
  const all = new Uint8Array(fileCall("status", [path, true]).size);
  let at = 0, piece = first;
  while (piece.length > 0 && at + piece.length <= all.length) {
    all.set(piece, at);
    at += piece.length;
    piece = fileCall("read", [path, at, PIECE]);
  }
  return all.subarray(0, at);
}

export function writeFile(path, content, options) {
  const { flag = "w" } = optionsOf(options);
  const data = dataOf(content), target = absolute(path);
  fileCall("write", [target, flag.startsWith("a"), flag.includes("x")], data.subarray(0, PIECE));
  for (let at = PIECE; at < data.length; at += PIECE) {
    fileCall("write", [target, true, false], data.subarray(at, at + PIECE));
  }
}

export const appendFile = (path, content, options) => writeFile(path, content, { ...optionsOf(options), flag: "a" });

class Entry {
  constructor(kind) {
    Object.defineProperty(this, "kind", { value: kind });
  }

  isFile() { return this.kind === "file"; }
  isDirectory() { return this.kind === "folder"; }
  isSymbolicLink() { return this.kind === "link"; }
}

class Stats extends Entry {
  constructor({ kind, ...numbers }) {
    super(kind);
    Object.assign(this, numbers, { birthtimeMs: numbers.ctimeMs, mode: kind === "folder" ? 0o40755 : 0o100644 });
    for (const name of ["atime", "mtime", "ctime", "birthtime"]) this[name] = new Date(this[`${name}Ms`]);
  }
}

export const stat = (path) => new Stats(fileCall("status", [absolute(path), true]));
export const lstat = (path) => new Stats(fileCall("status", [absolute(path), false]));

export function exists(path) {
  try {
    return Boolean(fileCall("status", [absolute(path), true]));
  } catch {
    return false;
  }
}

export const access = (path) => void stat(path);

class Dirent extends Entry {
  constructor(name, kind, parentPath) {
    super(kind);
    Object.assign(this, { name, parentPath });
  }
}

export function readDir(path, options) {
  const { withFileTypes = false, recursive = false } = optionsOf(options);
  const folder = absolute(path).replace(/\/$/, "");
  const found = [];
  const walk = (under) => {
    for (const [name, kind] of fileCall("list", [under === "" ? folder : `${folder}/${under}`])) {
      const inside = under === "" ? name : `${under}/${name}`;
      found.push(withFileTypes ? new Dirent(name, kind, under === "" ? folder : `${folder}/${under}`) : inside);
      if (recursive && kind === "folder") walk(inside);
    }
  };
  walk("");
  return found;
}

export function mkdir(path, options) {
  const { recursive = false } = typeof options === "number" ? {} : optionsOf(options);
  const target = absolute(path).replace(/\/$/, "");
  if (!recursive) return void fileCall("make", [target]);
  const parts = target.split("/");
  let first;
  for (let count = 3; count <= parts.length; count += 1) {
    const folder = parts.slice(0, count).join("/");
    if (exists(folder)) continue;
    fileCall("make", [folder]);
    first ??= folder;
  }
  return first;
}

export const rmdir = (path) => void fileCall("rmdir", [absolute(path)]);
export const unlink = (path) => void fileCall("remove", [absolute(path)]);

export function rm(path, options) {
  const { recursive = false, force = false } = optionsOf(options);
  const target = absolute(path).replace(/\/$/, "");
  let found;
  try {
    found = lstat(target);
  } catch (problem) {
    if (force && problem.code === "ENOENT") return;
    throw problem;
  }
  if (!found.isDirectory()) return unlink(target);
  if (!recursive) throw Object.assign(new Error(`EISDIR: is a directory, rm '${target}'`), { code: "EISDIR" });
  for (const [name] of fileCall("list", [target])) rm(`${target}/${name}`, { recursive });
  rmdir(target);
}

export const rename = (path, target) => void fileCall("rename", [absolute(path), absolute(target)]);
export const link = (path, target) => void fileCall("link", [absolute(path), absolute(target)]);
export const symlink = (text, path) => void fileCall("symlink", [String(text), absolute(path)]);
export const readlink = (path) => fileCall("readlink", [absolute(path)]);
export const truncate = (path, size = 0) => void fileCall("truncate", [absolute(path), size]);
export const copyFile = (path, target) => writeFile(target, readFile(path));

export function cp(path, target, options) {
  const { recursive = false, preserveTimestamps = false, dereference = false } = optionsOf(options);
  if (recursive && !dereference && lstat(path).isSymbolicLink()) {
    rm(target, { force: true });
    symlink(readlink(path), target);
    return;
  }
  const found = stat(path);
  if (found.isDirectory() && !recursive) throw Object.assign(new Error(`EISDIR: is a directory, cp '${path}'`), { code: "EISDIR" });
  if (!found.isDirectory()) copyFile(path, target);
  else {
    mkdir(target, { recursive: true });
    for (const name of readDir(path)) cp(`${path}/${name}`, `${target}/${name}`, options);
  }
  if (preserveTimestamps) utimes(target, found.atime, found.mtime);
}

const moment = (time) => (typeof time === "number" ? time * 1000 : new Date(time).getTime());
export const utimes = (path, accessed, modified) => void fileCall("times", [absolute(path), moment(accessed), moment(modified)]);

let made = 0;
export function mkdtemp(prefix) {
  for (;;) {
    const path = `${absolute(prefix)}${(Date.now() + made++).toString(36)}${Math.random().toString(36).slice(2, 8)}`;
    if (exists(path)) continue;
    fileCall("make", [path]);
    return path;
  }
}

/** Returns the path of a file or folder without links. */
export function realpath(path) {
  let parts = absolute(path).split("/").filter(Boolean), real = "", links = 0;
  while (parts.length > 0) {
    const [name, ...rest] = parts, here = `${real}/${name}`;
    parts = rest;
    if (exists(here) && real !== "" && lstat(here).isSymbolicLink()) {
      if ((links += 1) > MOST_LINKS) throw new Error(`ELOOP: too many symbolic links, realpath '${path}'`);
      const target = absolute(`${real}/${readlink(here)}`);
      parts = [...target.split("/").filter(Boolean), ...rest];
      real = "";
    } else real = here;
  }
  stat(real || "/");
  return real || "/";
}
export const constants = { F_OK: 0, X_OK: 1, W_OK: 2, R_OK: 4 };
