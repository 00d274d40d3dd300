// `node:fs/promises`; the host does the file calls at once.

import * as files from "wasm-kernel:files";

const later = (call) => async (...values) => call(...values);

export const readFile = later(files.readFile);
export const writeFile = later(files.writeFile);
export const appendFile = later(files.appendFile);
export const stat = later(files.stat);
export const lstat = later(files.lstat);
export const access = later(files.access);
export const readdir = later(files.readDir);
export const readDir = readdir;
export const mkdir = later(files.mkdir);
export const mkdtemp = later(files.mkdtemp);
export const rmdir = later(files.rmdir);
export const unlink = later(files.unlink);
export const rm = later(files.rm);
export const rename = later(files.rename);
export const link = later(files.link);
export const symlink = later(files.symlink);
export const readlink = later(files.readlink);
export const truncate = later(files.truncate);
export const copyFile = later(files.copyFile);
export const cp = later(files.cp);
export const utimes = later(files.utimes);
export const realpath = later(files.realpath);
export const { constants } = files;

export default {
  readFile, writeFile, appendFile, stat, lstat, access, readdir, readDir, mkdir, mkdtemp, rmdir, unlink, rm, rename,
  link, symlink, readlink, truncate, copyFile, cp, utimes, realpath, constants,
};
