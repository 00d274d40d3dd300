// Arrays of objects as tables: text for a terminal, HTML for a page.

import { getOwnPropertyDescriptor, ownKeys } from "wasm-kernel:host";
import { inspect } from "wasm-kernel:inspect";

const MOST_ROWS = 60, MOST_COLUMNS = 30, MOST_CHARACTERS = 200;

const isRecord = (value) => typeof value === "object" && value !== null;
const own = (holder, key) => {
  const found = getOwnPropertyDescriptor(holder, key);
  return found === undefined ? "" : "value" in found ? shown(found.value) : "[Getter]";
};

function shown(value) {
  const text = typeof value === "string" ? value : inspect(value, { depth: 1, width: Infinity });
  return text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS)}…` : text;
}

const textKeys = (value) => ownKeys(value).filter((key) => typeof key === "string" && getOwnPropertyDescriptor(value, key)?.enumerable);

/** Returns the headings and rows of a table, or undefined if a value is not a table. */
function cellsOf(value, wanted) {
  const keys = Array.isArray(value) ? Array.from({ length: Math.min(value.length, MOST_ROWS) }, (_, index) => String(index)) : textKeys(value);
  const count = Array.isArray(value) ? value.length : keys.length;
  const rows = keys.slice(0, MOST_ROWS).map((key) => [key, getOwnPropertyDescriptor(value, key)?.value]);
  const columns = new Set(wanted);
  let plain = false;
  for (const [, row] of rows) {
    if (!isRecord(row)) plain = true;
    else if (wanted === undefined) {
      for (const key of textKeys(row)) if (columns.size < MOST_COLUMNS) columns.add(key);
    }
  }
  const names = [...columns];
  const headings = ["", ...names, ...(plain ? ["value"] : [])];
  const lines = rows.map(([key, row]) => [
    key,
    ...names.map((name) => (isRecord(row) ? own(row, name) : "")),
    ...(plain ? [isRecord(row) ? "" : shown(row)] : []),
  ]);
  if (count > MOST_ROWS) lines.push([`${count - MOST_ROWS} more`, ...headings.slice(1).map(() => "…")]);
  return [headings, lines];
}

/** Returns a table as text; other values as the text of `inspect`. */
export function tableText(value, wanted) {
  if (!isRecord(value)) return inspect(value);
  const [headings, lines] = cellsOf(value, wanted);
  const all = [headings, ...lines].map((line) => line.map((cell) => cell.replaceAll("\n", " ")));
  const widths = headings.map((_, index) => Math.max(...all.map((line) => line[index].length)));
  const row = (line) => line.map((cell, index) => cell.padEnd(widths[index])).join("  ").trimEnd();
  return [row(all[0]), widths.map((width) => "-".repeat(width)).join("  "), ...all.slice(1).map(row)].join("\n");
}

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** Returns HTML for an array of plain objects; undefined for anything else. */
export function tableHtml(value) {
  if (!Array.isArray(value) || value.length === 0) return undefined;
  const isRow = (row) => isRecord(row) && [Object.prototype, null].includes(Object.getPrototypeOf(row));
  for (let index = 0; index < Math.min(value.length, MOST_ROWS); index += 1) {
    if (!isRow(getOwnPropertyDescriptor(value, index)?.value)) return undefined;
  }
  const [headings, lines] = cellsOf(value);
  if (headings.length < 2) return undefined;
  const cells = (line, name) => line.map((cell, index) => {
    const kind = index === 0 ? "th" : name;
    return `<${kind}>${escaped(cell)}</${kind}>`;
  }).join("");
  const body = lines.map((line) => `<tr>${cells(line, "td")}</tr>`).join("");
  return `<table><thead><tr>${cells(headings, "th")}</tr></thead><tbody>${body}</tbody></table>`;
}
