// `require` for CommonJS modules.

import { moduleSource, resolveModule } from "wasm-kernel:host";
import { currentFolder } from "wasm-kernel:process";

const modules = new Map();
const built = new Map();

/** Lets `require` find a built-in module, which is loaded already. */
export function offer(name, exports) {
  built.set(name, exports);
}

function load(path) {
  const known = modules.get(path);
  if (known !== undefined) return known.exports;
  const module = { exports: {}, id: path, filename: path, loaded: false };
  modules.set(path, module);
  try {
    run(module, path);
  } catch (problem) {
    modules.delete(path);
    throw problem;
  }
  module.loaded = true;
  return module.exports;
}

function run(module, path) {
  const found = moduleSource(path);
  if (found === undefined) throw new Error(`${path} can't be read.`);
  if (found[0] === "problem") throw found[1];
  if (found[0] === "text") module.exports = JSON.parse(found[1]);
  else {
    const folder = path.slice(0, path.lastIndexOf("/")) || "/";
    found[1].call(module.exports, module.exports, requireFrom(path), module, path, folder);
  }
}

function requireFrom(base) {
  const require = (name) => {
    const path = resolveModule(base, String(name));
    if (path.startsWith("node:")) {
      const found = built.get(path);
      if (found === undefined) throw new Error(`${path} is not available.`);
      return found;
    }
    return load(path);
  };
  require.resolve = (name) => resolveModule(base, String(name));
  require.cache = {};
  return require;
}

export const require = (name) => requireFrom(`${currentFolder()}/cell`)(name);
require.resolve = (name) => requireFrom(`${currentFolder()}/cell`).resolve(name);
