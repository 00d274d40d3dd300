// `node:process`.

import { process } from "wasm-kernel:process";

export const { argv, env, cwd, chdir, nextTick, platform, version, versions, stdout, stderr, hrtime, uptime } = process;
export default process;
