"""An adapter in training: it starts as the identity, or as it was, and gives what the finished one gives."""

import numpy as np
import pytest

from crossknn.encoders.adapter import AdaptedEncoder
from crossknn.encoders.base import function_encoder
from crossknn.indexing.teaching.adapter_student import AdapterStudent
from crossknn.indexing.teaching.student import ITEM, QUERY
from tests.encoders.test_adapter import ENCODER, make_adapter, vectors_of

torch = pytest.importorskip("torch")

ITEMS, QUERIES = [f"item {number}" for number in range(20)], [f"query {number}" for number in range(5)]
NUMBERS = np.array([7, 0, 24, 3])  # of queries, then items


def make_student(encoder=ENCODER, **options) -> AdapterStudent:
    return AdapterStudent(encoder, vectors_of(ITEMS), **options)


def encode(student: AdapterStudent) -> np.ndarray:
    inputs = student.read(QUERY, QUERIES).join(student.read(ITEM, ITEMS))
    return student.encode(inputs, NUMBERS).detach().numpy()


def disturb(student: AdapterStudent) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in student.parameters:
            value += 0.1 * torch.randn(value.shape, generator=generator)


def adapted(encoder: AdaptedEncoder) -> np.ndarray:
    return np.concatenate([encoder.encode_queries(QUERIES), encoder.encode_items(ITEMS)])[NUMBERS]


def test_it_starts_as_the_identity():
    np.testing.assert_allclose(encode(make_student()), vectors_of([*QUERIES, *ITEMS])[NUMBERS], atol=1e-6)


@pytest.mark.parametrize("for_items", [True, False])
def test_the_finished_adapter_gives_the_vectors_of_the_training(for_items, tmp_path):
    student = make_student(for_items=for_items)
    disturb(student)
    finished = student.finish(tmp_path)
    np.testing.assert_allclose(encode(student), adapted(finished), atol=1e-6)
    assert finished.encoder is ENCODER
    unchanged = np.allclose(finished.encode_items(ITEMS), vectors_of(ITEMS))
    assert unchanged is not for_items
    assert not np.allclose(finished.encode_queries(QUERIES), vectors_of(QUERIES))


def test_all_vectors_are_those_of_each_side():
    student = make_student()
    disturb(student)
    sides = [student.encode_all(student.read(side, texts)) for side, texts in ((QUERY, QUERIES), (ITEM, ITEMS))]
    np.testing.assert_allclose(torch.cat(sides).numpy()[NUMBERS], encode(student), atol=1e-6)


def test_an_adapter_is_trained_further_from_where_it_was():
    before = AdaptedEncoder(ENCODER, make_adapter())
    student = make_student(before)
    np.testing.assert_allclose(encode(student), adapted(before), atol=1e-6)


def test_vectors_that_are_not_normalized_stay_so(tmp_path):
    longer = function_encoder(lambda texts: 3 * vectors_of(texts), fingerprint="longer")
    student = AdapterStudent(longer, 3 * vectors_of(ITEMS))
    assert not student.finish(tmp_path).adapter.normalize
    np.testing.assert_allclose(np.linalg.norm(encode(student), axis=1), 3, rtol=1e-5)


def test_gradients_reach_both_networks():
    student = make_student()
    inputs = student.read(QUERY, QUERIES).join(student.read(ITEM, ITEMS))
    vectors = student.encode(inputs, NUMBERS)
    (vectors[0] @ vectors[1]).backward()  # an item and a query
    for value in student.parameters[2], student.parameters[6]:  # w2 of both
        assert value.grad.abs().sum() > 0
