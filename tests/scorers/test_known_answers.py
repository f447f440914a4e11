"""Published scores of real models, for machines that have their weights.

Nothing is downloaded: a model that is not in the local Hugging Face cache is skipped.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from crossknn import CrossEncoder

hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("torch")

Scores = np.ndarray[Any, np.dtype[Any]]


def raw(scores: Scores) -> Scores:
    return scores


def sigmoid(scores: Scores) -> Scores:
    return 1 / (1 + np.exp(-scores))


def zerank_sigmoid(scores: Scores) -> Scores:
    return sigmoid(scores / 5)


class KnownAnswer(NamedTuple):
    """Scores of one query, after `activation`. Tolerances are wide where they were published in half precision."""

    model: str
    dtype: str
    query: str
    passages: tuple[str, ...]
    scores: tuple[float, ...]
    tolerance: float
    source: str
    activation: Callable[[Scores], Scores] = raw
    instruction: str | None = None


PLANET = "Which planet is known as the Red Planet?"
PLANETS = (
    "Venus is often called Earth's twin because of its similar size and proximity.",
    "Mars, known for its reddish appearance, is often referred to as the Red Planet.",
    "Jupiter, the largest planet in our solar system, has a prominent red spot.",
    "Saturn, famous for its rings, is sometimes mistaken for the Red Planet.",
)
BERLIN = "How many people live in Berlin?"
BERLINS = (
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
    "Berlin is well known for its museums.",
)
PANDA = "what is panda?"
PANDAS = (
    "hi",
    "The giant panda (Ailuropoda melanoleuca), sometimes called a panda bear or simply panda, is a bear species "
    "endemic to China.",
)
BREAD = "How do I bake sourdough bread?"
BREADS = (
    "Sourdough bread requires a starter made from flour and water, fermented over several days.",
    "The history of bread dates back to ancient Egypt around 8000 BCE.",
    "To bake sourdough, mix your starter with flour, water, and salt, then let it rise overnight.",
    "Rye bread is a popular alternative to wheat-based breads in Northern Europe.",
)
EXERCISE = "What are the health benefits of exercise?"
EXERCISES = (
    "Regular exercise reduces risk of heart disease and improves mental health.",
    "A 2024 study shows exercise enhances cognitive function in older adults.",
    "Ancient Greeks valued physical fitness for military training.",
)
SUM = "What is 2+2?"
SUMS = ("4", "The answer is definitely 1 million")

ST_TESTS = "https://github.com/huggingface/sentence-transformers/blob/main/tests/cross_encoder"
ST_MODEL, ST_PRETRAINED = f"{ST_TESTS}/test_model.py", f"{ST_TESTS}/test_pretrained.py"
HUB = "https://huggingface.co"
QWEN3 = (-3.109297752380371, 7.120389938354492, -0.3787546157836914, 3.541637420654297)

ANSWERS = [
    KnownAnswer("Qwen/Qwen3-Reranker-0.6B", "float32", PLANET, PLANETS, QWEN3, 1e-3, ST_MODEL),
    KnownAnswer("tomaarsen/Qwen3-Reranker-0.6B-seq-cls", "float32", PLANET, PLANETS, QWEN3, 1e-3, ST_MODEL),
    KnownAnswer(
        "cross-encoder/ms-marco-MiniLM-L6-v2", "float32", BERLIN, BERLINS, (8.607138, -4.320078), 1e-3,
        f"{HUB}/cross-encoder/ms-marco-MiniLM-L6-v2",
    ),
    KnownAnswer(
        "BAAI/bge-reranker-v2-m3", "float32", PANDA, PANDAS, (-8.1875, 5.26171875), 0.05,
        f"{HUB}/BAAI/bge-reranker-v2-m3",
    ),
    KnownAnswer(
        "mixedbread-ai/mxbai-rerank-base-v2", "float32", BREAD, BREADS, (7.3077507, -2.6217823, 8.724761, -2.2488995),
        0.05, f"{HUB}/blog/multimodal-sentence-transformers",
    ),
    KnownAnswer("zeroentropy/zerank-2", "bfloat16", SUM, SUMS, (5.4062, -4.5), 0.2, f"{HUB}/zeroentropy/zerank-2"),
    KnownAnswer(
        "zeroentropy/zerank-1-small", "bfloat16", PLANET, PLANETS, (0.09428, 0.83889, 0.12052, 0.2184), 0.02,
        ST_PRETRAINED, zerank_sigmoid,
    ),
    KnownAnswer(
        "ContextualAI/ctxl-rerank-v2-instruct-multilingual-6b", "bfloat16", EXERCISE, EXERCISES,
        (-4.6875, -2.2969, -12.375), 0.3, f"{HUB}/ContextualAI/ctxl-rerank-v2-instruct-multilingual-6b",
        instruction="Prioritize recent medical research",
    ),
    *(
        KnownAnswer(model, "float32", PLANET, PLANETS, scores, tolerance, ST_PRETRAINED, activation)
        for model, scores, tolerance, activation in (
            ("cross-encoder/ms-marco-MiniLM-L6-v2", (-6.53125, 9.6875, 6.90625, 6.6875), 0.15, raw),
            ("cross-encoder/ms-marco-MiniLM-L12-v2", (-7.15625, 9.5, 5.71875, 6.84375), 0.15, raw),
            ("cross-encoder/mmarco-mMiniLMv2-L12-H384-v1", (-3.28125, 10.1875, 3.4375, 7.46875), 0.15, raw),
            ("Alibaba-NLP/gte-reranker-modernbert-base", (0.80859, 0.95312, 0.875, 0.91797), 0.03, sigmoid),
            ("ibm-granite/granite-embedding-reranker-english-r2", (0.78906, 0.96484, 0.89062, 0.94141), 0.03, sigmoid),
            ("BAAI/bge-reranker-base", (0.87891, 0.99609, 0.99609, 0.05029), 0.03, sigmoid),
            ("BAAI/bge-reranker-large", (0.69922, 1.0, 0.97266, 0.81641), 0.03, sigmoid),
            ("BAAI/bge-reranker-v2-m3", (0.01855, 1.0, 0.78906, 0.98828), 0.03, sigmoid),
            ("dragonkue/bge-reranker-v2-m3-ko", (0.00711, 1.0, 0.96484, 1.0), 0.03, sigmoid),
            ("mixedbread-ai/mxbai-rerank-xsmall-v1", (0.21484, 0.9375, 0.57031, 0.72656), 0.03, sigmoid),
            ("mixedbread-ai/mxbai-rerank-base-v1", (0.05176, 0.96875, 0.71484, 0.16895), 0.03, sigmoid),
            ("mixedbread-ai/mxbai-rerank-large-v1", (0.00711, 0.99219, 0.80469, 0.3418), 0.03, sigmoid),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.model)
def test_scores_are_the_published_ones(answer):
    if not isinstance(hub.try_to_load_from_cache(answer.model, "config.json"), str):
        pytest.skip(f"{answer.model} is not in the local Hugging Face cache")
    scorer = CrossEncoder(answer.model, dtype=answer.dtype, instruction=answer.instruction)
    scores = scorer.score([answer.query] * len(answer.passages), list(answer.passages))
    np.testing.assert_allclose(answer.activation(scores), answer.scores, atol=answer.tolerance, err_msg=answer.source)


def test_each_answer_has_a_score_per_passage_and_a_source():
    for answer in ANSWERS:
        assert len(answer.passages) == len(answer.scores), answer.model
        assert answer.source.startswith("https://"), answer.model
