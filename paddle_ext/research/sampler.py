"""Numbered few-shot tasks: task i depends only on the seed and on i.

The draws come from a counter-based generator in native code (`csrc/cpu/tasks.cpp`), so that a
task is the same on every machine, in any batch and on any number of threads or workers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from ..limits import LARGEST_INT32
from ..native.call import alike, call_native
from ..native.load import module as native

SAMPLINGS = {"uniform": 0, "balanced": 1, "dirichlet": 2}
LAST_TASK = 2**63 - 1
LAST_SEED = 2**64 - 1


class TaskBatch(NamedTuple):
    """B tasks, as rows of a feature bank; all int64."""

    support_index: Tensor  # [B, S], or [S] for a support that all tasks share
    support_labels: Tensor  # [B, S], or [S]; in [0, K)
    query_index: Tensor  # [B, Q]
    query_labels: Tensor  # [B, Q]: for evaluation only, hidden from methods

    def to(self, device: torch.device | str) -> TaskBatch:
        """The same tasks on another device."""
        return TaskBatch(*(x.to(device) for x in self))


class TaskSampler:
    """Draws few-shot tasks from labelled rows: many candidate classes, few of them queried.

    For each task, `k_eff` effective classes are drawn first, all classes equally likely; then
    `shots` support rows of each candidate class; then `n_query` query rows of the effective classes
    that are not in the support. Nothing is drawn twice.

    Parameters
    ----------
    labels : Tensor [N]
        Integers in [0, K), each at least once; rows with -1 have no class and are not drawn.
    shots : int or None
        Support rows per class; 0: no support. None: all rows of `support`, however many each class
        has, shared by all tasks.
    n_query, k_eff : int
        Queries of a task, and the number of classes they come from.
    num_classes : int, optional
        Candidate classes of a task, including the effective ones. They are numbered from 0 in the
        order of their labels. Default: all classes, with their own labels.
    sampling : {"uniform", "balanced", "dirichlet"}
        How the queries are drawn: from all samples of the effective classes, equally many of each,
        or in proportions from the Dirichlet distribution with all parameters `alpha`; docs/data.md
        says what happens to remainders.
    seed : int
        In [0, 2**64).
    support, query : Tensor [n], optional
        Rows to draw the support and the queries from, without common rows, in any order. If one is
        given, the other is all remaining rows. Default: both are all rows.

    Notes
    -----
    The support of a class depends on no other option, and only grows with `shots`: a task's support
    at 5 shots is part of that at 10. The queries are in random order, the support is ordered by
    class.

    Examples
    --------
    >>> import torch
    >>> labels = torch.arange(20).repeat_interleave(100)  # 20 classes of 100 samples
    >>> sampler = TaskSampler(labels, shots=5, n_query=75, k_eff=5)
    >>> batch = sampler.batch(0, 8)
    >>> batch.support_index.shape, batch.query_index.shape
    (torch.Size([8, 100]), torch.Size([8, 75]))
    >>> torch.equal(sampler.batch(6, 1).query_index[0], batch.query_index[6])
    True
    >>> [len(classes.unique()) for classes in batch.query_labels]
    [5, 5, 5, 5, 5, 5, 5, 5]
    """

    def __init__(
        self,
        labels: Tensor,
        *,
        shots: int | None,
        n_query: int = 75,
        k_eff: int = 5,
        num_classes: int | None = None,
        sampling: str = "uniform",
        alpha: float = 1.0,
        seed: int = 0,
        support: Tensor | None = None,
        query: Tensor | None = None,
    ) -> None:
        self.labels = checked_labels(labels)
        classes = int(self.labels.max()) + 1
        self.shots = None if shots is None else check.integer("shots", shots, least=0)
        self.n_query = check.integer("n_query", n_query)
        self.sampling = check.choice("sampling", sampling, tuple(SAMPLINGS))
        self.alpha = check.real("alpha", alpha, positive=True)
        self.seed = check.integer("seed", seed, least=0, most=LAST_SEED)
        self.num_classes = classes
        if num_classes is not None:
            self.num_classes = at_most("num_classes", num_classes, classes, "classes")
        if not self.shots and num_classes is not None:  # no support would tell which they are
            raise check.ArgumentValueError(
                "num_classes", f"must be None with shots={self.shots}, got {num_classes}"
            )
        self.k_eff = at_most("k_eff", k_eff, self.num_classes, "candidate classes")
        self._classes = classes
        self._pools = make_pools(self.labels, classes, self.shots, support, query)
        self._check_counts()

    def _check_counts(self) -> None:
        """Reject options with which some task could not be drawn."""
        there = self._pools.places["support_end"] - self._pools.places["support_begin"]
        least = int(there.argmin())
        if self.shots is None and int(there[least]) == 0:
            raise check.ArgumentValueError(
                "support", f"must have a row of every class, got none of class {least}"
            )
        if self.shots is not None and int(there[least]) < self.shots:
            raise check.ArgumentValueError(
                "shots",
                "must be at most the rows of every class for the support, "
                f"{int(there[least])} of class {least}, got {self.shots}",
            )
        left = self._pools.places["query_end"] - self._pools.places["query_begin"]
        room, order = left.sort(stable=True)
        needed = -(-self.n_query // self.k_eff) if self.sampling == "balanced" else 1
        if int(room[0]) < needed:
            raise ValueError(
                f"every class must have {needed} or more samples for the queries outside the "
                f"support, got {int(room[0])} of class {int(order[0])}"
            )
        most = int(room[: self.k_eff].sum())
        if most < self.n_query:
            raise check.ArgumentValueError(
                "n_query",
                f"must be at most {most}, the rows of the {self.k_eff} smallest classes outside "
                f"the support ({int(room[0])} of class {int(order[0])}), got {self.n_query}",
            )

    def batch(self, start: int, count: int) -> TaskBatch:
        """Tasks number `start` >= 0 to `start + count - 1`, on the CPU.

        A shared support has no batch dimension.
        """
        start = check.integer("start", start, least=0, most=LAST_TASK)
        B = check.integer("count", count)
        check.integer("start + count", start + B, least=0, most=LAST_TASK)
        pools, shots = self._pools, self.shots or 0
        S = self.num_classes * shots
        options = {
            "B": B,
            "Q": self.n_query,
            "K": self._classes,
            "M": len(pools.rows),
            "num_classes": self.num_classes,
            "k_eff": self.k_eff,
            "shots": shots,
            "sampling": SAMPLINGS[self.sampling],
            "alpha": self.alpha,
            "seed": self.seed,
            "start": start,
        }
        of_query, of_support = ((torch.int64, (B, size)) for size in (self.n_query, S))
        query_index, query_labels, support_index, support_labels = call_native(
            native.tasks_call,
            options,
            self.labels,
            {
                "labels": (self.labels, torch.int64, self.labels.shape),
                "rows": (pools.rows, torch.int32, pools.rows.shape),
                **alike(torch.int32, self._classes, **pools.places),
            },
            {
                **dict.fromkeys(("query_index", "query_labels"), of_query),
                **dict.fromkeys(("support_index", "support_labels"), of_support),
            },
            typed=False,
        )
        if self.shots is None:
            support_index, support_labels = pools.support, self.labels[pools.support]
        return TaskBatch(support_index, support_labels, query_index, query_labels)


class Pools(NamedTuple):
    """Rows to draw from, each class contiguous."""

    support: Tensor  # [n] int64, all rows for the support, by class
    rows: Tensor  # [M] int32
    places: dict[str, Tensor]  # [K] int32 each: where a class begins and ends in `rows`


def make_pools(
    labels: Tensor, classes: int, shots: int | None, support: Tensor | None, query: Tensor | None
) -> Pools:
    def ends(rows: Tensor) -> Tensor:
        return torch.bincount(labels[rows], minlength=classes).cumsum(0)

    def begins(ends: Tensor) -> Tensor:
        return torch.cat([ends.new_zeros(1), ends[:-1]])

    if support is None and query is None:
        if shots is None:
            raise ValueError("support or query must be given with shots=None, got neither")
        rows = by_class(labels, torch.nonzero(labels >= 0).view(-1))
        end = ends(rows)
        begin = begins(end)
        ranges = (begin, end, begin + shots, end)  # queries come after the first `shots` rows
        for_support = rows
    else:
        for_support, for_query = disjoint_rows(labels, support, query)
        rows = torch.cat([for_support, for_query])
        end, query_end = ends(for_support), ends(for_query)
        ranges = (begins(end), end, begins(query_end) + end[-1], query_end + end[-1])
    names = ("support_begin", "support_end", "query_begin", "query_end")
    places = {name: x.int() for name, x in zip(names, ranges, strict=True)}
    return Pools(for_support, rows.int(), places)


def by_class(labels: Tensor, rows: Tensor) -> Tensor:
    """Sorted by class, and by row inside a class."""
    rows = rows.sort().values
    return rows[labels[rows].sort(stable=True).indices]


def at_most(name: str, value: object, most: int, what: str) -> int:
    number = check.integer(name, value)
    if number > most:
        raise check.ArgumentValueError(
            name, f"must be at most the number of {what}, {most}, got {number}"
        )
    return number


def checked_labels(labels: Tensor) -> Tensor:
    """A copy of the labels: int64, on the CPU."""
    (labels,) = check.tensors(labels)
    check.integers("labels", labels)
    check.dense_tensor("labels", labels)
    if labels.dim() != 1 or not 1 <= len(labels) <= LARGEST_INT32:
        raise ValueError(
            f"labels must have shape [N] with N in [1, {LARGEST_INT32}], got {list(labels.shape)}"
        )
    labels = labels.to("cpu", torch.int64, copy=True).contiguous()
    low, high = (int(x) for x in torch.aminmax(labels))
    if low < -1:
        raise ValueError(f"labels must be at least 0, or -1 for no class, got {low}")
    if not 0 <= high < LARGEST_INT32:
        raise ValueError(f"labels must have a class in [0, {LARGEST_INT32}), got at most {high}")
    ordered = torch.cat([labels.new_tensor([-1]), labels[labels >= 0].sort().values])
    before = ordered[:-1][ordered.diff() > 1]
    if len(before):
        raise ValueError(
            f"labels must have every class in [0, {high + 1}) at least once, "
            f"got none of class {int(before[0]) + 1}"
        )
    return labels


def checked_rows(name: str, rows: Tensor, labels: Tensor) -> Tensor:
    rows = check.row_numbers(name, rows, len(labels)).to("cpu", torch.int64)
    ordered = rows.sort().values
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise ValueError(f"{name} must not have a row twice, got {int(twice[0])} more than once")
    if int(labels[rows].min()) < 0:
        row = int(rows[labels[rows] < 0][0])
        raise ValueError(f"{name} must have rows of a class, got {row}, whose label is -1")
    return rows


def disjoint_rows(
    labels: Tensor, support: Tensor | None, query: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The rows for support and query, by class; the one not given is the remainder of the other."""
    given = {
        name: checked_rows(name, rows, labels)
        for name, rows in (("support", support), ("query", query))
        if rows is not None
    }
    if len(given) == 1:
        ((name, rows),) = given.items()
        others = labels >= 0
        others[rows] = False
        rest = torch.nonzero(others).view(-1)
        if len(rest) == 0:
            raise ValueError(f"{name} must leave rows for the rest of a task, got all of them")
        given["query" if name == "support" else "support"] = rest
    taken = torch.zeros(len(labels), dtype=torch.bool)
    taken[given["support"]] = True
    both = given["query"][taken[given["query"]]]
    if len(both):
        raise ValueError(
            f"support and query must have no row in common, got {int(both[0])} in both"
        )
    return by_class(labels, given["support"]), by_class(labels, given["query"])
