"""A language model as a judge scores by the log-odds of two tokens, whatever form its server answers in."""

import asyncio
import logging
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import InputError, PartialScores, ScorerError
from crossknn.scorers.inference.prompts import FAMILIES, family_prompt
from crossknn.scorers.remote.logprob import LogprobScorer
from crossknn.scorers.remote.request_run import MAX_FIRST_FAILURES
from crossknn.testing import check_scorer
from tests.scorers.remote.completion_server import CompletionServer, log_odds, usage_of, write_logprobs
from tests.scorers.remote.rerank_server import answer, hang_up, refuse, respond, running

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SERVERS = [(COMPLETIONS, "openai"), (COMPLETIONS, "llama.cpp"), (CHAT, "openai")]
TEMPLATE = "Q: {query}\nD: {item}\nRelevant:"
QUERIES = ["ice", "ice", "bread {item}", "é 雪", "ice"] * 8
ITEMS = [f"{'x' * number} {{query}} {number}" for number in range(40)]


@pytest.fixture(params=SERVERS, ids=["completions", "llama.cpp", "chat"])
def server(request):
    path, form = request.param
    with running(CompletionServer(path, form=form)) as one:
        yield one


@pytest.fixture
def completions():
    with running(CompletionServer(COMPLETIONS)) as one:
        yield one


@pytest.fixture
def chat():
    with running(CompletionServer(CHAT)) as one:
        yield one


def render(query, item):
    return f"Q: {query}\nD: {item}\nRelevant:"


def known(queries=QUERIES, items=ITEMS):
    return np.array([log_odds(render(*pair)) for pair in zip(queries, items, strict=True)], np.float32)


# What is asked and what is answered


def test_the_score_is_the_log_odds_of_the_two_tokens(server):
    scorer = LogprobScorer(f"{server.url}#a-model", template=TEMPLATE)
    np.testing.assert_allclose(scorer.score(QUERIES, ITEMS), known(), rtol=1e-5, atol=1e-5)
    assert sorted(server.prompts) == sorted(map(render, QUERIES, ITEMS))
    assert {body["model"] for body in server.bodies} == {"a-model"}


def test_contract(server):
    check_scorer(LogprobScorer(server.url), ["ice", "snow"], ["a", "bc", ""])


def test_many_pairs_of_many_queries_are_one_request_of_completions(completions):
    LogprobScorer(completions.url, template=TEMPLATE).score(QUERIES, ITEMS)
    assert sorted(len(body["prompt"]) for body in completions.bodies) == [8, 32]
    LogprobScorer(completions.url, batch_size=40).score(QUERIES, ITEMS)
    assert len(completions.bodies) == 3


def test_request_bodies(completions, chat):
    for server in (completions, chat):
        LogprobScorer(server.url, model="m", template=TEMPLATE).score(["ice"], ["a"])
    common = {"model": "m", "max_tokens": 1, "temperature": 0}
    assert completions.bodies == [common | {"prompt": [render("ice", "a")], "logprobs": 20}]
    messages = [{"role": "user", "content": render("ice", "a")}]
    assert chat.bodies == [common | {"messages": messages, "logprobs": True, "top_logprobs": 20}]


def test_chats_are_in_flight_together(chat):
    chat.delay = 0.05
    LogprobScorer(chat.url, concurrency=8).score(QUERIES[:16], ITEMS[:16])
    assert (len(chat.bodies), chat.max_in_flight) == (16, 8)


def test_fields_override_those_of_every_request(chat):
    fields = {"max_tokens": None, "max_completion_tokens": 1, "chat_template_kwargs": {"enable_thinking": False}}
    with pytest.raises(ScorerError):  # this server does not know them
        LogprobScorer(chat.url, fields=fields).score(["ice"], ["a"])
    assert chat.bodies[0].items() >= fields.items()


# Prompts


def test_the_default_prompt_asks_for_the_two_tokens(completions):
    LogprobScorer(completions.url).score(["ice"], ["snow"])
    LogprobScorer(completions.url, instruction="Find a synonym.", true_token="1", false_token="0", top_logprobs=3)
    first = completions.prompts[0]
    assert first.startswith("Judge whether the document is relevant to the query.\n\nQuery: ice\n\nDocument: snow\n\n")
    assert first.endswith("Answer with one word, Yes or No.\nAnswer:")
    with pytest.raises(ScorerError, match="neither '1' nor '0'"):
        LogprobScorer(completions.url, instruction="Find a synonym.", true_token="1", false_token="0").score(
            ["a"], ["b"]
        )
    assert completions.prompts[1].startswith("Find a synonym.\n\nQuery: a\n\n")
    assert completions.prompts[1].endswith("one word, 1 or 0.\nAnswer:")


