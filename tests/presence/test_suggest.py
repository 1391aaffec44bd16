"""Which samples to label next."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paddle_ext.presence import labels, suggest
from paddle_ext.rows import sample_by_content, unit_rows

CLASSES, DIMENSION = 12, 24


def made(seed: int, size: int = 120) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two labelled rows a class, and queries of a few overlapping kinds of each class."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randn(3 * CLASSES, DIMENSION, generator=generator)
    labels = torch.arange(CLASSES).repeat(2)
    truth = torch.randint(CLASSES, (size,), generator=generator)
    own = torch.randint(3, (len(labels) + size,), generator=generator)
    centres = kinds[3 * torch.cat([labels, truth]) + own]
    rows = centres + 0.5 * torch.randn(len(centres), DIMENSION, generator=generator)
    return rows[: len(labels)], labels, rows[len(labels) :], truth


def test_the_rule(device: str) -> None:
    """Each suggestion reduces the sum most, with two thirds of its own distance left."""
    support, _, query, _ = made(0, 40)
    found = suggest(support.to(device), query.to(device), 15).queries
    assert found.dtype == torch.int64
    unit = torch.nn.functional.normalize(torch.cat([query, support]).double())
    x = torch.nn.functional.normalize(unit - unit.mean(0))
    square = torch.cdist(x[:40], x).square()
    there = list(range(40, len(x)))
    for q in found.tolist():
        own = square[:, there].amin(1) * 2 / 3
        sums = torch.stack([square[:, [*there, i]].amin(1).sum() + own[i] for i in range(40)])
        assert sums[q] <= sums.min() + 1e-4
        assert sums[q] < sums.median() - 1e-2
        there.append(q)


def test_stands_for() -> None:
    """Each query belongs to the labelled or suggested row that it is nearest to."""
    support, _, query, _ = made(1, 40)
    found = suggest(support, query, 5)
    unit = unit_rows(torch.cat([query, support]))
    x = unit_rows(unit - unit.mean(0))
    known = torch.cat([x[found.queries], x[40:]])
    owner = torch.cdist(x[:40].double(), known.double()).argmin(1)
    assert found.stands_for.tolist() == [int((owner == i).sum()) for i in range(5)]


@pytest.mark.parametrize("count", [1, 30, 40, 1000])
def test_each_once_and_never_more_than_there_are(count: int) -> None:
    support, _, query, _ = made(2, 40)
    found = suggest(support, query, count).queries.tolist()
    assert len(set(found)) == len(found) == min(count, 40)
    assert found == suggest(support, query, 40).queries.tolist()[:count]  # a prefix
    assert found == suggest(support, query, count).queries.tolist()


def test_ties_go_to_the_first_and_copies_come_last() -> None:
    """All queries are equally good, and then copies of a suggested one are of no use."""
    support = torch.tensor([[1.0, 0, 0, 0], [-1, 0, 0, 0]])
    query = torch.tensor([[0.0, 1, 0, 0], [0, 1, 0, 0], [0, -1, 0, 0], [0, -1, 0, 0]])
    found = suggest(support, query, 4)
    assert found.queries.tolist() == [0, 2, 1, 3]


def test_groups_of_strangers_are_found() -> None:
    """One of each unknown class is among the first."""
    support, _, query, _ = made(3)
    generator = torch.Generator().manual_seed(8)
    unknown = torch.randn(2, DIMENSION, generator=generator).repeat_interleave(10, 0)
    unknown = unknown + 0.2 * torch.randn(20, DIMENSION, generator=generator)
    rows = torch.cat([query, unknown])
    found = suggest(support, rows, 10).queries
    groups = (found[found >= len(query)] - len(query)) // 10
    assert set(groups.tolist()) == {0, 1}


def test_without_labelled_rows() -> None:
    """The first suggestion is the one that most queries resemble."""
    query = torch.cat([torch.eye(4)[:1].repeat(5, 1), torch.eye(4)[1:]])
    query = query + 0.01 * torch.randn(query.shape, generator=torch.Generator().manual_seed(0))
    found = suggest(torch.empty(0, 4), query, 4)
    assert int(found.queries[0]) < 5
    assert found.stands_for.tolist() == [5, 1, 1, 1]


def test_many_queries_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MOST_COMPARED", 30)
    support, _, query, _ = made(4, 120)
    few = suggest(support, query, 10).queries
    assert set(few.tolist()) <= set(sample_by_content(query, 30).tolist())
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    assert torch.equal(order[suggest(support, query[order], 10).queries], few)
    assert suggest(support, query, 50).queries.unique().numel() == 50


ROWS = torch.eye(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, r"count must be an integer in \[1, \d+\], got 0"),
        ({"count": 2.5}, "count must be an integer, got float"),
        ({"support": torch.ones(2, 4)}, r"support must have shape \[S, 3\] like query, got"),
        (
            {"support": torch.full((1, 3), torch.inf)},
            r"support must be finite, got inf at \[0, 0\]",
        ),
        ({"query": torch.ones(3)}, r"query must have shape \[Q, D\] with a row, got \[3\]"),
        ({"query": torch.ones(3, 3, dtype=torch.int64)}, "query must be float16, bfloat16,"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"support": ROWS, "query": ROWS, "count": 1}
    with pytest.raises((TypeError, ValueError), match=message):
        suggest(**(given | change))
