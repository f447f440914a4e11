// Numbers as a reader sees them, as in crossknn's report.

export const MISSING = "–";

const minus = (text) => text.replace("-", "−");
const known = (value) => value !== null && value !== undefined;

/** A count. */
export const count = (value) => value.toLocaleString("en");

/** A score or an estimate. */
export const score = (value) => (known(value) ? minus(value.toFixed(2)) : MISSING);

/** A share between 0 and 1; a line never ends before the sign. */
export const percent = (share) => (known(share) ? `${(100 * share).toFixed(0)}\u00a0%` : MISSING);

/** Seconds in milliseconds; from ten on without decimals. */
export function milliseconds(seconds) {
  const value = 1000 * seconds;
  return value < 9.95 ? value.toFixed(1) : count(Math.round(value));
}

/** A value on an axis, with the decimals that its step needs. */
export function tick(value, step) {
  return minus(value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))));
}

/** A number with its word: "1 call", "2 calls". */
export const counted = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