def test_a_family_has_its_own_prompt_and_tokens(completions):
    scorer = LogprobScorer(completions.url, template="qwen3-reranker", instruction="Find ice.")
    scorer.score(["ice"], ["snow"])
    prompt = "".join(family_prompt(FAMILIES["qwen3-reranker"], "Find ice.").render("ice", "snow"))
    assert completions.prompts == [prompt]
    with pytest.raises(ScorerError, match="neither '1' nor '0'"):
        LogprobScorer(completions.url, template="mxbai-rerank-v2").score(["ice"], ["snow"])


# Tokens


def judge(tokens, *, path=COMPLETIONS, **options):
    logs = {token: math.log(share) for token, share in tokens.items()}
    with running(CompletionServer(path, lambda prompt: logs)) as server:
        return float(LogprobScorer(server.url, **options).score(["q"], ["a"])[0])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_forms_of_a_token_count_together(path):
    tokens = {"Yes": 0.1, " yes": 0.1, "▁YES": 0.1, "Ġyes": 0.1, "yes\n": 0.1, "No": 0.2, "Yesterday": 0.2, "Y": 0.1}
    assert judge(tokens, path=path) == pytest.approx(math.log(0.5 / 0.2), abs=1e-5)


def test_tokens_of_your_own():
    tokens = {"2": 0.3, " 1": 0.3, "1": 0.3, "0": 0.06, "true": 0.04}
    assert judge(tokens, true_token=" 1", false_token="0") == pytest.approx(math.log(0.6 / 0.06), abs=1e-5)
    assert judge(tokens, true_token="True", false_token="2") == pytest.approx(math.log(0.04 / 0.3), abs=1e-5)


def test_a_token_that_is_not_listed_is_as_likely_as_the_last_that_is():
    tokens = {"Yes": 0.9, "Maybe": 0.06, "Sure": 0.03, "No": 0.01}
    assert judge(tokens) == pytest.approx(math.log(0.9 / 0.01), abs=1e-5)
    assert judge(tokens, top_logprobs=3) == pytest.approx(math.log(0.9 / 0.03), abs=1e-5)
    assert judge(tokens, top_logprobs=2, true_token="no", false_token="yes") == pytest.approx(
        math.log(0.06 / 0.9), abs=1e-5
    )


def test_placeholders_for_absent_tokens_are_no_log_probabilities(completions):
    logprobs = {"top_logprobs": [{"Yes": -0.1, "Maybe": -3.0, "No": -9999.0}]}
    completions.faults = [respond({"choices": [{"index": 0, "logprobs": logprobs}]})]
    assert LogprobScorer(completions.url).score(["q"], ["a"]) == pytest.approx(2.9)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_one_log_probability_is_not_enough(path):
    with pytest.raises(
        ScorerError, match=r"it returned the log-probability of 'Yes' alone\. Check that .*`top_logprobs`"
    ):
        judge({"Yes": 0.9}, path=path)


def test_neither_token_is_an_error_that_shows_the_likeliest(server):
    server.tokens = lambda prompt: {"<think>": -0.01, "The": -5.0, "Well": -6.0, "I": -7.0}
    words = (
        r"gave no score for query 'q' and item 'a': it returned neither 'Yes' nor 'No' among the 4 likeliest tokens "
        r"\('<think>', 'The', 'Well', …\)\. Check that .* `template`"
    )
    with pytest.raises(ScorerError, match=words):
        LogprobScorer(server.url).score(["q"], ["a"])


def test_a_prompt_that_never_works_is_found_out_soon(chat):
    chat.tokens = lambda prompt: {"<think>": -0.01, "The": -5.0}
    with pytest.raises(PartialScores, match="and 15 more: it returned neither"):
        LogprobScorer(chat.url, concurrency=1, fallback_score=-10).score(["q"] * 40, ITEMS)
    assert len(chat.bodies) == MAX_FIRST_FAILURES


# What can go wrong


