// Whole numbers of 64 bits, as bash calculates with them: a BigInt where JavaScript's own number is not exact.

const narrowed = (big) => {
  const value = BigInt.asIntN(64, big), plain = Number(value);
  return Number.isSafeInteger(plain) ? plain : value;
};

/** Returns the number that a text of digits stands for. */
export function whole(text) {
  const plain = Number(text);
  return Number.isSafeInteger(plain) ? plain : narrowed(BigInt(text));
}

/** Returns the number with which a text begins; 0 without one. */
export const numberOf = (text) => (/^-?\d+$/.test(text) ? whole(text) : Number.parseInt(text, 10) || 0);

/** Returns a whole number of any size, as `expr` has them; NaN if the text is another one. */
export const exactOf = (text) => (/^-?\d+$/.test(text) ? BigInt(text) : NaN);

function power(base, exponent) {
  let found = 1n;
  for (let left = exponent, factor = base; left > 0n; left >>= 1n, factor = BigInt.asIntN(64, factor * factor)) {
    if (left & 1n) found = BigInt.asIntN(64, found * factor);
  }
  return found;
}

const PLAIN = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "**": (a, b) => a ** b };
const BIG = {
  "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b, "%": (a, b) => a % b, "**": power,
  "<<": (a, b) => a << (b & 63n), ">>": (a, b) => a >> (b & 63n), "&": (a, b) => a & b, "|": (a, b) => a | b, "^": (a, b) => a ^ b,
};

/** Returns the result of an operator; undefined if it is another one, or has none for these numbers. */
export function reckon(operator, one, other) {
  if (!(operator in BIG) || (other === 0 && "/%".includes(operator)) || (operator === "**" && other < 0)) return undefined;
  if (typeof one === "number" && typeof other === "number") {
    if ("/%".includes(operator)) return undefined;
    const found = PLAIN[operator]?.(one, other);
    if (Number.isSafeInteger(found)) return found;
  }
  return narrowed(BIG[operator](BigInt(one), BigInt(other)));
}

/** Returns the result of `-` or `~` before a number. */
export const negated = (value) => narrowed(-BigInt(value));
export const inverted = (value) => narrowed(~BigInt(value));
