// `fetch` over the host's network: a connection is a stream of bytes that the host reads as HTTP/1.1, judges, and
// makes anew. One request a connection.

import { AbortController } from "wasm-kernel:abort";
import { networkCalls } from "wasm-kernel:functions";
import { encode, joined, latin1, parse, stringify } from "wasm-kernel:host";
import { Pairs, URL, URLSearchParams } from "wasm-kernel:url";
import { bytesOf, textOf } from "wasm-kernel:web";

const NO_NETWORK = "fetch is not available: cells have no network. Put the data into a file in /app, and read it with readFile of node:fs/promises.";
const PIECE = 1024 * 1024, MOST_HEAD = 256 * 1024, MOST_REDIRECTS = 20;
const CONNECT_SECONDS = 30, WAIT_SECONDS = 5; // the limits of one call; a wait for an answer calls again
const NAME = /^[\w!#$%&'*+.^`|~-]+$/, VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;
const OURS = ["connection", "content-length", "expect", "host", "transfer-encoding"];
const PRIVATE = ["authorization", "cookie"]; // headers that a redirect to another host leaves out
const OF_BODIES = ["content-type", "content-encoding", "content-language", "content-location"];
const WITHOUT_BODY = [101, 204, 205, 304], REDIRECTS = [301, 302, 303, 307, 308];

export class Headers extends Pairs {
  #values = new Map();

  constructor(given = []) {
    super();
    const pairs = typeof given[Symbol.iterator] === "function" ? given : Object.entries(given);
    for (const [name, value] of pairs) this.append(name, value);
  }

  #checked(name, value = "") {
    const plain = String(value).trim();
    if (!NAME.test(name) || !VALUE.test(plain)) throw new TypeError(`A header's name or value is not valid: ${stringify(String(name))}`);
    return [String(name).toLowerCase(), plain];
  }

  append(given, text) {
    const [name, value] = this.#checked(given, text);
    this.#values.set(name, [...(this.#values.get(name) ?? []), value]);
  }

  set(given, text) {
    const [name, value] = this.#checked(given, text);
    this.#values.set(name, [value]);
  }

  get(name) {
    return this.#values.get(this.#checked(name)[0])?.join(", ") ?? null;
  }

  has(name) {
    return this.#values.has(this.#checked(name)[0]);
  }

  delete(name) {
    this.#values.delete(this.#checked(name)[0]);
  }

  getSetCookie() {
    return [...(this.#values.get("set-cookie") ?? [])];
  }

  *entries() {
    for (const name of [...this.#values.keys()].sort()) {
      if (name === "set-cookie") for (const each of this.getSetCookie()) yield [name, each];
      else yield [name, this.get(name)];
    }
  }
}

async function collect(pieces) {
  const found = [];
  for await (const piece of pieces) found.push(piece);
  return joined(found);
}

async function* later(promised) {
  yield await promised();
}

/** The body of a request or an answer: pieces that are read once, also by its clones. */
class Body {
  #source;
  #type;
  bodyUsed = false;

  constructor(given) {
    if (given instanceof Body) {
      if (given.bodyUsed) throw new TypeError("The body is used already.");
      this.#source = given.#source;
      this.#type = given.#type;
      if (this.#source !== undefined) this.#source.isShared = true;
      return;
    }
    if (given === null || given === undefined) return;
    if (typeof given[Symbol.asyncIterator] === "function") {
      this.#source = { pieces: given[Symbol.asyncIterator]() };
      return;
    }
    const isData = given instanceof ArrayBuffer || ArrayBuffer.isView(given), isForm = given instanceof URLSearchParams;
    if (!isData) this.#type = isForm ? "application/x-www-form-urlencoded;charset=UTF-8" : "text/plain;charset=UTF-8";
    this.#source = { all: Promise.resolve(isData ? bytesOf(given).slice() : encode(String(given))), isShared: true };
  }

  static typeOf = (body) => body.#type;

  #whole() {
    const source = this.#source;
    if (source === undefined) return new Uint8Array();
    source.all ??= collect(source.pieces);
    return source.all;
  }

  /** The pieces as they come: an object for `for await`, with a reader as a stream has one. */
  get body() {
    const source = this.#source;
    if (source === undefined) return null;
    let pieces;
    const take = () => {
      this.bodyUsed = true;
      return (pieces ??= source.isShared ? later(() => this.#whole()) : source.pieces);
    };
    const stop = () => take().return?.();
    return { [Symbol.asyncIterator]: take, getReader: () => ({ read: () => take().next(), cancel: stop, releaseLock() {} }), cancel: stop };
  }

  async bytes() {
    if (this.bodyUsed) throw new TypeError("The body is used already.");
    this.bodyUsed = true;
    return this.#whole();
  }

  async arrayBuffer() {
    return (await this.bytes()).slice().buffer;
  }

  async text() {
    return textOf(await this.bytes(), "utf-8").replace(/^\ufeff/, "");
  }

  async json() {
    return parse(await this.text());
  }
}

export class Request extends Body {
  constructor(input, init = {}) {
    const from = input instanceof Request ? input : {};
    super(init.body ?? (input instanceof Request ? input : undefined));
    const url = new URL(from.url ?? String(input));
    if (url.protocol !== "http:" && url.protocol !== "https:") throw new TypeError(`fetch takes http: and https:, not ${url.protocol}`);
    if (url.username || url.password) throw new TypeError("A URL for fetch has no user and no password; use the header Authorization.");
    this.url = url.href;
    this.method = String(init.method ?? from.method ?? "GET");
    if (/^(?:get|head|post|put|delete|options)$/i.test(this.method)) this.method = this.method.toUpperCase();
    if (!NAME.test(this.method)) throw new TypeError("The method is not valid.");
    if (init.body !== undefined && init.body !== null && /^(?:GET|HEAD)$/.test(this.method)) throw new TypeError("GET and HEAD have no body.");
    this.headers = new Headers(init.headers ?? from.headers);
    const type = Body.typeOf(this);
    if (type !== undefined && !this.headers.has("content-type")) this.headers.set("content-type", type);
    this.redirect = init.redirect ?? from.redirect ?? "follow";
    this.signal = init.signal ?? from.signal ?? new AbortController().signal;
  }

  clone() {
    return new Request(this);
  }
}

export class Response extends Body {
  constructor(body, { status = 200, statusText = "", headers = [] } = {}) {
    super(body);
    this.status = status;
    this.statusText = statusText;
    this.headers = new Headers(headers);
    this.ok = status >= 200 && status < 300;
    this.type = "default";
    this.url = "";
    this.redirected = false;
    const type = Body.typeOf(this);
    if (type !== undefined && !this.headers.has("content-type")) this.headers.set("content-type", type);
  }

  static json(value, init = {}) {
    const made = new Response(stringify(value), init);
    made.headers.set("content-type", "application/json");
    return made;
  }

  clone() {
    const made = new Response(this, this);
    return Object.assign(made, { type: this.type, url: this.url, redirected: this.redirected });
  }
}

/** A connection of one request; its answer is read piece by piece. */
class FetchConnection {
  #calls = networkCalls();
  #number;
  #data = new Uint8Array();
  #received = 0;
  #aborted;

  constructor(signal) {
    this.#aborted = new Promise((_, no) => signal.addEventListener("abort", () => no(signal.reason)));
    this.#aborted.catch(() => {});
  }

  async #call(name, ...values) {
    try {
      return await Promise.race([this.#calls.get(name)(...values), this.#aborted]);
    } catch (problem) {
      if (problem instanceof DOMException) throw problem;
      throw new TypeError(`fetch failed: ${problem?.message ?? problem}`, { cause: problem });
    }
  }

  async open(url) {
    const host = url.hostname.replace(/^\[|\]$/g, ""), isSecure = url.protocol === "https:";
    this.#number = await this.#call("connect", host, Number(url.port) || (isSecure ? 443 : 80), CONNECT_SECONDS);
    if (isSecure) await this.#call("secure", this.#number, host);
  }

  async send(data) {
    for (let start = 0; start < data.length; start += PIECE) {
      await this.#call("send", this.#number, this.#received, data.subarray(start, start + PIECE));
    }
  }

  /** Waits for bytes; returns false at the end. */
  async #fill() {
    while (true) {
      const { data, ended } = await this.#call("receive", this.#number, this.#received, WAIT_SECONDS);
      this.#received += data.length;
      if (data.length > 0) this.#data = joined([this.#data, data]);
      if (data.length > 0 || ended) return data.length > 0;
    }
  }

  /** Returns the text up to a line end, or to the empty line. */
  async upTo(mark) {
    for (let start = 0; ; ) {
      const text = latin1(this.#data.subarray(start, start + 8192)), at = text.indexOf(mark);
      if (at >= 0) {
        const found = latin1(this.#data.subarray(0, start + at));
        this.#data = this.#data.slice(start + at + mark.length);
        return found;
      }
      if (start + 8192 < this.#data.length) start += 8192 - mark.length;
      else if (this.#data.length > MOST_HEAD || !(await this.#fill())) throw new TypeError("fetch failed: the answer ended early");
    }
  }

  /** Yields some bytes, or all up to the end. */
  async *bytes(count = Infinity) {
    while (count > 0) {
      if (this.#data.length === 0 && !(await this.#fill())) {
        if (count === Infinity) return;
        throw new TypeError("fetch failed: the answer ended early");
      }
      const piece = this.#data.slice(0, Math.min(count, this.#data.length));
      this.#data = this.#data.slice(piece.length);
      count -= piece.length;
      yield piece;
    }
  }

  async *chunks() {
    for (let size; (size = parseInt(await this.upTo("\r\n"), 16)) > 0; await this.upTo("\r\n")) yield* this.bytes(size);
  }

  async *body(headers) {
    try {
      if (headers.has("transfer-encoding")) yield* this.chunks();
      else yield* this.bytes(headers.has("content-length") ? Number(headers.get("content-length")) : Infinity);
    } finally {
      this.close();
    }
  }

  close() {
    const number = this.#number;
    this.#number = undefined;
    if (number !== undefined) this.#calls.get("close")(number).catch(() => {});
  }
}

async function answerTo(url, method, headers, body, signal) {
  const lines = [`${method} ${url.pathname}${url.search} HTTP/1.1`, `Host: ${url.host}`];
  for (const [name, value] of headers) if (!OURS.includes(name)) lines.push(`${name}: ${value}`);
  if (body !== undefined || /^(?:POST|PUT|PATCH)$/.test(method)) lines.push(`Content-Length: ${body?.length ?? 0}`);
  const wire = new FetchConnection(signal);
  try {
    await wire.open(url);
    await wire.send(joined([Uint8Array.from(`${lines.join("\r\n")}\r\n\r\n`, (each) => each.charCodeAt(0)), body ?? []]));
    const [first, ...rest] = (await wire.upTo("\r\n\r\n")).split("\r\n");
    const [, status, statusText] = /^HTTP\/1\.[01] (\d{3}) ?(.*)$/.exec(first);
    const found = new Headers(rest.map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1)]));
    const isEmpty = method === "HEAD" || WITHOUT_BODY.includes(Number(status));
    const made = new Response(isEmpty ? null : wire.body(found), { status: Number(status), statusText, headers: found });
    if (isEmpty) wire.close();
    return Object.assign(made, { url: url.href, type: "basic" });
  } catch (problem) {
    wire.close();
    throw problem;
  }
}

export async function fetch(input, init) {
  if (!networkCalls().has("connect")) throw new TypeError(NO_NETWORK);
  const request = new Request(input, init), { signal, headers } = request;
  signal.throwIfAborted();
  let url = new URL(request.url), { method } = request, body = request.body === null ? undefined : await request.bytes();
  for (let count = 0; ; count += 1) {
    const answer = await answerTo(url, method, headers, body, signal), { status } = answer, to = answer.headers.get("location");
    answer.redirected = count > 0;
    if (!REDIRECTS.includes(status) || to === null || request.redirect === "manual") return answer;
    await answer.body?.cancel();
    if (request.redirect === "error" || count === MOST_REDIRECTS) throw new TypeError("fetch failed: a redirect, or too many");
    const from = url;
    url = new URL(new Request(new URL(to, url)).url);
    if (url.origin !== from.origin) for (const name of PRIVATE) headers.delete(name);
    if (status === 303 ? !/^(?:GET|HEAD)$/.test(method) : status < 303 && method === "POST") {
      [method, body] = ["GET", undefined];
      for (const name of OF_BODIES) headers.delete(name);
    }
  }
}
