// The paths of `jq`, and changes by them: just-bash's own functions know few kinds of expressions, and ignore the others.

const IDENTITY = { type: "Identity" }, KINDS = ["arrays", "objects", "iterables", "booleans", "numbers", "strings", "nulls", "values", "scalars"];
export const kindOf = (value) => (value === null ? "null" : Array.isArray(value) ? "array" : typeof value);
const isTrue = (value) => value !== null && value !== undefined && value !== false;

/** Returns the value behind a key; `null` if there is none. */
function valueAt(value, key) {
  if (value === null || value === undefined) return null;
  const isFit = Array.isArray(value) ? typeof key === "number" : typeof value === "object" && typeof key === "string";
  if (!isFit) throw new Error(`Cannot index ${kindOf(value)} with ${typeof key === "string" ? `"${key}"` : kindOf(key)}`);
  return (Array.isArray(value) ? value.at(key) : Object.hasOwn(value, key) ? value[key] : null) ?? null;
}

/** Returns the pairs of keys and values in a value. */
export function inside(value, isStrict = true) {
  if (Array.isArray(value)) return [...value.entries()];
  if (value !== null && typeof value === "object") return Object.entries(value);
  if (isStrict) throw new Error(`Cannot iterate over ${kindOf(value)}`);
  return [];
}

/** Returns the paths to which an expression leads from a path and its value, each with its value. */
function led(node, pair, evaluate) {
  const [path, value] = pair, on = (next, pairs) => pairs.flatMap((each) => led(next, each, evaluate));
  const base = () => on(node.base ?? IDENTITY, [pair]), step = ([before, found], key) => [[...before, key], valueAt(found, key)];
  const below = (each) => [each, ...inside(each[1], false).flatMap(([key, next]) => below([[...each[0], key], next]))];
  const selected = (test, found) => evaluate(value, test).flatMap((told) => (isTrue(told) ? found() : []));
  const [first] = node.args ?? [];
  switch (node.type) {
    case "Identity": return [pair];
    case "Paren": return on(node.expr, [pair]);
    case "Field": return base().map((each) => step(each, node.name));
    case "Index": return evaluate(value, node.index).flatMap((key) => base().map((each) => step(each, key)));
    case "Iterate": return base().flatMap(([before, found]) => inside(found).map(([key, next]) => [[...before, key], next]));
    case "Slice": {
      const [start, end] = [node.start, node.end].map((edge) => (edge ? evaluate(value, edge)[0] : undefined) ?? undefined);
      return base().flatMap(([before, found]) => inside(found ?? []).slice(start, end).map(([key, next]) => [[...before, key], next]));
    }
    case "Pipe": return on(node.right, on(node.left, [pair]));
    case "Comma": return [...on(node.left, [pair]), ...on(node.right, [pair])];
    case "Recurse": return below(pair);
    case "Optional":
    case "Try":
      try {
        return on(node.expr ?? node.body, [pair]);
      } catch {
        return [];
      }
    case "Cond": {
      const [next, ...others] = [{ cond: node.cond, then: node.then }, ...node.elifs];
      const rest = others.length > 0 ? { ...node, ...others[0], elifs: others.slice(1) } : (node.else ?? IDENTITY);
      return evaluate(value, next.cond).flatMap((told) => on(isTrue(told) ? next.then : rest, [pair]));
    }
    case "BinaryOp":
      if (node.op === "//") {
        const left = led({ type: "Optional", expr: node.left }, pair, evaluate).filter(([, found]) => isTrue(found));
        return left.length > 0 ? left : on(node.right, [pair]);
      }
      break;
    case "Call":
      if (node.name === "empty") return [];
      if (node.name === "select") return selected(first, () => [pair]);
      if (node.name === "recurse" && !first) return below(pair);
      if (node.name === "first" || node.name === "last") {
        if (!first) return [step(pair, node.name === "first" ? 0 : -1)];
        return on(first, [pair]).slice(...(node.name === "first" ? [0, 1] : [-1]));
      }
      if (node.name === "getpath") return evaluate(value, first).map((keys) => keys.reduce(step, pair));
      if (KINDS.includes(node.name)) return evaluate(value, node).length > 0 ? [pair] : [];
  }
  throw new Error(`Invalid path expression: ${node.name ?? node.type} is not known here as a part of a path`);
}

/** Returns the paths to which an expression leads; those of all elements of a part of an array if they shall go. */
export function pathsOf(value, node, evaluate, isToGo = false) {
  if (!isToGo && JSON.stringify(node).includes('"Slice"')) throw new Error("a part of an array is not known here as a part of a path");
  return led(node, [[], value], evaluate).map(([path]) => path);
}

/** Returns a path with places counted from the beginning of arrays. */
const exact = (value, path) => path.map((key, at) => (typeof key === "number" && key < 0 ? key + path.slice(0, at).reduce(valueAt, value)?.length : key));

/** Returns a value without the parts at paths, the last of which go first. */
export function removed(value, paths, remove) {
  const order = (one, other) => {
    const at = one.findIndex((key, place) => key !== other[place]);
    return at < 0 || other[at] === undefined || one[at] > other[at] ? -1 : 1;
  };
  const found = paths.map((path) => exact(value, path)).sort(order);
  return found.filter((path, at) => JSON.stringify(path) !== JSON.stringify(found[at - 1])).reduce(remove, value);
}

/** Returns the values that an assignment makes. */
export function updated(value, { path, op, value: given }, evaluate, put, remove) {
  const paths = pathsOf(value, path, evaluate).map((keys) => exact(value, keys)), current = (from, keys) => keys.reduce(valueAt, from);
  if (op === "|=") {
    const change = ([from, gone], keys) => {
      const [made] = evaluate(current(from, keys), given);
      return made === undefined ? [from, [...gone, keys]] : [put(from, keys, made), gone];
    };
    const [made, gone] = paths.reduce(change, [value, []]);
    return [removed(made, gone, remove)];
  }
  const sum = (before, after) => {
    if (op === "=") return after;
    const [one, other] = [before, after].map((each) => ({ type: "Literal", value: each }));
    return evaluate(null, { type: "BinaryOp", op: op.slice(0, -1), left: one, right: other })[0];
  };
  return evaluate(value, given).map((each) => paths.reduce((from, keys) => put(from, keys, sum(current(from, keys), each)), value));
}
