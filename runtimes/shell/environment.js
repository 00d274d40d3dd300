// The globals that just-bash uses. They are there before its module runs.

import { process } from "wasm-kernel:process";
import { timers } from "wasm-kernel:timers";
import { URL, URLSearchParams } from "wasm-kernel:url";
import * as web from "wasm-kernel:web";
import { console } from "wasm-kernel:console";
import { now } from "wasm-kernel:host";

class AbortSignal {
  aborted = false;
  #listeners = new Set();

  static any(signals) {
    const made = new AbortController();
    for (const signal of signals) {
      if (signal.aborted) made.abort(signal.reason);
      signal.addEventListener("abort", () => made.abort(signal.reason));
    }
    return made.signal;
  }

  addEventListener(_, listener) {
    this.#listeners.add(listener);
  }

  removeEventListener(_, listener) {
    this.#listeners.delete(listener);
  }

  throwIfAborted() {
    if (this.aborted) throw this.reason;
  }

  end(reason) {
    if (this.aborted) return;
    this.aborted = true;
    this.reason = reason ?? new Error("aborted");
    for (const listener of this.#listeners) listener();
  }
}

class AbortController {
  signal = new AbortSignal();

  abort(reason) {
    this.signal.end(reason);
  }
}

const performance = { now, timeOrigin: 0 };
Object.assign(globalThis, {
  ...timers, ...web, AbortController, AbortSignal, console, performance, process, URL, URLSearchParams,
});
