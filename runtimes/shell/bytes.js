// Bytes in texts: a byte that is no part of UTF-8 stands in a text as a lone surrogate, as in Python's file names.

import { encode } from "wasm-kernel:host";
import * as web from "wasm-kernel:web";

const ESCAPE = 0xdc00; // and the byte
const PIECE = 8192;
const strict = new web.TextDecoder("utf-8", { fatal: true });

/** Returns the bytes that a text stands for. */
export function bytesOfText(text) {
  if (text.isWellFormed()) return encode(text);
  const found = new Uint8Array(text.length * 3);
  let size = 0;
  for (let at = 0; at < text.length; at += 1) {
    const code = text.codePointAt(at);
    if (code > 0xffff) at += 1;
    const isByte = code < 0x80 || (code > ESCAPE + 0x7f && code <= ESCAPE + 0xff);
    const further = isByte ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    found[size++] = isByte ? code : ((0xff00 >> (further + 1)) & 0xff) | (code >> (6 * further));
    for (let left = further - 1; left >= 0; left -= 1) found[size++] = 0x80 | ((code >> (6 * left)) & 0x3f);
  }
  return found.subarray(0, size);
}

/** Returns the length of the character that begins at a place, by UTF-8; 0 if none does. */
function lengthAt(data, at) {
  const first = data[at], second = data[at + 1];
  if (first < 0x80) return 1;
  const length = first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if ((first === 0xe0 && second < 0xa0) || (first === 0xed && second > 0x9f)) return 0;
  if ((first === 0xf0 && second < 0x90) || (first === 0xf4 && second > 0x8f)) return 0;
  for (let next = 1; next < length; next += 1) if ((data[at + next] & 0xc0) !== 0x80) return 0;
  return length;
}

/** Returns the text that stands for bytes. */
export function textOfBytes(data) {
  try {
    return strict.decode(data);
  } catch {
    return escaped(data);
  }
}

let isFirst = true;

/**
 * The decoder of just-bash. The first one reads the bytes in pipes and in outputs of commands; another one checks
 * whether the text at a script's end is bytes, and must refuse any other text.
 */
export class TextDecoder extends web.TextDecoder {
  constructor(label, options) {
    super(label, options);
    if (isFirst) this.decode = textOfBytes;
    isFirst = false;
  }
}

function escaped(data) {
  const pieces = [];
  for (let at = 0; at < data.length;) {
    const letters = [];
    while (at < data.length && letters.length < PIECE) {
      const length = lengthAt(data, at);
      if (length < 2) letters.push(length === 1 ? data[at] : ESCAPE + data[at]);
      else putLetter(letters, data, at, length);
      at += length || 1;
    }
    pieces.push(String.fromCharCode(...letters));
  }
  return pieces.join("");
}

/** Adds a character of several bytes to codes of UTF-16. */
function putLetter(letters, data, at, length) {
  let code = data[at] & (0xff >> (length + 1));
  for (let next = 1; next < length; next += 1) code = (code << 6) | (data[at + next] & 0x3f);
  if (code > 0xffff) letters.push(0xd7c0 + (code >> 10), 0xdc00 | (code & 0x3ff));
  else letters.push(code);
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
