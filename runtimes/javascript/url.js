// `URL` and `URLSearchParams`, by the URL standard of the WHATWG. Hosts that are not ASCII are refused,
// as this guest has no tables for them.

import { decode, encode } from "wasm-kernel:host";

const PORTS = { "http:": "80", "https:": "443", "ws:": "80", "wss:": "443", "ftp:": "21", "file:": "" };
const isSpecial = (scheme) => Object.hasOwn(PORTS, scheme);
const CONTROL = /[\u0000-\u001f\u007f-\u{10ffff}]/u;
const sets = {
  fragment: /[ "<>`]/,
  query: /["#<> ]/,
  specialQuery: /["#<> ']/,
  path: /["#<> ?`{}^]/,
  userinfo: /["#<> ?`{}/:;=@[\]^|]/,
};
const FORBIDDEN_HOST = /[\u0000-\u0020"#%/:<>?@[\\\]^`{|}\u007f]/;

function percentEncode(text, set) {
  let result = "";
  for (const character of text) {
    if (!CONTROL.test(character) && !set?.test(character)) result += character;
    else for (const byte of encode(character)) result += `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }
  return result;
}

function percentDecode(text) {
  if (!text.includes("%")) return text;
  const bytes = [];
  const raw = encode(text);
  for (let index = 0; index < raw.length; index += 1) {
    const code = raw[index] === 0x25 ? String.fromCharCode(raw[index + 1] ?? 0, raw[index + 2] ?? 0) : "";
    if (/^[\da-fA-F]{2}$/.test(code)) {
      bytes.push(Number.parseInt(code, 16));
      index += 2;
    } else bytes.push(raw[index]);
  }
  return decode(new Uint8Array(bytes), "utf-8", false) ?? "";
}

function parseHost(text, special) {
  if (text.startsWith("[")) {
    if (!text.endsWith("]")) return undefined;
    const pieces = parseIPv6(text.slice(1, -1));
    return pieces && `[${serializeIPv6(pieces)}]`;
  }
  if (!special) {
    if (/[\u0000\u0009\u000a\u000d #/:<>?@[\\\]^|]/.test(text)) return undefined;
    return percentEncode(text);
  }
  const host = percentDecode(text).toLowerCase();
  if (host === "" || /[^\u0000-\u007f]/.test(host) || FORBIDDEN_HOST.test(host)) return undefined;
  const last = host.replace(/\.$/, "").split(".").at(-1);
  if (/^\d+$/.test(last) || /^0x[\da-f]*$/.test(last)) return parseIPv4(host);
  return host;
}

function parseIPv4(host) {
  const parts = host.replace(/\.$/, "").split(".");
  if (parts.length > 4) return undefined;
  const numbers = parts.map((part) => {
    if (part === "") return Number.NaN;
    if (/^0x[\da-f]*$/.test(part)) return Number.parseInt(part.slice(2) || "0", 16);
    if (/^0[0-7]+$/.test(part)) return Number.parseInt(part, 8);
    return /^\d+$/.test(part) && !/^0\d/.test(part) ? Number(part) : Number.NaN;
  });
  const last = numbers.pop();
  if (!(last < 256 ** (4 - numbers.length)) || numbers.some((number) => !(number <= 255))) return undefined;
  const value = numbers.reduce((sum, number, index) => sum + number * 256 ** (3 - index), last);
  return [24, 16, 8, 0].map((bits) => Math.floor(value / 2 ** bits) % 256).join(".");
}

function parseIPv6(text) {
  const halves = text.split("::");
  if (halves.length > 2) return undefined;
  const read = (half) => {
    if (half === "") return [];
    const found = [];
    const parts = half.split(":");
    for (const [index, part] of parts.entries()) {
      if (index === parts.length - 1 && part.includes(".")) {
        const bytes = part.split(".");
        if (bytes.length !== 4 || bytes.some((byte) => !/^(?:0|[1-9]\d{0,2})$/.test(byte) || Number(byte) > 255)) return undefined;
        found.push(bytes[0] * 256 + Number(bytes[1]), bytes[2] * 256 + Number(bytes[3]));
      } else if (/^[\da-f]{1,4}$/i.test(part)) found.push(Number.parseInt(part, 16));
      else return undefined;
    }
    return found;
  };
  const [front, back] = [read(halves[0]), halves.length === 2 ? read(halves[1]) : []];
  if (front === undefined || back === undefined) return undefined;
  const missing = 8 - front.length - back.length;
  if (halves.length === 1 ? missing !== 0 : missing < 1) return undefined;
  return [...front, ...new Array(missing).fill(0), ...back];
}

function serializeIPv6(pieces) {
  let best = [0, 1];
  for (let start = 0; start < 8; start += 1) {
    let length = 0;
    while (start + length < 8 && pieces[start + length] === 0) length += 1;
    if (length > best[1]) best = [start, length];
  }
  const hex = pieces.map((piece) => piece.toString(16));
  if (best[1] < 2) return hex.join(":");
  return `${hex.slice(0, best[0]).join(":")}::${hex.slice(best[0] + best[1]).join(":")}`;
}

const isDot = (part) => /^(?:\.|%2e)$/i.test(part);
const isDoubleDot = (part) => /^(?:\.|%2e){2}$/i.test(part);
const isDrive = (part) => /^[a-z][:|]$/i.test(part);

function parsePath(text, special, file, start) {
  const path = [...start];
  const parts = text.split(special ? /[/\\]/ : "/");
  for (const [index, part] of parts.entries()) {
    const isLast = index === parts.length - 1;
    if (isDoubleDot(part)) {
      if (!(file && path.length === 1 && isDrive(path[0]))) path.pop();
      if (isLast) path.push("");
    } else if (isDot(part)) {
      if (isLast) path.push("");
    } else {
      const made = percentEncode(part, sets.path);
      path.push(file && path.length === 0 && isDrive(made) ? `${made[0]}:` : made);
    }
  }
  return path;
}

/** Returns the record of a URL; undefined if the text is not a URL. */
function parseUrl(input, base) {
  const text = input.replace(/^[\u0000-\u0020]+|[\u0000-\u0020]+$/g, "").replace(/[\t\n\r]/g, "");
  const [withoutFragment, ...fragments] = text.split("#");
  const fragment = fragments.length > 0 ? percentEncode(fragments.join("#"), sets.fragment) : null;
  const found = /^([a-z][a-z\d+.-]*):/i.exec(withoutFragment);
  const scheme = found ? `${found[1].toLowerCase()}:` : undefined;
  const rest = found ? withoutFragment.slice(found[0].length) : withoutFragment;
  const isRelative = scheme === undefined || (base !== undefined && scheme === base.scheme && isSpecial(scheme) && scheme !== "file:" && !/^[/\\]/.test(rest));
  const record = isRelative ? relative(rest, base) : absolute(scheme, rest, base);
  if (record !== undefined) record.fragment = fragment;
  return record;
}

const splitQuery = (text) => {
  const at = text.indexOf("?");
  return at < 0 ? [text, null] : [text.slice(0, at), text.slice(at + 1)];
};
const encodedQuery = (query, scheme) => (query === null ? null : percentEncode(query, isSpecial(scheme) ? sets.specialQuery : sets.query));

function absolute(scheme, rest, base) {
  const special = isSpecial(scheme), file = scheme === "file:";
  const record = { scheme, username: "", password: "", host: null, port: "", path: [], opaque: false, query: null, fragment: null };
  const [front, query] = splitQuery(rest);
  record.query = encodedQuery(query, scheme);
  if (file) return fileUrl(record, front, base?.scheme === "file:" ? base : undefined, query);
  if (special) return authority(record, front.replace(/^[/\\]*/, ""), true);
  if (front.startsWith("//")) return authority(record, front.slice(2), false);
  if (front.startsWith("/")) {
    record.path = parsePath(front.slice(1), false, false, []);
    return record;
  }
  record.opaque = true;
  record.path = percentEncode(front);
  return record;
}

function authority(record, text, special) {
  const end = text.search(special ? /[/\\]/ : /\//);
  const [place, path] = end < 0 ? [text, ""] : [text.slice(0, end), text.slice(end + 1)];
  const at = place.lastIndexOf("@");
  if (at >= 0) {
    const [name, ...password] = place.slice(0, at).split(":");
    record.username = percentEncode(name, sets.userinfo);
    record.password = percentEncode(password.join(":"), sets.userinfo);
  }
  const host = /^(\[[^\]]*\]|[^:]*)(?::(\d*))?$/.exec(place.slice(at + 1));
  if (host === null || (special && host[1] === "") || (at >= 0 && host[1] === "")) return undefined;
  if (host[1] === "" && host[2]) return undefined;
  record.host = host[1] === "" ? "" : parseHost(host[1], special);
  if (record.host === undefined || Number(host[2] ?? 0) > 65535) return undefined;
  const port = host[2] ? String(Number(host[2])) : "";
  record.port = port === PORTS[record.scheme] ? "" : port;
  record.path = end < 0 && !special ? [] : parsePath(path, special, false, []);
  return record;
}

function fileUrl(record, text, base, query) {
  record.host = "";
  const slashes = /^[/\\]*/.exec(text)[0].length;
  if (slashes === 2) {
    const end = text.slice(2).search(/[/\\]/);
    const place = end < 0 ? text.slice(2) : text.slice(2, end + 2);
    if (isDrive(place)) record.path = parsePath(text.slice(2), true, true, []);
    else {
      const host = place === "" ? "" : parseHost(place, true);
      if (host === undefined) return undefined;
      record.host = host === "localhost" ? "" : host;
      record.path = parsePath(end < 0 ? "" : text.slice(end + 3), true, true, []);
    }
  } else if (slashes > 0) {
    if (slashes === 1 && base) record.host = base.host;
    record.path = parsePath(text.slice(slashes > 2 ? 3 : 1), true, true, []);
  } else if (base) {
    record.host = base.host;
    if (text === "") {
      record.path = [...base.path];
      if (query === null) record.query = base.query;
    } else record.path = parsePath(text, true, true, base.path.slice(0, -1));
  } else record.path = parsePath(text, true, true, []);
  return record;
}

function relative(rest, base) {
  if (base === undefined) return undefined;
  const [front, query] = splitQuery(rest);
  if (base.opaque) return rest === "" ? { ...base } : undefined;
  if (base.scheme === "file:") return absolute("file:", rest, base);
  const special = isSpecial(base.scheme);
  const record = { ...base, path: [...base.path], query: encodedQuery(query, base.scheme) };
  if (special ? /^[/\\]{2}/.test(front) : front.startsWith("//")) {
    return authority({ ...record, username: "", password: "", port: "" }, front.replace(special ? /^[/\\]+/ : /^\/\//, ""), special);
  }
  if (special ? /^[/\\]/.test(front) : front.startsWith("/")) record.path = parsePath(front.slice(1), special, false, []);
  else if (front !== "") record.path = parsePath(front, special, false, base.path.slice(0, -1));
  else if (query === null) record.query = base.query;
  return record;
}

const pathText = (record) => (record.opaque ? record.path : record.path.map((part) => `/${part}`).join(""));

function serialize(record, withFragment = true) {
  let text = record.scheme;
  if (record.host !== null) {
    const login = record.username + (record.password ? `:${record.password}` : "");
    text += `//${login ? `${login}@` : ""}${record.host}${record.port ? `:${record.port}` : ""}`;
  } else if (!record.opaque && record.path.length > 1 && record.path[0] === "") text += "/.";
  text += pathText(record);
  if (record.query !== null) text += `?${record.query}`;
  return withFragment && record.fragment !== null ? `${text}#${record.fragment}` : text;
}

/** A list of names and values, which a subclass yields as its `entries`. */
export class Pairs {
  forEach(callback, self) {
    for (const [name, value] of this) callback.call(self, value, name, this);
  }

  *keys() {
    for (const [name] of this) yield name;
  }

  *values() {
    for (const [, value] of this) yield value;
  }

  [Symbol.iterator]() {
    return this.entries();
  }
}

export class URLSearchParams extends Pairs {
  #pairs = [];
  #changed = () => {};

  constructor(init = "", changed) {
    super();
    if (typeof changed === "function") this.#changed = changed;
    if (typeof init === "object" && init !== null) {
      const pairs = typeof init[Symbol.iterator] === "function" ? [...init] : Object.entries(init);
      this.#pairs = pairs.map((pair) => {
        const [name, value, ...more] = [...pair];
        if (value === undefined || more.length > 0) throw new TypeError("Each pair has a name and a value.");
        return [String(name), String(value)];
      });
    } else this.#pairs = readForm(String(init).replace(/^\?/, ""));
  }

  #set(pairs) {
    this.#pairs = pairs;
    this.#changed(this.toString());
  }

  get size() {
    return this.#pairs.length;
  }

  append(name, value) {
    this.#set([...this.#pairs, [String(name), String(value)]]);
  }

  delete(name, value) {
    this.#set(this.#pairs.filter(([key, held]) => key !== String(name) || (value !== undefined && held !== String(value))));
  }

  get(name) {
    return this.#pairs.find(([key]) => key === String(name))?.[1] ?? null;
  }

  getAll(name) {
    return this.#pairs.filter(([key]) => key === String(name)).map(([, value]) => value);
  }

  has(name, value) {
    return this.#pairs.some(([key, held]) => key === String(name) && (value === undefined || held === String(value)));
  }

  set(name, value) {
    const at = this.#pairs.findIndex(([key]) => key === String(name));
    if (at < 0) return this.append(name, value);
    const kept = this.#pairs.filter(([key], index) => index <= at || key !== String(name));
    kept[at] = [String(name), String(value)];
    return this.#set(kept);
  }

  sort() {
    this.#set([...this.#pairs].sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0)));
  }

  *entries() {
    for (let index = 0; index < this.#pairs.length; index += 1) yield [...this.#pairs[index]];
  }

  toString() {
    return this.#pairs.map((pair) => pair.map(formEncode).join("=")).join("&");
  }
}

const formEncode = (text) =>
  encodeURIComponent(text.toWellFormed()).replace(/[!'()~]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`).replaceAll("%20", "+");

function readForm(text) {
  return text.split("&").filter(Boolean).map((pair) => {
    const at = pair.indexOf("=");
    const parts = at < 0 ? [pair, ""] : [pair.slice(0, at), pair.slice(at + 1)];
    return parts.map((part) => percentDecode(part.replaceAll("+", " ")));
  });
}

export class URL {
  #record;
  #params;

  constructor(input, base) {
    const under = base === undefined ? undefined : parseUrl(String(base).toWellFormed());
    const found = base !== undefined && under === undefined ? undefined : parseUrl(String(input).toWellFormed(), under);
    if (found === undefined) throw Object.assign(new TypeError(`Invalid URL: ${String(input).slice(0, 200)}`), { code: "ERR_INVALID_URL" });
    this.#record = found;
  }

  static canParse(input, base) {
    return URL.parse(input, base) !== null;
  }

  static parse(input, base) {
    try {
      return new URL(input, base);
    } catch {
      return null;
    }
  }

  get href() { return serialize(this.#record); }
  set href(text) {
    const found = parseUrl(String(text).toWellFormed());
    if (found === undefined) throw new TypeError("Invalid URL");
    this.#record = found;
    this.#params = undefined;
  }

  get origin() {
    if (this.#record.scheme === "blob:") return URL.parse(pathText(this.#record))?.origin ?? "null";
    if (!isSpecial(this.#record.scheme) || this.#record.scheme === "file:") return "null";
    return `${this.#record.scheme}//${this.host}`;
  }

  get protocol() { return this.#record.scheme; }
  set protocol(text) {
    const found = /^([a-z][a-z\d+.-]*):?/i.exec(String(text));
    if (found === null) return;
    const scheme = `${found[1].toLowerCase()}:`;
    if (isSpecial(scheme) !== isSpecial(this.#record.scheme) || (scheme === "file:" && (this.username || this.port))) return;
    this.#record.scheme = scheme;
    if (this.#record.port === PORTS[scheme]) this.#record.port = "";
  }

  get username() { return this.#record.username; }
  set username(text) { if (this.#record.host) this.#record.username = percentEncode(String(text), sets.userinfo); }
  get password() { return this.#record.password; }
  set password(text) { if (this.#record.host) this.#record.password = percentEncode(String(text), sets.userinfo); }

  get host() { return (this.#record.host ?? "") + (this.#record.port ? `:${this.#record.port}` : ""); }
  set host(text) { this.#setHost(String(text), true); }
  get hostname() { return this.#record.host ?? ""; }
  set hostname(text) { this.#setHost(String(text), false); }

  #setHost(text, withPort) {
    if (this.#record.opaque) return;
    const found = /^(\[[^\]]*\]|[^:/?#\\]*)(?::(\d+))?/.exec(text);
    const host = parseHost(found[1], isSpecial(this.#record.scheme));
    if (host === undefined || found[1] === "") return;
    this.#record.host = host;
    if (withPort && found[2] !== undefined) this.port = found[2];
  }

  get port() { return this.#record.port; }
  set port(text) {
    const digits = /^\d+/.exec(String(text))?.[0];
    if (!this.#record.host || this.#record.scheme === "file:") return;
    if (String(text) === "") this.#record.port = "";
    else if (digits !== undefined && Number(digits) <= 65535) this.#record.port = String(Number(digits)) === PORTS[this.#record.scheme] ? "" : String(Number(digits));
  }

  get pathname() { return pathText(this.#record); }
  set pathname(text) {
    const special = isSpecial(this.#record.scheme);
    if (!this.#record.opaque) this.#record.path = parsePath(String(text).replace(special ? /^[/\\]/ : /^\//, ""), special, this.#record.scheme === "file:", []);
  }

  get search() { return this.#record.query ? `?${this.#record.query}` : ""; }
  set search(text) {
    const query = String(text).replace(/^\?/, "");
    this.#record.query = query === "" ? null : encodedQuery(query, this.#record.scheme);
    this.#params = undefined;
  }

  get searchParams() {
    this.#params ??= new URLSearchParams(this.#record.query ?? "", (text) => {
      this.#record.query = text === "" ? null : text;
    });
    return this.#params;
  }

  get hash() { return this.#record.fragment ? `#${this.#record.fragment}` : ""; }
  set hash(text) {
    const fragment = String(text).replace(/^#/, "");
    this.#record.fragment = fragment === "" ? null : percentEncode(fragment, sets.fragment);
  }

  toString() { return this.href; }
  toJSON() { return this.href; }
  [Symbol.for("Jupyter.display")]() { return { "text/plain": `URL { ${this.href} }` }; }
}
for (const kind of [URL, URLSearchParams]) Object.defineProperty(kind.prototype, Symbol.toStringTag, { value: kind.name, configurable: true });
