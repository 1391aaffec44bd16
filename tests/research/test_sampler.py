"""Tasks: what is drawn, from where, how often, and that it is reproducible."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from problems import assert_same
from rounds import assert_proper
from scipy import stats
from torch import Tensor

import paddle_ext
from paddle_ext.research.sampler import TaskBatch, TaskSampler

SAMPLINGS = ("uniform", "balanced", "dirichlet")
SIZES = [30, 12, 45, 20, 17, 60, 25]  # of the classes


def ragged_labels() -> Tensor:
    """Seven classes of different sizes, unordered, and some rows without a class."""
    labels = torch.repeat_interleave(torch.arange(-1, 7), torch.tensor([9, *SIZES]))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))]


def even_labels(classes: int, size: int) -> Tensor:
    return torch.arange(classes).repeat_interleave(size)


# --- the sampler again, in plain Python ----------------------------------------------------------


def philox(counter: list[int], key: int) -> list[int]:
    c0, c1, c2, c3 = counter
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c2 = (b >> 32) ^ c1 ^ low, (a >> 32) ^ c3 ^ high
        c1, c3 = b & 0xFFFFFFFF, a & 0xFFFFFFFF
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


class Stream:
    def __init__(self, seed: int, task: int, stream: int) -> None:
        self.seed, self.counter = seed, [0, stream, task & 0xFFFFFFFF, task >> 32]
        self.words: list[int] = []

    def below(self, bound: int) -> int:
        """Lemire: the word's place among `bound` parts, unless a part would have one word more."""
        while True:
            if not self.words:
                self.words = philox(self.counter, self.seed)
                self.counter[0] += 1
            product = self.words.pop(0) * bound
            if product % 2**32 >= 2**32 % bound:
                return product // 2**32

    def take(self, items: list[int], count: int) -> list[int]:
        """Move `count` items at random to the front, and return them."""
        for i in range(count):
            j = i + self.below(len(items) - i)
            items[i], items[j] = items[j], items[i]
        return items[:count]


def plain_task(sampler: TaskSampler, task: int) -> tuple[list[int], list[int]]:
    """Support and query rows of a uniform or balanced task that draws both from all rows."""
    labels, seed = sampler.labels.tolist(), sampler.seed
    count = max(labels) + 1
    members = [[row for row, k in enumerate(labels) if k == c] for c in range(count)]
    whole = sampler.num_classes == count
    drawn = Stream(seed, task, 0).take(
        list(range(count)), sampler.k_eff if whole else sampler.num_classes
    )
    support = [
        row
        for k in (range(count) if whole else sorted(drawn))
        for row in Stream(seed, task, 3 + k).take(members[k], sampler.shots or 0)
    ]
    left = [members[k][sampler.shots :] for k in drawn[: sampler.k_eff]]
    stream = Stream(seed, task, 1)
    if sampler.sampling == "uniform":
        return support, stream.take([row for rows in left for row in rows], sampler.n_query)
    each, more = divmod(sampler.n_query, sampler.k_eff)
    query = [row for e, rows in enumerate(left) for row in stream.take(rows, each + (e < more))]
    return support, stream.take(query, len(query))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known outputs of the authors (Random123)
        ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0A4093822,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox(counter: list[int], key: int, expected: list[int]) -> None:
    assert philox(counter, key) == expected


@pytest.mark.parametrize("sampling", ["uniform", "balanced"])
@pytest.mark.parametrize("num_classes", [None, 5])
@pytest.mark.parametrize(("seed", "start"), [(0, 0), (2**64 - 1, 2**63 - 4), (12345, 2**32 - 1)])
def test_equals_plain_python(sampling: str, num_classes: int | None, seed: int, start: int) -> None:
    options: dict[str, Any] = {"shots": 3, "n_query": 11, "k_eff": 3, "sampling": sampling}
    sampler = TaskSampler(ragged_labels(), num_classes=num_classes, seed=seed, **options)
    batch = sampler.batch(start, 3)
    for i in range(3):
        support, query = plain_task(sampler, start + i)
        assert batch.support_index[i].tolist() == support
        assert batch.query_index[i].tolist() == query


KNOWN_COUNTS = {  # by alpha: queries of each class in three tasks
    0.05: [[0, 0, 12, 0, 0, 0], [0, 12, 0, 0, 0, 0], [0, 0, 0, 10, 0, 2]],
    0.5: [[0, 0, 5, 0, 6, 1], [0, 10, 1, 1, 0, 0], [1, 0, 0, 9, 0, 2]],
    1.0: [[0, 0, 3, 0, 7, 2], [1, 8, 2, 1, 0, 0], [2, 0, 1, 7, 0, 2]],
    20.0: [[0, 0, 2, 3, 4, 3], [3, 4, 3, 2, 0, 0], [3, 0, 3, 4, 0, 2]],
}
KNOWN_ROWS = [258, 128, 165, 259, 225, 222, 298, 209, 213, 164, 116, 194]  # alpha 20, first task


