"""The choice between solver, estimate and nearest class mean, batch by batch."""

import doctest
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import paddle_ext
from paddle_ext import batches
from paddle_ext.batches import AGREE, BatchSolver, effective, evenly, maximised

CLASSES, DIMENSION = 40, 32


def task(
    present: int, queries: int = 400, shots: int = 5, noise: float = 1.5, uneven: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Support, its labels, queries of the first `present` classes, and their labels.

    Two of the features have `uneven` times the noise.
    """
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, DIMENSION, generator=generator)
    labels = torch.arange(CLASSES).repeat_interleave(shots)
    truth = torch.arange(present).repeat_interleave(queries // present)
    scale = torch.full((DIMENSION,), noise)
    scale[:2] *= uneven
    support, query = (
        centres[rows] + scale * torch.randn(len(rows), DIMENSION, generator=generator)
        for rows in (labels, truth)
    )
    return support, labels, query, truth


def unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows.double(), dim=1)


def squared_distances(support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    means = torch.stack([unit(support)[labels == k].mean(0) for k in range(CLASSES)])
    return torch.cdist(unit(query), means, compute_mode="donot_use_mm_for_euclid_dist").square()


def share(found: Tensor, truth: Tensor) -> float:
    return float((found == truth).double().mean())


# --- who answers --------------------------------------------------------------------------------


def test_all_classes_present() -> None:
    """The nearest class mean answers, with calibrated probabilities, where the solver collapses."""
    support, labels, query, truth = task(CLASSES)
    solver = BatchSolver(support, labels, CLASSES)
    solution, temperature, sharpness = solver(query)
    distance = squared_distances(support, labels, query)
    assert temperature is None
    assert torch.equal(solution.labels, distance.argmin(1))
    expected = torch.softmax(-sharpness / 2 * distance, dim=1)
    torch.testing.assert_close(solution.probabilities.double(), expected, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(solution.proportions, solution.probabilities.mean(0))
    torch.testing.assert_close(solution.doubt(), 1 - solution.probabilities.amax(1))
    right = share(solution.labels, truth)
    assert right > share(paddle_ext.solve(support, labels, query).labels, truth) + 0.2
    sure = float(solution.probabilities.amax(1).mean())
    assert abs(sure - right) < 0.1


def test_few_classes_present() -> None:
    """The solver answers, and does better than each query alone."""
    support, labels, query, truth = task(3, queries=60, noise=1.2)
    solution, temperature, _ = BatchSolver(support, labels, CLASSES)(query)
    expected = paddle_ext.solve(support, labels, query)
    assert temperature == 1.0
    assert torch.equal(solution.probabilities, expected.probabilities)
    alone = share(squared_distances(support, labels, query).argmin(1), truth)
    assert 0.5 < alone < share(solution.labels, truth) - 0.03


def test_solver_goes_astray() -> None:
    """Two classes that lie widely in some directions drag others along; fixed prototypes do not."""
    support, labels, query, truth = task(2, queries=600, noise=1.2, uneven=3.0)
    solver = BatchSolver(support, labels, CLASSES)
    solution, temperature, sharpness = solver(query)
    adapted = paddle_ext.solve(support, labels, query).labels
    distance = squared_distances(support, labels, query)
    found = solver.estimate(query, 1.0)
    assert temperature is None
    assert not solver.is_mixed(found)
    assert share(adapted, found.labels) < AGREE * found.right
    assert share(solution.labels, truth) > share(adapted, truth) + 0.3
    assert share(solution.labels, truth) > share(distance.argmin(1), truth) + 0.1
    # The posterior that belongs to the proportions, which the dual tells.
    proportions = (solution.dual.double() - 1).exp()
    assert float(proportions.sum()) == pytest.approx(1, abs=1e-3)
    expected = torch.softmax(proportions.log() - sharpness / 2 * distance, dim=1)
    torch.testing.assert_close(solution.probabilities.double(), expected, atol=1e-3, rtol=1e-2)
    assert found.right == pytest.approx(float(expected.amax(1).mean()), abs=1e-3)


@pytest.mark.parametrize("scaling", ["auto", "minmax", "none"])
def test_given_temperature(scaling: str) -> None:
    """Taken as it is, with all other options."""
    support, labels, query, _ = task(CLASSES)
    options: dict[str, Any] = {"lam": 7.0, "epsilon": 1e-3, "scaling": scaling, "max_iter": 3}
    options |= {"tol": 0.0, "return_prototypes": True}
    solution, temperature, _ = BatchSolver(support, labels, CLASSES, 0.3, **options)(query)
    expected = paddle_ext.solve(support, labels, query, temperature=0.3, **options)
    assert temperature == 0.3
    assert torch.equal(solution.probabilities, expected.probabilities)
    assert torch.equal(solution.prototypes, expected.prototypes)


def test_lam() -> None:
    """Given, it also weighs the estimate: without a preference that is the nearest class mean."""
    support, labels, query, _ = task(CLASSES)
    nearest = squared_distances(support, labels, query).argmin(1)
    none = BatchSolver(support, labels, CLASSES, lam=0.0).estimate(query, 0.0)
    assert torch.equal(none.labels, nearest)
    solver = BatchSolver(support, labels, CLASSES, lam=2.0 * len(query))
    strong = solver(query)
    assert strong.temperature is None
    counts = [len(x.unique()) for x in (strong.solution.labels, nearest)]
    assert counts[0] < counts[1]


# --- the estimate -------------------------------------------------------------------------------


def test_proportions_are_of_maximum_likelihood() -> None:
    """Where p > 0 the derivative of the likelihood is the same, elsewhere it is no larger."""
    likelihood = torch.rand(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    likelihood[:, 5] *= 0.1
    found = maximised(likelihood, torch.full((6,), 1 / 6, dtype=torch.float64), 5_000)
    slope = (likelihood / (likelihood @ found).unsqueeze(1)).mean(0)
    assert float(found.sum()) == pytest.approx(1)
    assert float(slope.max()) == pytest.approx(1, abs=1e-3)
    assert (slope[found > 1e-3] - 1).abs().max() < 1e-3
    assert found[5] < 1e-6


def test_calibration_is_that_of_new_rows() -> None:
    """What the support says of itself is what makes very many further rows most likely."""
    support, labels, _, _ = task(3, shots=10)
    _, _, query, truth = task(CLASSES, queries=4000, shots=10)
    distance = squared_distances(support, labels, query)
    losses = {
        factor: float(torch.nn.functional.cross_entropy(-factor / 2 * distance, truth))
        for factor in torch.logspace(-1, 4, 61).tolist()
    }
    found = BatchSolver(support, labels, CLASSES).sharpness
    assert found is not None
    assert found == pytest.approx(min(losses, key=losses.__getitem__), rel=0.25)  # a step is 21 %


def test_sharpness_is_at_least_that_of_the_solver() -> None:
    """Three noisy rows of a class say little about it, and flat probabilities do harm."""
    support, labels, query, truth = task(10, queries=300, shots=3, noise=2.0)
    solver = BatchSolver(support, labels, CLASSES)
    found = solver.estimate(query, 1.0)
    median, nearest = squared_distances(support, labels, query).sort(1).values[:, [20, 0]].unbind(1)
    assert solver.sharpness is not None
    assert solver.sharpness < found.sharpness
    assert found.sharpness == pytest.approx(13 / float((median - nearest).mean()), rel=1e-3)
    assert share(solver(query).solution.labels, truth) > share(
        squared_distances(support, labels, query).argmin(1), truth
    )


@pytest.mark.parametrize(("count", "classes"), [(10, 2), (75, 150), (300, 20)])
def test_evenly(count: int, classes: int) -> None:
    """Against draws."""
    draws = np.random.default_rng(0).multinomial(count, [1 / classes] * classes, size=2000) / count
    entropy = -(draws * np.log(np.where(draws > 0, draws, 1))).sum(1)
    assert evenly(count, classes) == pytest.approx(np.exp(entropy.mean()), rel=0.01)


def test_large_batches_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that the sample has missed is still found."""
    support, labels, query, truth = task(4, queries=600, noise=0.5)
    rare = torch.full((5,), 30)
    centre = support[labels == 30].mean(0)
    noise = torch.randn(5, DIMENSION, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(batches, "MOST_QUERIES", 50)
    monkeypatch.setattr(batches, "AGREE", 2.0)  # never, so that the estimate answers
    query = torch.cat([query[:301], centre + 0.5 * noise, query[301:]])
    truth = torch.cat([truth[:301], rare, truth[301:]])
    sample = batches.spread(len(query), 50)
    assert not (truth[sample] == 30).any()
    answer = BatchSolver(support, labels, CLASSES)(query)
    assert answer.temperature is None
    assert share(answer.solution.labels, truth) > 0.99
    assert answer.solution.labels[301:306].tolist() == [30] * 5


@pytest.mark.parametrize("shots", [1, 2])
def test_too_few_rows_to_calibrate(shots: int) -> None:
    """The usual sharpness serves."""
    support, labels, query, truth = task(3, queries=60, shots=shots, noise=0.7)
    solver = BatchSolver(support, labels, CLASSES)
    assert solver.sharpness is None
    assert share(solver(query).solution.labels, truth) > 0.9


def test_one_query() -> None:
    support, labels, query, _ = task(3, noise=0.3)
    answer = BatchSolver(support, labels, CLASSES)(query[:1])
    assert answer.solution.labels.tolist() == [0]
    assert answer.temperature is None


def test_nothing_to_tell_apart() -> None:
    """All rows equal, or zero: no NaN."""
    labels = torch.arange(4).repeat(2)
    for value in (0.0, 1.0, 1e30):
        rows = torch.full((8, 3), value)
        answer = BatchSolver(rows, labels, 4)(rows[:5])
        assert torch.isfinite(answer.solution.probabilities).all()
        torch.testing.assert_close(answer.solution.probabilities.sum(1), torch.ones(5))


def test_effective() -> None:
    assert effective(torch.tensor([0.5, 0.5, 0.0])) == pytest.approx(2)


def test_examples() -> None:
    result = doctest.testmod(batches)
    assert result.attempted > 0
    assert result.failed == 0
