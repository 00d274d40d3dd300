// `node:path`, for paths with slashes.

import { absolute } from "wasm-kernel:process";

export const sep = "/", delimiter = ":";
export const isAbsolute = (path) => path.startsWith("/");

export function normalize(path) {
  const parts = [];
  for (const part of path.split("/")) {
    if (part === ".." && parts.length > 0 && parts.at(-1) !== "..") parts.pop();
    else if (part === "..") {
      if (!path.startsWith("/")) parts.push(part);
    } else if (part !== "" && part !== ".") parts.push(part);
  }
  const inner = parts.join("/");
  const end = inner !== "" && path.endsWith("/") ? "/" : "";
  return (path.startsWith("/") ? "/" : "") + inner + end || ".";
}

export const join = (...parts) => normalize(parts.filter(Boolean).join("/") || ".");

export function resolve(...parts) {
  let path = "";
  for (const part of parts.reverse()) {
    path = path === "" ? part : `${part}/${path}`;
    if (part.startsWith("/")) break;
  }
  return absolute(path || ".").replace(/(.)\/$/, "$1");
}

export function basename(path, ending = "") {
  const name = path.replace(/\/+$/, "").split("/").at(-1);
  return ending && name !== ending && name.endsWith(ending) ? name.slice(0, -ending.length) : name;
}

export function dirname(path) {
  const plain = path.replace(/\/+$/, "");
  const at = plain.lastIndexOf("/");
  return at < 0 ? "." : at === 0 ? "/" : plain.slice(0, at);
}

export function extname(path) {
  const name = basename(path), at = name.lastIndexOf(".");
  return at <= 0 ? "" : name.slice(at);
}

export function relative(from, to) {
  const [one, other] = [resolve(from).split("/"), resolve(to).split("/")];
  let same = 0;
  while (same < one.length && one[same] === other[same]) same += 1;
  return [...one.slice(same).filter(Boolean).map(() => ".."), ...other.slice(same)].join("/");
}

export function parse(path) {
  const base = basename(path), ext = extname(path);
  const dir = path.includes("/") ? dirname(path) : "";
  return { root: isAbsolute(path) ? "/" : "", dir, base, ext, name: ext ? base.slice(0, -ext.length) : base };
}

export const format = ({ dir, root = "", base, name = "", ext = "" }) =>
  (dir ? `${dir}/` : root) + (base ?? name + ext);

export const posix = { sep, delimiter, isAbsolute, normalize, join, resolve, basename, dirname, extname, relative, parse, format };
export default { ...posix, posix };
