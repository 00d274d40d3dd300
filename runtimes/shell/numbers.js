// Numbers as bash has them: whole ones of 64 bits, a BigInt where JavaScript's own number is not exact; and as text.

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

/** Returns a number as `%g` writes it. */
export function general(number, digits) {
  if (!Number.isFinite(number)) return String(number).replace("Infinity", "inf").replace("NaN", "nan");
  const most = digits || 1, [first, exponent] = number.toExponential(most - 1).split("e");
  if (exponent >= -4 && exponent < most) return String(Number(number.toPrecision(most)));
  return `${first.replace(/\.?0+$/, "")}e${exponent.replace(/^([+-])(\d)$/, "$10$2")}`;
}

/** Returns a number with a number of places; one in the middle of two gets an even last digit, as in C. */
function fixed(number, places) {
  const exact = number.toFixed(Math.min(100, places + 30)), end = exact.length - Math.min(30, 100 - places);
  const below = exact.slice(0, places > 0 ? end : end - 1);
  return /^\.?50*$/.test(exact.slice(below.length)) && /[02468]$/.test(below) ? below : number.toFixed(places);
}

const BASES = { o: 8, x: 16 }, PREFIXES = { o: "0", x: "0x" }, MOST = 2n ** 63n, ALL = 2n ** 64n;
const SPECIFIER = /^%([-+ #0']*)(\d*)(\.\d*)?[lhjzt]*([diuoxXeEfFgG])$/;

function digitsOf(number, kind, places) {
  if (!Number.isFinite(number) || kind === "g") return general(number, places ?? 6);
  return kind === "f" ? fixed(number, places ?? 6) : number.toExponential(places ?? 6).replace(/([+-])(\d)$/, "$10$2");
}

/** Returns a number as `printf` writes it for a specifier such as `%-5.2f`. */
export function formatted(specifier, number) {
  const [, flags, width, point, letter] = SPECIFIER.exec(specifier), kind = letter.toLowerCase();
  const places = point === undefined ? undefined : Number(point.slice(1)), isWhole = "diuox".includes(kind);
  let sign = number < 0 || Object.is(number, -0) ? "-" : flags.includes("+") ? "+" : flags.includes(" ") ? " " : "", digits;
  if ("di".includes(kind)) {
    const size = number < 0 ? -BigInt(number) : BigInt(number), most = number < 0 ? MOST : MOST - 1n;
    digits = String(size < most ? size : most);
  } else if (isWhole) {
    sign = flags.includes("#") && number ? (PREFIXES[kind] ?? "") : "";
    digits = (((BigInt(number) % ALL) + ALL) % ALL).toString(BASES[kind]); // `asUintN` of this interpreter is wrong
  } else digits = digitsOf(number < 0 ? -number : number, kind, places);
  if (isWhole) digits = digits.padStart(places ?? 0, "0");
  if (flags.includes("0") && !flags.includes("-") && !(isWhole && point)) digits = digits.padStart(width - sign.length, "0");
  const text = flags.includes("-") ? (sign + digits).padEnd(width) : (sign + digits).padStart(width);
  return letter === kind ? text : text.toUpperCase();
}

/** Returns an argument of `printf` as a specifier asks for it, and whether it is the number that this needs. */
export function printed(specifier, text) {
  const character = /^\\?["']([^])/u.exec(text)?.[1];
  if (character !== undefined) return { value: formatted(specifier, character.codePointAt(0)), isRight: true };
  if (/[efg]$/i.test(specifier)) {
    const [word, sign, infinity] = /^\s*([-+]?)(?:(inf|infinity)|nan)$/i.exec(text) ?? [];
    const number = Number(infinity ? `${sign}Infinity` : text), isRight = word !== undefined || !Number.isNaN(number);
    return { value: formatted(specifier, isRight ? number : Number.parseFloat(text) || 0), isRight };
  }
  const [all, sign, digits = "0"] = /^\s*([-+]?)(0x[\da-f]+|0[0-7]*|[1-9]\d*)/i.exec(text) ?? [""];
  const number = BigInt(/^0\d/.test(digits) ? `0o${digits}` : digits);
  return { value: formatted(specifier, sign === "-" ? -number : number), isRight: all === text };
}
