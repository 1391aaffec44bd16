"""The method `adaptive` on batches of one class, of few, of all; large ones, and many classes."""

from importlib import import_module
from typing import Any

import pytest
import torch
from method_tasks import nearest_mean
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import paddle_ext
from paddle_ext.adaptive_rule import likelihood as learning
from paddle_ext.adaptive_rule.engines import classify
from paddle_ext.adaptive_rule.hubs import one_shot_hubs
from paddle_ext.adaptive_rule.likelihood import Likelihood, calibration_count, likelihood_of
from paddle_ext.methods import Adaptive, Prediction

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


def share(found: Tensor, truth: Tensor) -> float:
    return float((found == truth).double().mean())


def predict(support: Tensor, labels: Tensor, query: Tensor) -> Prediction:
    return Adaptive().predict(support, labels, query)


# --- how many classes are there -------------------------------------------------------------------


def test_all_classes_present() -> None:
    """Each query nearly on its own, where the solver collapses; probabilities are calibrated."""
    *given, truth = task(CLASSES)
    found = predict(*given)
    right = share(found.labels, truth)
    assert right > share(nearest_mean(*given), truth) - 0.01
    assert right > share(paddle_ext.solve(*given).labels, truth) + 0.2
    assert abs(float(found.probabilities.amax(1).mean()) - right) < 0.1


@pytest.mark.parametrize("present", [1, 3])
def test_few_classes_present(present: int) -> None:
    *given, truth = task(present, queries=60, noise=1.2)
    found = predict(*given)
    alone = share(nearest_mean(*given), truth)
    assert 0.5 < alone < share(found.labels, truth) - 0.05
    assert share(found.labels, truth) > 0.95
    assert found.present().nonzero().view(-1).tolist() == list(range(present))


def test_where_the_solver_fails() -> None:
    """Two classes with a large spread in some directions absorb others in PADDLE."""
    *given, truth = task(2, queries=600, noise=1.2, uneven=3.0)
    found = share(predict(*given).labels, truth)
    assert found > share(paddle_ext.solve(*given).labels, truth) + 0.3
    assert found > share(nearest_mean(*given), truth) + 0.1


def test_a_rare_class_in_a_large_batch() -> None:
    support, labels, query, truth = task(4, queries=2000, noise=0.5)
    noise = torch.randn(5, DIMENSION, generator=torch.Generator().manual_seed(1))
    rare = support[labels == 30].mean(0) + 0.5 * noise
    found = predict(support, labels, torch.cat([query, rare]))
    assert share(found.labels[:-5], truth) > 0.99
    assert found.labels[-5:].tolist() == [30] * 5


@pytest.mark.parametrize("shots", [1, 2])
def test_few_shots(shots: int) -> None:
    *given, truth = task(3, queries=60, shots=shots, noise=0.7)
    assert share(predict(*given).labels, truth) > 0.9


def test_one_query() -> None:
    support, labels, query, _ = task(3, noise=0.3)
    assert predict(support, labels, query[:1]).labels.tolist() == [0]


def test_nothing_to_tell_apart() -> None:
    """All rows equal, or zero: no NaN."""
    labels = torch.arange(4).repeat(2)
    for value in (0.0, 1.0, 1e29):
        rows = torch.full((8, 3), value)
        found = predict(rows, labels, rows[:5])
        torch.testing.assert_close(found.probabilities.sum(1), torch.ones(5))


# --- memory ---------------------------------------------------------------------------------------


def likelihood(shots: int, metric: str = "auto") -> Likelihood:
    support, labels, _, _ = task(3, shots=shots)
    return likelihood_of(support.double()[None], labels[None], CLASSES, metric)


@pytest.mark.parametrize("judges", [128, 150, 200])
def test_many_classes_of_one_shot(judges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer judges than classes, as specified."""
    K = 200
    specification = import_module("paddle_ext.reference.adaptive")
    for module in (learning, specification):
        monkeypatch.setattr(module, "MOST_ENTRIES", judges * K if judges > 128 else 0)
    assert calibration_count(K, K, False) == judges
    rows = torch.randn(2, K, 5, generator=torch.Generator().manual_seed(0)).double()
    found = likelihood_of(rows, torch.randperm(K).expand(2, -1), K)
    for means, squares, bias in zip(found.prototypes, found.squares, found.bias, strict=True):
        metric = specification.one_shot_scale(means).diag()
        want = specification.one_shot_hubs(means, metric)
        torch.testing.assert_close(bias + 8 * squares, want)


def test_one_judge_by_hand() -> None:
    """The middle one of three classes on a line judges both others, but not itself."""
    means = torch.tensor([[[-1.0], [0.0], [1.0]]]).double()
    drawn = torch.tensor([[0.5, 0.0, 0.5]]).double()
    want = -1 / 11 * torch.log(1 + (drawn - 1 / 3) / (1 / 3 + 1))
    squares, hubs = one_shot_hubs(means, torch.ones(1, 1).double(), 1)
    torch.testing.assert_close(hubs, want)
    torch.testing.assert_close(squares, means[..., 0].square())


class Largest(TorchDispatchMode):
    """The largest number of entries of a tensor that an operation returns."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.entries = max(self.entries, found.numel())
        return found


def test_memory_of_one_shot() -> None:
    """Linear in the number of classes, and so is the work."""
    K, D = 20_000, 4
    assert calibration_count(K, K, False) * K <= learning.MOST_ENTRIES
    assert calibration_count(10**6, 10**6, False) == learning.MOST_ROWS
    rows = torch.randn(1, K, D, generator=torch.Generator().manual_seed(0))
    with Largest() as largest:
        found = likelihood_of(rows, torch.arange(K).unsqueeze(0), K)
    assert largest.entries <= learning.MOST_ENTRIES
    assert bool(found.bias.isfinite().all())


@pytest.mark.parametrize("metric", ["diagonal", "auto"])
def test_many_classes(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer calibration rows than classes give nearly the same result."""
    full = metric == "auto"
    sizes = 10 * CLASSES, CLASSES, full
    assert calibration_count(*sizes) == (256 if full else 128)
    whole = likelihood(10, metric)
    monkeypatch.setattr(learning, "MOST_ROWS", 30)
    assert calibration_count(*sizes) == (60 if full else CLASSES)
    monkeypatch.setattr(learning, "MOST_ENTRIES", 35 * CLASSES)
    assert calibration_count(*sizes) == (60 if full else 35)
    fewer = likelihood(10, metric)
    assert float(fewer.sharpness) == pytest.approx(float(whole.sharpness), rel=0.6)
    *given, truth = task(5, shots=10)
    found, _ = classify(fewer, given[2].double()[None])
    assert share(found.labels[0], truth) > share(nearest_mean(*given), truth)
