"""Labelled rows that count by the probability that their label is right."""

import math
from typing import Any

import pytest
import torch
from problems import Place
from torch import Tensor

import paddle_ext
from paddle_ext import BatchClassifier, PaddleClassifier, methods, presence
from paddle_ext.adaptive_rule.classify import classify
from paddle_ext.adaptive_rule.correction import corrected_likelihood, left_out_rows
from paddle_ext.adaptive_rule.label_noise import noisy_likelihood, weigh_labels
from paddle_ext.reference import label_noise as specification
from paddle_ext.reference.rule import Known, Labelled, centred, learn

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


def by_the_reference(
    support: Tensor,
    labels: Tensor,
    label_noise: float | str,
    metric: str,
    trusted: Tensor,
) -> tuple[Known, Tensor, float]:
    known = learn(support, labels, K, metric=metric)
    rows = Labelled(centred(support, known.centre), labels, K)
    return specification.rounds(known, rows, label_noise, metric, trusted)


@pytest.mark.parametrize(("D", "shots"), [(64, 20), (64, 8), (90, 6), (12, 8)])
def test_native_code_takes_it(D: int, shots: int) -> None:
    """Also where nothing has to be padded."""
    support, labels, _, query, target = task(D, shots, 0.34)
    found = weigh_labels(support[None], labels[None], K, "auto")
    assert float(found.rate) > 0
    for name, tensor in found.likelihood.tensors().items():
        assert tensor.is_contiguous(), name
    assert (classify(found.likelihood, query[None]).solution.labels[0] == target).all()


@pytest.mark.parametrize("label_noise", ["auto", 0.3])
@pytest.mark.parametrize("metric", ["auto", "diagonal"])
@pytest.mark.parametrize(("D", "shots"), [(12, 3), (12, 8), (90, 6)])
@pytest.mark.parametrize("seed", range(3))
def test_same_as_the_reference(
    D: int, shots: int, metric: str, label_noise: float | str, seed: int, place: Place
) -> None:
    """With classes of different sizes, one of a single row, and some labels that are right."""
    support, labels, *_ = task(D, shots, 0.34, spread=1.5, seed=seed)
    kept = (labels != 0) | (torch.arange(len(labels)) == int((labels == 0).nonzero()[0]))
    support, labels = support[kept], labels[kept]
    trusted = torch.arange(len(labels)) % 5 == 0
    wanted, weights, rate = by_the_reference(support, labels, label_noise, metric, trusted)
    here = support.to(place.device, place.dtype)[None], labels.to(place.device)[None]
    sure = trusted.to(place.device)[None]
    found = weigh_labels(*here, K, label_noise, metric, trusted=sure)
    known, x = found.likelihood, torch.randn(4, D, dtype=torch.float64)
    close: Any = {"atol": 1e-6, "rtol": 1e-6}
    if place.dtype != torch.float64:
        close = {"atol": 2e-3, "rtol": 2e-3}

    def same(tensor: Tensor, other: Tensor | float) -> None:
        other = torch.as_tensor(other, dtype=torch.float64)
        torch.testing.assert_close(tensor.cpu().double().view_as(other), other, **close)

    same(found.rate, rate)
    same(found.weights, weights)
    same(known.prototypes, wanted.prototypes.rows)
    same(known.shots, wanted.counts)
    same(known.variance, wanted.model.variance)
    same(known.prior_rows, wanted.model.prior_rows)
    same(known.sharpness, wanted.sharpness)
    same(known.bias, wanted.bias)
    same(found.logits, wanted.left_out)
    same(known.in_metric(x.to(here[0])[None]), x @ wanted.metric)
    rows = wanted.prototypes.rows
    same(known.squares, ((rows @ wanted.metric) * rows).sum(-1))


