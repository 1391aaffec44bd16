"""Roll-up: where the class of a sample is uncertain, name the group of classes that is certain."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import check
from ..methods import Prediction
from ..solution import Solution
from ..text import several


class RolledUp(NamedTuple):
    """The class or group of each sample."""

    nodes: tuple[Hashable, ...]  # [N]: classes, then parents
    node: Tensor  # [.., Q] int64: index into `nodes`; -1 if no node reaches the confidence
    probability: Tensor  # [.., Q] of the node; 1 if there is none

    def names(self) -> list[Hashable | None]:
        """The nodes of all samples, in order; None if no node reaches the confidence."""
        return [None if at < 0 else self.nodes[at] for at in self.node.flatten().tolist()]


def roll_up(
    solution: Solution | Prediction,
    parents: Mapping[Any, Hashable],
    confidence: float = 0.9,
    *,
    classes: Sequence[Hashable] | None = None,
) -> RolledUp:
    """For each sample, the most specific node of a tree of classes that is probable enough.

    The probability of a node is the sum over the classes below it, so it is as well calibrated as
    those of the classes: well for `adaptive`, while PADDLE is overconfident.

    Parameters
    ----------
    parents : mapping
        The parent of every class, and of any parent that has one; any depth.
    confidence : float
        The least probability of a node, above 0.5 and at most 1, so that the node is unique.
    classes : sequence, optional
        The classes as `parents` has them, in the order of the solution; by default 0 to K - 1.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> found = paddle_ext.adapt(torch.tensor([[9.0, 0, 0], [3, 3, 0], [2, 2, 2]]))
    >>> parents = {"oak": "tree", "elm": "tree", "fern": "other"}
    >>> roll_up(found, parents, 0.8, classes=["oak", "elm", "fern"]).names()
    ['oak', 'tree', None]
    """
    confidence = check.real("confidence", confidence, most=1)
    if confidence <= 0.5:
        raise check.ArgumentValueError("confidence", f"must be above 0.5, got {confidence:g}")
    whole = solution.proportions if isinstance(solution, Solution) else solution.probabilities
    K = whole.shape[-1]
    names = tuple(range(K)) if classes is None else tuple(classes)
    if len(names) != K:
        raise ValueError(f"classes must be the {K} of the solution, got {len(names)}")
    kept = solution.classes if isinstance(solution, Solution) else None
    return Hierarchy.of(parents, names).roll_up(solution.probabilities, confidence, kept)


@dataclass(frozen=True)
class Hierarchy:
    """A checked tree, or several, over classes."""

    nodes: tuple[Hashable, ...]  # [N]: the K classes, then parents
    parent: tuple[int, ...]  # [N] index of the parent, -1 for a root
    depth: tuple[int, ...]  # [N] 0 for a root

    @classmethod
    def of(cls, parents: Mapping[Any, Any], classes: Sequence[Hashable]) -> "Hierarchy":
        """Check that every class has a parent, that there is no cycle, and no unknown name."""
        if not isinstance(parents, Mapping):
            raise TypeError(f"parents must be a mapping, got {check.kind(parents)}")
        if odd := [name for name in parents.values() if not isinstance(name, Hashable)]:
            raise TypeError(f"parents must be hashable, got {odd[0]!r}")
        nodes = tuple(dict.fromkeys([*classes, *parents.values()]))
        if len(set(classes)) != len(classes):
            raise ValueError("classes must differ from each other, got one twice")
        known = set(nodes)
        foreign = [repr(name) for name in parents if name not in known]
        if foreign:
            raise ValueError(
                "parents must have classes and their parents only, got "
                f"{several(foreign, 1)}, which is no class and no parent"
            )
        orphans = [repr(name) for name in classes if name not in parents]
        if orphans:
            raise ValueError(
                f"parents must have a parent for every class, got none for {several(orphans, 1)}"
            )
        # Parents first, so that the depth of each is known before those below it.
        order = TopologicalSorter({name: (parent,) for name, parent in parents.items()})
        depth: dict[Hashable, int] = {}
        try:
            for name in order.static_order():
                depth[name] = depth[parents[name]] + 1 if name in parents else 0
        except CycleError as error:
            name = error.args[1][0]
            raise ValueError(
                f"parents must be a tree, got a cycle: {name!r} is its own ancestor"
            ) from None
        place = {name: at for at, name in enumerate(nodes)}
        above = tuple(place[parents[name]] if name in parents else -1 for name in nodes)
        return cls(nodes, above, tuple(depth[name] for name in nodes))

    def roll_up(
        self, probabilities: Tensor, confidence: float, classes: Tensor | None = None
    ) -> RolledUp:
        """Roll up probabilities [.., Q, K], or the largest of each row with their `classes`."""
        u, N = probabilities, len(self.nodes)
        mass = u.new_zeros(*u.shape[:-1], N)
        if classes is None:
            mass[..., : u.shape[-1]] = u
        else:
            mass.scatter_(-1, classes, u)
        parent, depth = (
            torch.tensor(x, dtype=torch.int64, device=u.device) for x in (self.parent, self.depth)
        )
        for level in range(max(self.depth), 0, -1):
            at = (depth == level).nonzero().view(-1)
            mass.index_add_(-1, parent[at], mass[..., at])
        rounding = 16 * torch.finfo(mass.dtype).eps  # a root may hold slightly less than 1
        specific, index = torch.where(mass >= confidence - rounding, depth, -1).max(-1)
        probability = mass.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        none = specific < 0
        return RolledUp(
            self.nodes, index.masked_fill(none, -1), probability.masked_fill(none, 1).clamp(max=1)
        )
