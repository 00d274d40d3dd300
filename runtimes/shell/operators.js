// The operators of `jq` on values that they do not take, where just-bash's own return `null` without an error.

import { kindOf } from "wasm-kernel:paths";

const MOST = 11; // characters of a value that an error shows

const told = (value) => {
  const text = JSON.stringify(value);
  return `${kindOf(value)} (${text.length > MOST ? `${text.slice(0, MOST - 1)}...` : text})`;
};

/** Refuses two values, or one alone. */
export function unfit(what, ...values) {
  throw new Error(`${values.map(told).join(" and ")} cannot be ${what}`);
}

/** Returns the remainder of whole numbers: fractions do not count. */
export function remainder(one, other) {
  const by = Math.trunc(other);
  return by === 0 ? unfit("divided (remainder) because the divisor is zero", one, other) : Math.trunc(one) % by;
}

const inOrder = (_, value) => (kindOf(value) === "object" ? Object.fromEntries(Object.entries(value).sort()) : value);

/** Returns a text that is the same for equal values. */
export const keyOf = (value) => JSON.stringify(value, inOrder);