def test_one_bad_pair_is_named_and_the_others_are_scored(server, tmp_path):
    healthy = server.tokens
    server.tokens = lambda prompt: {"I": -0.1, "As": -3.0} if "bad" in prompt else healthy(prompt)
    items = ["bad one", *ITEMS[1:]]
    scorer = LogprobScorer(server.url, template=TEMPLATE)
    cache = ck.Cached(scorer, tmp_path / "scores.db")
    with pytest.raises(PartialScores, match=r"query 'ice' and item 'bad one': it returned neither .* 39 of 40 pairs"):
        cache.score(QUERIES, items)
    assert cache.count_missing(QUERIES, items) == 1
    fallback = LogprobScorer(server.url, template=TEMPLATE, fallback_score=-7.0)
    scores = fallback.score(QUERIES, items)
    assert scores[0] == -7
    np.testing.assert_allclose(scores[1:], known()[1:], rtol=1e-5, atol=1e-5)


def test_a_prompt_that_is_too_long_is_isolated(completions):
    def limited(handler):
        if any("bad" in prompt for prompt in handler.body["prompt"]):
            handler.reply(400, {"error": {"message": "maximum context length is 8 tokens"}})
        else:
            answer(handler)

    completions.faults = [limited] * 100
    with pytest.raises(PartialScores, match=r"item 'bad': it responded with 400: .* context length .* 39 of 40 pairs"):
        LogprobScorer(completions.url).score(QUERIES, ["bad", *ITEMS[1:]])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>busy</html>", "not JSON but HTML"),
        (b"", "an empty body"),
        (b'{"choices": [{"ind', r"not JSON \("),
        ({"error": {"message": "busy"}}, "no list of choices, but an object with 'error'"),
        ({"choices": ["Yes", "No"]}, "no list of choices, but an object with 'choices'"),
        ({"choices": []}, "0 choices for 2 prompts"),
        ({"choices": [{}, {}, {}]}, "3 choices for 2 prompts"),
        ([{"choices": [{}]}], "1 choices for 2 prompts"),
        ({"choices": [{"index": 0}, {"index": 0}]}, "indexes of its choices must be 0 to 1, each once"),
        ({"choices": [{"logprobs": {"top_logprobs": [{"Yes": "-1"}]}}] * 2}, "a number of at most 0, got '-1'"),
        ({"choices": [{"index": [0]}, {"index": "1"}]}, "indexes of its choices must be 0 to 1, each once"),
        ({"choices": [{"logprobs": {"top_logprobs": [{"Yes": -(10**400)}]}}] * 2}, "at most 0, got -1000"),
        ({"choices": [{"logprobs": {"top_logprobs": [{"Yes": 0.7}]}}] * 2}, "a number of at most 0, got 0.7"),
        (
            b'{"choices": [{"logprobs": {"top_logprobs": [{"Yes": NaN}]}}, {}]}',
            "log-probability of 'Yes' must be .* nan",
        ),
        ({"choices": [{"text": "Yes", "logprobs": None}] * 2}, "it returned no log-probabilities. Check that"),
        ({"choices": [{"logprobs": {"content": []}}] * 2}, "it returned no log-probabilities"),
        ({"choices": [{"logprobs": {"top_logprobs": []}}] * 2}, "it returned no log-probabilities"),
        ({"choices": [{"logprobs": {"top_logprobs": [None], "tokens": 3}}] * 2}, "it returned no log-probabilities"),
    ],
)
def test_strange_responses_are_one_clear_sentence(completions, body, words):
    completions.faults = [respond(body)]
    with pytest.raises(ScorerError, match=words) as raised:
        LogprobScorer(completions.url).score(["q"] * 2, ["a", "b"])
    assert str(raised.value).startswith(completions.url)
    assert str(raised.value).endswith("0 of 2 pairs of this call were scored.")
    assert len(completions.bodies) == 1


def test_choices_without_indexes_are_in_order(completions):
    choices = [{"logprobs": write_logprobs({"Yes": -1.0, "No": -1.0 - odds}, 20, chat=False)} for odds in (1, 2, 3)]
    completions.faults = [respond({"choices": choices})]
    assert LogprobScorer(completions.url).score(["q"] * 3, ["a", "b", "c"]).tolist() == pytest.approx([1, 2, 3])


