// Asking the server. Whatever goes wrong becomes a `Problem` whose message can be shown as it is.

const KEY = "crossknn-key";

class Problem extends Error {
  constructor(message, status = null) {
    super(message);
    this.status = status;
  }
}

export const getInfo = () => ask("info");

/** One query by one strategy, with every call it made. */
export async function search({ query, k, budget }, strategy, signal) {
  const wanted = { query, k, budget, strategy, explain: true, texts: true };
  const answer = await ask("search", { method: "POST", body: JSON.stringify(wanted), signal });
  return { ...answer.results[0], index: answer.index };
}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);
export const hasKey = () => sessionStorage.getItem(KEY) !== null;

async function ask(path, options = {}) {
  const response = await send(path, options);
  const answer = await read(response);
  if (response.ok && answer) return answer;
  throw new Problem(explain(response, answer), response.status);
}

async function send(path, options) {
  const headers = { "Content-Type": "application/json" };
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server cannot be reached.");
  }
}

/** The answer; null where it is no JSON. */
async function read(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return null;
  }
}

function explain(response, answer) {
  const said = answer?.error?.message ?? `The server answered ${response.status} ${response.statusText}`.trim();
  const wait = response.headers.get("Retry-After");
  return response.status === 429 && wait ? `${said} Try again in ${wait} s.` : said;
}
