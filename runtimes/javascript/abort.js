// `AbortController`, for `fetch` and for code that takes signals.

import { timers } from "wasm-kernel:timers";

export class AbortSignal {
  #listeners = new Set();
  aborted = false;
  reason = undefined;
  onabort = null;

  static abort(reason) {
    const made = new AbortController();
    made.abort(reason);
    return made.signal;
  }

  static timeout(milliseconds) {
    const made = new AbortController();
    timers.setTimeout(() => made.abort(new DOMException("The time is over.", "TimeoutError")), milliseconds);
    return made.signal;
  }

  static any(signals) {
    const made = new AbortController();
    for (const each of signals) {
      if (each.aborted) made.abort(each.reason);
      else each.addEventListener("abort", () => made.abort(each.reason));
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

  static abortIt(signal, reason = new DOMException("It was aborted.", "AbortError")) {
    if (signal.aborted) return;
    signal.aborted = true;
    signal.reason = reason;
    const event = { type: "abort", target: signal };
    signal.onabort?.(event);
    for (const each of signal.#listeners) (each.handleEvent ?? each).call(signal, event);
  }
}
const { abortIt } = AbortSignal;
delete AbortSignal.abortIt;

export class AbortController {
  signal = new AbortSignal();

  abort(reason) {
    abortIt(this.signal, reason);
  }
}