def test_temporary_failures_are_retried(server):
    server.faults = [refuse(429), hang_up, refuse(503)]
    scorer = LogprobScorer(server.url, template=TEMPLATE)
    np.testing.assert_allclose(scorer.score(QUERIES, ITEMS), known(), rtol=1e-5, atol=1e-5)


# Money


def test_tokens_are_counted_as_reported(server):
    scorer = LogprobScorer(server.url, price_per_million_tokens=1e6)
    scorer.score(QUERIES, ITEMS)
    assert scorer.tokens == scorer.spent == usage_of(40)["total_tokens"]


def test_the_prompt_counts_towards_the_spend_limit(server):
    size = sum(len(render(*pair).encode()) for pair in zip(QUERIES, ITEMS, strict=True))
    limit = size / 2 + 16 * 40 + 20  # a token per two bytes, rounded up in each request, and 16 around each pair
    options = {"template": TEMPLATE, "price_per_million_tokens": 1e6}
    with pytest.raises(ScorerError, match=r"`spend_limit` is .* and 0 is spent: this request may cost"):
        LogprobScorer(server.url, spend_limit=limit - 42, **options).score(QUERIES, ITEMS)
    assert not server.bodies
    LogprobScorer(server.url, spend_limit=2 * limit, **options).score(QUERIES, ITEMS)


# Identity


def test_the_fingerprint_tells_every_setting_that_changes_scores():
    url = "http://localhost:8000/v1/completions"
    different = [
        LogprobScorer(url),
        LogprobScorer(url, model="a"),
        LogprobScorer("http://localhost:8001/v1/completions"),
        LogprobScorer("http://localhost:8000/v1/chat/completions"),
        LogprobScorer(url, template=TEMPLATE),
        LogprobScorer(url, instruction="Find ice."),
        LogprobScorer(url, template="qwen3-reranker"),
        LogprobScorer(url, template=TEMPLATE, true_token="1"),
        LogprobScorer(url, template=TEMPLATE, false_token="0"),
        LogprobScorer(url, top_logprobs=5),
        LogprobScorer(url, fields={"add_special_tokens": False}),
        LogprobScorer(url, max_item_chars=100),
        LogprobScorer(url, fallback_score=-5),
        LogprobScorer(url, fingerprint="my-judge-v1"),
    ]
    assert len({scorer.fingerprint for scorer in different}) == len(different)
    same = LogprobScorer(f"{url}#", api_key="k", batch_size=7, timeout=3, retries=0, concurrency=1, price_per_1000=2)
    assert same.fingerprint == different[0].fingerprint
    assert LogprobScorer(f"{url}#a").fingerprint == different[1].fingerprint
    assert different[1].fingerprint.startswith("logprob:localhost:8000/v1/completions#a:")


def test_openais_completions_allow_five_log_probabilities():
    url = "https://api.openai.com/v1/completions"
    assert LogprobScorer(url).fingerprint == LogprobScorer(url, top_logprobs=5).fingerprint


def test_a_pickled_scorer_scores_the_same(server):
    scorer = LogprobScorer(server.url, template=TEMPLATE, max_item_chars=20)
    copy = pickle.loads(pickle.dumps(scorer))
    assert copy.fingerprint == scorer.fingerprint
    np.testing.assert_array_equal(copy.score(QUERIES, ITEMS), scorer.score(QUERIES, ITEMS))


def test_secrets_are_never_shown(completions, caplog):
    caplog.set_level(logging.DEBUG)
    completions.faults = [refuse(401, b"wrong key sk-secret-0123456789")]
    scorer = LogprobScorer(completions.url, api_key="sk-secret-0123456789")
    with pytest.raises(ScorerError, match="wrong key •••") as raised:
        scorer.score(["q"], ["a"])
    assert not any("sk-secret" in text for text in (str(raised.value), repr(scorer), scorer.fingerprint, caplog.text))