def test_known_tasks() -> None:
    """The floating-point part is the same on every machine, too."""
    options: dict[str, Any] = {"shots": 1, "n_query": 12, "k_eff": 4, "seed": 7}
    for alpha, counts in KNOWN_COUNTS.items():
        sampler = TaskSampler(even_labels(6, 50), sampling="dirichlet", alpha=alpha, **options)
        batch = sampler.batch(0, 3)
        assert [torch.bincount(task, minlength=6).tolist() for task in batch.query_labels] == counts
    assert batch.query_index[0].tolist() == KNOWN_ROWS


# --- what is in a task ----------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("num_classes", [None, 4, 6])
def test_proper(sampling: str, num_classes: int | None) -> None:
    sampler = TaskSampler(
        ragged_labels(), shots=4, n_query=21, k_eff=3, num_classes=num_classes, sampling=sampling
    )
    batch = sampler.batch(0, 60)
    assert_proper(sampler, batch)
    assert sampler.num_classes == (num_classes or 7)
    if sampling == "balanced":
        assert all(set(labels.unique(return_counts=True)[1].tolist()) == {7} for labels in batch[3])


def test_larger_supports_contain_smaller_ones() -> None:
    few, many = (TaskSampler(ragged_labels(), shots=n, k_eff=2, n_query=9) for n in (3, 8))
    parts = many.batch(5, 10).support_index.view(10, 7, 8)[:, :, :3]
    assert torch.equal(parts, few.batch(5, 10).support_index.view(10, 7, 3))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_everything_can_be_requested(sampling: str) -> None:
    sampler = TaskSampler(even_labels(4, 10), shots=3, n_query=28, k_eff=4, sampling=sampling)
    batch = sampler.batch(0, 20)
    assert_proper(sampler, batch)
    rows = torch.cat([batch.support_index, batch.query_index], 1).sort(1).values
    assert torch.equal(rows, torch.arange(40).expand(20, -1))


# --- how often ------------------------------------------------------------------------------------


def uniform_p_value(rows: Tensor, candidates: Tensor, draws_per_task: int) -> float:
    """Chi-square of how often each candidate was drawn, without replacement within a task."""
    counts = torch.bincount(rows.reshape(-1), minlength=int(candidates.max()) + 1)[candidates]
    mean = counts.sum().item() / len(candidates)
    n = len(candidates)
    variance = mean * (1 - draws_per_task / n) * n / (n - 1)  # of draws without replacement
    statistic = float((counts - mean).double().square().sum()) / variance
    return float(stats.chi2.sf(statistic, n - 1))


def test_supports_and_classes_are_uniform() -> None:
    labels = even_labels(12, 20)
    batch = TaskSampler(labels, shots=3, n_query=8, k_eff=4).batch(0, 5000)
    for k in range(12):
        rows = batch.support_index[:, 3 * k : 3 * k + 3]
        assert uniform_p_value(rows, torch.arange(20 * k, 20 * k + 20), 3) > 1e-3, k
    balanced = TaskSampler(labels, shots=3, n_query=4, k_eff=4, sampling="balanced")
    classes = balanced.batch(0, 5000).query_labels
    assert 1e-3 < uniform_p_value(classes, torch.arange(12), 4) < 1 - 1e-3
    ways = TaskSampler(labels, shots=3, n_query=8, k_eff=2, num_classes=5).batch(0, 5000)
    drawn = labels[ways.support_index[:, ::3]]
    assert 1e-3 < uniform_p_value(drawn, torch.arange(12), 5) < 1 - 1e-3


@pytest.mark.parametrize("alpha", [0.1, 1.0, 5.0])
def test_dirichlet_proportions(alpha: float) -> None:
    """Mean, variance and distribution of a class's share, from classes that are large enough."""
    k, Q = 4, 1000
    sampler = TaskSampler(
        even_labels(k, Q + 1), shots=1, n_query=Q, k_eff=k, sampling="dirichlet", alpha=alpha
    )
    labels = sampler.batch(0, 800).query_labels
    shares = torch.stack([(labels == c).double().mean(1) for c in range(k)], 1)
    assert (shares.mean(0) - 1 / k).abs().max() < 0.045
    expected = (1 / k) * (1 - 1 / k) / (k * alpha + 1)
    assert shares.var(0).mean() == pytest.approx(expected, rel=0.1)
    share = stats.beta(alpha, (k - 1) * alpha)
    if alpha >= 1:  # else most are rounded to 0 or 1
        for c in range(k):
            assert stats.kstest(shares[:, c].numpy(), share.cdf).pvalue > 1e-3


