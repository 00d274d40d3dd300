// A part of `node:util`.

import { format, inspect } from "wasm-kernel:inspect";
import { TextDecoder, TextEncoder } from "wasm-kernel:web";

export { format, inspect, TextDecoder, TextEncoder };

export const promisify = (call) => (...values) =>
  new Promise((resolve, reject) => call(...values, (problem, value) => (problem ? reject(problem) : resolve(value))));

export function inherits(made, base) {
  Object.setPrototypeOf(made.prototype, base.prototype);
}

export const types = { isPromise: (value) => value instanceof Promise, isDate: (value) => value instanceof Date };
export default { format, inspect, TextDecoder, TextEncoder, promisify, inherits, types };
