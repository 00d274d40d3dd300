// Bytes in texts: a byte that is not part of UTF-8 stands in a text as a lone surrogate, as in Python's file names.
//
// The host converts, as it needs some nanoseconds a byte where a loop in here needs hundreds.

import { decode, encode, encodeAs, joined, latin1 } from "wasm-kernel:host";
import * as web from "wasm-kernel:web";

const ESCAPE = 0xdc00; // a byte's surrogate is this plus the byte
const PIECE = 1024 * 1024, SHORT = 256;
const NOT_ASCII = /[^\0-\x7f]/;

/** Returns the bytes that a text stands for, in the way that `encodeAs` names. */
function bytesAs(text, how) {
  const pieces = [];
  for (let at = 0, end; at < text.length; at = end) {
    end = Math.min(at + PIECE, text.length);
    if (end < text.length && text.codePointAt(end - 1) > 0xffff) end += 1;
    const piece = text.slice(at, end), made = encodeAs(how === "escaped" ? JSON.stringify(piece) : piece, how);
    if (made === undefined) return undefined;
    pieces.push(made);
  }
  return pieces.length === 1 ? pieces[0] : joined(pieces);
}

/** Returns the bytes that a text stands for. */
export const bytesOfText = (text) => (text.isWellFormed() ? encode(text) : bytesAs(text, "escaped"));

/** Returns the bytes of a text that has one character for each; undefined if it has others. */
export const bytesOfLatin1 = (text) => bytesAs(text, "latin-1");

/** Returns the text that stands for bytes. */
export function textOfBytes(data) {
  try {
    return web.textOf(data, "utf-8", true);
  } catch {
    const pieces = [];
    for (let at = 0, end; at < data.length; at = end) {
      const rest = data.subarray(at, at + PIECE);
      end = at + (rest.length < PIECE ? rest.length : web.completeLength(rest, "utf-8") || PIECE);
      pieces.push(JSON.parse(decode(data.slice(at, end), "utf-8", "escaped")));
    }
    return pieces.join("");
  }
}

export { latin1 as latin1OfBytes };

// -- in place of just-bash's own functions, which loop over all characters

/** Returns the length of a text in bytes. */
export const utf8ByteLength = (text) =>
  text.length < SHORT && !NOT_ASCII.test(text) ? text.length : encode(text).length;

/** Returns the text of bytes that are given with one character for each, or a text that has others. */
export function textOfLatin1(text) {
  if (!text || (text.length < SHORT && !NOT_ASCII.test(text)) || utf8ByteLength(text) === text.length) return text;
  const data = text.isWellFormed() ? bytesOfLatin1(text) : undefined;
  return data === undefined ? text : textOfBytes(data);
}

/** Returns the bytes of a text with one character for each. */
export function latin1OfText(text) {
  if (!text || (text.length < SHORT && !NOT_ASCII.test(text))) return text;
  const data = bytesOfText(text);
  return data.length === text.length && text.isWellFormed() ? text : latin1(data);
}

const MIXES = /&|\/dev\/std/; // the operators and files by which output and errors share a place

/** Returns a command's result; with its output as text, as its errors are, if redirections mix both. */
export function mixed(result, redirections) {
  const isBytes = (result.stdoutKind ?? result.stdoutEncoding) === (result.stdoutKind ? "bytes" : "binary");
  if (!isBytes || !MIXES.test(JSON.stringify(redirections))) return result;
  return { ...result, stdout: textOfLatin1(result.stdout), stdoutKind: undefined, stdoutEncoding: undefined };
}

/** The encoder with which just-bash writes text. */
export class TextEncoder extends web.TextEncoder {
  encode(text = "") {
    return bytesOfText(String(text));
  }
}

const BYTE = /\\(?:\\|x([0-9a-fA-F]{1,2})|([0-7]{1,3}))/g, LONG = /\\(?:\\|x([0-9a-fA-F]{1,2})|0?([0-7]{1,3}))/g;

/**
 * Puts bytes in place of the escapes that name them, as in `\303`, or `\0303` if they may be long; just-bash takes them
 * for characters.
 */
export const withBytes = (format, isLong) =>
  format.replace(isLong ? LONG : BYTE, (all, hexadecimal, octal) => {
    const value = hexadecimal ? parseInt(hexadecimal, 16) : octal ? parseInt(octal, 8) & 0xff : 0;
    return value < 0x80 ? all : String.fromCharCode(ESCAPE + value);
  });
