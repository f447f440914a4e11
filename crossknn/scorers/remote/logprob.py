"""A language model behind an OpenAI-compatible server as a yes-or-no judge: log-probabilities of one token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crossknn._checks import check_positive, invalid
from crossknn.errors import InputError
from crossknn.scorers.inference.pairs import LongItems
from crossknn.scorers.inference.prompt_tokens import ITEM, QUERY, Prompt
from crossknn.scorers.inference.prompts import FAMILIES, INSTRUCTION, Family, family_prompt, text_prompt
from crossknn.scorers.remote.cost import CostTracker, Usage, estimate_tokens
from crossknn.scorers.remote.http_scorer import (
    HttpScorer,
    RequestLimits,
    check_fields,
    given_names,
    make_headers,
    parse_url,
)
from crossknn.scorers.remote.long_items import ItemWindows
from crossknn.scorers.remote.responses import MAX_SCORE, Response, describe_shape, load_json, read_tokens

CHAT_PATH = "/chat/completions"
COMPLETIONS_PATH = "/completions"
URL_REQUIREMENT = (
    "the URL of a completion endpoint, such as 'http://localhost:8000/v1/completions' or '…/v1/chat/completions'"
)
DEFAULT_INSTRUCTION = "Judge whether the document is relevant to the query."
MAX_LOGPROB = 1e-3  # 0 and a rounding error
ABSENT_LOGPROB = -9999.0  # what servers write for a token without a log-probability
SPACE_MARKS = str.maketrans("▁Ġ", "  ")  # how vocabularies write a leading space

TokenLogprob = tuple[str, float]


class LogprobScorer(HttpScorer):
    """A language model as a judge: log P(true token) - log P(false token) after a prompt with the query and the item.

    For any server with OpenAI's completion API that returns log-probabilities: vLLM, SGLang, llama.cpp, OpenAI. One
    token is generated per pair. `/v1/completions` takes many pairs in a request, and prompts as they are;
    `/v1/chat/completions` takes one pair, and the server puts its chat template around the prompt.

    Forms of a token that differ in case or in white space around them (" yes", "Yes") count together. A token that is
    not among the likeliest is taken to be as likely as the last of these, and is at most that. A pair for which both
    tokens are missing has no score.

    Args:
        url: The endpoint, ending in /completions or /chat/completions; the model's name may follow a `#`.
        model: The model's name, for servers that need one.
        template: The prompt: a text with {query}, {item} and maybe {instruction}; or the name of a family such as
            "qwen3-reranker", for `/v1/completions`. By default a question for any instruction-tuned model.
        instruction: What makes an item relevant, for a template with {instruction}.
        true_token: The token of a relevant item; by default the family's, or "Yes".
        false_token: The token of an item that is not; by default the family's, or "No".
        top_logprobs: The likeliest tokens that are asked for; by default 20, of OpenAI's own `/v1/completions` 5, the
            most that servers allow.
        api_key: Sent as a bearer token; by default `CROSSKNN_API_KEY` of the environment, "" for none.
        headers: Further headers of every request.
        fields: Further fields of every request, or other values of its own fields.
        batch_size: Pairs per request at most, for `/v1/completions`; by default 32.
        concurrency: Requests in flight at once.
        timeout: Seconds for one attempt, from connecting to the last byte of the response.
        retries: Further attempts after a timeout, a lost connection, or a status 408, 429 or 5xx.
        price_per_1000: The price of 1,000 pairs, for `spent`.
        price_per_million_tokens: The price of a million tokens, for `spent`; the one output token counts the same.
        spend_limit: Requests that would make `spent` exceed this are not sent.
        max_item_chars: The characters of an item that are sent at most; by default all of it.
        long_items: "cut" sends the beginning of longer items; "max" sends overlapping windows and takes the largest
            score.
        stride: Characters between the starts of two windows; by default half of `max_item_chars`.
        fallback_score: The score of a pair that the server does not score: one that it refuses (status 400, 413 or 422)
            even alone, or for which neither token is among the likeliest. By default such a pair is an error, raised
            when all others are scored.
        fingerprint: Names the model where the URL does not. By default the URL, the model and a hash of every setting
            that changes scores, such as the prompt; never the key.

    Attributes:
        url: The endpoint, without a query string: it may hold a key.
        fallbacks: How many pairs (or windows) have got `fallback_score`.
    """

    kind = "logprob"
    mixed = True
    request_hint = (
        "Check that the server returns log-probabilities (`top_logprobs`), and that `template`, `true_token` and "
        "`false_token` fit the model."
    )

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        template: str | None = None,
        instruction: str | None = None,
        true_token: str | None = None,
        false_token: str | None = None,
        top_logprobs: int | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        concurrency: int = 16,
        timeout: float = 60.0,
        retries: int = 4,
        price_per_1000: float | None = None,
        price_per_million_tokens: float | None = None,
        spend_limit: float | None = None,
        max_item_chars: int | None = None,
        long_items: LongItems = "cut",
        stride: int | None = None,
        fallback_score: float | None = None,
        fingerprint: str | None = None,
    ) -> None:
        endpoint, model = parse_url(url, model, requirement=URL_REQUIREMENT)
        if not is_completion_url(url):
            raise invalid("url", URL_REQUIREMENT, url.partition("?")[0])
        self._chat = endpoint.path.rstrip("/").endswith(CHAT_PATH)
        family = _find_family(template, chat=self._chat)
        self._true, self._false = _choose_tokens(true_token, false_token, family)
        self._prompt = _make_prompt(template, instruction, family, self._true, self._false)
        openai = endpoint.hostname == "api.openai.com" and not self._chat
        self._top = top_logprobs if top_logprobs is not None else 5 if openai else 20
        check_positive("top_logprobs", self._top)
        if self._chat and batch_size not in (None, 1):
            raise InputError(f"`batch_size` must be 1 for {CHAT_PATH}, which takes one pair, got {batch_size!r}.")
        self._fields = check_fields(fields, reserved=("prompt", "messages"))
        size = (1 if self._chat else 32) if batch_size is None else batch_size
        super().__init__(
            endpoint,
            model=model,
            headers=make_headers(endpoint, api_key, headers),
            limits=RequestLimits(size, concurrency, timeout, retries),
            costs=CostTracker(price_per_1000, price_per_million_tokens, spend_limit),
            windows=ItemWindows(max_item_chars, long_items, stride),
            fallback_score=fallback_score,
            settings=["".join(self._prompt.parts), self._true, self._false, self._top, self._fields],
            fingerprint=fingerprint,
            spec_settings={
                "template": template,
                "instruction": instruction,
                "true_token": self._true,
                "false_token": self._false,
                "top_logprobs": self._top,
            },
            omitted=given_names(headers=headers, fields=fields),
        )

    def __repr__(self) -> str:
        return f"LogprobScorer({self.url!r}, model={self.model!r})"

    def _render(self, queries: Sequence[str], items: Sequence[str]) -> list[str]:
        return ["".join(self._prompt.render(query, item)) for query, item in zip(queries, items, strict=True)]

    def _request_body(self, queries: Sequence[str], items: Sequence[str]) -> bytes:
        prompts = self._render(queries, items)
        body: dict[str, Any] = {"max_tokens": 1, "temperature": 0}
        if self._chat:
            body |= {"messages": [{"role": "user", "content": prompts[0]}], "logprobs": True, "top_logprobs": self._top}
        else:
            body |= {"prompt": prompts, "logprobs": self._top}
        if self.model is not None:
            body["model"] = self.model
        return json.dumps(body | self._fields, ensure_ascii=False).encode("utf-8", "replace")

    def _read_response(self, content: bytes, count: int) -> Response:
        response = load_json(content)
        scores = np.full(count, np.nan)
        unscored: dict[int, str] = {}
        for position, choice in enumerate(find_choices(response, count)):
            judged = judge(read_top_tokens(choice), self._true, self._false)
            if isinstance(judged, str):
                unscored[position] = judged
            else:
                scores[position] = judged
        return Response(scores, unscored, tokens=read_tokens(response))

    def _expected_usage(self, queries: Sequence[str], items: Sequence[str]) -> Usage:
        return Usage(len(items), estimate_tokens(self._render(queries, items)))


def is_completion_url(url: str) -> bool:
    """Whether the endpoint completes texts, and so needs a `LogprobScorer`."""
    return url.partition("#")[0].partition("?")[0].rstrip("/").endswith(COMPLETIONS_PATH)


def _find_family(template: str | None, *, chat: bool) -> Family | None:
    if template is not None and not isinstance(template, str):
        raise invalid("template", "a text with {query} and {item}", template)
    family = FAMILIES.get(template or "")
    if family is not None and chat:
        raise InputError(
            f"`template` {template!r} contains the markup of a chat, which {CHAT_PATH} adds itself. "
            "Use the server's /v1/completions, or give a text with {query} and {item}."
        )
    return family


def _choose_tokens(true: str | None, false: str | None, family: Family | None) -> tuple[str, str]:
    """The two tokens, without white space around them."""
    defaults = (*family.tokens, None, None)[:2] if family else ("Yes", "No")
    tokens = [default if given is None else given for given, default in zip((true, false), defaults, strict=True)]
    for name, token in zip(("true_token", "false_token"), tokens, strict=True):
        if not isinstance(token, str) or not token.strip():
            raise invalid(name, "a token with letters or digits", token)
    first, second = (str(token).strip() for token in tokens)
    if _normalize(first) == _normalize(second):
        raise InputError(f"`true_token` and `false_token` must differ in more than case, got {first!r} and {second!r}.")
    return first, second


def _make_prompt(template: str | None, instruction: str | None, family: Family | None, true: str, false: str) -> Prompt:
    if family is not None:
        return family_prompt(family, instruction)
    if template is not None:
        return text_prompt(template, instruction)
    question = f"Is the document relevant to the query? Answer with one word, {true} or {false}."
    template = f"{INSTRUCTION}\n\nQuery: {QUERY}\n\nDocument: {ITEM}\n\n{question}\nAnswer:"
    return text_prompt(template, DEFAULT_INSTRUCTION if instruction is None else instruction)


def find_choices(response: Any, count: int) -> list[dict[str, Any]]:
    """The choices of a response in the order of the prompts.

    Raises:
        ValueError: What is wrong with the response.
    """
    if isinstance(response, list):  # llama.cpp: a response for each prompt, in their order
        return [find_choices(part, 1)[0] for part in _check_length(response, count)]
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ValueError(f"no list of choices, but {describe_shape(response)}")
    _check_length(choices, count)
    if count == 1:
        return choices
    indexes = [choice.get("index", position) for position, choice in enumerate(choices)]
    if any(indexes.count(position) != 1 for position in range(count)):
        raise ValueError(f"the indexes of its choices must be 0 to {count - 1}, each once")
    return [choices[indexes.index(position)] for position in range(count)]


def _check_length(choices: list[Any], count: int) -> list[Any]:
    if len(choices) != count:
        raise ValueError(f"{len(choices)} choices for {count} prompts")
    return choices


def read_top_tokens(choice: Mapping[str, Any]) -> list[TokenLogprob]:
    """The likeliest first tokens of a choice with their log-probabilities; the generated one if no others are listed.

    Chats have a list of objects in `content`, completions a mapping in `top_logprobs`; servers mix the two.

    Raises:
        ValueError: What is wrong with them.
    """
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return []
    content = _first_of(logprobs.get("content"))
    if isinstance(content, dict):
        listed = content.get("top_logprobs")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        found = [(entry.get("token"), entry.get("logprob")) for entry in entries or [content]]
    else:
        top = _first_of(logprobs.get("top_logprobs"))
        generated = (_first_of(logprobs.get("tokens")), _first_of(logprobs.get("token_logprobs")))
        found = list(top.items()) if isinstance(top, dict) and top else [generated]
    return [_check_token(token, logprob) for token, logprob in found if logprob not in (None, ABSENT_LOGPROB)]


def _first_of(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else None


def _check_token(token: Any, logprob: Any) -> TokenLogprob:
    number = isinstance(logprob, int | float) and not isinstance(logprob, bool)
    if not isinstance(token, str) or not number or not -MAX_SCORE <= logprob <= MAX_LOGPROB:
        raise ValueError(f"the log-probability of {token!r:.40} must be a number of at most 0, got {logprob!r:.40}")
    return token, float(logprob)


def judge(tokens: Sequence[TokenLogprob], true_token: str, false_token: str) -> float | str:
    """The log-odds of two tokens among the likeliest, or why there are none: what the server did."""
    if not tokens:
        return "returned no log-probabilities"
    forms: dict[str, list[float]] = {}
    for token, logprob in tokens:
        forms.setdefault(_normalize(token), []).append(logprob)
    true, false = (forms.get(_normalize(token)) for token in (true_token, false_token))
    if true is None and false is None:
        shown = ", ".join(f"{token!r:.20}" for token, _ in tokens[:3])
        return (
            f"returned neither {true_token!r} nor {false_token!r} among the {len(tokens)} likeliest tokens ({shown}, …)"
        )
    if len(tokens) == 1:
        return f"returned the log-probability of {tokens[0][0]!r:.20} alone"
    floor = [min(logprob for _, logprob in tokens)]  # a token that is not listed is at most as likely
    return float(np.logaddexp.reduce(true or floor) - np.logaddexp.reduce(false or floor))


def _normalize(token: str) -> str:
    return token.translate(SPACE_MARKS).strip().casefold()
