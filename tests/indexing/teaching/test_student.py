"""A dual encoder in training has the vectors and the gradients of sentence-transformers, and is saved with them."""

import numpy as np
import pytest

from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import EncoderError, InputError
from crossknn.indexing.teaching.student import ITEM, QUERY, EncoderStudent
from tests.indexing.teaching import world
from tests.scorers import tiny

torch = pytest.importorskip("torch")
SentenceTransformer = pytest.importorskip("sentence_transformers").SentenceTransformer

TEXTS = ["", "ice", "  Two\tspaces ", "水 naïve [SEP]", *(tiny.words(n, 4 * n) for n in range(1, 12)), "word " * 300]
MODELS = {
    "mean": {},
    "cls": {"pooling": "cls"},
    "lasttoken": {"pooling": "lasttoken"},
    "roberta": {"family": "roberta"},
    "xlm-roberta": {"family": "xlm-roberta", "pooling": "cls"},
    "deberta": {"family": "deberta-v2"},  # whose attention is its own: padded passes
    "dense": {"dense": 16},
    "prompts": {"prompts": {"query": "ice snow ", "document": "the dog "}},
}


def open_encoder(folder, model: str, **settings) -> SentenceEncoder:
    return SentenceEncoder(world.save_encoder(folder / model, **MODELS[model]), device="cpu", **settings)


def vectors_of(student: EncoderStudent, side: str, texts: list[str] = TEXTS) -> np.ndarray:
    return student.encode_all(student.read(side, texts)).numpy()


