// `node:crypto`: random numbers only.

import { randomBytes as draw } from "wasm-kernel:host";
import { crypto } from "wasm-kernel:web";

export const webcrypto = crypto;
export const { getRandomValues, randomUUID } = crypto;
export function randomBytes(count) {
  if (!Number.isInteger(count) || count < 0 || count > 2 ** 31 - 1) throw new RangeError("The size must be a whole number, 0 or more.");
  return draw(count);
}
export default { webcrypto, getRandomValues, randomUUID, randomBytes };
