"""Labelled rows shared by many batches: the correction, weights, left-out rows."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paddle_ext.adaptive_rule import correction
from paddle_ext.adaptive_rule.classify import classify
from paddle_ext.adaptive_rule.correction import corrected_likelihood, correction_of, left_out_rows
from paddle_ext.adaptive_rule.learn import likelihood_of
from paddle_ext.adaptive_rule.likelihood import Likelihood, reweighted


def rows(K: int, D: int, shots: int, noise: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(K).repeat(shots)
    centres = torch.randn(K, D, generator=generator, dtype=torch.float64)
    noises = torch.randn(len(labels), D, generator=generator, dtype=torch.float64)
    return centres[labels] + noise * noises, labels


def metric_of(likelihood: Likelihood) -> Tensor:
    """The metric [D, D] of a likelihood of one task."""
    found = likelihood.diagonal[0].diag()
    if likelihood.projection is not None:
        P, projected = likelihood.projection
        found = found + projected * P[0].mT @ P[0]
    return found


@pytest.mark.parametrize(("D", "shots"), [(30, 3), (6, 8), (40, 8)])
def test_rows_left_out_see_the_distances_of_new_rows(D: int, shots: int) -> None:
    """Compared with other classes like any row; with their own by its other rows."""
    support, labels = rows(4, D, shots)
    likelihood, found = left_out_rows(support, labels, 4)
    plain = likelihood.logits(support)
    own = torch.nn.functional.one_hot(labels, 4).bool()
    left = found.logits
    assert (left[own] < plain[own]).all()
    if likelihood.shares is None or likelihood.shares[0, 0] == 0:
        torch.testing.assert_close(left[~own], plain[~own])
        x, M = likelihood.centred(support[None])[0], likelihood.mass[0, labels]
        m, metric = likelihood.prototypes[0, labels], metric_of(likelihood)
        without = (M.unsqueeze(-1) * m - x) / (M - 1).unsqueeze(-1)
        spread = M / (M - 1)
        square = (((x - without) @ metric) * (x - without)).sum(-1)
        distance = square / spread + likelihood.variance / 2 * spread.log()
        wanted = likelihood.bias[0, labels] - likelihood.sharpness / 2 * distance
        torch.testing.assert_close(left[own], wanted)


def test_rows_alone_in_their_class_do_not_count() -> None:
    support, labels = rows(4, 6, 3)
    support, labels = support[:-1], labels[:-1]  # class 3 has two, and
    support, labels = support[labels != 2], labels[labels != 2].clamp(max=2)  # three are left
    alone = torch.cat([support, support[:1] + 5])
    own = torch.cat([labels, torch.tensor([3])])
    _, found = left_out_rows(alone, own, 4)
    assert found.counts.tolist() == [1.0] * len(labels) + [0.0]
    assert found.logits.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_correction_is_a_minimum(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of the objective, which is convex, is zero there."""
    monkeypatch.setattr(correction, "TOL", 1e-5)
    support, labels = rows(5, 8, 20)
    support = support.to(dtype)
    weights = torch.linspace(0.5, 1.5, len(labels))
    _, rest = left_out_rows(support, labels, 5)
    W = correction_of(rest, weights).double().requires_grad_()
    frequent = labels.bincount(weights.double()).log()
    logits = rest.logits.double() + frequent + rest.x.double() @ W[:-1] + W[-1]
    wrong = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    (W[:-1].square().sum() / 2 + 3 * (weights * wrong).sum()).backward()
    assert W.grad.abs().max() < (1e-2 if dtype == torch.float32 else 1e-4)
    assert W.detach().abs().max() > 0.05


def test_the_correction_learns_what_distances_forget() -> None:
    """A class of two clusters, one of them nearer to the mean of the other class."""
    generator = torch.Generator().manual_seed(0)
    cluster = torch.arange(3).repeat(200)
    angle = torch.tensor([0.0, 1.4, 1.7])[cluster]
    x = torch.stack([angle.cos(), angle.sin(), torch.zeros(600)], dim=1)
    x = x + 0.08 * torch.randn(x.shape, generator=generator)
    labels = (cluster == 2).long()
    known = corrected_likelihood(x[:300], labels[:300], 2)
    assert known.correction is not None
    without, truth = replace(known, correction=None), labels[300:]
    plain, found = (
        classify(k, x[None, 300:]).solution.labels[0] != truth for k in (without, known)
    )
    assert plain.sum() >= 2 * found.sum()
    plain, found = (k.logits(x[300:]).argmax(-1) != truth for k in (without, known))
    assert plain.sum() > found.sum()


def test_frequent_classes_are_not_preferred() -> None:
    """How often a class is labelled says nothing about how likely a row of it is."""
    support, labels = rows(2, 6, 800)
    new = slice(800, None)
    kept = torch.ones(800, dtype=torch.bool)
    kept[1::2] = torch.arange(400) < 10  # ten rows of the second class
    known = corrected_likelihood(support[:800][kept], labels[:800][kept], 2)
    assert known.correction is not None
    found = known.logits(support[new]).argmax(-1)
    recalls = [(found == k)[labels[new] == k].double().mean() for k in range(2)]
    assert min(recalls) > 0.85


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [3, 20])
def test_equal_weights_change_nothing(shots: int) -> None:
    support, labels = rows(4, 10, shots)
    query = rows(4, 10, 5, seed=2)[0][None]
    plain = classify(corrected_likelihood(support, labels, 4), query).solution
    weights = torch.full((len(labels),), 7.0)
    same = classify(corrected_likelihood(support, labels, 4, weights), query).solution
    torch.testing.assert_close(same.probabilities, plain.probabilities, atol=1e-6, rtol=0)


@pytest.mark.parametrize("shots", [4, 10])
def test_weights_move_class_means(shots: int) -> None:
    support, labels = rows(3, 10, shots)
    likelihood = likelihood_of(support[None], labels[None], 3)
    weights = torch.ones(len(labels), dtype=torch.float64)
    weights[labels == 1] = torch.tensor([1e-12] * (shots - 1) + [1.0], dtype=torch.float64)
    x = likelihood.centred(support[None])[0]
    found = reweighted(likelihood, x[None], labels[None], weights[None])
    last = int((labels == 1).nonzero()[-1])
    n0 = likelihood.prior_rows[0]
    torch.testing.assert_close(found.prototypes[0, 1], x[last] / (1 + n0))
    torch.testing.assert_close(found.prototypes[0, 0], likelihood.prototypes[0, 0])
    assert math.isclose(float(found.shots[0, 1]), 1.0, rel_tol=1e-6)
    assert math.isclose(float(found.mass[0, 1]), 1 + n0, rel_tol=1e-6)
    metric, prototypes = metric_of(found), found.prototypes[0]
    steepness, constant = (y[0] for y in found.terms)
    torch.testing.assert_close(
        found.weights[0], 2 * steepness.unsqueeze(-1) * (prototypes @ metric)
    )
    squares = ((prototypes @ metric) * prototypes).sum(-1)
    torch.testing.assert_close(found.squares[0], squares)
    spread = 1 + 1 / found.mass[0]
    half = likelihood.sharpness / 2
    torch.testing.assert_close(steepness, half / spread)
    wanted = squares / spread + likelihood.variance / 2 * spread.log()
    torch.testing.assert_close(constant, found.bias[0] - half * wanted)
    torch.testing.assert_close(found.bias, likelihood.bias)