# Input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"url": "http://localhost:8000/v1/rerank"}, "`url` must be the URL of a completion endpoint"),
        ({"url": "localhost/v1/completions"}, "`url` must be the URL of a completion endpoint"),
        ({"url": "http://localhost/v1/rerank?key=sk-secret"}, "`url` must be the URL of a completion endpoint"),
        ({"url": "http://localhost/v1/completions#a", "model": "b"}, "named twice"),
        ({"template": "{query}"}, "`template` must contain {item} exactly once"),
        ({"template": 3}, "`template` must be a text with {query} and {item}, got 3"),
        ({"template": "{query} {item}", "instruction": "x"}, "`instruction` must be given if and only if"),
        ({"template": "{query} {item} {instruction}"}, "`instruction` must be given if and only if"),
        ({"template": "bge-reranker-gemma"}, "`false_token` must be a token with letters or digits, got None"),
        ({"url": f"http://localhost{CHAT}", "template": "qwen3-reranker"}, "contains the markup of a chat"),
        ({"url": f"http://localhost{CHAT}", "batch_size": 2}, "`batch_size` must be 1"),
        ({"true_token": " "}, "`true_token` must be a token with letters or digits, got ' '"),
        ({"true_token": "no"}, "must differ in more than case, got 'no' and 'No'"),
        ({"top_logprobs": 0}, "`top_logprobs` must be a positive integer, got 0"),
        ({"fields": {"prompt": "x"}}, "`fields` must not contain 'prompt'"),
        ({"fields": {"messages": []}}, "`fields` must not contain 'messages'"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"spend_limit": 1}, "`spend_limit` needs `price_per_1000` or `price_per_million_tokens`"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(arguments, words):
    with pytest.raises(InputError) as raised:
        LogprobScorer(**({"url": "http://localhost:8000/v1/completions"} | arguments))
    assert words in str(raised.value)
    assert "sk-secret" not in str(raised.value)


# In a search


def test_a_search_finds_what_the_log_odds_say(server, tmp_path):
    items = ck.Items([f"{'ice ' * number}{number}" for number in range(1, 30)])
    exact = ck.function_scorer(lambda pairs: [log_odds(render(*pair)) for pair in pairs])
    judge = ck.Cached(ck.LogprobScorer(server.url, template=TEMPLATE), tmp_path / "scores.db")
    strategy = ck.Rerank(budget=20)
    expected = ck.Searcher(items, scorer=exact).search("ice", k=5, strategy=strategy)
    found = ck.Searcher(items, scorer=judge).search("ice", k=5, strategy=strategy)
    assert found.ids == expected.ids
    again = asyncio.run(ck.Searcher(items, scorer=judge).asearch("ice", k=5, strategy=strategy))
    assert again.ids == expected.ids
    assert len(server.prompts) == 20


def test_windows_of_long_items_are_judged_apart(completions):
    scorer = LogprobScorer(completions.url, template=TEMPLATE, max_item_chars=10, long_items="max", stride=10)
    item = "a" * 10 + "b" * 7
    expected = max(log_odds(render("q", part)) for part in (item[:10], item[7:]))
    assert scorer.score(["q"], [item]) == pytest.approx(expected, abs=1e-5)
    assert completions.prompts == [render("q", item[:10]), render("q", item[7:])]


def test_only_the_remote_extra_is_needed(completions):
    code = f"""if True:
        import sys
        sys.modules |= dict.fromkeys(["torch", "transformers", "tokenizers", "sentence_transformers"])
        import crossknn as ck
        print(ck.LogprobScorer({completions.url!r}, template={TEMPLATE!r}).score(["q"], ["a"])[0])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert float(done.stdout) == pytest.approx(log_odds(render("q", "a")), abs=1e-4), done.stderr


def test_a_served_language_model_scores_as_the_model_itself(tmp_path, server):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from tests.scorers import tiny_rerankers

    tokenizer = tiny_rerankers.qwen_tokenizer(None)
    config = tiny_rerankers.config_of("qwen3", tokenizer, head_dim=8)
    folder = tiny_rerankers.save(tmp_path / "lm", config, tokenizer, auto="AutoModelForCausalLM")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def served(prompt):
        with torch.no_grad():
            logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
        logprobs = torch.log_softmax(logits, -1)
        return {token: float(logprobs[tokenizer.convert_tokens_to_ids(token)]) for token in ("yes", "no")}

    server.tokens = served
    options = {"template": "Find ice.\nQ: {query}\nD: {item}\n", "true_token": "yes", "false_token": "no"}
    local = ck.CrossEncoder(str(folder), dtype="float32", **options)
    pairs = (["ice", "river ice", "ten"], ["snow on the river", "", "the bank of the river"])
    expected = local.score(*pairs)
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(LogprobScorer(server.url, **options).score(*pairs), expected, atol=1e-4)
