"""Samples of unknown classes, and labelled rows with a wrong label."""

import pytest
import torch
from presence_tasks import CLASSES, SHOTS, task, unit
from torch import Tensor

import paddle_ext
from paddle_ext import Solution, presence
from paddle_ext.adaptive_rule.learn import likelihood_of
from paddle_ext.methods import Adaptive, Prediction
from paddle_ext.presence import unknown

# --- novelty ------------------------------------------------------------------------------------


def signs_by_hand(
    support: Tensor, labels: Tensor, rows: Tensor, found: Tensor | None, own: bool = False
) -> Tensor:
    """Distance to the class, lack of a product with a class mean, doubt; [n, 3]."""
    K = int(labels.max()) + 1
    known = likelihood_of(support[None], labels[None], K, "diagonal")
    f, V, n0, scale = known.sharpness[0], known.variance[0], known.prior_rows[0], known.scale[0]
    x, z = (unit(unit(y) - known.centre[0]) for y in (support, rows))

    def prototypes_of(chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Prototypes of the chosen labelled rows, what they weigh, and means of unit-norm rows."""
        members = torch.nn.functional.one_hot(labels, K).mT.double() * chosen
        mass = members.sum(1) + n0
        means = members @ unit(support) / members.sum(1, keepdim=True)
        return members @ x / mass.unsqueeze(1), mass, means

    squares, products, spread = (torch.zeros(len(rows), K).double() for _ in range(3))
    for i in range(len(rows)):
        others = (torch.arange(len(labels)) != i) | (not own)  # the rows may be the support
        prototypes, mass, means = prototypes_of(others)
        squares[i] = ((z[i] - prototypes).square() * scale).sum(1)
        products[i] = means @ unit(rows)[i]
        spread[i] = 1 + 1 / mass
    logits = known.bias[0] - f / 2 * (squares / spread + V / 2 * spread.log())
    label = logits.argmax(1) if found is None else found
    to_own = (squares / spread)[torch.arange(len(rows)), label]
    return torch.stack([to_own, 1 - products.amax(1), 1 - logits.softmax(1).amax(1)], 1)


def strangeness_by_hand(
    support: Tensor, labels: Tensor, query: Tensor, found: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Of labelled rows, each left out of its class, of queries with these labels, and of labelled
    rows whose classes are left out."""
    alone = signs_by_hand(support, labels, support, None, own=True)
    true = signs_by_hand(support, labels, support, labels, own=True)
    strange = []
    for fold in range(5):
        out = labels % 5 == fold
        _, renamed = labels[~out].unique(return_inverse=True)
        strange.append(signs_by_hand(support[~out], renamed, support[out], None))
    as_strangers = torch.cat(strange)
    weights = unknown.discriminant(alone, as_strangers)
    asked = signs_by_hand(support, labels, query, found)
    return (alone + true) @ weights / 2, asked @ weights, as_strangers @ weights


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
    usual, asked, strange = strangeness_by_hand(support, labels, query, own)
    found = presence.novelty(solution, support, labels, query)
    below = (usual <= asked.unsqueeze(1)).sum(1).double()
    assert (found >= below / (len(usual) + 1) - 1e-9).all()
    assert (found <= (below + 1) / (len(usual) + 1) + 1e-9).all()
    assert torch.equal(found.argsort(), asked.argsort())
    outside = asked > usual.max()
    assert outside.sum() > 2
    beyond = 1 - 1 / (1 + asked[outside] - usual.max()) / (len(usual) + 1)
    torch.testing.assert_close(found[outside], beyond)
    hidden = int((strange < usual.median()).sum()) / (len(strange) + unknown.PRIOR_ROWS)
    assert presence.hidden(support, labels) == pytest.approx(hidden, abs=0.01)


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
    noise = torch.rand(2, 200, 3, generator=generator, dtype=torch.float64)
    known, strange = noise[0], noise[1] + torch.tensor([0.3, 0.1, 0.0])
    weights = unknown.discriminant(known, strange)
    assert weights[0] > 2 * weights[1] > 4 * weights[2] >= 0
    assert abs(float((known @ weights).std()) - 1) < 0.05
    few = unknown.discriminant(known[:4], strange[:4])
    assert few[0] / few[1] < weights[0] / weights[1]  # few rows are drawn to products
    less = unknown.discriminant(known, noise[1] + torch.tensor([-0.3, 0.1, 0.0]))
    assert less[0] == 0  # strangers are nearer: distances do not count against them
    assert less[1] > 0
    none = unknown.discriminant(known, noise[1] - 0.9)
    assert none[0] == none[2] == 0  # nothing tells strangers: products are what is left
    assert none[1] > 0


def gaussian(
    classes: int, shots: Tensor, queries: int, seed: int = 5
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Labelled rows, their labels, queries and their classes; half as many classes are unknown."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes * 3 // 2, 40, generator=generator)
    labels = torch.arange(classes).repeat_interleave(shots)
    truth = torch.arange(len(centres)).repeat_interleave(queries)
    own = torch.cat([labels, truth])
    rows = centres[own] + 0.8 * torch.randn(len(own), 40, generator=generator)
    return rows[: len(labels)], labels, rows[len(labels) :], truth


def test_a_rate_that_cannot_be_held() -> None:
    """One of n + 1 equal rows is the strangest; single rows of a class do not count."""
    support, labels, query = task(strangers=5)
    chosen = torch.cat([(labels == k).nonzero()[: 3 if k < 3 else 1, 0] for k in range(CLASSES)])
    rows = support[chosen], labels[chosen], query
    found = paddle_ext.adaptive(*rows)
    assert presence.strangers(found, *rows, rate=0.1).shape == presence.novelty(found, *rows).shape
    for rate in (0.05, 0.098):
        with pytest.raises(ValueError, match="the lowest that 9 labelled rows"):
            presence.strangers(found, *rows, rate=rate)


@pytest.mark.parametrize("shots", [2, 5, 20])
@pytest.mark.parametrize("present", [4, 40])
def test_strangers_at_a_rate(present: int, shots: int) -> None:
    """On average over tasks; with the few rows of 2 shots, features are chosen that fit them."""
    rates = []
    for seed in range(6):
        support, labels, query, truth = gaussian(40, torch.full((40,), shots), 10, seed)
        chosen = (truth < present) | (truth >= 40)
        query, truth = query[chosen], truth[chosen]
        found = paddle_ext.adaptive(support, labels, query)
        flagged = presence.strangers(found, support, labels, query)
        assert flagged.dtype == torch.bool
        assert torch.equal(flagged, presence.novelty(found, support, labels, query) > 0.95)
        more = presence.strangers(found, support, labels, query, rate=0.3)
        rates.append([float(x[truth < 40].double().mean()) for x in (flagged, more)])
        assert flagged[truth >= 40].double().mean() > 0.5
    low, high = torch.tensor(rates).mean(0).tolist()
    assert 0.02 < low < (0.12 if shots == 2 else 0.09)
    assert 0.2 < high < 0.4


def test_strangers_and_classes_of_one_row() -> None:
    """The distance to one row is larger than that to a mean, and says nothing."""
    shots = torch.full((40,), 10)
    shots[::4] = 1
    support, labels, query, truth = gaussian(40, shots, 20)
    found = paddle_ext.adaptive(support, labels, query)
    flagged = presence.strangers(found, support, labels, query)
    known = truth < 40
    alone = known & (shots[truth.clamp(max=39)] == 1)
    assert flagged[alone].double().mean() <= 0.2
    assert flagged[known & ~alone].double().mean() < 0.09
    assert flagged[~known].double().mean() > 0.3


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


def test_hidden_strangers() -> None:
    """Half where features tell nothing; with two classes no stranger can be left out."""
    labels = torch.arange(40).repeat(8)
    noise = torch.randn(320, 12, generator=torch.Generator().manual_seed(1))
    assert presence.hidden(noise, labels) > 0.3
    assert presence.hidden(20 * torch.eye(40)[labels][:, :39] + 1, labels) == 0
    assert presence.hidden(noise, labels % 2) == 0
    with pytest.raises(ValueError, match="a class of two rows or more"):
        presence.hidden(noise[:40], labels[:40])
    with pytest.raises(ValueError, match=r"support must have shape \[S, D\]"):
        presence.hidden(noise[None], labels[None])


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


def test_copies_of_labelled_rows_are_not_strange() -> None:
    for K in (2, 3, 5):
        torch.manual_seed(K)
        labels = torch.arange(K).repeat(30)
        rows = torch.randn(K, 32)[labels]
        found = paddle_ext.adaptive(rows, labels, rows)
        assert presence.novelty(found, rows, labels, rows).max() < 0.95


def test_novelty_where_few_probabilities_are_kept() -> None:
    support, labels, query = task()
    for solver in (paddle_ext.adaptive, paddle_ext.solve):
        found, few = (
            presence.novelty(solver(support, labels, query, **more), support, labels, query)
            for more in ({}, {"return_assignments": False, "top": 2})
        )
        assert torch.allclose(found, few, atol=1e-4)


def test_bad_arguments() -> None:
    support, labels, query = task()
    solution = paddle_ext.solve(support, labels, query)
    with pytest.raises(ValueError, match="belong to the one given task"):
        presence.novelty(solution, support, labels, query[:5])
    with pytest.raises(ValueError, match=r"support must have shape \[S, D\], got \[1, "):
        presence.label_doubt(support[None], labels[None])
    for rate in (0.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="rate must be > 0 and at most 1, got"):
            presence.strangers(solution, support, labels, query, rate=rate)


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


def test_doubt_of_a_row_alone_in_its_class() -> None:
    support, labels, _ = task()
    found = presence.label_doubt(support[:CLASSES], labels[:CLASSES])
    assert found.doubt.tolist() == [0.0] * CLASSES
    assert torch.equal(found.suggestion, labels[:CLASSES])
    found.suggestion.zero_()
    assert labels[1] == 1  # the caller's are as they were
    found = presence.label_doubt(support[: CLASSES + 3], labels[: CLASSES + 3])
    assert (found.doubt[3:CLASSES] == 0).all()
    assert (found.doubt[:3] > 0).all()
    with pytest.raises(ValueError, match="support_labels"):
        presence.label_doubt(support[1:CLASSES], labels[1:CLASSES])


# --- what must not matter -------------------------------------------------------------------------


def test_the_order_of_labelled_rows_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where only some of them are compared."""
    monkeypatch.setattr(unknown, "MOST_ORDINARY", 30)
    support, labels, query = task(strangers=5)
    solution = paddle_ext.adaptive(support, labels, query)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    found = presence.novelty(solution, support, labels, query)
    moved = presence.novelty(solution, support[order], labels[order], query)
    torch.testing.assert_close(moved, found, atol=1e-9, rtol=0)
    assert presence.hidden(support[order], labels[order]) == presence.hidden(support, labels)
    doubt = presence.label_doubt(support, labels).doubt
    moved = presence.label_doubt(support[order], labels[order]).doubt
    torch.testing.assert_close(moved, doubt[order], atol=1e-6, rtol=0)


def test_constant_columns_hardly_matter() -> None:
    """(2) divides by means over the features, so that they count for a little."""
    support, labels, query = task(strangers=5)
    given = labels.clone()
    given[7] = 5  # is of class 7

    def wider(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(len(x), 1024)], 1)

    found = paddle_ext.adaptive(support, labels, query)
    same = paddle_ext.adaptive(wider(support), labels, wider(query))
    assert torch.equal(same.labels[:-5], found.labels[:-5])  # the others are strangers
    strange = presence.novelty(found, support, labels, query) > 0.95
    strange_too = presence.novelty(same, wider(support), labels, wider(query)) > 0.95
    assert torch.equal(strange_too, strange)
    for rows in (support, wider(support)):
        assert presence.label_doubt(rows, given).suspects().tolist() == [7]
