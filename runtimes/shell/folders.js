// The session's files, in the interface that just-bash has for file systems.

import { bytesOfLatin1, bytesOfText, textOfBytes } from "wasm-kernel:bytes";
import { fileCall, latin1 } from "wasm-kernel:host";
import { cp, exists, lstat, mkdir, readFile, realpath, rm, stat, writeFile } from "wasm-kernel:files";
import { absolute } from "wasm-kernel:process";
import { bytesOf } from "wasm-kernel:web";

const EXECUTABLE = 0o755; // the sandbox has no modes

const dataOf = (content, encoding) => {
  if (typeof content !== "string") return bytesOf(content);
  return ((encoding === "binary" || encoding === "latin1") && bytesOfLatin1(content)) || bytesOfText(content);
};
const encodingOf = (options) => (typeof options === "string" ? options : options?.encoding);

const told = (found) => ({
  isFile: found.isFile(),
  isDirectory: found.isDirectory(),
  isSymbolicLink: found.isSymbolicLink(),
  mode: EXECUTABLE,
  size: found.size,
  mtime: found.mtime,
  identity: `${found.dev} ${found.ino}`,
});

/** One folder of the session, at the path at which Python sees it. */
export class SessionFolder {
  #root;

  constructor(root) {
    this.#root = root;
  }

  #at(path) {
    return path === "/" ? this.#root : `${this.#root}${path}`;
  }

  async readFile(path, options) {
    const encoding = encodingOf(options) ?? "utf8";
    if (encoding === "binary" || encoding === "latin1") return latin1(readFile(this.#at(path)));
    return textOfBytes(readFile(this.#at(path)));
  }

  async readFileBytes(path) {
    return latin1(readFile(this.#at(path)));
  }

  async readFileBuffer(path) {
    return readFile(this.#at(path));
  }

  async writeFile(path, content, options) {
    writeFile(this.#at(path), dataOf(content, encodingOf(options)));
  }

  async appendFile(path, content, options) {
    writeFile(this.#at(path), dataOf(content, encodingOf(options)), { flag: "a" });
  }

  async exists(path) {
    return exists(this.#at(path));
  }

  async stat(path) {
    return told(stat(this.#at(path)));
  }

  async lstat(path) {
    return told(lstat(this.#at(path)));
  }

  async mkdir(path, options) {
    mkdir(this.#at(path), options);
  }

  async readdir(path) {
    return fileCall("list", [this.#at(path)]).map(([name]) => name);
  }

  async readdirWithFileTypes(path) {
    return fileCall("list", [this.#at(path)]).map(([name, kind]) => ({
      name,
      isFile: kind === "file",
      isDirectory: kind === "folder",
      isSymbolicLink: kind === "link",
    }));
  }

  async rm(path, options) {
    const target = this.#at(path);
    if (!options?.recursive && exists(target) && lstat(target).isDirectory()) return fileCall("rmdir", [target]);
    rm(target, options);
  }

  async cp(from, to, options) {
    cp(this.#at(from), this.#at(to), options);
  }

  async mv(from, to) {
    fileCall("rename", [this.#at(from), this.#at(to)]);
  }

  resolvePath(base, path) {
    return absolute(path.startsWith("/") ? path : `${base}/${path}`);
  }

  getAllPaths() {
    return [];
  }

  async chmod(path) {
    stat(this.#at(path));
  }

  async symlink(target, path) {
    try {
      fileCall("symlink", [target, this.#at(path)]);
    } catch (problem) {
      throw problem.code === "EPERM" ? new Error("EACCES: a link must end in the same folder") : problem;
    }
  }

  async link(from, to) {
    fileCall("link", [this.#at(from), this.#at(to)]);
  }

  async readlink(path) {
    return fileCall("readlink", [this.#at(path)]);
  }

  async realpath(path) {
    const real = realpath(this.#at(path));
    return real.startsWith(`${this.#root}/`) ? real.slice(this.#root.length) : "/";
  }

  async utimes(path, accessed, modified) {
    fileCall("times", [this.#at(path), accessed.getTime(), modified.getTime()]);
  }
}
