// The page of `crossknn serve`: one query, one or more strategies, their answers side by side.

import { Known } from "./comparing.js";
import { element } from "./elements.js";
import { counted } from "./figures.js";
import { addressOf, checkForm, offer, readAddress, readForm, showBudget } from "./form.js";
import { picture, sharedRanges } from "./picture.js";
import { getInfo, hasKey, keepKey, search } from "./requests.js";
import { addButtons, column } from "./results.js";
import { summaryNote, summaryTable } from "./summary.js";

const WELCOME =
  "Type a query and press Enter; the key / leads back to it. " +
  "Every strategy that is ticked may make as many calls of the cross-encoder as the budget says.";
const part = (id) => document.getElementById(id);

const known = new Known();
let info = null; // what the server says of itself
let asked = null; // what is searched for: {query, k, budget, strategies}
let answers = []; // one for each strategy that was asked: {name, title, result, problem, waiting}
let running = null; // what ends the search that runs

async function start() {
  try {
    info = await getInfo();
  } catch (problem) {
    complain(problem);
    return;
  }
  part("about").textContent = `${counted(info.items, "item")}, version ${info.version}`;
  offer(info);
  restore();
}

/** Search what the address asks, or wait for a query. */
function restore() {
  if (!info) return;
  readAddress(location.search, info.defaults);
  if (readForm().query) run(readForm());
  else clear(WELCOME);
}

/** Search what the form asks, and keep it in the address. `again`: the query is the same. */
function begin({ again }) {
  const wanted = readForm();
  if (!info || (again && !wanted.query) || !checkForm()) return;
  const address = addressOf(wanted);
  if (again || address === location.search) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  run(wanted);
}

/** Ask all strategies at once and show each answer as it comes. Until then those before stay, faintly. */
async function run(wanted) {
  running?.abort();
  const mine = new AbortController();
  const before = new Map(answers.map((answer) => [answer.name, answer.result]));
  [running, asked] = [mine, wanted];
  answers = asked.strategies.map((name) => ({ name, title: titleOf(name), result: before.get(name), waiting: true }));
  complain(null);
  show();
  await Promise.all(answers.map((answer) => fill(answer, mine.signal)));
  if (running === mine) finish();
}

async function fill(answer, signal) {
  const told = await search(asked, answer.name, signal).catch((problem) => ({ problem }));
  if (signal.aborted) return;
  const { problem } = told;
  if (problem?.status === 401) complain(problem);
  if (!problem) known.learn(told);
  Object.assign(answer, { result: problem ? null : told, problem: problem?.message, waiting: false });
  show();
}

function finish() {
  running = null;
  show();
}

/** End the search that runs; what is there stays. */
function stop() {
  if (!running) return;
  running.abort();
  part("query").focus();
  for (const answer of answers) {
    if (answer.waiting) Object.assign(answer, { result: null, problem: "Stopped.", waiting: false });
  }
  finish();
}

const titleOf = (name) => info.strategies.find((strategy) => strategy.name === name).title;

function show() {
  const there = answers.filter((answer) => answer.result && !answer.waiting);
  document.title = `${asked.query} – crossknn`;
  const outcome = there.length ? "Results for" : "No answer to";
  part("status").textContent = running ? "Searching …" : `${outcome} “${asked.query}”`;
  part("answer").hidden = false;
  part("answer").classList.toggle("single", answers.length === 1);
  setBusy(running !== null);
  put("results", [columns(answers.map((answer) => column(answer, othersOf(answer, there))))]);
  addButtons(part("results"));
  if (there.length || !running) compare(there);
}

/** The parts that stand for all answers together. */
function compare(there) {
  const best = known.best(asked.k);
  const drawn = there.filter((answer) => answer.result.trace.length);
  const ranges = sharedRanges(drawn.map((answer) => answer.result));
  part("summary").hidden = !there.length;
  part("pictures").hidden = !drawn.length;
  put("summary", [summaryTable(there, best), summaryNote(best)]);
  put("pictures", [columns(drawn.map((answer) => picture(answer, ranges)))]);
}

const othersOf = (answer, there) => (answer.waiting ? [] : there.filter((other) => other !== answer));

const columns = (children) => element("div", { class: "columns" }, children);

/** Put these into a section, below its heading. */
function put(id, children) {
  part(id).replaceChildren(part(id).firstElementChild, ...children);
}

function setBusy(busy) {
  part("answer").setAttribute("aria-busy", String(busy));
  part("stop").hidden = !busy;
}

function clear(said) {
  running?.abort();
  running = null;
  answers = [];
  document.title = "crossknn";
  part("status").textContent = said;
  part("answer").hidden = true;
  part("query").focus();
  setBusy(false);
}

/** Say what went wrong, and ask for a key where one is wanted; null: nothing did. */
function complain(problem) {
  const wantsKey = problem?.status === 401;
  const said = hasKey() ? "The server did not accept this key." : "This server asks for an API key.";
  part("problem").hidden = !problem;
  part("problem").textContent = wantsKey ? said : (problem?.message ?? "");
  part("access").hidden = !wantsKey;
  if (wantsKey) part("key").focus();
}

function useKey() {
  keepKey(part("key").value);
  part("key").value = "";
  complain(null);
  if (info) begin({ again: true });
  else start();
}

function pressed(event) {
  const typing = event.target.matches("input:not([type=checkbox], [type=range])");
  if (event.key === "Escape") stop();
  if (event.key !== "/" || typing) return;
  event.preventDefault();
  part("query").focus();
  part("query").select();
}

function listen() {
  const submitted = { form: () => begin({ again: false }), access: useKey };
  for (const [id, act] of Object.entries(submitted)) {
    part(id).addEventListener("submit", (event) => {
      event.preventDefault();
      act();
    });
  }
  for (const id of ["budget", "k", "strategies"]) part(id).addEventListener("change", () => begin({ again: true }));
  part("budget").addEventListener("input", showBudget);
  part("stop").addEventListener("click", stop);
  addEventListener("popstate", restore);
  addEventListener("keydown", pressed);
}

listen();
start();
