// The search page: one query, one or more strategies, their answers side by side.

import { getInfo, hasKey, search, setKey } from "./api.js";
import { KnownScores, summaryNote, summaryTable } from "./comparison.js";
import { byId, element, isolated } from "./dom.js";
import { checkForm, checkQuery, fillForm, queryStringOf, readForm, setUpForm, updateBudget } from "./form.js";
import { setUpFilters } from "./filters.js";
import { counted, shortened } from "./format.js";
import { plot, sharedRanges } from "./plot.js";
import { addShowAllButtons, column } from "./results.js";

const WELCOME =
  "Type a query and press Enter. Each selected strategy searches with the given budget of cross-encoder calls. " +
  "Press / to return to the search box.";

const known = new KnownScores();
let info = null; // of the server
let current = null; // the current search: {query, k, budget, strategies}
let answers = []; // one for each strategy: {name, title, result, problem, waiting, live}
let running = null; // AbortController of the search in progress

async function start() {
  try {
    info = await getInfo();
  } catch (problem) {
    showProblem(problem);
    return;
  }
  byId("about").textContent = `${counted(info.items, "item")}, version ${info.version}`;
  byId("title").textContent = info.title;
  byId("title").hidden = !info.title;
  setUpForm(info);
  setUpFilters(info.fields, () => submit({ replace: true }));
  showExamples(info.example_queries);
  restore();
}

/** Buttons that search the example queries. */
function showExamples(queries) {
  const buttons = queries.map((query) => {
    const button = element("button", { type: "button", class: "example", dir: "auto" }, shortened(query));
    button.addEventListener("click", () => {
      byId("query").value = query;
      submit({ replace: false });
    });
    return button;
  });
  byId("examples").append(...buttons);
  byId("examples").hidden = !buttons.length;
}

/** Run the search in the URL, or wait for a query. */
function restore() {
  if (!info) return;
  fillForm(location.search, info.defaults);
  if (readForm().query) run(readForm());
  else clear();
}

/** Run the search in the form and put it into the URL; with `replace` as the same entry of the history. */
function submit({ replace }) {
  const form = readForm();
  if (!info || (replace && !form.query) || !checkForm()) return;
  const url = queryStringOf(form);
  if (replace || url === location.search) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  run(form);
}

/** Search with all strategies at once and show each answer after every round; previous results stay, dimmed. */
async function run(form) {
  running?.abort();
  const controller = new AbortController();
  const previous = new Map(answers.map((answer) => [answer.name, answer.result]));
  [running, current] = [controller, form];
  answers = form.strategies.map((name) => ({ name, title: titleOf(name), result: previous.get(name), waiting: true }));
  showProblem(null);
  show();
  await Promise.all(answers.map((answer) => load(answer, controller.signal)));
  if (running === controller) finish();
}

async function load(answer, signal) {
  const showRound = (result) => {
    if (signal.aborted) return;
    Object.assign(answer, { result, live: true });
    show();
  };
  const result = await search(current, answer.name, signal, showRound).catch((problem) => ({ problem }));
  if (signal.aborted) return;
  const { problem } = result;
  if (problem?.status === 401) showProblem(problem);
  if (!problem) known.add(result);
  Object.assign(answer, { result: problem ? null : result, problem: problem?.message, waiting: false, live: false });
  show();
}

function finish() {
  running = null;
  show();
}

/** Cancel the search in progress; answers that have arrived stay. */
function stop() {
  if (!running) return;
  running.abort();
  byId("query").focus();
  for (const answer of answers) {
    if (answer.waiting) Object.assign(answer, { result: null, problem: "Stopped.", waiting: false, live: false });
  }
  finish();
}

const titleOf = (name) => info.strategies.find((strategy) => strategy.name === name).title;

function show() {
  const finished = answers.filter((answer) => answer.result && !answer.waiting);
  const [query, outcome] = [shortened(current.query), finished.length ? "Results for" : "No results for"];
  document.title = `\u2068${query}\u2069 – crossknn`; // between marks that isolate its direction of writing
  byId("status").replaceChildren(...(running ? ["Searching …"] : [`${outcome} “`, isolated(query), "”"]));
  byId("answer").hidden = false;
  byId("answer").classList.toggle("single", answers.length === 1);
  setBusy(running !== null);
  fillSection("results", [columns(answers.map((answer) => column(answer, othersOf(answer, finished))))]);
  addShowAllButtons(byId("results"));
  if (finished.length || !running) showComparison(finished);
}

/** The summary and the plots of all finished answers. */
function showComparison(finished) {
  const best = known.best(current.k);
  const plotted = finished.filter((answer) => answer.result.trace.length);
  const ranges = sharedRanges(plotted.map((answer) => answer.result));
  byId("summary").hidden = !finished.length;
  byId("plots").hidden = !plotted.length;
  fillSection("summary", [summaryTable(finished, best), summaryNote(finished, best)]);
  fillSection("plots", [columns(plotted.map((answer) => plot(answer, ranges)))]);
}

const othersOf = (answer, finished) => (answer.waiting ? [] : finished.filter((other) => other !== answer));

const columns = (children) => element("div", { class: "columns" }, children);

/** Replace the content of a section below its heading. */
function fillSection(id, children) {
  byId(id).replaceChildren(byId(id).firstElementChild, ...children);
}

function setBusy(busy) {
  byId("answer").setAttribute("aria-busy", String(busy));
  byId("stop").hidden = !busy;
}

function clear() {
  running?.abort();
  running = null;
  answers = [];
  document.title = "crossknn";
  byId("status").textContent = WELCOME;
  byId("answer").hidden = true;
  byId("query").focus();
  setBusy(false);
}

/** Show an error, with a form for the API key where one is required; null hides both. */
function showProblem(problem) {
  const needsKey = problem?.status === 401;
  const keyMessage = hasKey() ? "The server rejected this API key." : "This server requires an API key.";
  byId("problem").hidden = !problem;
  byId("problem").textContent = needsKey ? keyMessage : (problem?.message ?? "");
  byId("access").hidden = !needsKey;
  if (needsKey) byId("key").focus();
}

function useKey() {
  setKey(byId("key").value);
  byId("key").value = "";
  showProblem(null);
  if (info) submit({ replace: true });
  else start();
}

function handleKey(event) {
  const typing = event.target.matches("input:not([type=checkbox], [type=range])");
  if (event.key === "Escape") stop();
  if (event.key !== "/" || typing) return;
  event.preventDefault();
  byId("query").focus();
  byId("query").select();
}

function listen() {
  const forms = { form: () => submit({ replace: false }), access: useKey };
  for (const [id, action] of Object.entries(forms)) {
    byId(id).addEventListener("submit", (event) => {
      event.preventDefault();
      action();
    });
  }
  for (const id of ["budget", "k", "strategies"]) byId(id).addEventListener("change", () => submit({ replace: true }));
  byId("budget").addEventListener("input", updateBudget);
  byId("query").addEventListener("input", checkQuery);
  byId("stop").addEventListener("click", stop);
  addEventListener("popstate", restore);
  addEventListener("keydown", handleKey);
}

listen();
start();
