"""Checks of class prototypes and zero-shot logits given with labelled rows.

With either of them the support may be empty, and a class may have no labelled row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .. import check


def classes(
    num_classes: int | None,
    prototypes: Tensor | None,
    logits: Tensor | None,
    *,
    method: str,
    takers: Sequence[str],
) -> int | None:
    """K of the prototypes or logits, whichever is given; `num_classes` without either.

    `takers` are the names of the methods that can use prototypes and logits.
    """
    name, x = ("prototypes", prototypes) if logits is None else ("logits", logits)
    if x is None:
        return num_classes
    if method not in takers:
        raise check.ArgumentValueError(
            name,
            f"must be None with the method {method!r} because only {', '.join(map(repr, takers))} "
            f"can use it, got {check.kind(x)}",
        )
    if prototypes is not None and logits is not None:
        raise check.ArgumentValueError(
            "logits", f"must be None with prototypes, got {check.kind(logits)}"
        )
    check.features(name, x)
    rows = "K, D" if name == "prototypes" else "Q, K"
    if x.dim() not in (2, 3):
        raise check.ArgumentValueError(
            name, f"must have shape [{rows}] or [B, {rows}], got {list(x.shape)}"
        )
    K = x.shape[-2 if name == "prototypes" else -1]
    if K < 1:
        raise check.ArgumentValueError(name, f"must have at least one class, got {list(x.shape)}")
    if num_classes is not None and num_classes != K:
        raise check.ArgumentValueError(
            name, f"must have num_classes classes, {num_classes}, got {K}"
        )
    return K


def prototypes_or_logits(
    features: Tensor, queries: torch.Size, prototypes: Tensor | None, logits: Tensor | None
) -> dict[str, Tensor]:
    """The given prototypes or logits as keyword, checked against features [.., D], queries [.., Q].

    Empty if neither is given.
    """
    name, x = ("prototypes", prototypes) if logits is None else ("logits", logits)
    if x is None:
        return {}
    if (x.dtype is torch.float64) != (features.dtype is torch.float64):
        raise check.ArgumentValueError(
            name,
            f"must be as precise as the features, {check.plain(features.dtype)}, "
            f"got {check.plain(x.dtype)}",
        )
    if x.device != features.device:
        check.one_device(**{name: x, "query": features})
    D = features.shape[-1]
    if prototypes is not None and prototypes.shape[-1] != D:
        raise check.ArgumentValueError(
            name, f"must have as many features as query, {D}, got {prototypes.shape[-1]}"
        )
    if prototypes is not None and prototypes.dim() == 3 and queries[:-1] != prototypes.shape[:1]:
        raise check.ArgumentValueError(
            name,
            f"must have as many tasks as query, {list(queries[:-1]) or 'no batch'}, "
            f"got {prototypes.shape[0]}",
        )
    if logits is not None and logits.shape[:-1] != queries:
        raise check.ArgumentValueError(
            name,
            f"must have one row for each query, shape {[*queries, logits.shape[-1]]}, "
            f"got {list(logits.shape)}",
        )
    return {name: x}


def support_is_empty(name: str, support: object, labels: object, end: int) -> bool:
    """Whether the support has no rows; then it must have no labels either.

    `end` is 1 if the support has a dimension of features, 0 if it is indices.
    """
    if not (isinstance(support, Tensor) and isinstance(labels, Tensor)):
        return False
    rank = support.dim() - end
    if rank not in (1, 2) or support.shape[rank - 1] != 0:
        return False
    if labels.shape != support.shape[:rank]:
        raise check.ArgumentValueError(
            "support_labels",
            f"must have one label for each row of {name}, shape {list(support.shape[:rank])}, "
            f"got {list(labels.shape)}",
        )
    return True


def dense(support: Tensor, support_labels: Tensor, query: Tensor) -> None:
    """Like `check.dense`, for a support that may be empty."""
    if support_is_empty("support", support, support_labels, 1):
        *batch, _, D = support.shape
        support = support.new_zeros(*batch, 1, D)
        support_labels = support_labels.new_zeros(*batch, 1)
    check.dense(support, support_labels, query)


def indexed(
    bank: Tensor, support_index: Tensor, support_labels: Tensor, query_index: Tensor
) -> None:
    """Like `check.indexed`, for a support that may be empty."""
    if support_is_empty("support_index", support_index, support_labels, 0):
        shape = (*support_index.shape[:-1], 1)
        support_index = support_index.new_zeros(shape)
        support_labels = support_labels.new_zeros(shape)
    check.indexed(bank, support_index, support_labels, query_index)


def values(seen: Mapping[str, Tensor | None], num_classes: int, limits: Mapping[str, int]) -> int:
    """Like `check.values`, but classes may have no row; returns `num_classes`."""
    given = {name: x for name, x in seen.items() if x is not None}
    no_labels = given["support_labels"][..., :0]
    return check.values(given, no_labels, dict(limits), num_classes)
