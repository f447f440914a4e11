// Requests to the server. Every failure becomes a `RequestError` with a message for the user.

import { filterOf } from "./filters.js";

const KEY = "crossknn-key";

class RequestError extends Error {
  constructor(message, status = null) {
    super(message);
    this.status = status;
  }
}

export const getInfo = () => request("info");

/** Search one query with one strategy, with a trace of every call; `onHits` gets the best so far after each round. */
export async function search({ query, k, budget, filters }, strategy, signal, onHits) {
  const body = { query, k, strategy, explain: true, texts: true, highlight: true, stream: true };
  if (strategy !== "exact") body.budget = budget;
  if (filters.length) body.filter = filterOf(filters);
  const response = await send("search", { method: "POST", body: JSON.stringify(body), signal });
  if (!response.ok) throw new RequestError(errorMessage(response, await readJson(response)), response.status);
  let answer = null;
  for await (const { name, data } of readEvents(response)) { // to the end: a response that is left open would be aborted
    if (name === "error") throw new RequestError(data.error.message);
    const result = { ...data.results[0], filters, index: data.index };
    if (name === "done") answer = result;
    else onHits(result);
  }
  if (answer) return answer;
  throw new RequestError("The server ended the search.");
}

/** The server-sent events of a response. */
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let received = "";
  for (;;) {
    const { done, value } = await readPart(reader);
    if (done) return;
    const events = (received + value).split("\n\n");
    received = events.pop();
    for (const event of events) {
      const fields = event.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]);
      const { event: name, data } = Object.fromEntries(fields);
      yield { name, data: JSON.parse(data) };
    }
  }
}

async function readPart(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The connection to the server was lost.");
  }
}

export const setKey = (key) => sessionStorage.setItem(KEY, key);
export const hasKey = () => sessionStorage.getItem(KEY) !== null;

async function request(path, options = {}) {
  const response = await send(path, options);
  const body = await readJson(response);
  if (response.ok && body) return body;
  throw new RequestError(errorMessage(response, body), response.status);
}

async function send(path, options) {
  const headers = { "Content-Type": "application/json" };
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server cannot be reached.");
  }
}

/** The body of a response; null if it is not JSON. */
async function readJson(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return null;
  }
}

function errorMessage(response, body) {
  const message = body?.error?.message ?? `The server responded with ${response.status} ${response.statusText}`.trim();
  const seconds = response.headers.get("Retry-After");
  return response.status === 429 && seconds ? `${message} Try again in ${seconds} s.` : message;
}
