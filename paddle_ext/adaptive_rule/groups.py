"""The rule for many groups of rows with the same labelled rows: docs/groups.md has the equations.

Letters: Q rows, G groups, K classes, D features.
"""

import torch
from torch import Tensor

from ..groups import Groups, thing_logits
from ..large.passes import Queries
from ..large.sources import TensorRows
from ..large.steps import AbsorbStep
from ..native.devices import on_cpu_without_gpu_code
from ..native.load import module as native
from ..rows import unit_rows
from ..solution import Solution
from ..solvers.groups import Shared, judge, shared_proportions, solution_of_groups
from ..solvers.sets import Sets
from .large import AbsorbedScores, LikelihoodScores, trust_in_queries
from .likelihood import Likelihood


def scores_of(query: Tensor, likelihood: Likelihood, added: Tensor | None) -> LikelihoodScores:
    """Products of rows [Q, D] in chunks; `added` [Q, K] are further logits."""
    return LikelihoodScores(Queries(TensorRows(query)), likelihood, added, False, exact=True)


def all_logits(query: Tensor, likelihood: Likelihood, added: Tensor | None) -> Tensor:
    """The logits of rows [Q, D], with further ones `added`, [Q, K]."""
    scores, real = scores_of(query, likelihood, None), likelihood.bias.dtype
    logits = query.new_empty(scores.shape[1:], dtype=real)
    for part, products, _, _ in scores.parts():
        torch.addcmul(scores.bias.to(real), products[0], scores.slope, out=logits[part])
    return logits if added is None else logits.add_(added)


def ties_of(rows: Tensor, likelihood: Likelihood, things: Groups) -> Tensor:
    """How rows [Q, D] vary in their things, [1, 3]: sum |x - mean|^2, sum n - 1, mean 1 - 1/n."""
    x = likelihood.centred(rows.to(likelihood.bias.dtype)[None])[0] * likelihood.scale.sqrt()
    squares, n = (x - things.means(x)[things.of_row]).square().sum(), things.sizes.double()
    return torch.stack([squares.double(), (n - 1).sum(), (1 - 1 / n).mean()]).unsqueeze(0)


@on_cpu_without_gpu_code
def by_thing(
    query: Tensor, likelihood: Likelihood, added: Tensor | None, things: Groups
) -> tuple[Tensor, Tensor]:
    """Things as rows: means [T, D] of the query [Q, D], and what their logits lack, [T, K]."""
    rows = things.means(unit_rows(query.to(likelihood.bias.dtype)))
    own = ties_of(query, likelihood, things)[0]
    tied = torch.zeros_like(own) if likelihood.ties is None else likelihood.ties[0]
    within = (own + tied)[0] / (own + tied)[1].clamp(min=1)
    # Rows of different things vary like labelled rows around the mean of their class.
    variance = likelihood.variance[0].double() + within * tied[2]
    r = (1 - within / variance.clamp(min=1e-300)).clamp(0, 1)
    labelled = max(likelihood.rows - likelihood.bias.shape[-1], 0)
    of_things = thing_logits(all_logits(query, likelihood, added), things, r, labelled)
    return rows, of_things.to(rows.dtype) - all_logits(rows, likelihood, None)


@on_cpu_without_gpu_code
def classify_groups(
    query: Tensor,
    likelihood: Likelihood,
    groups: Groups,
    added: Tensor | None = None,
    measures: Tensor | None = None,
    *,
    max_iter: int,
    tol: float,
    top: int | None,
) -> Solution:
    """Classify rows [Q, D] in groups that share what they know; `added` [Q, K] are further logits.

    `measures` are those of `shared_proportions`. With `top`, only so many probabilities of a row
    are returned.
    """
    logits = all_logits(query, likelihood, added)
    weight = likelihood.weight_of(groups.sizes.double())
    found = shared_proportions(
        logits, groups, weight, likelihood.rows, measures, max_iter=max_iter, tol=tol
    )
    sets, u = Sets(groups, weight, found), found.probabilities
    chances = sets.chances(logits, likelihood.mean_shots)
    sets.mix(logits, chances)
    del logits
    found = found._replace(counts=weight.unsqueeze(-1) * groups.sums(u).double())
    z = absorbed(query, likelihood, groups, weight, found, added)
    # Half of the result has any proportions, because classes may be unequally common in a group.
    chances /= 2
    chances[:, -1] += 0.5
    sets.mix(z, chances)
    return solution_of_groups(groups, found, None, top)


def absorbed(
    query: Tensor,
    likelihood: Likelihood,
    groups: Groups,
    weight: Tensor,
    found: Shared,
    added: Tensor | None,
) -> Tensor:
    """The logits [Q, K] after prototypes have absorbed the rows of all groups.

    The probabilities of `found` are replaced by those of step 6 before sets are mixed in again.
    """
    u, K, real = found.probabilities, likelihood.bias.shape[-1], likelihood.bias.dtype
    trust, shots = trust_in_queries(len(query), K), likelihood.shots[0]
    scores = scores_of(query, likelihood, added)
    form, mass = scores.form, torch.zeros_like(shots).double()
    by_class = form.zero_sums(K)
    for part, rows in scores.rows():
        squares, rest = u[part].square().unsqueeze(0), None
        mass += squares[0].sum(0)
        if form.weight_dtype is not None:
            whole, squares = squares, squares.to(form.weight_dtype)
            rest = (whole - squares).to(form.weight_dtype)
        form.adder(by_class, squares, rest, form.operand(rows, part))(1)
    moved = form.total(by_class, mass.unsqueeze(0))[0]
    sums = likelihood.prototypes[0] * shots.unsqueeze(-1) + trust * moved
    mass = (shots + trust * mass).to(real)
    # With M the mass and W that of this row, -f/2 (M / (M - W))^2 ||x - w||^2
    in_metric = likelihood.in_metric(sums.unsqueeze(0)) * likelihood.sharpness
    step = AbsorbStep(
        trust=trust,
        temper=1.0,
        sharper=1.0,
        share=1.0,
        square=(in_metric[0] * sums).sum(-1),
        mass=mass,
        constant=likelihood.constant_with(mass - shots)[0],
        count_share=torch.zeros_like(mass),
        prior_share=torch.ones_like(mass),
    )
    absorbing, logits = AbsorbedScores(scores, in_metric), torch.empty_like(u)
    one = torch.ones_like(mass).unsqueeze(0)
    for part, rows in scores.rows():
        x, own = absorbing.measured(rows)
        z = form.products(x, absorbing.operand, out=logits[part].unsqueeze(0))
        of_part = u[part].unsqueeze(0)
        step(z, of_part, one, own[0] * likelihood.sharpness, absorbing.added(part, x))

    a, n = found.concentration.unsqueeze(-1), groups.sizes.double().unsqueeze(-1)
    two_classes, held = (K - 1) * a / (1 + K * a), found.counts.sum(0)
    kept = weight.unsqueeze(-1) * (1 - two_classes * held / (held + shots))
    judge(
        u,
        logits,
        groups,
        log_measure=(found.prior / a).log().clamp(min=native.IMPOSSIBLE),
        # c rho, relative to the prior. An impossible class has none.
        kept=kept / found.prior.clamp(min=torch.finfo(real).tiny),
        # In a pair the other row only repeats this one; in a large group that hardly matters.
        known=(n - 2).clamp(min=0) / n,
        # Where few classes are present logits count less, but not for a row without others.
        share=1 - native.SOFTER / (1 + a / native.FEW) * (n - 1) / n,
        temper=likelihood.temper,
    )
    return logits.mul_(likelihood.temper)
