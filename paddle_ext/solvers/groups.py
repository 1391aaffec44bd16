"""Class proportions of many groups of rows, which learn from each other how few classes they have.

Letters: Q rows, G groups, K classes; n rows of a group. The equations are in docs/groups.md.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.special import digamma

from ..groups import Groups
from ..native.call import Inputs, Outputs, alike, call_native, packed
from ..native.load import module as native
from ..prevalence import estimated_shares
from ..solution import Solution, label_counts, most_probable
from ..task import merged

PARTNERS = 16  # rows of its group that a row is compared with; all if there are no more
CHANCES = 17  # how many chances are tried that the classes of two rows of a group are one draw
MIXTURE_STEPS = 20  # of EM for the shares of a mixture
MEAN_STEPS = 12  # for the concentration of the mean proportions, each at most a factor e
MEAN_ROUNDS = 2  # in which the mean proportions are estimated


class Shared(NamedTuple):
    """The proportions of groups that share what they know."""

    probabilities: Tensor  # [Q, K]
    counts: Tensor  # [G, K] float64: N, the rows that each class holds, by their weight
    prior: Tensor  # [G, K] float64: the parameters of the Dirichlet distribution
    concentration: Tensor  # [G] float64: a, the mean of these parameters
    iterations: Tensor  # [G] int32
    criterion: Tensor  # [G] float64
    bound: Tensor  # [G] float64
    prior_used: Tensor | None = None  # [G] bool
    shares: Tensor | None = None  # [17] float64: of the chances among the groups

    @property
    def dual(self) -> Tensor:
        """The mean log proportions, [G, K] float64."""
        own = self.counts + self.prior
        possible = own > 0
        dual = digamma(own.masked_fill(~possible, 1.0)) - digamma(own.sum(-1, keepdim=True))
        mean_log: Tensor = dual.masked_fill(~possible, native.IMPOSSIBLE)
        return mean_log


def shared_proportions(
    logits: Tensor,
    groups: Groups,
    weight: Tensor,
    labelled_rows: float,
    measures: Tensor | None,
    **steps: Any,
) -> Shared:
    """The probabilities of rows with these logits [Q, K], and the proportions of their groups.

    `weight` [G] float64 is that of a row in the counts of its group, `labelled_rows` how many rows
    the logits rest on, and `measures` [G or 1, 2, K] are even weights of the classes, 0 for an
    impossible one, and a prior of the caller, which a group uses if it is likelier with it. `steps`
    are `max_iter` and `tol`.
    """
    K = logits.shape[-1]
    sizes = groups.sizes.double()
    even = logits.new_ones(1, K, dtype=torch.float64) if measures is None else measures[:, 0]
    even = even.double()
    measure, shares = even, None
    for _ in range(MEAN_ROUNDS):
        found = fit(logits, groups, weight, measure, shares, **steps)
        shares = found.shares
        total, drawn = weight * sizes, K * found.concentration
        draws = drawn * (digamma(drawn + total) - digamma(drawn))
        held = (found.counts * (draws / total).unsqueeze(-1)).sum(0)
        measure = even * mean_proportions(held, labelled_rows)
        measure = measure * K / measure.sum(-1, keepdim=True)
    found = fit(logits, groups, weight, measure, shares, **steps)
    found = found._replace(bound=bound_of(logits, groups, weight, found))
    if measures is None:
        return found
    own = measures[:, 1].double()
    a = found.concentration
    other = fit(logits, groups, weight, own, found.shares, least=a, **steps)
    other = other._replace(bound=bound_of(logits, groups, weight, other))
    used = other.bound > found.bound
    of_rows = torch.where(used[groups.of_row, None], other.probabilities, found.probabilities)
    both = zip(found[1:-2], other[1:-2], strict=True)
    chosen: list[Any] = [torch.where(used.view(-1, *[1] * (x.dim() - 1)), y, x) for x, y in both]
    return Shared(of_rows, *chosen)._replace(prior_used=used)


def fit(
    logits: Tensor,
    groups: Groups,
    weight: Tensor,
    measure: Tensor,
    shares: Tensor | None,
    least: Tensor | None = None,
    **steps: Any,
) -> Shared:
    """The proportions of groups under Dirichlet priors with this measure [G or 1, K], of mean 1.

    `shares` are those of the round before, with which the mixture begins.
    """
    K = logits.shape[-1]
    preferred = measure.log().clamp(min=native.IMPOSSIBLE).to(logits.dtype)
    t = (logits + (preferred if len(preferred) == 1 else preferred[groups.of_row])).softmax(-1)
    mean = measure / K
    chance, shares = mixed_chances(t, mean, groups, shares)
    low, high = native.MIN_CONCENTRATION, native.MAX_CONCENTRATION
    a = ((1 - chance) / (K * chance)).clamp(low, high)
    if least is not None:
        a = torch.maximum(a, least)
    G, Q, double = len(groups.names), len(t), torch.float64
    prior = packed((a.unsqueeze(-1) * measure).expand(G, K))
    inputs = {"prior": (prior, double, (G, K)), "weight": (weight, double, (G,))}
    outputs = {
        "probabilities": (t.dtype, (Q, K)),
        "counts": (double, (G, K)),
        "criterion": (double, (G,)),
        "iterations": (torch.int32, (G,)),
    }
    u, counts, moved, iterations = call_groups(t, groups, mean, inputs, outputs, **steps)
    # The bound is not known yet.
    return Shared(u, counts, prior, a, iterations, moved, bound=moved, shares=shares)


def call_groups(
    rows: Tensor, groups: Groups, mean: Tensor, inputs: Inputs, outputs: Outputs, **options: Any
) -> list[Tensor]:
    """Call the native code for groups of rows with these probabilities [Q, K], each row alone.

    `mean` [G or 1, K] are the mean proportions; inputs and outputs those of the pairs, or of the
    proportions.
    """
    (Q, K), G, real = rows.shape, len(groups.names), rows.dtype
    inverse = torch.where(mean > 0, mean.clamp(min=torch.finfo(real).tiny).reciprocal(), 0.0)
    none = dict.fromkeys(("chances", "prior", "weight"), (None, torch.float64, ()))
    every: Inputs = {
        "rows": (packed(rows), real, (Q, K)),
        **members(groups),
        "inverse": (packed(inverse.to(real).expand(G, K)), real, (G, K)),
        **none,
        **inputs,
    }
    names = ("likely", "probabilities", "counts", "criterion", "iterations")
    wanted = {**outputs, **{name: None for name in names if name not in outputs}}
    sizes: Any = {"B": G, "Q": Q, "K": K, "partners": PARTNERS, "C": 0, "max_iter": 1, "tol": 0.0}
    return call_native(native.groups_call, {**sizes, **options}, rows, every, wanted)


def members(groups: Groups) -> Inputs:
    """Which rows are in which group, for native code."""
    Q, G = len(groups.of_row), len(groups.names)
    return {
        "order": (groups.order, torch.int64, (Q,)),
        "starts": (groups.starts, torch.int64, (G + 1,)),
    }


def judge(
    u: Tensor,
    logits: Tensor,
    groups: Groups,
    *,
    log_measure: Tensor,
    kept: Tensor,
    known: Tensor,
    share: Tensor,
    temper: float,
) -> None:
    """Replace probabilities u [Q, K] by those from logits [Q, K] and the others of a group, twice.

    This is the end of step 6: `log_measure` [G, K] is ln m, `kept` [G, K] is c rho / A, `known`
    [G, 1] is p, and `share` [G, 1] is y. The last logits are multiplied by `temper`.
    """
    (Q, K), G, real = u.shape, len(groups.names), u.dtype
    by_class = {"even": packed(log_measure.to(real)), "kept": packed(kept.to(real))}
    by_group = {"known": packed(known.to(real)), "share": packed(share.to(real))}
    inputs: Inputs = {
        **members(groups),
        **alike(real, Q, K, logits=logits, probabilities=u),
        **alike(real, G, K, **by_class),
        **alike(real, G, 1, **by_group),
    }
    options = {"B": G, "Q": Q, "K": K, "temper": temper}
    call_native(native.judge_call, options, u, inputs)


def chances_on(device: torch.device) -> Tensor:
    """The chances, [17] float64, computed there: a copy would wait for the device."""
    # As far apart as the variance of a share is large: neighbours differ equally clearly anywhere.
    angles = torch.linspace(0, math.pi / 2, CHANCES, dtype=torch.float64, device=device)
    return angles.sin_().square_()


def mixed_chances(
    rows: Tensor, mean: Tensor, groups: Groups, shares: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The mean of each group's chance, [G], under the likeliest mixture of chances; its shares.

    It begins with these shares, or even ones. Pairs of rows of a group tell its chance.
    """
    C, double, chances = CHANCES, torch.float64, chances_on(rows.device)
    inputs = {"chances": (chances, double, (C,))}
    outputs = {"likely": (double, (len(groups.names), C))}  # over that of the likeliest chance
    (likely,) = call_groups(rows, groups, mean, inputs, outputs, C=C)
    # None is 0: under another measure, no other chance may be possible for a large group.
    least = torch.finfo(double).tiny
    shares = likely.new_full((C,), 1 / C) if shares is None else shares.clamp(min=least)
    return likeliest_mixture(likely, chances, shares), shares


