"""Which classes are present, which labels are doubtful, which samples are of no class."""

import doctest
import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import Solution, presence, rows
from paddle_ext import scaling as scalings
from paddle_ext import solution as solutions
from paddle_ext.methods import Adaptive, Prediction
from paddle_ext.methods.calibration import calibrated
from paddle_ext.methods.task import Task
from paddle_ext.ops.paddle_sharpness import sharpness_of
from paddle_ext.reference.paddle import prepare

CLASSES, SHOTS, DIMENSION = 15, 4, 12


def task(strangers: int = 0, offset: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of classes 1, 4 and 7, and of none; float64."""
    generator = torch.Generator().manual_seed(11)
    centres = 3 * torch.randn(CLASSES, DIMENSION, generator=generator)
    labels = torch.arange(CLASSES).repeat(SHOTS)
    truth = torch.tensor([1, 4, 7]).repeat(12)
    noise = torch.randn(len(labels) + len(truth), DIMENSION, generator=generator)
    rows = centres[torch.cat([labels, truth])] + noise
    other = 3 * torch.randn(strangers, DIMENSION, generator=generator)
    query = torch.cat([rows[len(labels) :], other])
    return rows[: len(labels)].double() + offset, labels, query.double() + offset


def made(probabilities: Tensor, dual: Tensor) -> Solution:
    """A solution with these probabilities [.., Q, K]."""
    count = torch.zeros(probabilities.shape[:-2], dtype=torch.int32)
    labels, proportions = probabilities.argmax(-1), probabilities.mean(-2)
    return Solution(labels, probabilities, proportions, dual, count, count.float())


# --- present ------------------------------------------------------------------------------------


def test_present_counts_queries() -> None:
    """The sum of the probabilities, whatever the number of queries."""
    u = torch.zeros(2, 10, 4)
    u[0, :, 0], u[0, :, 1], u[0, :, 2] = 0.75, 0.2, 0.05  # 7.5, 2 and 0.5 queries
    u[1, :, 3] = 1
    solution = made(u, torch.zeros(2, 4))
    assert solution.present().tolist() == [[True, True, False, False], [False, False, False, True]]
    assert solution.present(0.4)[0].tolist() == [True, True, True, False]
    assert solution.present(threshold=5)[0].tolist() == [True, False, False, False]


def test_present_in_a_batch() -> None:
    solution = paddle_ext.solve(*task())
    assert solution.present().nonzero().view(-1).tolist() == [1, 4, 7]


def test_of_a_prediction() -> None:
    """Any method's prediction tells the same, from its probabilities."""
    found = Adaptive().predict(*task())
    assert found.present().nonzero().view(-1).tolist() == [1, 4, 7]
    assert not found.present(threshold=1000).any()
    torch.testing.assert_close(found.doubt(), 1 - found.probabilities.amax(-1))
    with pytest.raises(ValueError, match="threshold must be finite and > 0"):
        found.present(0)


@pytest.mark.parametrize("threshold", [0, -1.0, math.nan, math.inf])
def test_bad_threshold(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold must be finite and > 0"):
        paddle_ext.solve(*task()).present(threshold)


# --- doubt --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [None, 12.0])
def test_doubt_by_hand(lam: float | None) -> None:
    """The dual weakened to a third, from the distances; the probabilities are not needed for it."""
    support, labels, query = task()
    options = {"scaling": "none", "temperature": 0.1}
    solution = paddle_ext.solve(
        support, labels, query, lam=lam, tol=1e-12, max_iter=500, return_prototypes=True, **options
    )
    weight = 1.0 if lam is None else lam / len(query)
    logits = weight / 3 * solution.dual - 0.05 * torch.cdist(query, solution.prototypes).square()
    chosen = torch.softmax(logits, -1)[torch.arange(len(query)), solution.labels]
    torch.testing.assert_close(solution.doubt(), 1 - chosen, atol=1e-6, rtol=1e-4)
    assert solution.doubt().max() > 0.01


def test_doubt_of_a_swallowed_sample() -> None:
    """A class with most of the batch is preferred; doubt is larger than the assignment tells."""
    dual = torch.tensor([0.9, -5.0, -5.0])  # 1 + ln of about 0.9 and 0.0025
    u = torch.softmax(dual - torch.tensor([[0.0, 9, 9], [3, 0, 9], [9, 0, 9]]), -1)
    solution = made(u, dual)
    assert solution.labels.tolist() == [0, 0, 1]
    assert solution.doubt()[1] > 5 * (1 - u[1, 0])
    assert solution.doubt().argmax() == 1


def test_doubt_is_finite() -> None:
    """Assignments of 0 and 1, and a batch of tasks."""
    u = torch.eye(4).repeat(2, 1, 1)
    doubt = made(u, torch.full((2, 4), -12.0)).doubt()
    assert doubt.shape == (2, 4)
    assert (doubt == 0).all()


# --- what a person reads ------------------------------------------------------------------------


def batch_of(present: int, tasks: tuple[int, ...] = ()) -> Solution:
    torch.manual_seed(0)
    centres, labels = 3 * torch.randn(30, 16), torch.arange(30).repeat(3)
    support = centres[labels] + torch.randn(90, 16)
    query = centres[torch.randint(present, (*tasks, 75))] + torch.randn(*tasks, 75, 16)
    return paddle_ext.solve(support, labels, query)


def test_summary() -> None:
    few, many = batch_of(3), batch_of(30)
    hint = "many classes seem present: consider methods.create('adaptive')"
    told = f"3 present, {few.iterations} iterations, probabilities not calibrated"
    assert repr(few) == f"Solution(75 queries, 30 classes, {told})"
    assert str(many).endswith(f", {hint})")
    assert not few.looks_mixed()
    assert many.looks_mixed()
    both = Solution(
        *(torch.stack([x, y, y]) for x, y in zip(few[:6], many[:6], strict=True)), lam=few.lam
    )
    assert both.looks_mixed().tolist() == [False, True, True]
    words = f"Solution(3 tasks, 75 queries, 30 classes, 3 to {int(many.present().sum())} present, "
    assert repr(both).startswith(words)
    assert repr(both).endswith(f", in 2 tasks {hint})")
    assert repr(batch_of(30, (0,))) == "Solution(0 tasks, 75 queries, 30 classes)"
    adapted = paddle_ext.adapt(many.probabilities.log())
    assert not adapted.looks_mixed()
    assert repr(adapted).endswith(f"concentration {adapted.concentration:.2g})")


def test_summary_of_a_tensor_without_values() -> None:
    found = batch_of(30)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = Solution(*(mode.from_tensor(x) for x in found[:6]))
        assert repr(fake) == "Solution(75 queries, 30 classes)"
    assert repr(Solution(*(x.to("meta") for x in found[:6]))) == "Solution(75 queries, 30 classes)"


def test_which_probabilities_are_calibrated() -> None:
    support, labels, query = task()
    any_batch = {"proportions": "dirichlet", "update_prototypes": False, "scaling": "calibrated"}
    assert not paddle_ext.solve(support, labels, query).calibrated
    found = paddle_ext.solve(support, labels, query, **any_batch)
    assert found.calibrated
    assert "not calibrated" not in repr(found)
    assert not paddle_ext.solve(support, labels, query, proportions="dirichlet").calibrated
    assert paddle_ext.adapt(torch.randn(2, 9, 4)).calibrated


def test_the_recommended_call_with_all_classes_present() -> None:
    """It is no worse than the nearest class mean there, where PADDLE loses most of the classes."""
    generator = torch.Generator().manual_seed(1)
    K, D = 40, 32
    centres = torch.randn(K, D, generator=generator)
    labels, truth = torch.arange(K).repeat(5), torch.randint(K, (75,), generator=generator)
    rows = centres[torch.cat([labels, truth])]
    rows = rows + 1.3 * torch.randn(rows.shape, generator=generator)
    support, query = rows[: len(labels)], rows[len(labels) :]
    means = torch.stack([unit(support)[labels == k].mean(0) for k in range(K)])
    nearest = torch.cdist(unit(query), means).argmin(1)
    found = paddle_ext.methods.create("adaptive").predict(support, labels, query).labels
    solved = paddle_ext.solve(support, labels, query)
    right = [float((x == truth).float().mean()) for x in (nearest, found, solved.labels)]
    assert right[1] >= right[0] - 0.02
    assert right[2] < right[0] - 0.15
    assert "consider methods.create('adaptive')" in repr(solved)


# --- novelty ------------------------------------------------------------------------------------


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=1)


def strangeness_by_hand(
    support: Tensor, labels: Tensor, query: Tensor, found: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Of labelled rows, each left out of its class, and of queries with these labels."""
    K = int(labels.max()) + 1
    centre = torch.stack([unit(support)[labels == k].mean(0) for k in range(K)]).mean(0)
    x, z = unit(unit(support) - centre), unit(unit(query) - centre)
    means = torch.stack([x[labels == k].mean(0) for k in range(K)])
    off = x - means[labels]
    shots = labels.bincount()[labels].double()
    degrees = ((shots - 1) / shots).sum()
    variance = off.square().sum(0) / degrees
    mean = variance.mean()
    scale = 1 / ((degrees * variance + 10 * mean) / (degrees + 10) + mean)
    scale = scale / scale.mean()
    far = (shots + 1) / (shots - 1) * (off.square() * scale).sum(1)
    own, best = [], []
    for i, k in enumerate(labels.tolist()):
        others = torch.arange(len(labels)) != i
        directions = [unit(support)[(labels == c) & others].mean(0) for c in range(K)]
        cosines = unit(torch.stack(directions)) @ unit(support)[i]
        own.append(cosines[k])
        best.append(cosines.max())
    near = torch.stack(own)

    def spread(x: Tensor) -> Tensor:
        return (((x - x.mean()).square().sum() + 4 * (x.mean() / 4) ** 2) / (len(x) + 4)).sqrt()

    moments = [far.mean(), spread(far), near.mean(), spread(1 - near)]

    def strange(far: Tensor, own: Tensor, best: Tensor) -> Tensor:
        return (far - moments[0]) / moments[1] + (2 * moments[2] - own - best) / moments[3]

    directions = [unit(support)[labels == c].mean(0) for c in range(K)]
    cosines = unit(query) @ unit(torch.stack(directions)).mT
    if found is None:
        found = cosines.argmax(1)
    asked = ((z - means[found]).square() * scale).sum(1)
    with_own = cosines.gather(1, found.unsqueeze(1)).squeeze(1)
    usual = strange(far, near, torch.stack(best))
    return usual, strange(asked, with_own, cosines.amax(1))


@pytest.mark.parametrize("method", ["solve", "adaptive"])
def test_novelty_by_hand(method: str) -> None:
    """Between the ranks among the labelled rows, and in their order beyond them."""
    support, labels, query = task(strangers=5)
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
    """Also if the strangers form a class, onto which PADDLE's prototypes move."""
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


@pytest.mark.parametrize("scaling", ["auto", "calibrated"])
@pytest.mark.parametrize("moving", [True, False])
@pytest.mark.parametrize("proportions", ["paddle", "dirichlet"])
def test_novelty_finds_strangers(proportions: str, moving: bool, scaling: str) -> None:
    support, labels, query = task(strangers=10)
    options = {"proportions": proportions, "update_prototypes": moving, "scaling": scaling}
    solution = paddle_ext.solve(support, labels, query, **options)
    found = presence.novelty(solution, support, labels, query)
    assert found[-10:].min() > 0.9
    assert found[:-10].mean() < 0.7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shots", [3, SHOTS])
def test_novelty_of_a_prediction(shots: int, dtype: torch.dtype) -> None:
    """Labelled rows are compared as new rows are: with class means that they are no part of."""
    support, labels, query = task(strangers=10)
    support, labels = support[: shots * CLASSES].to(dtype), labels[: shots * CLASSES]
    query = query.to(dtype)
    adaptive = Adaptive()
    found = adaptive.predict(support, labels, query)
    got = presence.novelty(found, support, labels, query)
    assert got.dtype == torch.float64
    assert got[-10:].min() > 0.9
    assert 0.3 < got[:-10].mean() < 0.7
    solution = adaptive.solve_one(
        adaptive.likelihood(Task(support[None], labels[None], query[None], CLASSES)), query
    )
    assert torch.equal(presence.novelty(solution, support, labels, query), got)
    ordinary = presence.novelty(
        adaptive.predict(support, labels, support), support, labels, support
    )
    assert ordinary.mean() < 0.5  # a row that is part of its class mean lies nearer


def test_novelty_with_few_rows() -> None:
    """Classes with one row do not count; if there are no others, that is said."""
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
    with pytest.raises(ValueError, match="that of the one task given"):
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
        likelihood = calibrated(support[others][None], labels[others][None], 4)
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


# --- coordinates --------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_solution_knows_how_it_was_asked_for(backend: str) -> None:
    options = {"lam": 12.0, "scaling": "minmax", "temperature": 0.5, "update_prototypes": False}
    solution = paddle_ext.solve(*task(), **options, backend=backend)
    assert {name: getattr(solution, name) for name in options} == options
    assert paddle_ext.solve(*task(), backend=backend).dual_weight == 1


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("scaling", ["auto", "minmax", "none", "calibrated"])
def test_coordinates_are_those_of_the_solver(
    scaling: str, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distances between the rows of a task, as the reference has them; computed in parts."""
    monkeypatch.setattr(rows, "PART", 100)
    support, labels, query = task(offset=offset)
    one_hot = torch.nn.functional.one_hot(labels, CLASSES).double()
    expected = prepare(support[None], one_hot[None], query[None], scaling, False)
    sharpness = sharpness_of(support, labels, CLASSES) if scaling == "calibrated" else None
    space = scalings.coordinates(support, labels, query, CLASSES, scaling, sharpness)
    means = rows.class_means(space.of(support), labels, CLASSES)
    found = torch.cdist(space.of(query), means, compute_mode="donot_use_mm_for_euclid_dist")
    exact = torch.cdist(
        expected.query[0], expected.means[0], compute_mode="donot_use_mm_for_euclid_dist"
    )
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)


def test_examples() -> None:
    assert doctest.testmod(presence).failed == 0
    assert doctest.testmod(solutions).failed == 0


def test_code_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "presence.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    torch.manual_seed(0)
    exec(code, {})  # noqa: S102 - our own page
    assert capsys.readouterr().out.splitlines() == [
        "tensor([ 3, 14, 15])",
        "tensor(True)",
    ]