def assert_same_vectors(student: EncoderStudent, encoder: SentenceEncoder, *, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(vectors_of(student, QUERY), encoder.encode_queries(TEXTS), atol=atol)
    np.testing.assert_allclose(vectors_of(student, ITEM), encoder.encode_items(TEXTS), atol=atol)


@pytest.mark.parametrize("model", MODELS)
def test_vectors_are_those_of_the_encoder(tmp_path, model):
    encoder = open_encoder(tmp_path, model)
    assert_same_vectors(EncoderStudent(encoder), encoder)


def test_settings_of_the_encoder_hold(tmp_path):
    folder = open_encoder(tmp_path, "mean").folder
    for settings in ({"max_tokens": 7}, {"query_prompt": "ice snow ", "item_prompt": "dog "}, {"normalize": False}):
        encoder = SentenceEncoder(folder, device="cpu", **settings)
        assert_same_vectors(EncoderStudent(encoder), encoder)


def test_vectors_of_some_texts_come_in_the_order_asked_for(tmp_path):
    student = EncoderStudent(open_encoder(tmp_path, "mean"))
    tokens, numbers = student.read(ITEM, TEXTS), np.array([7, 0, 15, 3])
    np.testing.assert_allclose(student.encode_all(tokens, numbers), student.encode_all(tokens)[numbers], atol=1e-6)
    assert not student.encode_all(tokens).requires_grad
    with pytest.raises(InputError, match="texts"):
        student.encode_all(tokens, numbers[:0])


def test_more_tokens_than_fit_into_a_batch(tmp_path):
    encoder = open_encoder(tmp_path, "mean")
    texts = [tiny.words(number, number % 60) for number in range(400)]
    np.testing.assert_allclose(vectors_of(EncoderStudent(encoder), ITEM, texts), encoder.encode_items(texts), atol=1e-5)


@pytest.mark.parametrize("model", ["mean", "cls", "roberta", "deberta", "dense"])
def test_gradients_are_those_of_the_library_and_reach_every_weight(tmp_path, model):
    encoder = open_encoder(tmp_path, model)
    student, texts = EncoderStudent(encoder), TEXTS[:-1]
    towards = torch.from_numpy(np.random.default_rng(0).normal(size=(len(texts), encoder.dim))).float()
    found = student.encode(student.read(ITEM, texts), np.arange(len(texts)))
    torch.autograd.backward((found * towards).sum())
    expected = encoder.model(encoder.model.preprocess(texts))["sentence_embedding"]
    torch.autograd.backward((torch.nn.functional.normalize(expected) * towards).sum())
    named = dict(encoder.model.named_parameters())
    assert len(student.parameters) == len(named)
    for value, (name, own) in zip(student.parameters, named.items(), strict=True):
        if ".pooler." in name:  # BERT's, of which the vectors know nothing
            assert value.grad is own.grad is None
        else:
            assert value.grad.abs().max() > 0, name
            torch.testing.assert_close(value.grad, own.grad, atol=1e-4, rtol=1e-3)


def shift(student: EncoderStudent) -> None:
    """Change all weights, as training does."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in student.parameters:
            value += 0.1 * torch.randn(value.shape, generator=generator)
    student.update_working_copy()


@pytest.mark.parametrize("model", ["mean", "roberta", "dense", "prompts"])
def test_a_saved_model_has_the_students_vectors(tmp_path, model):
    encoder = open_encoder(tmp_path, model)
    student, before = EncoderStudent(encoder), encoder.encode_items(TEXTS)
    shift(student)
    student.finish(tmp_path / "saved")
    saved = SentenceEncoder(tmp_path / "saved", device="cpu")
    assert_same_vectors(student, saved, atol=3e-3)  # weights may be rounded to half precision
    assert not np.allclose(saved.encode_items(TEXTS), before, atol=3e-2)
    np.testing.assert_array_equal(encoder.encode_items(TEXTS), before)  # the given encoder is left alone


def test_saving_replaces_an_earlier_model_and_leaves_nothing_else(tmp_path):
    student = EncoderStudent(open_encoder(tmp_path, "mean"))
    (tmp_path / "models" / "saved").mkdir(parents=True)
    student.finish(tmp_path / "models" / "saved")
    first = vectors_of(student, ITEM)
    shift(student)
    student.finish(tmp_path / "models" / "saved")
    assert_same_vectors(student, SentenceEncoder(tmp_path / "models" / "saved", device="cpu"), atol=3e-3)
    assert not np.allclose(vectors_of(student, ITEM), first, atol=3e-2)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["saved"]


def test_prompts_and_length_become_the_saved_models_own(tmp_path):
    folder = open_encoder(tmp_path, "mean").folder
    given = {"query_prompt": "ice snow ", "item_prompt": "the dog ", "max_tokens": 9}
    student = EncoderStudent(SentenceEncoder(folder, device="cpu", **given))
    student.finish(tmp_path / "saved")
    saved = SentenceEncoder(tmp_path / "saved", device="cpu")
    assert saved.max_tokens == 9
    assert_same_vectors(student, saved, atol=3e-3)


@pytest.mark.parametrize("pooling", ["max", ("mean", "cls")])
def test_another_pooling_is_refused(tmp_path, pooling):
    folder = world.save_encoder(tmp_path / "model", pooling=pooling)
    with pytest.raises(EncoderError, match=r"cannot be taught.*mean, cls, lasttoken"):
        EncoderStudent(SentenceEncoder(folder, device="cpu"))


def test_a_model_without_a_transformer_is_refused(tmp_path):
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    model = SentenceTransformer(modules=[StaticEmbedding(tiny.bert_tokenizer(), embedding_dim=8)], device="cpu")
    model.save_pretrained(str(tmp_path / "static"), create_model_card=False)
    with pytest.raises(EncoderError, match="cannot be taught"):
        EncoderStudent(SentenceEncoder(tmp_path / "static", device="cpu"))


@pytest.mark.parametrize("side", [QUERY, ITEM])
def test_a_pooling_that_leaves_out_the_prompt_is_refused(tmp_path, side):
    folder = world.save_encoder(tmp_path / "model", prompts={side: "ice snow "}, include_prompt=False)
    with pytest.raises(EncoderError, match="cannot be taught"):
        EncoderStudent(SentenceEncoder(folder, device="cpu"))
