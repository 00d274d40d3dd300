// `node:url`.

import { URL, URLSearchParams } from "wasm-kernel:url";

export { URL, URLSearchParams };
export const fileURLToPath = (url) => decodeURIComponent(new URL(url).pathname);
export const pathToFileURL = (path) => new URL(`file://${path.split("/").map(encodeURIComponent).join("/")}`);
export default { URL, URLSearchParams, fileURLToPath, pathToFileURL };
