"""Any reranker of the Hugging Face hub as a scorer: classifiers, language models and modular models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from crossknn._checks import invalid
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.models.hub import find_model
from crossknn.scorers.inference.engine import STORED_TOKENS, ModelScorer, plain_format
from crossknn.scorers.inference.heads import Head, split_head
from crossknn.scorers.inference.loading import Pretrained, hash_tensors
from crossknn.scorers.inference.model_folder import CLASSIFIER, LANGUAGE_MODEL, read_model_folder
from crossknn.scorers.inference.pairs import LongItems, PairFormat, PairTemplate
from crossknn.scorers.inference.prompt_tokens import Prompt, tokenize_prompt
from crossknn.scorers.inference.prompts import (
    FAMILIES,
    PAIR,
    Family,
    chat_prompt,
    family_prompt,
    find_family,
    text_prompt,
)
from crossknn.scorers.inference.token_store import Tokenize

Token = int | str


class CrossEncoder(ModelScorer):
    """The raw logit of a reranker, as its makers define it, whatever activation its config names.

    That is the logit of a sequence classifier, encoder or decoder; the last output of a modular model of
    sentence-transformers; or, of a language model, the logit of the true token less that of the false one. The prompt
    is applied that the model was trained with: its chat template with the roles "query" and "document", the saved
    prompt of sentence-transformers, or the one of its family (Qwen3-Reranker, mxbai-rerank-v2, bge-reranker-v2-gemma,
    zerank, ctxl-rerank-v2).

    Args:
        name: A folder, a hub name such as `cross-encoder/ms-marco-MiniLM-L6-v2`, or "embedded", the small model
            trained on WordNet that comes with crossknn (a folder of that name is "./embedded").
        device: A device of torch; by default a GPU if there is one.
        dtype: "float32", "bfloat16", "float16", "int8" (encoders on a CPU: faster, and scores are rounded), or "auto":
            float32 on a CPU and bfloat16 on a GPU.
        max_length: Tokens of a pair at most, by default the model's limit; a longer pair loses the end of its longer
            text, in a prompt that of the item.
        max_query_tokens: Tokens of a query at most.
        max_item_tokens: Tokens of an item at most.
        long_items: "cut" truncates long items; "max" scores overlapping windows and takes the best.
        stride: Tokens between the starts of two windows; by default half a window.
        label: The logit to read, by name or number, where there are several.
        template: The prompt, if the model's own is not found or not wanted: a text with {query}, {item} and maybe
            {instruction}, the name of a family ("qwen3-reranker", "mxbai-rerank-v2", "bge-reranker-gemma", "zerank",
            "ctxl-rerank-v2", "nemotron-rerank"), or "pair", the tokenizer's own way to join two texts.
        instruction: What makes an item relevant, for models that are trained with instructions.
        true_token: The token of a language model whose logit is the score, as text or number; by default what the
            model's folder or family says, else "yes".
        false_token: The token whose logit is subtracted; by default likewise, else "no", but none where only
            `true_token` is given.
        batch_tokens: Tokens of a batch at most; by default chosen for the device.
        stored_tokens: Token ids of texts to keep in memory at most.

    Attributes:
        device: The device of the model.
        dtype: The precision of its weights.
        threads: The best number of concurrent calls: on a GPU one is prepared while another waits for the device.
        counts: Running totals of pairs, forward passes, truncations and tokens.
        prompt: The text around each pair; None where the tokenizer joins the two texts.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        device: Any = None,
        dtype: str = "auto",
        max_length: int | None = None,
        max_query_tokens: int | None = None,
        max_item_tokens: int | None = None,
        long_items: LongItems = "cut",
        stride: int | None = None,
        label: int | str | None = None,
        template: str | None = None,
        instruction: str | None = None,
        true_token: Token | None = None,
        false_token: Token | None = None,
        batch_tokens: int | None = None,
        stored_tokens: int = STORED_TOKENS,
    ) -> None:
        import_extra("torch", extra="models")
        folder = find_model(name, kind=CLASSIFIER)
        self._folder = read_model_folder(folder)
        self._asked = {"template": template, "instruction": instruction}
        self._asked_tokens = {"true_token": true_token, "false_token": false_token}
        self.prompt: Prompt | None = None
        super().__init__(
            name,
            kind=self._folder.kind,
            subfolder=os.path.relpath(self._folder.transformer, folder),
            choose_format=self._choose_format,
            default_length=self._folder.max_length,
            device=device,
            dtype=dtype,
            max_length=max_length,
            max_query_tokens=max_query_tokens,
            max_item_tokens=max_item_tokens,
            long_items=long_items,
            stride=stride,
            batch_tokens=batch_tokens,
            stored_tokens=stored_tokens,
        )
        self._tokens = self._choose_tokens()
        base, head = split_head(self._pretrained, self._folder, self._tokens)
        if self.dtype == "int8" and head is not None and head.token == "lasttoken":  # noqa: S105
            raise InputError("`dtype` 'int8' is for encoders, got a decoder. Use 'float32' or 'bfloat16'.")
        if isinstance(head, Head):
            self._pretrained = replace(self._pretrained, model=base)
        names = {str(number): number for number in range(head.labels)} if isinstance(head, Head) else {}
        if self._folder.kind == CLASSIFIER:
            names = {str(name): int(number) for number, name in (base.config.id2label or {}).items()}
        self.label = choose_label(names, label)
        self._prepare(base, head)

    def _choose_format(self, pretrained: Pretrained, tokenize: Tokenize) -> PairFormat:
        """The prompt that was asked for, or the model's own; else pairs as the tokenizer joins them."""
        prompt = self._choose_prompt(pretrained)
        if prompt is None:
            pairs, saved = plain_format(pretrained, tokenize), self._folder.prompt
            if saved is None:
                return pairs
            return pairs._replace(tokenize_queries=lambda texts: tokenize([saved + text for text in texts]))
        self.prompt = prompt
        tokens = tokenize_prompt(prompt, pretrained.backend, tokenize, source=pretrained.source)
        template = PairTemplate(
            tokens.prefix,
            tokens.middle,
            tokens.suffix,
            pad=pretrained.pad,
            first_type=0 if "token_type_ids" in pretrained.tokenizer("a") else None,
            type_steps=(),
            cut_left=False,
            item_first=prompt.item_first,
            is_prompt=True,
            query_tail=tokens.query_tail,
            item_tail=tokens.item_tail,
        )
        return PairFormat(template, tokens.query, tokens.item)

    def _choose_prompt(self, pretrained: Pretrained) -> Prompt | None:
        template, instruction = self._asked["template"], self._asked["instruction"]
        if template is not None and template != PAIR:
            family = FAMILIES.get(template)
            return text_prompt(template, instruction) if family is None else family_prompt(family, instruction)
        if template is None:
            tokenizer, source = pretrained.tokenizer, pretrained.source
            wanted = self._folder.prompt if instruction is None else instruction
            found = chat_prompt(tokenizer, wanted, self._folder.chat_options, source=source)
            if found is not None:
                return found
            family = self._family(pretrained)
            if family is not None:
                return family_prompt(family, instruction)
            if self._folder.kind == LANGUAGE_MODEL or getattr(tokenizer, "chat_template", None):
                raise InputError(
                    f"{source} names no prompt for pairs: it has no chat template with the roles 'query' and "
                    f"'document'. Give `template`, a text with {{query}} and {{item}} or one of {', '.join(FAMILIES)}."
                )
        if instruction is not None:
            raise InputError(f"`instruction` needs a prompt, and {pretrained.source} has none. Give `template`, too.")
        return None

    def _family(self, pretrained: Pretrained) -> Family | None:
        config = pretrained.model.config
        return find_family(config.model_type, pretrained.source, str(getattr(config, "_name_or_path", "")))

    def _choose_tokens(self) -> list[int]:
        """The true token, and the false one if there is one; none where the model is no language model."""
        given = self._asked_tokens
        if self._folder.kind != LANGUAGE_MODEL:
            for name, token in given.items():
                if token is not None:
                    raise InputError(
                        f"`{name}` is for language models, and {self._pretrained.source} has a classifier."
                    )
            return []
        named = FAMILIES.get(self._asked["template"] or "") or self._family(self._pretrained)
        true, false = given["true_token"], given["false_token"]
        if true is None and false is not None:
            raise InputError(f"`false_token` needs `true_token`, got {false!r} alone.")
        chosen: tuple[Token | None, ...] = (true, false)
        if true is None:
            chosen = self._folder.tokens or (named.tokens if named else ()) or ("yes", "no")
        return [self._token_id(token) for token in chosen if token is not None]

    def _token_id(self, token: Token) -> int:
        pretrained, vocabulary = self._pretrained, self._embeddings
        if isinstance(token, int):
            ids, found = [token], f"a number outside of its {vocabulary} tokens"
        else:
            ids = pretrained.backend.encode(token, add_special_tokens=False).ids
            found = "one that it does not know" if len(ids) == 1 else f"{len(ids)} tokens"
        unknown = token != pretrained.tokenizer.unk_token and ids == [pretrained.tokenizer.unk_token_id]
        if len(ids) != 1 or not 0 <= ids[0] < vocabulary or (unknown and isinstance(token, str)):
            raise InputError(
                f"{token!r} must be one token of {pretrained.source}, got {found}. Give `true_token` and "
                "`false_token`, which the model answers with."
            )
        return int(ids[0])

    def _own_settings(self) -> dict[str, Any]:
        return {"label": self.label, **self._asked, **self._asked_tokens}

    def _fingerprint_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"label": self.label}
        if self._tokens:
            settings["tokens"] = self._tokens
        if self.prompt is not None:
            settings["prompt"] = asdict(self.prompt)
        elif self._folder.prompt is not None:
            settings["query_prompt"] = self._folder.prompt
        if isinstance(self._head, Head):
            settings["pooling"] = self._head.pooling
            settings["head"] = hash_tensors(self._head.layers).hex()
        return settings


def choose_label(names: Mapping[str, int], label: int | str | None) -> int:
    """The column of the logits to read; `names` has that of each label."""
    if label is None:
        if len(names) > 1:
            raise InputError(f"The model returns {len(names)} logits per pair: set `label` to one of {list(names)}.")
        return 0
    number = names.get(label, -1) if isinstance(label, str) else label
    if not 0 <= number < len(names):
        raise invalid("label", f"one of {list(names)} or a number below {len(names)}", label)
    return number
