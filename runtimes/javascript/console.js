// The `console` of browsers and Node.

import { now, print, send } from "wasm-kernel:host";
import { format, inspect } from "wasm-kernel:inspect";
import { tableText } from "wasm-kernel:tables";

const counts = new Map(), timers = new Map();
let indent = "";

function say(stream, values) {
  const text = values.length > 0 ? format(...values) : "";
  print(stream, `${indent}${indent ? text.replaceAll("\n", `\n${indent}`) : text}\n`);
}

const elapsed = (label) => `${label}: ${(now() - timers.get(label)).toFixed(3)}ms`;

export const console = {
  log: (...values) => say(1, values),
  info: (...values) => say(1, values),
  debug: (...values) => say(1, values),
  warn: (...values) => say(2, values),
  error: (...values) => say(2, values),
  dir: (value, options) => say(1, ["%s", inspect(value, options)]),
  dirxml: (...values) => say(1, values),
  trace(...values) {
    const lines = new Error().stack.split("\n").slice(1).join("\n").trimEnd();
    say(2, [`Trace${values.length > 0 ? `: ${format(...values)}` : ""}\n${lines}`]);
  },
  assert(holds, ...values) {
    if (!holds) say(2, [`Assertion failed${values.length > 0 ? `: ${format(...values)}` : ""}`]);
  },
  table: (rows, columns) => say(1, ["%s", tableText(rows, columns)]),
  group(...values) {
    if (values.length > 0) say(1, values);
    indent += "  ";
  },
  groupEnd() {
    indent = indent.slice(2);
  },
  count(label = "default") {
    counts.set(label, (counts.get(label) ?? 0) + 1);
    say(1, [`${label}: ${counts.get(label)}`]);
  },
  countReset: (label = "default") => void counts.delete(label),
  time: (label = "default") => void timers.set(label, now()),
  timeLog(label = "default", ...values) {
    if (timers.has(label)) say(1, [elapsed(label), ...values]);
  },
  timeEnd(label = "default") {
    if (timers.has(label)) say(1, [elapsed(label)]);
    timers.delete(label);
  },
  clear: () => void send({ op: "clear_output", wait: false }),
};
console.groupCollapsed = console.group;
Object.defineProperty(console, Symbol.toStringTag, { value: "console", configurable: true });
for (const name of Object.keys(console)) {
  Object.defineProperty(console[name], "name", { value: name, configurable: true });
}
