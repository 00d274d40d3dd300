// `node:crypto`, of which there are random numbers alone.

import { randomBytes as draw } from "wasm-kernel:host";
import { crypto } from "wasm-kernel:web";

export const webcrypto = crypto;
export const { getRandomValues, randomUUID } = crypto;
export const randomBytes = (count) => draw(count);
export default { webcrypto, getRandomValues, randomUUID, randomBytes };
