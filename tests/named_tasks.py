"""Tasks with class prototypes or zero-shot logits, for the methods that can use them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Named:
    """The arguments of `Method.predict`."""

    support: Tensor
    support_labels: Tensor
    query: Tensor
    prototypes: Tensor | None = None
    logits: Tensor | None = None

    def call(self) -> dict[str, Any]:
        return vars(self).copy()

    def each(self, change: Callable[[str, Tensor], Tensor]) -> "Named":
        given = {name: x for name, x in vars(self).items() if x is not None}
        return Named(**{name: change(name, x) for name, x in given.items()})

    def to(self, target: torch.dtype | str) -> "Named":
        """With another dtype or device; labels stay integers."""
        stays = "support_labels" if isinstance(target, torch.dtype) else ""
        return self.each(lambda name, x: x if name == stays else x.to(target))

    def task(self, b: int) -> "Named":
        """One task of a batch; shared tensors stay shared."""
        return self.each(lambda name, x: x if x.dim() < 3 - (name == "support_labels") else x[b])


def make_named(
    B: int | None = None,
    Q: int = 20,
    K: int = 5,
    D: int = 16,
    *,
    shots: int = 0,
    without: int = 0,
    k_eff: int | None = None,
    noise: float = 1.0,
    shared: bool = False,
    seed: int = 0,
) -> "Named":
    """Rows around centres, and prototypes near the centres, all shifted in one direction.

    The last `without` classes have no labelled row; `shared`: one support for all tasks.
    """
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    batch = [] if B is None else [B]
    centres = normal(K, D)
    common = 3 * normal(D)
    present = torch.randperm(K, generator=random)[: k_eff or K]
    labels = present[torch.randint(len(present), (*batch, Q), generator=random)]
    support_labels = torch.arange(K - without).repeat(shots)
    if batch and not shared:
        support_labels = support_labels.expand(*batch, -1).contiguous()
    query = centres[labels] + common + noise * normal(*batch, Q, D)
    support = centres[support_labels] + common + noise * normal(*support_labels.shape, D)
    prototypes = centres + common + 0.9 * normal(D) + 0.5 * normal(K, D)
    return Named(support.float(), support_labels, query.float(), prototypes.float())


def with_logits(task: Named, factor: float = 100.0) -> "Named":
    """Logits instead of prototypes."""
    x, t = (torch.nn.functional.normalize(a, dim=-1) for a in (task.query, task.prototypes))
    return replace(task, prototypes=None, logits=factor * x @ t.mT)


def identical_rows() -> "Named":
    task = make_named(Q=9, K=4, D=6, shots=2)
    return replace(
        task, query=task.query[:1].repeat(9, 1), support=task.query[:1].repeat(len(task.support), 1)
    )


def everything_identical() -> "Named":
    task = identical_rows()
    return replace(task, prototypes=task.query[:1].repeat(4, 1))


def zeros() -> "Named":
    return make_named(Q=6, K=3, D=4, shots=1).each(lambda name, x: torch.zeros_like(x))


NASTY: dict[str, Callable[[], Named]] = {
    "one class": lambda: make_named(Q=7, K=1, D=5),
    "one class, labelled": lambda: make_named(Q=7, K=1, D=5, shots=3),
    "one query": lambda: make_named(Q=1, K=4, D=6),
    "one query, labelled": lambda: make_named(Q=1, K=4, D=6, shots=2),
    "one of all": lambda: make_named(Q=1, K=1, D=1),
    "two queries": lambda: make_named(Q=2, K=9, D=6),
    "identical rows": identical_rows,
    "identical rows, no labels": lambda: replace(
        identical_rows(), support=torch.zeros(0, 6), support_labels=torch.zeros(0).long()
    ),
    "everything identical": everything_identical,
    "zeros": zeros,
    "certain logits": lambda: with_logits(make_named(Q=12, K=4, D=6), 1e5),
    "huge logits": lambda: with_logits(make_named(Q=12, K=4, D=6), 1e25),
    "flat logits": lambda: with_logits(make_named(Q=12, K=4, D=6), 0.0),
    "classes without labelled rows": lambda: make_named(Q=15, K=6, D=8, shots=2, without=3),
    "one labelled row": lambda: make_named(Q=15, K=6, D=8, shots=1, without=5),
    "many classes": lambda: make_named(Q=5, K=40, D=8, k_eff=2),
    "one class present": lambda: make_named(Q=30, K=6, D=8, k_eff=1, shots=1),
    "large features": lambda: scaled(make_named(Q=8, K=3, D=4, shots=1), 1e28),
    "small features": lambda: scaled(make_named(Q=8, K=3, D=4, shots=1), 1e-36),
}


def scaled(task: Named, factor: float) -> "Named":
    return task.each(lambda name, x: x if name == "support_labels" else x * factor)
