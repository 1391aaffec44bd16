"""Labelled rows that count by the probability that their label is right."""

import math
from typing import Any

import pytest
import torch
from problems import Place
from torch import Tensor

import paddle_ext
from paddle_ext import BatchClassifier, PaddleClassifier, methods, presence, reference
from paddle_ext.adaptive_rule.classify import classify
from paddle_ext.adaptive_rule.correction import corrected_likelihood, left_out_rows
from paddle_ext.adaptive_rule.label_noise import WeightedRows, noisy_likelihood, weigh_labels
from paddle_ext.adaptive_rule.learn import learned, likelihood_of
from paddle_ext.reference.adaptive import likelihood

K = 8


def task(
    D: int, shots: int, wrong: float, *, seed: int = 0, spread: float = 0.7, K: int = K
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Support, given labels, true labels, queries of three classes, and their labels; float64."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(K, D, generator=generator, dtype=torch.float64)
    truth = torch.arange(K).repeat_interleave(shots)
    labels = truth.clone()
    changed = torch.arange(len(truth)) % shots < round(wrong * shots)
    moved = torch.randint(1, K, (len(truth),), generator=generator)
    labels[changed] = (truth + moved)[changed] % K
    target = torch.randint(3, (60,), generator=generator)
    rows = [
        centres[own] + spread * torch.randn(len(own), D, generator=generator, dtype=torch.float64)
        for own in (truth, target)
    ]
    return rows[0], labels, truth, rows[1], target


@pytest.mark.parametrize(("D", "shots"), [(12, 3), (12, 7), (90, 6)])
def test_distances_without_weights_are_those_of_the_native_code(D: int, shots: int) -> None:
    support, labels, *_ = task(D, shots, 0.0, spread=2.0)
    known, native = learned(support[None], labels[None], K, left_out=True)
    even = torch.ones(1, len(labels), dtype=support.dtype)
    x = known.centred(support[None])
    rows = WeightedRows.of(known, x, labels[None], even, even)
    plain, full = rows.distances(labels[None], torch.ones(2, 1))
    t, _, projected = known.shares[0]
    assert t > 0
    found = (1 - t) * plain + projected * (1 if len(labels) > D else -rows.length) * full
    # The native distances lack a constant of each row.
    difference = found - native
    torch.testing.assert_close(
        difference, difference[..., :1].expand_as(difference), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("D", [12, 90])
def test_a_row_takes_its_weight_out_of_the_full_metric(D: int) -> None:
    """Compared with the metric of the other rows, for a mean scatter that stays the same."""
    support, labels, *_ = task(D, 4, 0.0, spread=2.0)
    known = likelihood_of(support[None], labels[None], K)
    x, y = known.centred(support[None]), labels[None]
    weights = torch.linspace(0.1, 1, len(labels), dtype=support.dtype)[None]
    rows = WeightedRows.of(known, x, y, weights, weights)
    found = rows.distances(y, torch.ones(2, 1))[1, 0]
    means, root = rows.likelihood.prototypes[0], known.scale[0].sqrt()
    offsets = weights[0].sqrt().unsqueeze(-1) * (x[0] - means[labels]) * root
    mass = torch.stack([weights[0, labels == k].sum() for k in range(K)])
    squares = torch.stack([weights[0, labels == k].square().sum() for k in range(K)])
    scatter = offsets.square().sum() / (mass - squares / mass).sum()
    for i in (0, 13, 31):
        others = torch.arange(len(labels)) != i
        own = others & (labels == labels[i])
        without = means.clone()
        without[labels[i]] = (weights[0, own] @ x[0, own]) / weights[0, own].sum()
        v = weights[0, others].sqrt().unsqueeze(-1) * (x[0] - without[labels])[others] * root
        A = torch.linalg.inv(v.mT @ v / scatter + torch.eye(D, dtype=v.dtype))
        away = (x[0, i] - means) * root
        wanted = ((away @ A) * away).sum(-1)
        elsewhere = torch.arange(K) != labels[i]
        torch.testing.assert_close(found[i, elsewhere], wanted[elsewhere], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("label_noise", ["auto", 0.3])
@pytest.mark.parametrize(("D", "shots"), [(12, 3), (12, 8), (90, 6)])
def test_same_as_the_reference(D: int, shots: int, label_noise: float | str, place: Place) -> None:
    support, labels, _, query, _ = task(D, shots, 0.34, spread=1.5)
    support, query = support.to(place.dtype), query.to(place.dtype)
    here = [x.to(place.device) for x in (support, labels, query)]
    found = paddle_ext.adaptive(*here, label_noise=label_noise).probabilities.cpu().double()
    wanted = reference.adaptive(
        support.double(), labels, query.double(), label_noise=label_noise
    ).probabilities
    close = 1e-6 if place.dtype == torch.float64 else 2e-4
    torch.testing.assert_close(found, wanted, atol=close, rtol=0)
    trusting = paddle_ext.adaptive(*here, label_noise=0.0).probabilities.cpu().double()
    assert (trusting - wanted).abs().max() > 0.01


@pytest.mark.parametrize("shots", [10, 20])
def test_wrong_labels_are_outvoted(shots: int) -> None:
    support, labels, truth, query, target = task(20, shots, 0.4)  # 20 take the correction
    rows = support[None], labels[None]
    found = weigh_labels(*rows, K, "auto")
    assert abs(float(found.rate) - 0.4) < 0.1
    right = labels == truth
    assert ((found.weights[0] > 0.5) == right).double().mean() > 0.99
    for known in (
        noisy_likelihood(*rows, K, "auto", "auto"),
        corrected_likelihood(support, labels, K, label_noise="auto"),
    ):
        assert (classify(known, query[None])[0].labels[0] == target).double().mean() > 0.95


@pytest.mark.parametrize(("wrong", "least"), [(0, -0.005), (1, 0.03), (2, 0.08)])
def test_many_classes_with_wrong_labels_gain(wrong: int, least: float) -> None:
    """Eighty classes of five labels; even with one wrong, where trusting all costs little."""
    gains = []
    for seed in range(3):
        rows, labels, truth, *_ = task(64, 10, wrong / 10, seed=seed, spread=2.0, K=80)
        given = torch.arange(len(rows)) % 10 < 5  # all wrong labels are among them
        known = rows[given].float(), labels[given], rows[~given].float()
        weighed, trusted = (
            (paddle_ext.adaptive(*known, label_noise=noise).labels == truth[~given]).double()
            for noise in ("auto", 0.0)
        )
        gains.append(float((weighed - trusted).mean()))
    assert sum(gains) / len(gains) > least


@pytest.mark.parametrize("label_noise", ["auto", 0.3])
def test_trusted_labels_count_in_full(label_noise: float | str) -> None:
    support, labels, *_ = task(12, 6, 0.34, spread=1.5)
    trusted = torch.arange(len(labels)) % 3 == 0
    rows = support[None], labels[None]
    weighed = weigh_labels(*rows, K, label_noise, trusted=trusted[None])
    wanted = likelihood(support, labels, K, "auto", label_noise, trusted)
    assert weighed.weights[0, ~trusted].min() < 0.5 < weighed.weights[0, trusted].min() == 1
    torch.testing.assert_close(weighed.likelihood.prototypes[0], wanted.means, atol=1e-6, rtol=0)
    torch.testing.assert_close(float(weighed.likelihood.sharpness), wanted.sharpness)
    assert float(weigh_labels(*rows, K, "auto", trusted=trusted[None] | True).rate) == 0


def test_right_labels_change_nothing() -> None:
    support, labels, _, query, _ = task(20, 6, 0.0)
    trusting = paddle_ext.adaptive(support, labels, query, label_noise=0.0)
    found = paddle_ext.adaptive(support, labels, query, label_noise="auto")
    assert torch.equal(found.probabilities, trusting.probabilities)


@pytest.mark.parametrize("D", [12, 90])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_features_that_are_not_finite(D: int, value: float, device: str) -> None:
    """The method finds them in the end; without validation the result may be anything."""
    support, labels, _, query, _ = task(D, 6, 0.2)
    support[2, 3] = value
    known = support.float().to(device), labels.to(device), query.float().to(device)
    for noise in ("auto", 0.2):
        found = paddle_ext.adaptive(*known, num_classes=K, label_noise=noise, validate=False)
        assert 0 <= int(found.labels.min()) <= int(found.labels.max()) < K
        with pytest.raises(ValueError, match=r"^support must be finite, got \w+ at \[2, 3\]$"):
            methods.create("adaptive", label_noise=noise).predict(*known)


def test_weights_of_rows_and_of_labels_multiply() -> None:
    support, labels, *_ = task(20, 6, 0.3)
    given = torch.linspace(0.5, 2, len(labels), dtype=torch.float64)
    known = corrected_likelihood(support, labels, K, given, "auto")
    plain = likelihood_of(support[None], labels[None], K)
    found = weigh_labels(support[None], labels[None], K, "auto", given=given[None])
    total = found.weights[0] * given
    x = plain.centred(support[None])[0]
    for k in range(K):
        own = labels == k
        mean = (total[own].unsqueeze(-1) * x[own]).sum(0) / total[own].sum()
        torch.testing.assert_close(known.prototypes[0, k], mean)


def test_estimators_take_it() -> None:
    support, labels, _, query, target = task(20, 10, 0.4, spread=1.5)
    X = torch.cat([support, query]).numpy()
    y = torch.cat([labels, torch.full((len(query),), -1)]).numpy()

    def right(answers: object) -> float:
        return float((torch.as_tensor(answers) == target).double().mean())

    scores = [
        right(PaddleClassifier(label_noise=noise).fit(X, y).transduction_[len(labels) :])
        for noise in (0.0, "auto")
    ]
    assert scores[0] < scores[1]
    assert scores[1] > 0.95
    classifier = BatchClassifier(support.numpy(), labels.numpy(), label_noise="auto")
    assert right(classifier(query.numpy())["label"]) > 0.95


def test_doubt_is_that_of_the_estimate() -> None:
    """Where many labels are wrong, rows of a class no longer vouch for them."""
    support, labels, truth, *_ = task(20, 10, 0.4)
    found = presence.label_doubt(support, labels)
    assert ((found.doubt > 0.9) == (labels != truth)).all()
    assert torch.equal(found.suggestion, truth)
    plain = left_out_rows(support, labels, K)[1].logits.softmax(-1)
    trusted = 1 - plain.gather(1, labels.unsqueeze(1)).squeeze(1)
    assert ((trusted > 0.9) != (labels != truth)).any()


@pytest.mark.parametrize("label_noise", [0.1, "auto"])
def test_the_diagonal_metric_of_one_task(label_noise: Any) -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat(8)
    support = 4 * torch.eye(3, 8)[labels] + torch.randn(24, 8, generator=random)
    query = 4 * torch.eye(3, 8)[labels] + torch.randn(24, 8, generator=random)
    wrong = labels.clone()
    wrong[:3] = labels[1:4]
    found = paddle_ext.adaptive(support, wrong, query, metric="diagonal", label_noise=label_noise)
    assert (found.labels == labels).double().mean() > 0.9
