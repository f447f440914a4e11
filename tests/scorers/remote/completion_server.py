"""A completion server on this machine: a language model whose log-odds of yes and no are known."""

import math
from collections.abc import Callable
from typing import Any

from tests.scorers.remote.rerank_server import RerankServer

REQUEST_FIELDS = {
    "/v1/completions": {"model", "prompt", "max_tokens", "temperature", "logprobs"},
    "/v1/chat/completions": {"model", "messages", "max_tokens", "temperature", "logprobs", "top_logprobs"},
}
Tokens = dict[str, float]


def log_odds(prompt: str) -> float:
    """From -6 to 6, by the length of the prompt."""
    return math.sin(1.3 * len(prompt)) * 6


def first_tokens(prompt: str) -> Tokens:
    """Log-probabilities of tokens: 9/10 go to forms of yes and no, the rest to others."""
    yes = 1 / (1 + math.exp(-log_odds(prompt)))
    shares = {" Yes": 0.8 * yes, "yes": 0.2 * yes, " No": 0.7 * (1 - yes), "NO": 0.3 * (1 - yes)}
    tokens = {token: math.log(0.9 * share) for token, share in shares.items()}
    return tokens | {f"other{number}": math.log(0.1 * 2.0 ** -(number + 1)) for number in range(30)}


class CompletionServer(RerankServer):
    """Answers as OpenAI does; `form="llama.cpp"` answers completions with a list of objects in the form of chats."""

    def __init__(
        self, path: str = "/v1/completions", tokens: Callable[[str], Tokens] = first_tokens, *, form: str = "openai"
    ) -> None:
        super().__init__()
        self.path, self.tokens, self.form = path, tokens, form

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{self.path}"

    @property
    def prompts(self) -> list[str]:
        """All prompts so far."""
        return [prompt for body in self.bodies for prompt in read_prompts(body)]

    def answer(self, body: dict[str, Any]) -> tuple[int, Any]:
        allowed = REQUEST_FIELDS[self.path]
        if set(body) - {"model"} != allowed - {"model"} or (body["max_tokens"], body["temperature"]) != (1, 0):
            return 400, {"error": {"message": f"expected {sorted(allowed)}, got {sorted(body)}"}}
        chat = "messages" in body
        top = body["top_logprobs"] if chat else body["logprobs"]
        if top > 20:
            return 400, {"error": {"message": f"Requested sample logprobs of {top}, which is greater than 20"}}
        prompts = read_prompts(body)
        as_chat = chat or self.form == "llama.cpp"
        choices = [
            {
                "index": index,
                "finish_reason": "length",
                "logprobs": write_logprobs(self.tokens(prompt), top, chat=as_chat),
            }
            for index, prompt in enumerate(prompts)
        ]
        if not chat and self.form == "llama.cpp" and len(prompts) > 1:
            return 200, [{"choices": [choice | {"index": 0}], "usage": usage_of(1)} for choice in choices]
        return 200, {"object": "completion", "choices": choices[::-1], "usage": usage_of(len(prompts))}


def usage_of(prompts: int) -> dict[str, int]:
    return {"prompt_tokens": 40 * prompts, "completion_tokens": prompts, "total_tokens": 41 * prompts}


def read_prompts(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"]] if "messages" in body else body["prompt"]


def write_logprobs(tokens: Tokens, top: int, *, chat: bool) -> dict[str, Any]:
    """The `logprobs` of a choice."""
    likeliest = dict(sorted(tokens.items(), key=lambda entry: -entry[1])[:top])
    token, logprob = max(tokens.items(), key=lambda entry: entry[1])
    if not chat:
        return {"text_offset": [0], "tokens": [token], "token_logprobs": [logprob], "top_logprobs": [likeliest]}
    entries = [{"token": token, "logprob": value, "bytes": None} for token, value in likeliest.items()]
    return {"content": [{"token": token, "logprob": logprob, "bytes": None, "top_logprobs": entries}]}
