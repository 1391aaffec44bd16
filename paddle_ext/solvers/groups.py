"""Class proportions of many groups of rows, which learn from each other how few classes they have.

Letters: Q rows, G groups, K classes; n rows of a group. The equations are in docs/groups.md, and
common/groups.h has what is computed from them.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.special import digamma

from ..groups import Groups
from ..native.call import Inputs, alike, call_native, packed
from ..native.load import module as native
from ..prevalence import estimated_shares
from ..rows import sample_by_content
from ..solution import Solution, label_counts, most_probable
from ..task import merged

MEAN_STEPS = 12  # for the concentration of mean proportions, each at most a factor e


class Prior(NamedTuple):
    """What groups are a priori: their proportions are Dirichlet(a m)."""

    measure: Tensor | None  # [G, K] float64: m, of mean 1; None: 1 for all classes
    concentration: Tensor  # [G] float64: a


class Shared(NamedTuple):
    """The proportions of groups that share what they know."""

    prior: Prior
    probabilities: Tensor  # [Q, K]
    counts: Tensor  # [G, K] float64: N, the rows that each class holds, by their weight
    criterion: Tensor  # [G] float64: the largest change of a count in the last step
    bound: Tensor  # [G] float64: of the log evidence; only of first proportions
    prior_used: Tensor | None = None  # [G] bool

    @property
    def pseudocounts(self) -> Tensor:
        """The parameters of the Dirichlet distribution, [G, K] float64."""
        a = self.prior.concentration.unsqueeze(-1)
        return a.expand_as(self.counts) if self.prior.measure is None else a * self.prior.measure

    @property
    def dual(self) -> Tensor:
        """The mean log proportions, [G, K] float64."""
        own = self.counts + self.pseudocounts
        possible = own > 0
        dual = digamma(own.masked_fill(~possible, 1.0)) - digamma(own.sum(-1, keepdim=True))
        mean_log: Tensor = dual.masked_fill(~possible, native.IMPOSSIBLE)
        return mean_log

    def with_counts(self, groups: Groups, weight: Tensor) -> "Shared":
        """With the counts of the probabilities, rows of a group weighing so much, [G]."""
        sums = groups.sums(self.probabilities).double()
        return self._replace(counts=weight.unsqueeze(-1) * sums)


def first_proportions(
    logits: Tensor,
    groups: Groups,
    weight: Tensor,
    measures: Tensor | None,
    content: Tensor | None = None,
) -> Shared:
    """The proportions of groups of rows with these logits [Q, K], as if rows were independent.

    The rows of a large group that are compared are chosen by their `content` [Q, D], by default
    the logits.
    `weight` [G] float64 is that of a row in the counts of its group. `measures` [G or 1, 2, K] are
    even weights of the classes, 0 for an impossible one, and a prior of the caller, which a group
    uses if it is likelier with it.
    """
    G, K = len(groups.names), logits.shape[-1]
    paired = compared_rows(logits if content is None else content, groups)
    if measures is None:
        return proportions_under(logits, groups, weight, None, paired)
    even, own = (packed(measures[:, i].double().expand(G, K)) for i in range(2))
    found = proportions_under(logits, groups, weight, even, paired)
    other = proportions_under(logits, groups, weight, own, paired)
    used = other.bound > found.bound

    def chosen(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(used.view(-1, *[1] * (x.dim() - 1)), y, x)

    a = chosen(found.prior.concentration, other.prior.concentration)
    rows = used[groups.of_row].unsqueeze(-1)
    return Shared(
        Prior(chosen(even, own), a),
        torch.where(rows, other.probabilities, found.probabilities),
        counts=chosen(found.counts, other.counts),
        criterion=chosen(found.criterion, other.criterion),
        bound=chosen(found.bound, other.bound),
        prior_used=used,
    )


def proportions_under(
    logits: Tensor,
    groups: Groups,
    weight: Tensor,
    measure: Tensor | None,
    paired: Inputs,
) -> Shared:
    """The proportions under one measure."""
    (Q, K), G, real, double = logits.shape, len(groups.names), logits.dtype, torch.float64
    inputs: Inputs = {
        **paired,
        "logits": (logits, real, (Q, K)),
        "sizes": (groups.sizes, torch.int64, (G,)),
        "measure": (measure, double, (G, K)),
    }
    sizes = {"B": G, "Q": Q, "K": K, "N": paired["order"][2][0]}
    outputs = {"evidence": (double, (G, native.CHANCES))}
    (evidence,) = call_native(native.pairs_call, sizes, logits, inputs, outputs)
    a = evidence.new_empty(G)
    posterior_of_mixture(evidence, K, a)
    u = torch.empty_like(logits)
    return steps_of_groups(logits, groups, weight, Prior(measure, a), u, alone=True, bounded=True)


def rows_alone(logits: Tensor, groups: Groups, weight: Tensor, prior: Prior) -> Shared:
    """Rows as if they were in no group."""
    u = torch.empty_like(logits)
    return steps_of_groups(logits, groups, weight, prior, u, alone=True, steps=0)


def steps_of_groups(
    logits: Tensor,
    groups: Groups,
    weight: Tensor,
    prior: Prior,
    u: Tensor,
    *,
    likeness: Tensor | None = None,
    alone: bool = False,
    steps: int = native.GROUP_STEPS,
    bounded: bool = False,
) -> Shared:
    """Replace probabilities u [Q, K] by those with the proportions of the groups.

    They start from rows alone, or from u. `likeness` [1] is r. The bound is computed if `bounded`.
    """
    (Q, K), G, real, double = logits.shape, len(groups.names), logits.dtype, torch.float64
    bound = torch.empty_like(weight) if bounded else None
    inputs: Inputs = {
        **members(groups),
        **alike(real, Q, K, logits=logits, probabilities=u),
        **alike(double, G, concentration=prior.concentration, weight=weight, bound=bound),
        "measure": (prior.measure, double, (G, K)),
        "likeness": (likeness, double, (1,)),
    }
    options = {"B": G, "Q": Q, "K": K, "steps": steps, "alone": alone}
    outputs = {"counts": (double, (G, K)), "criterion": (double, (G,))}
    counts, moved = call_native(native.groups_call, options, logits, inputs, outputs)
    return Shared(prior, u, counts, moved, moved if bound is None else bound)


def members(groups: Groups) -> Inputs:
    """Which rows are in which group, for native code."""
    Q, G = len(groups.of_row), len(groups.names)
    return {
        "order": (groups.order, torch.int64, (Q,)),
        "starts": (groups.starts, torch.int64, (G + 1,)),
    }


def compared_rows(content: Tensor, groups: Groups) -> Inputs:
    """The rows whose pairs are compared, for native code: of large groups a sample by content."""
    most, every = native.MOST_PAIRED, members(groups)
    if len(groups.of_row) <= most or not bool((groups.sizes > most).any()):
        return every
    starts, kept = groups.starts.tolist(), []
    for start, end in itertools.pairwise(starts):
        own = groups.order[start:end]
        kept.append(own if end - start <= most else own[sample_by_content(content[own], most)])
    order = torch.cat(kept)
    sizes = groups.sizes.clamp(max=most).cumsum(0)
    return {
        "order": (order, torch.int64, (len(order),)),
        "starts": (F.pad(sizes, (1, 0)), torch.int64, (len(groups.names) + 1,)),
    }


def posterior_of_mixture(evidence: Tensor, K: int = 0, concentration: Tensor | None = None) -> None:
    """Replace log evidences [G, C] of cases by their chances in each group.

    All groups choose how frequent the cases are. If these are chances that two rows of a group are
    one draw, `concentration` [G] is written, for K classes.
    """
    (G, C), double = evidence.shape, torch.float64
    inputs = {
        "evidence": (evidence, double, (G, C)),
        "concentration": (concentration, double, (G,)),
    }
    call_native(native.mixture_call, {"N": G, "C": C, "K": K}, evidence, inputs)


def mean_proportions(held: Tensor, labelled_rows: float) -> Tensor:
    """The mean proportions of batches, times K, from the rows that each class holds, [K]."""
    if math.isfinite(labelled_rows):
        held = held * (2 * labelled_rows / (2 * labelled_rows + held.sum()))
    sizes, inputs = {"K": len(held), "steps": MEAN_STEPS}, alike(held.dtype, *held.shape, held=held)
    outputs = {"measure": (held.dtype, tuple(held.shape))}
    return call_native(native.mean_call, sizes, held, inputs, outputs, typed=False)[0]


def solution_of_groups(
    groups: Groups, found: Shared, shares: Tensor | None, top: int | None
) -> Solution:
    """The solution of groups, with only the `top` largest probabilities of each row, if given.

    `shares` [G, K] are its proportions; by default the estimate of `Solution.prevalence`.
    """
    u, a = found.probabilities, found.prior.concentration
    numbers = found.dual, found.criterion, a, found.bound
    dual, criterion, a, bound = (x.to(u.dtype) for x in numbers)
    steps = torch.full_like(groups.sizes, native.GROUP_STEPS, dtype=torch.int32)
    whole = Solution(u.argmax(-1), u, dual, dual, steps, criterion, groups=groups)
    whole = whole._replace(concentration=a, bound=bound, prior_used=found.prior_used)
    counted, held = label_counts(whole), groups.sums(u.double())
    if shares is None:
        shares = estimated_shares(counted, held, groups.sizes.unsqueeze(-1))
    whole = whole._replace(proportions=shares.to(u.dtype))
    if top is None:
        return whole
    classes = most_probable(u, whole.labels, top)
    return whole._replace(probabilities=u.gather(-1, classes), classes=classes, held=held)


def each_alone(groups: Groups, solve: Callable[[Tensor, Tensor], Solution]) -> Solution:
    """Solve each group as a task of its own; groups of one size are a batch of tasks.

    `solve` is given the rows of some groups, [B, n], and the places of these groups, [B].
    """
    rows, places, parts, starts = [], [], [], groups.starts
    # Only here does the host wait for the device, so that the next call is prepared meanwhile.
    distinct, counts = torch.unique(groups.sizes, return_counts=True)
    alike = torch.split(groups.sizes.argsort(stable=True), counts.tolist())
    for size, at in zip(distinct.tolist(), alike, strict=True):
        index = groups.order[starts[at].unsqueeze(-1) + torch.arange(size, device=at.device)]
        found = solve(index, at)
        rows.append(index.flatten())
        places.append(at)
        each = {name: getattr(found, name) for name in OF_ROWS}
        flat: Any = {name: x.flatten(0, 1) for name, x in each.items() if x is not None}
        parts.append(found._replace(**flat))
    whole = merged(parts)
    back = {True: torch.cat(rows).argsort(), False: torch.cat(places).argsort()}
    in_order: dict[str, Any] = {
        name: x[back[name in OF_ROWS]]
        for name, x in whole._asdict().items()
        if isinstance(x, Tensor)
    }
    return whole._replace(**in_order, groups=groups)


OF_ROWS = ("labels", "probabilities", "classes")  # fields of a solution that have a value per row


def of_rows(found: Solution, things: Groups, groups: Groups | None) -> Solution:
    """The solution of the rows of things, from that of the things; `groups` are of the rows."""
    rows: dict[str, Any] = {
        name: x.index_select(-1 if name == "labels" else -2, things.of_row)
        for name in OF_ROWS
        if (x := getattr(found, name)) is not None
    }
    return found._replace(**rows, groups=groups, same=things)
