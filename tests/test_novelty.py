"""Samples of unknown classes, and labelled rows with a wrong label."""

import pytest
import torch
from presence_tasks import CLASSES, SHOTS, task, unit
from torch import Tensor

import paddle_ext
from paddle_ext import Solution, presence
from paddle_ext.methods import Adaptive, Prediction
from paddle_ext.presence import strangers
from paddle_ext.rule.likelihood import likelihood_of

# --- novelty ------------------------------------------------------------------------------------


def known_by_hand(support: Tensor, labels: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances in the feature scale, and cosines, of queries and class means, [Q, K]."""
    K = int(labels.max()) + 1
    centre = torch.stack([unit(support)[labels == k].mean(0) for k in range(K)]).mean(0)
    x, z = unit(unit(support) - centre), unit(unit(query) - centre)
    means = torch.stack([x[labels == k].mean(0) for k in range(K)])
    shots = labels.bincount()[labels].double()
    degrees = ((shots - 1) / shots).sum()
    variance = (x - means[labels]).square().sum(0) / degrees
    mean = variance.mean()
    scale = 1 / ((degrees * variance + 10 * mean) / (degrees + 10) + mean)
    scale = scale / scale.mean()
    distances = ((z.unsqueeze(1) - means).square() * scale).sum(2)
    directions = torch.stack([unit(support)[labels == k].mean(0) for k in range(K)])
    return distances, unit(query) @ unit(directions).mT


def signs_by_hand(distances: Tensor, cosines: Tensor, labels: Tensor) -> Tensor:
    own = torch.arange(len(labels)), labels
    return torch.stack([distances[own], 1 - cosines[own], 1 - cosines.amax(1)], dim=1)


def strangeness_by_hand(
    support: Tensor, labels: Tensor, query: Tensor, found: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Of labelled rows, each left out of its class, and of queries with these labels."""
    distances, cosines = known_by_hand(support, labels, support)
    for i, k in enumerate(labels.tolist()):
        own = unit(support)[labels == k]
        n = len(own)
        distances[i, k] *= (n + 1) / (n - 1)
        cosines[i, k] = ((own.sum(0) @ unit(support)[i] - 1) / (n - 1)) / own.mean(0).norm()
    known = signs_by_hand(distances, cosines, labels)
    strange = []
    for fold in range(5):
        out = labels % 5 == fold
        _, renamed = labels[~out].unique(return_inverse=True)
        distances, cosines = known_by_hand(support[~out], renamed, support[out])
        strange.append(signs_by_hand(distances, cosines, distances.argmin(1)))
    assert (known[:, 1] - known[:, 2] < 1e-12).double().mean() > 0.5  # so both cosines count
    both = torch.tensor([[1, 0], [0, 1], [0, 1]], dtype=torch.float64)
    weights = both @ discriminant_by_hand(known @ both, torch.cat(strange) @ both)
    distances, cosines = known_by_hand(support, labels, query)
    asked = signs_by_hand(distances, cosines, cosines.argmax(1) if found is None else found)
    return known @ weights, asked @ weights


def discriminant_by_hand(known: Tensor, strange: Tensor) -> Tensor:
    """With 8 more rows: of unit covariance, the second sign one unit of spread apart."""

    def spread(x: Tensor) -> Tensor:
        return (((x - x.mean()).square().sum() + 8 * (x.mean() / 4) ** 2) / (len(x) + 8)).sqrt()

    m = len(known)
    unit = torch.stack([spread(known[:, 0]), spread(known[:, 1])])
    known, strange = known / unit, strange / unit
    scatter = (m - 1) * (torch.cov(known.mT) + torch.cov(strange.mT))
    (a, b), (_, c) = (scatter + 8 * torch.eye(2)) / (2 * m + 8)
    u, v = (m * (strange.mean(0) - known.mean(0)) + torch.tensor([0, 8])) / (m + 8)
    weights = torch.stack([c * u - b * v, a * v - b * u]).clamp(min=0)
    return weights / spread(known @ weights) / unit


@pytest.mark.parametrize("offset", [0.0, 3.0])  # distances alone count; cosines count too
@pytest.mark.parametrize("method", ["solve", "adaptive"])
def test_novelty_by_hand(method: str, offset: float) -> None:
    """Between the ranks of the labelled rows, and in order beyond them."""
    support, labels, query = task(strangers=5, offset=offset)
    solution: Solution | Prediction
    if method == "solve":
        solution = paddle_ext.solve(support, labels, query)
    else:
        solution = Adaptive().predict(support, labels, query)
    own = None if method == "solve" else solution.labels
    usual, asked = strangeness_by_hand(support, labels, query, own)
    found = presence.novelty(solution, support, labels, query)
    below = (usual <= asked.unsqueeze(1)).sum(1).double()
    assert (found >= below / (len(usual) + 1) - 1e-9).all()
    assert (found <= (below + 1) / (len(usual) + 1) + 1e-9).all()
    assert torch.equal(found.argsort(), asked.argsort())
    outside = asked > usual.max()
    assert outside.sum() > 2
    beyond = 1 - 1 / (1 + asked[outside] - usual.max()) / (len(usual) + 1)
    torch.testing.assert_close(found[outside], beyond)


@pytest.mark.parametrize("shots", [2, 5, 20])
@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("method", ["solve", "adaptive"])
def test_novelty_is_no_worse_than_the_largest_cosine(
    method: str, clustered: bool, shots: int
) -> None:
    """Even if the strangers form a class, to which PADDLE's prototypes move."""
    generator = torch.Generator().manual_seed(shots)
    K, D, n = 20, 32, 30
    spread = 0.2 + 2 * torch.rand(D, generator=generator)
    centres = torch.randn(K + n, D, generator=generator)
    labels = torch.arange(K).repeat(shots)
    strangers = torch.full((n,), K) if clustered else torch.arange(K, K + n)
    own = torch.cat([labels, torch.arange(K).repeat(3), strangers])
    rows = centres[own] + spread * torch.randn(len(own), D, generator=generator)
    support, query = rows[: len(labels)], rows[len(labels) :]
    solution: Solution | Prediction
    if method == "solve":
        solution = paddle_ext.solve(support, labels, query)
    else:
        solution = Adaptive().predict(support, labels, query)
    got = presence.novelty(solution, support, labels, query)
    means = torch.stack([unit(support)[labels == k].mean(0) for k in range(K)])
    cosine = (unit(query) @ unit(means).mT).amax(1)
    assert auroc(got, n) >= auroc(-cosine, n) - 0.005
    assert auroc(got, n) > 0.6


def auroc(score: Tensor, strangers: int) -> float:
    """The chance that one of the last rows has a larger score than one of the others."""
    return float((score[-strangers:].unsqueeze(1) > score[:-strangers]).double().mean())


def test_novelty_finds_strangers() -> None:
    support, labels, query = task(strangers=10)
    solution = paddle_ext.solve(support, labels, query)
    found = presence.novelty(solution, support, labels, query)
    assert found[-10:].min() > 0.9
    assert found[:-10].mean() < 0.7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shots", [3, SHOTS])
def test_novelty_of_a_prediction(shots: int, dtype: torch.dtype) -> None:
    """Labelled rows are compared like new rows: with class means that exclude them."""
    support, labels, query = task(strangers=10)
    support, labels = support[: shots * CLASSES].to(dtype), labels[: shots * CLASSES]
    query = query.to(dtype)
    adaptive = Adaptive()
    found = adaptive.predict(support, labels, query)
    got = presence.novelty(found, support, labels, query)
    assert got.dtype == torch.float64
    assert got[-10:].min() > 0.9
    assert 0.3 < got[:-10].mean() < 0.7
    solution = paddle_ext.adaptive(support, labels, query)
    assert torch.equal(presence.novelty(solution, support, labels, query), got)
    ordinary = presence.novelty(
        adaptive.predict(support, labels, support), support, labels, support
    )
    assert ordinary.mean() < 0.5  # a row that is part of its class mean lies nearer


def test_signs_are_weighted_by_information() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(2, 200, 2, generator=generator, dtype=torch.float64)
    known, strange = noise[0], noise[1] + torch.tensor([0.3, 0.1])
    weights = strangers.discriminant(known, strange)
    assert weights[0] > 2 * weights[1] > 0
    assert abs(float((known @ weights).std()) - 1) < 0.05
    few = strangers.discriminant(known[:4], strange[:4])
    assert few[0] / few[1] < weights[0] / weights[1]  # few rows are drawn to cosines
    less = strangers.discriminant(known, noise[1] + torch.tensor([-0.3, 0.1]))
    assert less[0] == 0  # strangers are nearer: distances do not count against them
    assert less[1] > 0
    none = strangers.discriminant(known, noise[1] - 0.9)
    assert none[0] == 0  # nothing tells strangers: cosines are what is left
    assert none[1] > 0


def test_labels_of_overlapping_classes_are_ignored() -> None:
    """Where labels are mostly wrong, novelty has the order of the largest cosine."""
    support, labels = overlapping(classes=40, shots=4)
    query, support, labels = support[:40], support[40:], labels[40:]
    solution = Adaptive().predict(support, labels, query)
    means = torch.stack([unit(support)[labels == k].mean(0) for k in range(40)])
    largest, nearest = (unit(query) @ unit(means).mT).max(1)
    assert (solution.labels != nearest).sum() > 5
    got = presence.novelty(solution, support, labels, query)
    assert torch.equal(got.argsort(), (-largest).argsort())


def test_few_rows_do_not_discredit_labels() -> None:
    for classes, trusted in ((5, True), (40, False)):
        found = strangers.familiar(*overlapping(classes, shots=2), classes)
        assert found is not None
        assert (found.weights[1] > 0) == trusted
        assert found.weights[2] > 0


def overlapping(classes: int, shots: int) -> tuple[Tensor, Tensor]:
    """Labelled rows that are mostly closer to the mean of another class than to that of theirs."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat(shots)
    centres = 3 + 0.3 * torch.randn(classes, 16, generator=generator)
    return centres[labels] + torch.randn(len(labels), 16, generator=generator), labels


def test_novelty_of_one_class() -> None:
    """There is no other class to compare a row with as a stranger."""
    support, labels, query = task(strangers=10)
    one = support[labels == 4]
    labels = torch.zeros(len(one), dtype=torch.int64)
    found = Adaptive().predict(one, labels, query)
    got = presence.novelty(found, one, labels, query)
    assert got.isfinite().all()
    own = torch.arange(len(query)).remainder(3) == 1
    own[-10:] = False
    assert got[own].mean() < got[~own].mean() - 0.1


def test_novelty_with_few_rows() -> None:
    """Classes with one row do not count; if there are no others, an error says so."""
    support, labels, query = task()
    solution = paddle_ext.solve(support[:CLASSES], labels[:CLASSES], query)
    with pytest.raises(ValueError, match="a class of two rows or more"):
        presence.novelty(solution, support[:CLASSES], labels[:CLASSES], query)
    found = Adaptive().predict(support[:CLASSES], labels[:CLASSES], query)
    with pytest.raises(ValueError, match="a class of two rows or more"):
        presence.novelty(found, support[:CLASSES], labels[:CLASSES], query)
    few = CLASSES + 1  # class 0 has two
    solution = paddle_ext.solve(support[:few], labels[:few], query)
    found = presence.novelty(solution, support[:few], labels[:few], query)
    assert ((found >= 0) & (found <= 1)).all()
    assert found.unique().numel() > 10  # two rows to be compared with keep the order


def test_novelty_of_another_task() -> None:
    support, labels, query = task()
    solution = paddle_ext.solve(support, labels, query)
    with pytest.raises(ValueError, match="belong to the one given task"):
        presence.novelty(solution, support, labels, query[:5])


# --- labelled rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [3, 12])
def test_wrong_labels_are_found(shots: int) -> None:
    """With few rows of a class by the diagonal metric, with many by the full one."""
    generator = torch.Generator().manual_seed(shots)
    K, D = 10, 24
    truth = torch.arange(K).repeat(shots)
    centres = torch.randn(K, D, generator=generator)
    support = centres[truth] + 0.4 * torch.randn(len(truth), D, generator=generator)
    labels = truth.clone()
    wrong = torch.tensor([2, 13, 27])
    labels[wrong] = (truth[wrong] + 4) % K
    found = presence.label_doubt(support, labels)
    assert sorted(found.doubt.argsort(descending=True)[:3].tolist()) == wrong.tolist()
    assert torch.equal(found.suggestion[wrong], truth[wrong])
    assert set(wrong.tolist()) <= set(found.suspects(0.5).tolist())
    assert len(found.suspects(0.5)) < 8
    assert found.suspects(1.0).tolist() == []


def test_doubt_of_labels_leaves_the_row_out() -> None:
    """As classifying the row by the others, up to what all rows choose together."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(4).repeat(3)
    support = torch.randn(4, 6, generator=generator)[labels]
    support = (support + torch.randn(12, 6, generator=generator)).double()
    found = presence.label_doubt(support, labels)
    alone = []
    for i in range(12):
        others = torch.arange(12) != i
        likelihood = likelihood_of(support[others][None], labels[others][None], 4)
        u = likelihood.logits(support[i : i + 1]).softmax(-1)[0]
        alone.append(1 - u[labels[i]])
    assert torch.corrcoef(torch.stack([found.doubt, torch.stack(alone)]))[0, 1] > 0.9
    assert (found.doubt - torch.stack(alone)).abs().mean() < 0.1


def test_doubt_of_a_row_alone_in_its_class() -> None:
    support, labels, _ = task()
    found = presence.label_doubt(support[:CLASSES], labels[:CLASSES])
    assert found.doubt.tolist() == [0.0] * CLASSES
    assert torch.equal(found.suggestion, labels[:CLASSES])
    found = presence.label_doubt(support[: CLASSES + 3], labels[: CLASSES + 3])
    assert (found.doubt[3:CLASSES] == 0).all()
    assert (found.doubt[:3] > 0).all()
    with pytest.raises(ValueError, match="support_labels"):
        presence.label_doubt(support[1:CLASSES], labels[1:CLASSES])
