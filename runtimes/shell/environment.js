// The globals that just-bash uses. They are there before its module runs.

import { AbortController, AbortSignal } from "wasm-kernel:abort";
import { process } from "wasm-kernel:process";
import { timers } from "wasm-kernel:timers";
import { URL, URLSearchParams } from "wasm-kernel:url";
import * as web from "wasm-kernel:web";
import { console } from "wasm-kernel:console";
import { now } from "wasm-kernel:host";
import { TextEncoder } from "wasm-kernel:bytes";

const performance = { now, timeOrigin: 0 };
Object.assign(globalThis, {
  ...timers, ...web, AbortController, AbortSignal, console, performance, process, TextEncoder, URL,
  URLSearchParams,
});
