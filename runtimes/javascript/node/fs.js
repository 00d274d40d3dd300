// `node:fs`: the synchronous calls, and `promises`.

import * as files from "wasm-kernel:files";
import * as promises from "node:fs/promises";

const { constants, readDir, ...same } = files;
const named = ([name, call]) => [`${name}Sync`, call];
const all = Object.fromEntries(Object.entries({ ...same, readdir: readDir }).map(named));

export const {
  accessSync, appendFileSync, copyFileSync, cpSync, existsSync, linkSync, lstatSync, mkdirSync, mkdtempSync,
  readFileSync, readdirSync, readlinkSync, realpathSync, renameSync, rmSync, rmdirSync, statSync, symlinkSync,
  truncateSync, unlinkSync, utimesSync, writeFileSync,
} = all;
export { constants, promises };
export default { ...all, constants, promises };