def test_a_batch_of_tasks_is_its_tasks() -> None:
    """Some tasks without a wrong label among them."""
    tasks = [task(20, 6, wrong, seed=seed)[:2] for seed, wrong in enumerate((0, 0.34, 0, 0.34))]
    support, labels = (torch.stack(x) for x in zip(*tasks, strict=True))
    found = weigh_labels(support, labels, K, "auto")
    assert (found.rate > 0).tolist() == [False, True, False, True]
    for i in range(4):
        alone = weigh_labels(support[i : i + 1], labels[i : i + 1], K, "auto")
        torch.testing.assert_close(found.weights[i : i + 1], alone.weights)
        torch.testing.assert_close(found.logits[i : i + 1], alone.logits)
        for name, x in found.likelihood.tensors().items():
            torch.testing.assert_close(x[i : i + 1], getattr(alone.likelihood, name))


@pytest.mark.parametrize("shots", [10, 20])
def test_wrong_labels_are_outvoted(shots: int) -> None:
    support, labels, truth, query, target = task(20, shots, 0.4)  # 20 take the correction
    rows = support[None], labels[None]
    found = weigh_labels(*rows, K, "auto")
    assert abs(float(found.rate) - 0.4) < 0.1
    right = labels == truth
    assert ((found.weights[0] > 0.5) == right).double().mean() > 0.98
    for known in (
        noisy_likelihood(*rows, K, "auto", "auto"),
        corrected_likelihood(support, labels, K, label_noise="auto"),
    ):
        assert (classify(known, query[None]).solution.labels[0] == target).double().mean() > 0.95


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
    assert weighed.weights[0, ~trusted].min() < 0.5 < weighed.weights[0, trusted].min() == 1
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
    found = weigh_labels(support[None], labels[None], K, "auto")
    total = found.weights[0] * given
    x = known.centred(support[None])[0]
    for k in range(K):
        own = total * (labels == k)
        n = own.sum().square() / own.square().sum()
        mean = own @ x / own.sum()
        torch.testing.assert_close(known.prototypes[0, k], mean * n / (n + known.prior_rows[0]))
        torch.testing.assert_close(known.shots[0, k], n)


def test_the_order_of_labelled_rows_does_not_matter() -> None:
    support, labels, _, query, _ = task(20, 40, 0.3, spread=1.5)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    found = weigh_labels(support[None], labels[None], K, "auto")
    moved = weigh_labels(support[order][None], labels[order][None], K, "auto")
    torch.testing.assert_close(moved.weights, found.weights[:, order])
    torch.testing.assert_close(
        moved.likelihood.logits(query), found.likelihood.logits(query), atol=1e-6, rtol=1e-6
    )


def test_estimators_take_it() -> None:
    support, labels, _, query, target = task(20, 10, 0.4, spread=1.5, seed=1)
    X = torch.cat([support, query]).numpy()
    y = torch.cat([labels, torch.full((len(query),), -1)]).numpy()

    def right(answers: object) -> float:
        return float((torch.as_tensor(answers) == target).double().mean())

    scores = [
        right(PaddleClassifier(label_noise=noise).fit(X, y).transduction_[len(labels) :])
        for noise in (0.0, "auto")
    ]
    assert scores[0] + 0.1 < scores[1]
    assert scores[1] > 0.9
    classifier = BatchClassifier(support.numpy(), labels.numpy(), label_noise="auto")
    assert right(classifier(query.numpy())["label"]) > 0.9


def test_doubt_is_that_of_the_estimate() -> None:
    """Where many labels are wrong, rows of a class no longer vouch for them."""
    support, labels, truth, *_ = task(20, 10, 0.4)
    found = presence.label_doubt(support, labels)
    assert ((found.doubt > 0.5) == (labels != truth)).all()
    assert torch.equal(found.suggestion, truth)
    plain = left_out_rows(support, labels, K)[1].logits.softmax(-1)
    trusted = 1 - plain.gather(1, labels.unsqueeze(1)).squeeze(1)
    assert ((trusted > 0.5) != (labels != truth)).any()


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
