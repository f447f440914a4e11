"""Tokens of texts in their places in a prompt are those of the whole prompt, whatever the texts are."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")

from crossknn.errors import InputError
from crossknn.scorers.inference.prompt_tokens import Prompt, tokenize_prompt
from crossknn.scorers.inference.token_store import fast_tokenize
from tests.scorers import tiny
from tests.scorers import tiny_rerankers as make

TOKENIZERS = {
    "qwen": make.qwen_tokenizer,
    "gemma": make.gemma_tokenizer,
    "bert": tiny.bert_tokenizer,
    "xlm-roberta": tiny.xlm_roberta_tokenizer,
}
TEMPLATES = [
    ("<|im_start|>user\n<Query>: {query}\n<Document>: {item}<|im_end|>\n",),
    ("query: {query}\nitem: {item}\nRelevant:",),
    ("Check.\n{item}\n\nQuery {query} ??",),
    ("start\n", "query: {query}", "\n", "item: {item}", "end"),
]
TEXTS = st.text(st.sampled_from("ab zR?.!,'\"\n\t 0123-_:<>é漢🙂\u0301▁"), max_size=12)


@functools.cache
def tokens_of(name, parts, special_tokens):
    backend = TOKENIZERS[name]().backend_tokenizer
    backend.no_truncation()
    prompt = Prompt(parts, special_tokens=special_tokens)
    return backend, prompt, tokenize_prompt(prompt, backend, fast_tokenize(backend), source=name)


@pytest.mark.parametrize("special_tokens", [False, True])
@pytest.mark.parametrize("parts", TEMPLATES)
@pytest.mark.parametrize("name", TOKENIZERS)
@given(query=TEXTS, item=TEXTS)
def test_texts_are_tokenized_as_in_the_whole_prompt(name, parts, special_tokens, query, item):
    backend, prompt, tokens = tokens_of(name, parts, special_tokens)
    (query_ids,), (item_ids,) = tokens.query([query]), tokens.item([item])
    first, second = (item_ids, query_ids) if prompt.item_first else (query_ids, item_ids)
    ids = [*tokens.prefix, *first.tolist(), *tokens.middle, *second.tolist(), *tokens.suffix]
    rendered = prompt.render(query, item)
    if len(rendered) == 1:
        assert ids == backend.encode(rendered[0], add_special_tokens=special_tokens).ids
    elif not special_tokens:
        assert ids == [token for part in rendered for token in backend.encode(part, add_special_tokens=False).ids]


def test_texts_without_anything_between_them_are_refused():
    backend = make.qwen_tokenizer().backend_tokenizer
    with pytest.raises(InputError, match="between them"):
        tokenize_prompt(Prompt(("{query}{item}",), False), backend, fast_tokenize(backend), source="m")
