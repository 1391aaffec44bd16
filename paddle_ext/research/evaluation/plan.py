"""The tasks of an evaluation: the rows of a bank they are drawn from, and their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ... import check
from ..data.bank import FeatureBank
from ..tasks import TaskSampler

ROWS = 2**16  # checked at once: a mapped bank may exceed the memory


@dataclass(frozen=True)
class TaskPlan:
    """A sampler for each combination of shots and k_eff, and their shared data."""

    samplers: tuple[TaskSampler, ...]
    n_tasks: int  # of each
    labels: Tensor  # [N] int64: without classes that no task can draw, renumbered
    support: Tensor | None  # rows; None: all that are not queries
    query: Tensor | None
    prototypes: Tensor | None = None  # [K, D]: embeddings of the class names, instead of a support


def plan_tasks(
    bank: FeatureBank,
    *,
    shots: int | Sequence[int] | None,
    k_eff: int | Sequence[int],
    n_query: int,
    n_tasks: int = 1,
    num_classes: int | None = None,
    sampling: str = "uniform",
    alpha: float = 1.0,
    seed: int = 0,
    support: str | Tensor | None = None,
    query: str | Tensor | None = None,
    prototypes: Tensor | None = None,
) -> TaskPlan:
    """Check the requested tasks against the bank; arguments as in `evaluate`.

    With `prototypes` [K, D], the embeddings of the class names, `shots` may be 0.
    """
    if not isinstance(bank, FeatureBank):
        raise check.ArgumentTypeError("bank", f"must be a FeatureBank, got {check.kind(bank)}")
    check.integer("n_tasks", n_tasks)
    support_rows, query_rows = (
        split_rows(bank, "support", support),
        split_rows(bank, "query", query),
    )
    labels = class_numbers(bank, support_rows, query_rows)
    least = 1 if prototypes is None else 0
    samplers = tuple(
        TaskSampler(
            labels,
            shots=count,
            n_query=n_query,
            k_eff=effective,
            num_classes=num_classes,
            sampling=sampling,
            alpha=alpha,
            seed=seed,
            support=support_rows,
            query=query_rows,
        )
        for count in ([None] if shots is None else distinct_integers("shots", shots, least))
        for effective in distinct_integers("k_eff", k_eff)
    )
    if prototypes is not None:
        prototypes = prototypes_of_classes(bank, labels, prototypes)
    return TaskPlan(samplers, n_tasks, labels, support_rows, query_rows, prototypes)


def distinct_integers(name: str, value: object, least: int = 1) -> list[int]:
    """One number, or several different ones."""
    listed = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not listed:
        raise check.ArgumentValueError(name, "must be at least one number, got none")
    numbers = [check.integer(name, number, least=least) for number in listed]
    for number in numbers:
        if numbers.count(number) > 1:
            problem = f"must not have a number twice, got {number} more than once"
            raise check.ArgumentValueError(name, problem)
    return numbers


def split_rows(bank: FeatureBank, name: str, given: str | Tensor | None) -> Tensor | None:
    """The rows of a split that have a class; the sampler checks explicit rows."""
    if not isinstance(given, str):
        return given
    if given not in bank.splits:
        there = ", ".join(map(repr, bank.splits)) or "none"
        raise check.ArgumentValueError(
            name, f"must be rows or a split of the bank ({there}), got {given!r}"
        )
    rows = bank.rows(given)
    rows = rows[bank.labels.cpu()[rows] >= 0]
    if len(rows) == 0:
        raise check.ArgumentValueError(
            name, f"must have rows of a class, got {given!r}, which has none"
        )
    return rows


def class_numbers(bank: FeatureBank, support: Tensor | None, query: Tensor | None) -> Tensor:
    """The labels [N], without classes that no task can draw, renumbered.

    A class can be drawn if it has rows; with both pools given, if it has rows in them.
    """
    labels = bank.labels.cpu()
    pools = [x for x in (support, query) if isinstance(x, Tensor) and x.dtype in check.INTEGERS]
    seen = labels
    if len(pools) == 2:
        inside = torch.cat([x.cpu().view(-1).long() for x in pools])
        if len(inside) and int(inside.min()) >= 0 and int(inside.max()) < len(labels):
            seen = labels[inside]  # otherwise the sampler raises the error
    there = torch.bincount(seen[seen >= 0], minlength=bank.num_classes) > 0
    number = torch.where(there, there.cumsum(0) - 1, -1)
    return torch.cat([number, number.new_tensor([-1])])[labels]  # the last one is that of -1


def prototypes_of_classes(bank: FeatureBank, labels: Tensor, prototypes: Tensor) -> Tensor:
    """The rows of `prototypes` for the classes that tasks draw, as `labels` number them."""
    (prototypes,) = check.tensors(prototypes)
    check.features("prototypes", prototypes)
    D = bank.features.shape[1]
    if prototypes.dim() != 2 or len(prototypes) < bank.num_classes or prototypes.shape[1] != D:
        problem = f"must have shape [{bank.num_classes}, {D}], a row of each class"
        raise check.ArgumentValueError("prototypes", f"{problem}, got {list(prototypes.shape)}")
    if not torch.isfinite(prototypes).all():
        raise check.ArgumentValueError("prototypes", "must be finite, got NaN or infinity")
    drawn = labels >= 0
    found = prototypes.new_empty(int(labels.max()) + 1, D)
    found[labels[drawn]] = prototypes[bank.labels.cpu()[drawn]]
    return found


def check_features(bank: FeatureBank) -> None:
    """Reject features that cannot be summed, so that methods need not check."""
    for name, x in (("features", bank.features), ("base_mean", bank.base_mean)):
        if x is None:
            continue
        most = check.LARGEST_FEATURE[x.dtype]
        for rows in torch.split(x, ROWS):
            low, high = torch.aminmax(rows)
            if not (low >= -most and high <= most):  # false for NaN
                check.too_large(name, x, most)
