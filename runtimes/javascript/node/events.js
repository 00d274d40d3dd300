// `node:events`.

export class EventEmitter {
  #listeners = new Map();

  on(name, listener) {
    this.#listeners.set(name, [...this.listeners(name), listener]);
    return this;
  }

  once(name, listener) {
    const first = (...values) => {
      this.off(name, first);
      listener.apply(this, values);
    };
    first.listener = listener;
    return this.on(name, first);
  }

  off(name, listener) {
    const left = this.listeners(name);
    const at = left.findLastIndex((each) => each === listener || each.listener === listener);
    if (at >= 0) this.#listeners.set(name, left.toSpliced(at, 1));
    return this;
  }

  emit(name, ...values) {
    const heard = this.listeners(name);
    if (heard.length === 0 && name === "error") throw values[0];
    for (const listener of heard) listener.apply(this, values);
    return heard.length > 0;
  }

  removeAllListeners(name) {
    if (name === undefined) this.#listeners.clear();
    else this.#listeners.delete(name);
    return this;
  }

  listeners = (name) => this.#listeners.get(name) ?? [];
  listenerCount = (name) => this.listeners(name).length;
  addListener = this.on;
  removeListener = this.off;
  setMaxListeners = () => this;
}
EventEmitter.EventEmitter = EventEmitter;
export default EventEmitter;