def likeliest_mixture(likely: Tensor, values: Tensor, shares: Tensor) -> Tensor:
    """Replace the shares [C] of a mixture by the likeliest; its mean value for each group, [N].

    `likely` [N, C] are the likelihoods of the groups under each component, which has a value [C].
    """
    (N, C), double = likely.shape, torch.float64
    inputs = {"likely": (likely, double, (N, C)), **alike(double, C, chances=values, shares=shares)}
    sizes, outputs = {"N": N, "C": C, "steps": MIXTURE_STEPS}, {"means": (double, (N,))}
    return call_native(native.mixture_call, sizes, likely, inputs, outputs)[0]


def mean_proportions(held: Tensor, labelled_rows: float) -> Tensor:
    """The mean proportions of groups, times K, from the draws that each class holds, [K]."""
    if math.isfinite(labelled_rows):
        held = held * (2 * labelled_rows / (2 * labelled_rows + held.sum()))
    sizes, inputs = {"K": len(held), "steps": MEAN_STEPS}, alike(held.dtype, *held.shape, held=held)
    outputs = {"measure": (held.dtype, tuple(held.shape))}
    return call_native(native.mean_call, sizes, held, inputs, outputs, typed=False)[0]


def bound_of(logits: Tensor, groups: Groups, weight: Tensor, found: Shared) -> Tensor:
    """A lower bound of the log evidence of each group, as in `paddle_ext.adapt`, [G]."""
    dual, prior = found.dual, found.prior
    z = dual.to(logits.dtype)[groups.of_row].add_(logits)
    u = z.softmax(-1)
    counts = weight.unsqueeze(-1) * groups.sums(u).double()
    log_sums = z.amax(-1, keepdim=True) - u.amax(-1, keepdim=True).log_()
    rows = weight * groups.sums(log_sums).squeeze(-1).double()
    own = prior.masked_fill(prior == 0, 1.0)
    classes = torch.lgamma(counts + own) - torch.lgamma(own) - counts * dual
    whole, total = prior.sum(-1), weight * groups.sizes
    return rows + torch.lgamma(whole) - torch.lgamma(total + whole) + classes.sum(-1)


def solution_of_groups(
    groups: Groups, found: Shared, shares: Tensor | None, top: int | None
) -> Solution:
    """The solution of groups, with only the `top` largest probabilities of each row, if given.

    `shares` [G, K] are its proportions; by default the estimate of `Solution.prevalence`.
    """
    u = found.probabilities
    numbers = found.dual, found.criterion, found.concentration, found.bound
    dual, criterion, a, bound = (x.to(u.dtype) for x in numbers)
    whole = Solution(u.argmax(-1), u, dual, dual, found.iterations, criterion, groups=groups)
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
