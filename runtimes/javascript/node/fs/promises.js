// `node:fs/promises`; the host does the file calls at once.

import * as files from "wasm-kernel:files";

const { constants, exists, readDir, ...same } = files;
const later = ([name, call]) => [name, async (...values) => call(...values)];
const all = Object.fromEntries(Object.entries({ ...same, readdir: readDir }).map(later));

export const {
  access, appendFile, copyFile, cp, link, lstat, mkdir, mkdtemp, readFile, readdir, readlink, realpath, rename, rm,
  rmdir, stat, symlink, truncate, unlink, utimes, writeFile,
} = all;
export { constants };
export default { ...all, constants };
