"""The caution of `adaptive`: when it applies, what it changes; all ways of solving agree."""

from pathlib import Path

import numpy as np
import pytest
import torch
from method_tasks import nearest_mean
from problems import Place, largest
from torch import Tensor

import paddle_ext
from paddle_ext import reference
from paddle_ext.methods import adaptive as method
from paddle_ext.methods.calibration import plain_means
from paddle_ext.methods.caution import is_cautious
from paddle_ext.methods.shared_rows import shared_rows

K, D = 12, 24
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-7}
Given = tuple[Tensor, Tensor, Tensor]


def task(shots: int, present: int = K, queries: int = 160, noise: float = 1.8) -> Given:
    """Hard to tell classes, of which the first are present; float64."""
    random = torch.Generator().manual_seed(shots)
    centres = torch.randn(K, D, generator=random, dtype=torch.float64)
    labels = torch.arange(K).repeat_interleave(shots)
    truth = torch.arange(queries) % present
    rows = centres[torch.cat([labels, truth])]
    rows = rows + noise * torch.randn(rows.shape, generator=random, dtype=torch.float64) + 1
    return rows[: len(labels)], labels, rows[len(labels) :]


@pytest.fixture
def bold(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(method, "is_cautious", lambda *_: False)
    return monkeypatch


# --- what it changes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "rows", "expected"),
    [
        (149, 5 * K, False),
        (150, 5 * K, True),
        (2**14, 5 * K, True),
        (2**14 + 1, 5 * K, False),
        (300, K, False),
        (300, K + 1, True),
        (300, 10 * K - 1, True),
        (300, 10 * K, False),
    ],
)
def test_when_it_applies(queries: int, rows: int, expected: bool) -> None:
    assert is_cautious(queries, rows, K) is expected


@pytest.mark.parametrize("shots", [2, 5])
def test_all_classes_present(shots: int, bold: pytest.MonkeyPatch) -> None:
    """Labels change to the nearest class alone, and a row keeps its numbers."""
    given = task(shots)
    before = paddle_ext.adaptive(*given)
    bold.undo()
    after = paddle_ext.adaptive(*given)
    changed = before.labels != after.labels
    assert 0 < int(changed.sum()) < 40
    assert torch.equal(after.labels[changed], nearest_mean(*given)[changed])
    assert torch.equal(before.probabilities.sort(-1)[0], after.probabilities.sort(-1)[0])
    assert torch.equal(after.labels, after.probabilities.argmax(-1))
    assert torch.equal(before.proportions, after.proportions)


def test_few_classes_present(bold: pytest.MonkeyPatch) -> None:
    """They promise a large gain."""
    given = task(5, present=2, noise=1.2)
    before = paddle_ext.adaptive(*given).probabilities
    bold.undo()
    assert torch.equal(paddle_ext.adaptive(*given).probabilities, before)
    assert int((before.argmax(-1) != nearest_mean(*given)).sum()) > 5


# --- all ways to solve ----------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [2, 5])
def test_agrees_with_the_reference(place: Place, shots: int) -> None:
    support, labels, query = task(shots)
    support, query = support.to(place.dtype), query.to(place.dtype)
    want = reference.adaptive(support.double(), labels, query.double())
    got = paddle_ext.adaptive(*(x.to(place.device) for x in (support, labels, query)))
    assert largest(got.probabilities.cpu().double() - want.probabilities) < TOLERANCE[place.dtype]
    assert torch.equal(got.labels.cpu(), want.labels)


@pytest.mark.parametrize("shots", [2, 5])
def test_a_few_classes_of_each_query(place: Place, shots: int) -> None:
    """In chunks, as for large tasks."""
    support, labels, query = task(shots)
    given = [x.to(place.device) for x in (support.to(place.dtype), labels, query.to(place.dtype))]
    want = paddle_ext.adaptive(*given)
    got = paddle_ext.adaptive(*given, return_assignments=False, top=3)
    best = want.probabilities.topk(3)
    assert largest(got.probabilities.cpu() - best.values.cpu()) < TOLERANCE[place.dtype]
    assert torch.equal(got.labels, want.labels)


def test_a_file(tmp_path: Path) -> None:
    support, labels, query = task(2)
    np.save(tmp_path / "query.npy", query.numpy())
    got = paddle_ext.adaptive(support, labels, tmp_path / "query.npy")
    assert torch.equal(got.labels, paddle_ext.adaptive(support, labels, query).labels)


def test_tasks_do_not_depend_on_each_other(place: Place) -> None:
    tasks = [task(2), task(2, present=2)]
    support, labels, query = (
        torch.stack([x.to(place.device) for x in one]) for one in zip(*tasks, strict=True)
    )
    support, query = support.to(place.dtype), query.to(place.dtype)
    together = paddle_ext.adaptive(support, labels, query)
    for b in range(2):
        alone = paddle_ext.adaptive(support[b], labels[b], query[b])
        assert torch.equal(alone.labels, together.labels[b])


# --- labelled rows with weights -------------------------------------------------------------------


def test_a_weight_of_two_is_a_row_twice() -> None:
    support, labels, _ = task(2)
    centre = support.new_zeros(1, D)
    twice = torch.cat([support, support[:5]]), torch.cat([labels, labels[:5]])
    weights = torch.ones_like(support[:, 0])
    weights[:5] = 2
    want = plain_means(twice[0][None], twice[1][None], K, centre)
    got = plain_means(support[None], labels[None], K, centre, weights[None])
    assert largest(got - want) < 1e-12
    known = shared_rows(support, labels, K, weights)
    assert known.likelihood.plain is not None
    assert largest(known.likelihood.plain - (want - known.likelihood.centre)) < 1e-12
