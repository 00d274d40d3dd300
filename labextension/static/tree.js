/** The order, the branches and the marks of a tree of states, without any page. */

/** Returns the numbers of a state and of those before it. */
export function lineage(tree, id) {
  const states = new Map(tree.states.map((state) => [state.id, state]));
  const line = new Set();
  for (let at = id; states.has(at) && !line.has(at); at = states.get(at).parent) line.add(at);
  return line;
}

/**
 * Returns the rows to draw, from the beginning on: states and cells that left none.
 *
 * The line to the current state goes straight down; other branches hang off it, one level deeper.
 */
export function rows(tree) {
  const line = lineage(tree, tree.here);
  const ids = new Set(tree.states.map((state) => state.id));
  const below = new Map();
  for (const state of [...tree.states].sort((a, b) => a.id - b.id)) {
    const parent = ids.has(state.parent) ? state.parent : 0;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(state);
  }
  const found = [];
  const lostAt = (id, depth) => {
    for (const cell of tree.lost)
      if (cell.at === id) found.push({ ...cell, key: `lost ${cell.cell}`, depth, isLost: true });
  };
  lostAt(0, 0);
  const waiting = [...(below.get(0) ?? [])].reverse().map((state) => [state, 0]);
  while (waiting.length) {
    const [state, depth] = waiting.pop();
    const isUndone = !line.has(state.id);
    found.push({ ...state, key: state.id, depth, isUndone, isHere: state.id === tree.here });
    lostAt(state.id, depth);
    const children = below.get(state.id) ?? [];
    const straight = children.find((child) => line.has(child.id)) ?? children.at(-1);
    if (straight) waiting.push([straight, depth]);
    for (const child of [...children].reverse())
      if (child !== straight) waiting.push([child, depth + 1]);
  }
  return found;
}

/** Returns the states that only the first of two has behind it, and only the second. */
export function difference(tree, first, second) {
  const [one, other] = [lineage(tree, first), lineage(tree, second)];
  const only = (line, not) =>
    tree.states.filter((state) => line.has(state.id) && !not.has(state.id));
  return { first: only(one, other), second: only(other, one) };
}

/** Returns the files that some states changed, each once. */
export function filesOf(states) {
  const files = states.flatMap((state) => Object.values(state.files).flat());
  return [...new Set(files)].sort();
}

/** Returns a number of bytes, such as `1.5 MiB`. */
export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let power = 0;
  while (size >= 1024 && power < units.length - 1) {
    size /= 1024;
    power += 1;
  }
  return `${power && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[power]}`;
}

/** Returns a time, such as `0.25 s`. */
export function seconds(time) {
  if (time < 1) return `${Math.max(1, Math.round(time * 1000))} ms`;
  return time < 100 ? `${time.toFixed(1)} s` : `${Math.round(time / 60)} min`;
}
