// `node:fs`: the synchronous calls, and `promises`.

import * as files from "wasm-kernel:files";
import * as promises from "node:fs/promises";

export const readFileSync = files.readFile;
export const writeFileSync = files.writeFile;
export const appendFileSync = files.appendFile;
export const statSync = files.stat;
export const lstatSync = files.lstat;
export const existsSync = files.exists;
export const accessSync = files.access;
export const readdirSync = files.readDir;
export const mkdirSync = files.mkdir;
export const mkdtempSync = files.mkdtemp;
export const rmdirSync = files.rmdir;
export const unlinkSync = files.unlink;
export const rmSync = files.rm;
export const renameSync = files.rename;
export const linkSync = files.link;
export const symlinkSync = files.symlink;
export const readlinkSync = files.readlink;
export const truncateSync = files.truncate;
export const copyFileSync = files.copyFile;
export const cpSync = files.cp;
export const utimesSync = files.utimes;
export const realpathSync = files.realpath;
export const { constants } = files;
export { promises };

export default {
  readFileSync, writeFileSync, appendFileSync, statSync, lstatSync, existsSync, accessSync, readdirSync, mkdirSync,
  mkdtempSync, rmdirSync, unlinkSync, rmSync, renameSync, linkSync, symlinkSync, readlinkSync, truncateSync,
  copyFileSync, cpSync, utimesSync, realpathSync, constants, promises,
};
