"""Prompts of rerankers: which text a model wants around a query and an item.

A prompt comes from the user, from the tokenizer's chat template (with the roles "query" and "document"), or from the
table of families below, whose folders name none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from crossknn.errors import InputError
from crossknn.scorers.inference.prompt_tokens import ITEM, PROBE_TEXTS, QUERY, Prompt

INSTRUCTION: Final = "{instruction}"
PAIR: Final = "pair"  # the tokenizer's own way to join a pair, as encoders are trained with
SENTINELS: Final = {"query": "qv7Query3zq", "document": "dv7Item5zd"}  # in place of the texts of a chat template


@dataclass(frozen=True, slots=True)
class Family:
    """Rerankers whose folders do not say how they are prompted: the text and tokens of their makers' code.

    Attributes:
        parts: As of `Prompt`, with {instruction} where one belongs, if the models take any.
        model_types: The architectures of these models,
        name: and how their names read.
        instruction: The default one; None where there is none by default.
        instruction_text: What stands at {instruction} where there is one.
        tokens: Of a language model: the score is the logit of the first, less that of the second if there are two.
        special_tokens: As of `Prompt`.
        strip: Whether white space around queries and items is dropped.
    """

    parts: tuple[str, ...]
    model_types: tuple[str, ...]
    name: str
    instruction: str | None = None
    instruction_text: str = INSTRUCTION
    tokens: tuple[int | str, ...] = ()
    special_tokens: bool = False
    strip: bool = False


FAMILIES: Final[Mapping[str, Family]] = {
    "qwen3-reranker": Family(
        (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
            'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
            "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {item}",
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        model_types=("qwen3",),
        name=r"qwen3[-_]?reranker",
        instruction="Given a web search query, retrieve relevant passages that answer the query",
        tokens=("yes", "no"),
    ),
    "mxbai-rerank-v2": Family(
        (
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\n",
            "{instruction}query: {query}",
            "\n",
            "document: {item}",
            "\n",
            "You are a search relevance expert who evaluates how well documents match search queries. For each "
            "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
            "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:",
            "<|im_end|>\n<|im_start|>assistant\n",
        ),
        model_types=("qwen2",),
        name=r"mxbai-rerank-\w+-v2",
        instruction_text="instruction: {instruction}\n",
        tokens=("1", "0"),
    ),
    "bge-reranker-gemma": Family(
        ("A: {query}", "\n", "B: {item}", "\n", "{instruction}"),
        model_types=("gemma",),
        name=r"bge-reranker-v2-gemma",
        instruction="Given a query A and a passage B, determine whether the passage contains an answer to the query by "
        "providing a prediction of either 'Yes' or 'No'.",
        tokens=("Yes",),
        special_tokens=True,
    ),
    "zerank": Family(  # a chat whose system message is the query
        ("<|im_start|>system\n{query}<|im_end|>\n<|im_start|>user\n{item}<|im_end|>\n<|im_start|>assistant\n",),
        model_types=("qwen3",),
        name=r"zerank-\d",
        tokens=("Yes",),
        strip=True,
    ),
    "ctxl-rerank-v2": Family(
        (
            "Check whether a given document contains information helpful to answer the query.\n"
            "<Document> {item}\n<Query> {query}{instruction} ??",
        ),
        model_types=("qwen3", "mistral"),
        name=r"ctxl-rerank-v2",
        instruction_text=" {instruction}",
        tokens=(0,),  # the first of the vocabulary, whatever it means
        special_tokens=True,
    ),
    "nemotron-rerank": Family(
        ("question:{query} \n \n passage:{item}",),
        model_types=("llama",),
        name=r"nemotron-rerank",
        special_tokens=True,
    ),
}


def find_family(model_type: str, *names: str) -> Family | None:
    """The family of a model of this architecture, by one of its names."""
    for family in FAMILIES.values():
        if model_type in family.model_types and any(re.search(family.name, name.lower()) for name in names):
            return family
    return None


def family_prompt(family: Family, instruction: str | None) -> Prompt:
    """The prompt of a family with this instruction, or its default one."""
    if instruction and not any(INSTRUCTION in part for part in family.parts):
        raise InputError(
            f"`instruction` must be left out, because the models of this family are trained with none, got "
            f"{instruction!r}. Put it into the query, or give `template`, a text with {{query}}, {{item}} and "
            "{instruction}."
        )
    _check_instruction(instruction)
    wanted = family.instruction if instruction is None else instruction
    text = family.instruction_text.replace(INSTRUCTION, wanted) if wanted else ""
    parts = tuple(part.replace(INSTRUCTION, text) for part in family.parts)
    return Prompt(parts, family.special_tokens, strip_query=family.strip, strip_item=family.strip)


def text_prompt(template: str, instruction: str | None) -> Prompt:
    """The prompt of a text with {query}, {item} and, if it has one, {instruction}."""
    names = set(re.findall(r"\{\w+\}", template))
    if not names & {QUERY, ITEM}:
        raise InputError(
            f"`template` must be a text with {{query}} and {{item}}, {PAIR!r} or one of {', '.join(FAMILIES)}, got "
            f"{template!r}."
        )
    stray = sorted(names - {QUERY, ITEM, INSTRUCTION})
    if stray:
        raise InputError(
            "`template` must contain no other places than {query}, {item} and {instruction}, got "
            f"{stray[0]} in {template!r}. The text to score is {{item}}."
        )
    if (INSTRUCTION in template) != (instruction is not None):
        raise InputError(
            "`instruction` must be given if and only if `template` contains {instruction}, "
            f"got {instruction!r} for {template!r}."
        )
    _check_instruction(instruction)
    return Prompt((template.replace(INSTRUCTION, instruction or ""),), special_tokens=True)


def _check_instruction(instruction: str | None) -> None:
    if instruction and (QUERY in instruction or ITEM in instruction):
        raise InputError(
            f"`instruction` must not contain {QUERY} or {ITEM}, got {instruction!r}. These are for `template`."
        )


def chat_prompt(tokenizer: Any, instruction: str | None, options: Mapping[str, Any], *, source: str) -> Prompt | None:
    """The prompt of a chat template with the roles "query" and "document"; None if the tokenizer has none.

    The instruction is the system message. `options` are further variables of the template.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    for structured in (False, True):
        chat = _Chat(tokenizer, instruction, options, structured)
        text = chat.render(*SENTINELS.values())
        if text is not None and all(text.count(sentinel) == 1 for sentinel in SENTINELS.values()):
            break
    else:
        return None
    if instruction is not None and instruction.strip() not in text:
        raise InputError(
            f"The chat template of {source} has no place for an instruction, got {instruction!r}. Leave it out, or "
            "give `template`, a text with {query}, {item} and {instruction}."
        )
    padded = chat.render(*(f" {sentinel} " for sentinel in SENTINELS.values())) or ""
    strips = [f" {sentinel} " not in padded for sentinel in SENTINELS.values()]
    text = text.replace(SENTINELS["query"], QUERY).replace(SENTINELS["document"], ITEM)
    prompt = Prompt((text,), special_tokens=False, strip_query=strips[0], strip_item=strips[1])
    for query, item in zip(PROBE_TEXTS, reversed(PROBE_TEXTS), strict=True):
        if chat.render(query, item) != prompt.render(query, item)[0]:
            raise InputError(
                f"The chat template of {source} treats the query {query!r} and the item {item!r} differently from "
                "others. Give `template`, a text with {query} and {item}, instead."
            )
    return prompt


@dataclass(frozen=True, slots=True)
class _Chat:
    tokenizer: Any
    instruction: str | None
    options: Mapping[str, Any]
    structured: bool  # contents are lists of typed parts, as of multimodal models

    def render(self, query: str, item: str) -> str | None:
        """The text of a pair; None if the template cannot render it."""
        contents = {"system": self.instruction, "query": query, "document": item}
        messages = [
            {"role": role, "content": [{"type": "text", "text": content}] if self.structured else content}
            for role, content in contents.items()
            if content is not None
        ]
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **self.options))
        except Exception:  # templates raise errors of their own, of jinja2, or of Python
            return None
