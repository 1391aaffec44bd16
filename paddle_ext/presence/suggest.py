"""Which samples to label next."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from ..limits import LARGEST_FLOAT
from ..native.coordinates import coordinates
from ..rows import computing_dtype, evenly_spread, parts, squared_distances, unit_rows

MOST_ROWS = (
    4096  # limit on the samples that are compared with each other, unless more are asked for
)
FARTHEST = 4.0  # the largest squared distance of unit-norm rows
OWN = 1 / 3  # how much the distance of a suggested row itself counts


class Suggestions(NamedTuple):
    """The samples to label next, the most useful first."""

    queries: Tensor  # [n] int64: which they are
    stands_for: Tensor  # [n] int64: queries nearer to it than to all others with a label


def suggest(support: Tensor, query: Tensor, count: int) -> Suggestions:
    """The unlabelled samples whose labels would help most, if `count` more can be labelled.

    Every sample should be near a labelled one: one after the other, the sample i with the largest
    gain is chosen.

    ``sum_{q != i} max(0, g_q - ||x_q - x_i||^2) + g_i / 3``

    ``g_q`` is the squared distance of q to the nearest row that is labelled or chosen. Rows are
    made unit-norm, centred at the mean of all, and made unit-norm again. So samples that many
    others resemble and no labelled one come first, whether their class has few labels or is
    unknown; copies of a labelled or suggested sample come last. Doubtful samples are not preferred:
    they are often odd ones out, and teach less.

    Parameters
    ----------
    support : Tensor [S, D]
        The labelled rows; may be none.
    query : Tensor [Q, D]
        The unlabelled rows. Of more than 4096 an evenly spread part is considered, of at least
        `count`.
    count : int
        All queries are returned if there are fewer.

    Returns
    -------
    Suggestions

    Examples
    --------
    >>> import torch
    >>> support = torch.eye(3)[:2]
    >>> query = torch.tensor([[1, 0.1, 0], [0, 0.1, 1], [0, 0, 1], [0.1, 1, 0]])  # two unlike both
    >>> suggest(support, query, 1)
    Suggestions(queries=tensor([1]), stands_for=tensor([2]))
    """
    support, query = check.tensors(support, query)
    check_rows(support, query)
    count = min(check.integer("count", count), len(query))
    rows = torch.cat([query, support]).detach()
    unit = unit_rows(rows.to(computing_dtype(rows)))
    x = coordinates(unit.unsqueeze(0), unit.mean(0, keepdim=True))[0]
    x, known = x[: len(query)], x[len(query) :]
    gap = nearest(x, known)[0]
    m = min(len(query), max(MOST_ROWS, count))
    considered = evenly_spread(m, len(query), query.device)
    chosen = considered[covering(x[considered], gap[considered], count)]
    distances, which = nearest(x, x[chosen])
    stands_for = which[distances < gap].bincount(minlength=count)
    return Suggestions(chosen, stands_for)


def covering(x: Tensor, gap: Tensor, count: int) -> Tensor:
    """Greedily choose rows [m, D] that reduce the gaps [m] most in sum; [count] int64.

    A row's own gap counts less, so that odd ones out, whose labels help no other, come later.
    A row never gains more than it did when fewer were chosen, so a gain is only computed again when
    it is the largest.
    """
    gains = torch.cat(
        [
            (gap.unsqueeze(1) - squared_distances(x, x[part])).clamp(min=0).sum(0)
            for part in parts(len(x), len(x) + x.shape[1])
        ]
    )
    gains -= (1 - OWN) * gap
    squares = x.square().sum(1)
    heap = [(-gain, i) for i, gain in enumerate(gains.tolist())]
    heapify(heap)
    chosen = list[int]()
    while len(chosen) < count:
        _, i = heap[0]
        reached = torch.minimum(gap, (squares + squares[i] - 2 * (x @ x[i])).clamp(min=0))
        gain = (gap - reached).sum() - (1 - OWN) * gap[i]
        heapreplace(heap, (-float(gain), i))
        if heap[0][1] == i:
            heappop(heap)
            chosen.append(i)
            gap = reached
    return torch.tensor(chosen, dtype=torch.int64, device=x.device)


def nearest(x: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The squared distance of rows [n, D] to the nearest of others [k, D], and which it is."""
    if len(known) == 0:
        return x.new_full((len(x),), FARTHEST), x.new_zeros(len(x), dtype=torch.int64)
    found = [
        squared_distances(x[part], known).min(1) for part in parts(len(x), len(known) + x.shape[1])
    ]
    return torch.cat([near.values for near in found]), torch.cat([near.indices for near in found])


def check_rows(support: Tensor, query: Tensor) -> None:
    for name, x in (("support", support), ("query", query)):
        check.features(name, x)
    check.one_device(support=support, query=query)
    if query.dim() != 2 or len(query) == 0:
        raise ValueError(f"query must have shape [Q, D] with a row, got {list(query.shape)}")
    if support.dim() != 2 or support.shape[1] != query.shape[1]:
        raise ValueError(
            f"support must have shape [S, {query.shape[1]}] like query, got {list(support.shape)}"
        )
    for name, x in (("support", support), ("query", query)):
        if not x.isfinite().all():
            check.too_large(name, x, LARGEST_FLOAT)