def test_dirichlet_never_takes_more_than_there_is() -> None:
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor([3, 4, 40, 9]))
    for alpha in (1e-300, 1e-3, 1.0, 1e6):
        sampler = TaskSampler(
            labels, shots=2, n_query=30, k_eff=4, sampling="dirichlet", alpha=alpha
        )
        assert_proper(sampler, sampler.batch(0, 100))


def test_dirichlet_limits() -> None:
    """A tiny alpha gives everything to one class, a huge one the same to each."""
    labels, options = even_labels(4, 100), {"shots": 1, "n_query": 20, "k_eff": 4}
    one = TaskSampler(labels, sampling="dirichlet", alpha=1e-4, **options).batch(0, 100)
    assert all(len(task.unique()) == 1 for task in one.query_labels)
    same = TaskSampler(labels, sampling="dirichlet", alpha=1e12, **options).batch(0, 100)
    assert all(torch.bincount(task).tolist() == [5] * 4 for task in same.query_labels)


# --- always the same ------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("num_classes", [None, 4])
def test_task_does_not_depend_on_its_batch(sampling: str, num_classes: int | None) -> None:
    sampler = TaskSampler(
        ragged_labels(), shots=3, n_query=12, k_eff=3, num_classes=num_classes, sampling=sampling
    )
    whole = sampler.batch(0, 40)
    parts = [sampler.batch(start, count) for start, count in [(0, 1), (1, 29), (30, 10)]]
    assert_same(whole, TaskBatch(*(torch.cat(part) for part in zip(*parts, strict=True))))


@pytest.mark.usefixtures("one_thread")  # which is so again afterwards
def test_task_does_not_depend_on_the_threads() -> None:
    sampler = TaskSampler(even_labels(30, 50), shots=5, sampling="dirichlet", alpha=0.5)
    want = sampler.batch(100, 300)
    for count in (2, 7):
        torch.set_num_threads(count)
        assert_same(sampler.batch(100, 300), want)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_of_any_kind_are_copied(dtype: torch.dtype) -> None:
    labels = even_labels(5, 30)
    strided = torch.stack([labels, labels], 1).to(dtype)[:, 0]
    sampler = TaskSampler(strided, shots=2)
    strided.zero_()
    assert_same(TaskSampler(labels, shots=2).batch(0, 3), sampler.batch(0, 3))


# --- rows to draw from ----------------------------------------------------------------------------


def test_no_support() -> None:
    """Every row of a class can be a query."""
    labels = ragged_labels()
    batch = TaskSampler(labels, shots=0, n_query=12, k_eff=3).batch(0, 500)
    assert batch.support_index.shape == batch.support_labels.shape == (500, 0)
    assert torch.equal(labels[batch.query_index], batch.query_labels)
    assert [len(rows.unique()) for rows in batch.query_index] == [12] * 500
    assert all(len(classes.unique()) <= 3 for classes in batch.query_labels)
    assert set(batch.query_index.view(-1).tolist()) == set(
        (labels >= 0).nonzero().view(-1).tolist()
    )


def test_one_support_for_all_tasks() -> None:
    """All rows of a list, as many as each class has there; the queries from another list."""
    labels = ragged_labels()
    rows = torch.nonzero(labels >= 0).view(-1)
    support, query = rows[::3], rows[1::3]
    sampler = TaskSampler(
        labels, shots=None, support=support.flip(0), query=query, n_query=15, k_eff=3
    )
    batch = sampler.batch(0, 50)
    assert batch.support_index.dim() == batch.support_labels.dim() == 1
    assert torch.equal(batch.support_index.sort().values, support)
    assert torch.equal(batch.support_labels, labels[batch.support_index])
    assert torch.equal(batch.support_labels, batch.support_labels.sort().values)
    assert len(batch.support_labels.bincount().unique()) > 1
    assert set(batch.query_index.view(-1).tolist()) <= set(query.tolist())
    assert_proper(sampler, batch)
    features = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(0))
    solution = paddle_ext.solve_indexed(features, *batch[:3], num_classes=sampler.num_classes)
    assert solution.labels.shape == batch.query_labels.shape


