"""The loss of a list, term by term, against its definition; what is behind the end of a list counts for nothing."""

import math

import numpy as np
import pytest

from crossknn.indexing.teaching.losses import CONSTANT_VARIANCE, NOISE_VARIANCE, VECTOR_VARIANCE, ListLoss

torch = pytest.importorskip("torch")

LISTS, LENGTH, DIM = 3, 6, 4
DEVIATION, SLOPE, TEMPERATURE = 2.5, 3.0, 0.7


def make_loss(*, squared_error: float = 0.0, evidence: float = 0.0) -> ListLoss:
    return ListLoss(
        "cpu",
        deviation=DEVIATION,
        slope=SLOPE,
        temperature=TEMPERATURE,
        squared_error=squared_error,
        evidence=evidence,
    )


@pytest.fixture
def batch():
    """Vectors of queries and items, and scores."""
    rng = np.random.default_rng(0)
    shapes = (LISTS, DIM), (LISTS, LENGTH, DIM), (LISTS, LENGTH)
    return [torch.from_numpy(rng.normal(size=shape)) for shape in shapes]


def cross_entropy(query, items, scores) -> float:
    target = np.exp(scores / DEVIATION / TEMPERATURE)
    learned = np.exp(SLOPE * items @ query / TEMPERATURE)
    return float(-(target / target.sum() * np.log(learned / learned.sum())).sum())


def squared_error(query, items, scores) -> float:
    return float(np.var(scores / DEVIATION - SLOPE * items @ query))


def surprise(query, items, scores, *, slope=SLOPE, vector=VECTOR_VARIANCE, constant=CONSTANT_VARIANCE) -> float:
    """Minus the log density of the scores, per score, without its constant."""
    query, items, scores = map(torch.from_numpy, (query, items, scores))
    covariance = vector * items @ items.T + constant + NOISE_VARIANCE * torch.eye(len(scores))
    normal = torch.distributions.MultivariateNormal(slope * items @ query, covariance_matrix=covariance)
    return -float(normal.log_prob(scores / DEVIATION)) / len(scores) - 0.5 * math.log(2 * math.pi)


def by_definition(term, batch, **options) -> list[float]:
    return [term(*(part.numpy() for part in one), **options) for one in zip(*batch, strict=True)]


def test_cross_entropy(batch):
    np.testing.assert_allclose(make_loss()(*batch).detach(), by_definition(cross_entropy, batch), rtol=1e-5)


def test_squared_error_of_centered_inner_products(batch):
    term = make_loss(squared_error=0.5)(*batch) - make_loss()(*batch)
    np.testing.assert_allclose(term.detach(), np.multiply(0.5, by_definition(squared_error, batch)), rtol=1e-5)


def test_the_evidence_is_that_of_the_bayesian_linear_model(batch):
    term = make_loss(evidence=2.0)(*batch) - make_loss()(*batch)
    np.testing.assert_allclose(term.detach(), np.multiply(2.0, by_definition(surprise, batch)), rtol=1e-5)


def test_the_slope_and_the_variances_are_learned(batch):
    with_it, without = make_loss(evidence=1.0), make_loss()
    for loss in (with_it, without):
        with torch.no_grad():
            loss.parameters[0].copy_(torch.tensor([1.5, 0.9, 0.6, NOISE_VARIANCE]).log())
    term = with_it(*batch) - without(*batch)
    expected = by_definition(surprise, batch, slope=1.5, vector=0.9, constant=0.6)
    np.testing.assert_allclose(term.detach(), expected, rtol=1e-5)
    with_it(*batch).sum().backward()
    assert (with_it.parameters[0].grad != 0).all()


def test_all_terms_add_up(batch):
    expected = np.add(by_definition(cross_entropy, batch), np.multiply(0.5, by_definition(squared_error, batch)))
    expected += by_definition(surprise, batch)
    loss = make_loss(squared_error=0.5, evidence=1.0)
    np.testing.assert_allclose(loss(*batch).detach(), expected, rtol=1e-5)
    np.testing.assert_allclose(loss(*(part.float() for part in batch)).detach(), expected, rtol=1e-4)


def test_what_is_behind_the_end_changes_nothing(batch):
    """A list of 4 with padding is the list of 4, in its loss and in its gradients."""
    loss = make_loss(squared_error=0.5, evidence=1.0)
    queries, items, scores = batch
    scores[1, 4:], items[1, 4:] = -torch.inf, 1e3
    queries.requires_grad_()
    items.requires_grad_()
    padded = loss(queries, items, scores)
    cut = loss(queries[1:2], items[1:2, :4], scores[1:2, :4])
    assert padded[1].item() == pytest.approx(cut[0].item(), rel=1e-9)
    left, right = (torch.autograd.grad(one, (queries, items)) for one in (padded[1], cut[0]))
    for one, other in zip(left, right, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other)
    assert (left[1][1, 4:] == 0).all()
    others = loss(queries[[0, 2]], items[[0, 2]], scores[[0, 2]])
    torch.testing.assert_close(padded[[0, 2]], others)


def test_gradients_are_those_of_finite_differences(batch):
    queries, items, scores = batch
    scores[2, 3:] = -torch.inf
    loss = make_loss(squared_error=0.5, evidence=1.0)
    inputs = (queries.requires_grad_(), items.requires_grad_())
    assert torch.autograd.gradcheck(lambda left, right: loss(left, right, scores), inputs)
