// Number formatting.

export const MISSING = "–";

const minus = (text) => text.replace("-", "−");
const isMissing = (value) => value === null || value === undefined;

export const count = (value) => value.toLocaleString("en");

/** A score or an estimate. */
export const score = (value) => (isMissing(value) ? MISSING : minus(value.toFixed(2)));

/** A fraction as a percentage, with a nonbreaking space before the sign. */
export const percent = (fraction) => (isMissing(fraction) ? MISSING : `${(100 * fraction).toFixed(0)}\u00a0%`);

/** Seconds as milliseconds; without decimals from ten on. */
export function milliseconds(seconds) {
  const value = 1000 * seconds;
  return value < 9.95 ? value.toFixed(1) : count(Math.round(value));
}

/** A value on an axis, with the decimals that its step needs. */
export function tick(value, step) {
  return minus(value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))));
}

/** A number with its noun: "1 call", "2 calls". */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

const MAX_SHOWN = 200; // characters of a query or an item where it is a name

/** The text in a heading or a label, cut off where it is long. */
export const shortened = (text) => (text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)} …` : text);