@pytest.mark.parametrize("given", ["support", "query", "both"])
def test_support_and_query_from_lists(given: str) -> None:
    labels = even_labels(6, 40)
    odd, even = torch.arange(1, 240, 2), torch.arange(0, 240, 2)
    lists = {"support": odd, "query": even}
    if given != "both":
        lists = {given: lists[given]}
    sampler = TaskSampler(labels, shots=3, n_query=30, num_classes=5, k_eff=2, **lists)
    batch = sampler.batch(0, 40)
    assert_proper(sampler, batch)
    assert (batch.support_index % 2 == 1).all()
    assert (batch.query_index % 2 == 0).all()
    shuffled = {name: rows.flip(0) for name, rows in lists.items()}
    again = TaskSampler(labels, shots=3, n_query=30, num_classes=5, k_eff=2, **shuffled)
    assert_same(batch, again.batch(0, 40))


# --- tasks that cannot be drawn -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shots": 2.0}, "shots must be an integer, got float"),
        ({"support": [1, 2]}, "support must be a tensor or an array, got list"),
        ({"shots": -1}, "shots must be an integer in [0,"),
        ({"num_classes": 4}, "num_classes must be at most the number of classes, 3,"),
        ({"k_eff": 3, "num_classes": 2}, "k_eff must be at most the number of cand"),
        ({"sampling": "even"}, "sampling must be one of 'uniform', 'balanced', 'diri"),
        ({"alpha": 0.0}, "alpha must be finite and > 0, got 0.0"),
        ({"seed": 2**64}, "seed must be an integer in [0, 18446744073709551615], got"),
        ({"shots": None}, "support or query must be given with shots=None, got neither"),
        ({"shots": 0, "num_classes": 2}, "num_classes must be None with shots=0, got 2"),
        ({"support": torch.tensor([[1]])}, "support must have shape [n] with n at"),
        ({"query": torch.tensor([46])}, "query must be in [0, 46), got 46"),
        ({"query": torch.tensor([4, 4])}, "query must not have a row twice, got 4 more"),
        ({"query": torch.tensor([45])}, "query must have rows of a class, got 45, whose"),
        ({"query": torch.arange(45)}, "query must leave rows for the rest of a task"),
        (
            {"support": torch.arange(21), "query": torch.arange(20, 45)},
            "support and query must have no row in common, got 20 in both",
        ),
        ({"shots": 12}, "rows of every class for the support, 10 of class 1, got 12"),
        ({"shots": 10}, "1 or more samples for the queries outside the support, got 0"),
        (
            {"shots": 4, "n_query": 15, "sampling": "balanced"},
            "8 or more samples for the queries outside the support, got 6 of class 1",
        ),
        (
            {"shots": 4, "n_query": 18},
            "at most 17, the rows of the 2 smallest classes outside the support (6 of class 1),",
        ),
        (
            {"shots": None, "support": torch.arange(30)},
            "support must have a row of every class, got none of class 2",
        ),
        ({"labels": torch.zeros(0).long()}, "labels must have shape [N] with N in [1,"),
        ({"labels": torch.tensor([0, -2])}, "labels must be at least 0, or -1 for no"),
        ({"labels": torch.tensor([-1, -1])}, "labels must have a class in [0,"),
        ({"labels": torch.tensor([0, 2])}, "at least once, got none of class 1"),
        ({"labels": torch.tensor([0, 2**40])}, "a class in [0, 2147483647), got at most"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    """Before any work, in one sentence."""
    labels = torch.repeat_interleave(torch.tensor([0, 1, 2, -1]), torch.tensor([20, 10, 15, 1]))
    call: dict[str, Any] = {"labels": labels, "shots": 2, "n_query": 12, "k_eff": 2} | changes
    with pytest.raises((TypeError, ValueError), match=re.escape(message)) as caught:
        TaskSampler(**call)
    assert "\n" not in str(caught.value)
    assert ", got " in str(caught.value)


@pytest.mark.parametrize(
    ("start", "count", "error", "message"),
    [
        (-1, 1, ValueError, "start must be an integer in [0, 9223372036854775807], got -1"),
        (0, 0, ValueError, "count must be an integer in [1,"),
        (0.0, 1, TypeError, "start must be an integer, got float"),
        (2**63 - 1, 1, ValueError, "start + count must be an integer in [0,"),
    ],
)
def test_refused_numbers(start: Any, count: Any, error: type[Exception], message: str) -> None:
    sampler = TaskSampler(even_labels(5, 30), shots=2)
    with pytest.raises(error, match=re.escape(message)):
        sampler.batch(start, count)
    assert sampler.batch(np.int64(2**62), np.int32(2)).query_index.shape == (2, 75)
