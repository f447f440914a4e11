"""Padding-free encoders have the vectors of sentence-transformers, which runs whatever is unusual."""

import json
import subprocess
import sys

import numpy as np
import pytest

from crossknn.encoders.padding_free import PaddingFreeEncoder
from crossknn.encoders.sentence import SentenceEncoder
from tests.encoders import tiny_encoders
from tests.scorers import tiny

torch = pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

TEXTS = ["", " ", "ice", "  Two\tspaces  and\na LINE ", "naïve ﬁ 水 Σ", "[SEP] </s>", "lone \ud800 surrogate"]
TEXTS += [tiny.words(count, 5 * count) for count in range(1, 12)] + ["word " * 300]
DENSE = {"in_features": tiny_encoders.SIZE, "activation_function": torch.nn.Tanh()}
MODELS = {
    "bert": {},
    "bert-cls": {"pooling": "cls"},
    "bert-max": {"pooling": "max"},
    "bert-short": {"max_tokens": 9},
    "roberta": {},
    "xlm-roberta-lasttoken": {"pooling": "lasttoken"},
    "deberta-v2": {},
    "modernbert-cls": {"pooling": "cls"},
    "qwen3-lasttoken": {"pooling": "lasttoken"},
    "bert-prompts": {"prompts": {"query": "the dog ", "document": "Ice: "}},
    "bert-modules": {"modules": [modules.Dense(**DENSE, out_features=12), modules.Normalize()]},
}


def save(folder, model):
    family = model if model in ("xlm-roberta", "deberta-v2") else model.rpartition("-")[0] or model
    return tiny_encoders.save(folder / model, family, **MODELS[model])


def assert_as_the_library(encoder, expected, *, normalize=True):
    texts = [text for text in TEXTS if text.isascii() or "\ud800" not in text]  # which the library refuses
    options = {"normalize_embeddings": normalize, "batch_size": 4, "show_progress_bar": False}
    np.testing.assert_allclose(encoder.encode_queries(texts), expected.encode_query(texts, **options), atol=2e-5)
    np.testing.assert_allclose(encoder.encode_items(texts), expected.encode_document(texts, **options), atol=2e-5)


@pytest.mark.parametrize("model", MODELS)
def test_vectors_are_those_of_the_library(tmp_path, model):
    folder = save(tmp_path, model)
    expected = library.SentenceTransformer(str(folder), device="cpu")
    assert PaddingFreeEncoder.open(folder, device="cpu", dtype="float32") is not None
    encoder = SentenceEncoder(folder, device="cpu")
    assert encoder.max_tokens == expected.max_seq_length
    assert encoder.dim == expected.get_embedding_dimension()
    assert_as_the_library(encoder, expected)
    assert_as_the_library(SentenceEncoder(folder, device="cpu", normalize=False), expected, normalize=False)


def test_settings_hold(tmp_path):
    folder = save(tmp_path, "bert")
    expected = library.SentenceTransformer(str(folder), device="cpu", prompts={"query": "the dog "})
    expected.max_seq_length = 7
    encoder = SentenceEncoder(folder, device="cpu", max_tokens=7, query_prompt="the dog ", batch_size=3)
    assert_as_the_library(encoder, expected)
    assert encoder.model.max_seq_length == 7
    assert SentenceEncoder(folder, device="cpu", max_tokens=2).encode_items(TEXTS).shape == (len(TEXTS), encoder.dim)


def test_every_text_has_a_vector_of_its_own_whatever_is_encoded_with_it(tmp_path):
    encoder = SentenceEncoder(save(tmp_path, "bert"), device="cpu")
    alone = np.concatenate([encoder.encode_items([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode_items(TEXTS), alone, atol=2e-6)


def change(file, **settings):
    file.parent.mkdir(exist_ok=True)
    old = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**old, **settings}))


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("tokenizer_config.json", {"truncation_side": "left"}),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}),
        ("1_Pooling/config.json", {"include_prompt": False}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value.partition("/")[0],
)
def test_the_library_runs_an_unusual_model(tmp_path, file, settings):
    folder = tiny_encoders.save(tmp_path / "model", "bert", modules=[modules.Normalize()])
    change(folder / file, **settings)
    assert PaddingFreeEncoder.open(folder, device="cpu", dtype="float32") is None
    encoder = SentenceEncoder(folder, device="cpu", query_prompt="the dog ")
    expected = library.SentenceTransformer(str(folder), device="cpu", prompts={"query": "the dog "})
    assert_as_the_library(encoder, expected)
    assert [row.tolist() for row in encoder.tokenize("document", ["ice"])] == [expected.tokenizer("ice").input_ids]


def test_a_usual_model_needs_no_import_of_the_library(tmp_path):
    folder = save(tmp_path, "bert")
    code = (
        "import sys; from crossknn.encoders.sentence import SentenceEncoder\n"
        f"SentenceEncoder({str(folder)!r}, device='cpu').encode_queries(['ice'])\n"
        "print('sentence_transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
