// Timers. They run while a cell does; a cell waits for the timeouts that are pending.

import { now } from "wasm-kernel:host";

const MOST_MILLISECONDS = 2 ** 31 - 1;
let pending = [], next = 1;

function add(callback, milliseconds, values, every) {
  if (typeof callback !== "function") throw new TypeError("A timer takes a function to call.");
  const least = Math.trunc(Number(milliseconds)) || 0;
  const delay = least > MOST_MILLISECONDS ? 1 : Math.max(every ? 1 : 0, least);
  const id = next++;
  pending.push({ id, callback, values, delay, at: now() + delay, every });
  return id;
}

const remove = (id) => {
  pending = pending.filter((timer) => timer.id !== Number(id));
};

export const timers = {
  setTimeout: (callback, milliseconds = 0, ...values) => add(callback, milliseconds, values, false),
  setInterval: (callback, milliseconds = 0, ...values) => add(callback, milliseconds, values, true),
  setImmediate: (callback, ...values) => add(callback, 0, values, false),
  clearTimeout: remove,
  clearInterval: remove,
  clearImmediate: remove,
};

/** Returns the milliseconds until the next timer is due; undefined if there is none. */
export function nextDue() {
  let first;
  for (let index = 0; index < pending.length; index += 1) {
    const { at } = pending[index];
    if (first === undefined || at < first) first = at;
  }
  return first === undefined ? undefined : Math.max(0, first - now());
}

/** Returns whether a timeout is pending; a cell waits for it. */
export const hasTimeouts = () => pending.some((timer) => !timer.every);

/** Takes the earliest timer that is due; undefined if none is. */
export function takeDue() {
  let found;
  const moment = now();
  for (let index = 0; index < pending.length; index += 1) {
    const timer = pending[index];
    if (timer.at <= moment && (found === undefined || timer.at < found.at)) found = timer;
  }
  if (found === undefined) return undefined;
  if (found.every) found.at = moment + found.delay;
  else remove(found.id);
  return found;
}

export function clearAll() {
  pending = [];
}
