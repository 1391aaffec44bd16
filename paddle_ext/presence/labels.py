"""Which labels are wrong, and which samples to label next."""

from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.label_noise import AUTO, weigh_labels
from ..adaptive_rule.likelihood import coordinates
from ..limits import LARGEST_FLOAT
from ..rows import computing_dtype, parts, sample_by_content, squared_distances, unit_rows
from ..task import without_autocast

# Limit on the samples that are compared with each other, unless more are asked for.
MOST_COMPARED = 4096
FARTHEST = 4.0  # the largest squared distance of unit-norm rows
OWN_SHARE = 1 / 3  # how much the distance of a suggested row itself counts


class Suggestions(NamedTuple):
    """The samples to label next, the most useful first."""

    queries: Tensor  # [n] int64: which they are
    stands_for: Tensor  # [n] int64: queries nearer to it than to all others with a label


@without_autocast()
def suggest(support: Tensor, query: Tensor, count: int) -> Suggestions:
    """The unlabelled samples whose labels would help most, if `count` more can be labelled.

    Every sample should be near a labelled one; docs/suggest.md has the rule. Samples that many
    others resemble and no labelled one come first, whether their class has few labels or is
    unknown; copies of a labelled or suggested sample come last. Doubtful samples are not preferred:
    they are often odd ones out, and teach less.

    Parameters
    ----------
    support : Tensor [S, D]
        The labelled rows; may be none.
    query : Tensor [Q, D]
        The unlabelled rows. Of more than 4096 a part is considered, of at least `count`, which does
        not depend on their order.
    count : int
        All queries are returned if there are fewer.

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
    rows = torch.cat([query, support])
    unit = unit_rows(rows.to(computing_dtype(rows)))
    x = coordinates(unit.unsqueeze(0), unit.mean(0, keepdim=True))[0]
    x, labelled = x[: len(query)], x[len(query) :]
    gap = nearest(x, labelled)[0]
    considered = sample_by_content(query, max(MOST_COMPARED, count))
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
    gains -= (1 - OWN_SHARE) * gap
    squares = x.square().sum(1)
    heap = [(-gain, i) for i, gain in enumerate(gains.tolist())]
    heapify(heap)
    chosen = list[int]()
    while len(chosen) < count:
        _, i = heap[0]
        reached = torch.minimum(gap, (squares + squares[i] - 2 * (x @ x[i])).clamp(min=0))
        gain = (gap - reached).sum() - (1 - OWN_SHARE) * gap[i]
        heapreplace(heap, (-float(gain), i))
        if heap[0][1] == i:
            heappop(heap)
            chosen.append(i)
            gap = reached
    return torch.tensor(chosen, dtype=torch.int64, device=x.device)


def nearest(x: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The squared distance of rows [n, D] to the nearest of others [k, D], and which it is."""
    if len(others) == 0:
        return x.new_full((len(x),), FARTHEST), x.new_zeros(len(x), dtype=torch.int64)
    pieces = [
        squared_distances(x[part], others).min(1)
        for part in parts(len(x), len(others) + x.shape[1])
    ]
    return torch.cat([near.values for near in pieces]), torch.cat([near.indices for near in pieces])


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
            check.raise_too_large(name, x, LARGEST_FLOAT)


class LabelDoubt(NamedTuple):
    """How likely the labels of labelled rows are to be wrong."""

    doubt: Tensor  # [S]: the probability that the label is wrong; 0 for the only row of its class
    suggestion: Tensor  # [S] int64: the most probable class

    def suspects(self, threshold: float = 0.9) -> Tensor:
        """Indices of the rows with a doubt above `threshold`, most doubtful first, [n] int64."""
        threshold = check.real("threshold", threshold)
        order = self.doubt.argsort(descending=True, stable=True)
        return order[self.doubt[order] > threshold]


@without_autocast()
def label_doubt(support: Tensor, support_labels: Tensor) -> LabelDoubt:
    """Find wrong labels among labelled rows.

    Each row is classified from all others, as the method `adaptive` with `label_noise="auto"` would
    classify one new row: every class has the same prior probability, and the weight of another row
    is the probability that its label is right. A class with a single row has no evidence about
    itself: its doubt is 0.

    Parameters
    ----------
    support, support_labels : Tensor [S, D], [S]
        Every class from 0 to the largest label must have a row.

    Examples
    --------
    >>> import torch
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> truth = torch.arange(3).repeat(20)
    >>> support = 4 * torch.eye(3)[truth] + torch.randn(60, 3)
    >>> labels = truth.clone()
    >>> labels[7] = 2  # is of class 1
    >>> found = label_doubt(support, labels)
    >>> found.suspects()[0], found.suggestion[7]
    (tensor(7), tensor(1))
    """
    support, labels, K = check.labelled_rows(support, support_labels)
    return doubt_of_labels(support.to(computing_dtype(support)), labels, K)


def doubt_of_labels(
    rows: Tensor, labels: Tensor, num_classes: int, trusted: Tensor | None = None
) -> LabelDoubt:
    """`label_doubt` for checked rows; those that are `trusted` [S] count in full for the others."""
    if len(labels) == num_classes or num_classes == 1:
        return LabelDoubt(rows.new_zeros(len(labels)), labels.clone())
    support, given = rows.unsqueeze(0), labels.unsqueeze(0)
    sure = None if trusted is None else trusted.unsqueeze(0)
    weighed = weigh_labels(support, given, num_classes, AUTO, trusted=sure)
    alone = labels.bincount()[labels] < 2
    u = weighed.logits[0].softmax(-1)
    own = u.gather(1, labels.unsqueeze(1)).squeeze(1)
    doubt = (1 - own).clamp(min=0).masked_fill(alone, 0)
    return LabelDoubt(doubt, torch.where(alone, labels, u.argmax(-1)))
