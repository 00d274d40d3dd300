// The globals as they were before the first cell. The host adds an import of this module to each module of
// the agent, so that none of them misses a global that a cell has replaced.

export const {
  AggregateError, Array, ArrayBuffer, BigInt, BigInt64Array, BigUint64Array, Boolean, DataView, Date, DOMException,
  Error, EvalError, Float32Array, Float64Array, Function, Int16Array, Int32Array, Int8Array, JSON, Map, Math, Number,
  Object, Promise, Proxy, RangeError, ReferenceError, Reflect, RegExp, Set, SharedArrayBuffer, String, Symbol,
  SyntaxError, TypeError, URIError, Uint16Array, Uint32Array, Uint8Array, Uint8ClampedArray, WeakMap, WeakRef, WeakSet,
  atob, btoa, decodeURIComponent, encodeURIComponent, queueMicrotask,
} = globalThis;
