"""From likelihoods and queries to probabilities; every caller of the rule `adaptive` uses this.

Letters: B tasks, Q queries, K classes, D features; those of likelihoods as there. The equations are
in docs/adaptive.md.
"""

from typing import Any

import torch
from torch import Tensor

from ..groups import Groups
from ..large.passes import is_large
from ..large.sources import Rows, TensorRows
from ..native.call import call_native, packed
from ..native.devices import on_cpu_without_gpu_code
from ..native.load import module as native
from ..solution import Solution
from ..solvers.adapt import adapt_table, solution_of
from ..solvers.groups import each_alone, of_rows
from ..task import merged
from .groups import by_thing, classify_groups
from .large import solve_large
from .likelihood import NATIVE_TENSORS, Likelihood, native_kinds

# The tensors of a likelihood that the native code of `posterior` takes early, and with the queries.
EARLY = ("squares", "bias", "shots", "variance", "sharpness", "shares", "factor", "solved")
LATER = ("centre", "scaled", "scale")
OF_EACH_TASK = ("bias", "sharpness")  # these may have a batch of B even if the others are shared


def classify(
    likelihood: Likelihood,
    query: Tensor | Rows,
    added: Tensor | None = None,
    *,
    measures: Tensor | None = None,
    groups: Groups | None = None,
    share: bool = True,
    same: Groups | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
    all_classes: bool = True,
    top: int = 5,
    validate: bool = False,
) -> tuple[Solution, Tensor | None]:
    """Classify batches [B, Q, D], or `Rows`, with a likelihood of each batch or shared by all.

    `added` [B, Q, K] are further logits, such as those of names; `measures` [B or 1, n, K] the
    priors on the proportions to choose from, the first even. `validate` checks a large batch for
    non-finite values. Also returns [B] bool: True if the queries of a batch are finite, False is
    inconclusive; None if that was not checked.

    With `groups` the queries are [1, Q, D], and the solution has no batch dimension: rows of a
    group have their own proportions, and learn from the other groups unless `share` is False.
    `measures` are then [G or 1, n, K]. With `same`, the things of the queries [1, Q, D], rows of a
    thing get one label.
    """
    options: Any = {"max_iter": max_iter, "tol": tol, "all_classes": all_classes, "top": top}
    if same is not None or groups is not None:
        assert isinstance(query, Tensor)
        extra = None if added is None else added[0]
        if same is None:
            assert groups is not None
            return by_group(query[0], likelihood, extra, measures, groups, share, **options), None
        rows, extra = by_thing(query[0], likelihood, extra, same)
        options |= {"measures": measures, "share": share, "validate": validate}
        options["groups"] = None if groups is None else groups.of_things(same)
        found, finite = classify(likelihood, rows[None], extra[None], **options)
        return of_rows(found, same, groups), finite
    (*tasks, Q), K = query.shape[:-1], likelihood.bias.shape[-1]
    on = {"cuda": query.device.type == "cuda", "full": likelihood.factor is not None}
    is_small = all_classes and not is_large(tasks[0] if tasks else 1, Q, K, **on)
    if isinstance(query, Tensor) and is_small:
        query = query.to(likelihood.bias.dtype)
        found, finite = posterior(query, likelihood, added, measures, max_iter=max_iter, tol=tol)
        return with_shots(found, likelihood), finite
    options["validate"] = validate
    if isinstance(query, Tensor):
        found = one_by_one(query, likelihood, added, measures, **options)
    else:
        assert added is None
        one = None if measures is None else measures[0]
        found = solve_large(likelihood, query, None, one, **options)
    return with_shots(found, likelihood), None


def with_shots(solution: Solution, likelihood: Likelihood) -> Solution:
    """The solution with what the intervals of `prevalence` need of the labelled rows."""
    shots, variance, shape = likelihood.shots, likelihood.variance, solution.proportions.shape
    if shots.shape != shape:
        shots, variance = shots.expand(shape), variance.expand(shape[0])
    # Copies that a caller may change: `weigh_labels` makes tensors in inference mode.
    return solution._replace(shots=shots.clone(), variance=variance.clone())


def by_group(
    query: Tensor,
    likelihood: Likelihood,
    added: Tensor | None,
    measures: Tensor | None,
    groups: Groups,
    share: bool,
    **options: Any,
) -> Solution:
    """Classify the rows [Q, D] of groups; arguments as in `classify`."""
    if share and len(groups.names) > 1:
        all_classes, top = options.pop("all_classes"), options.pop("top")
        options["top"] = None if all_classes else top
        found = classify_groups(query, likelihood, groups, added, measures, **options)
        return with_shots(found, likelihood)

    def solve(rows: Tensor, places: Tensor) -> Solution:
        own = measures if measures is None or len(measures) == 1 else measures[places]
        extra = None if added is None else added[rows]
        return classify(likelihood, query[rows], extra, measures=own, **options)[0]

    return each_alone(groups, solve)


@on_cpu_without_gpu_code
def one_by_one(
    query: Tensor,
    likelihood: Likelihood,
    added: Tensor | None,
    measures: Tensor | None,
    **options: Any,
) -> Solution:
    """Classify large tasks [B, Q, D]; arguments as in `classify`."""
    solutions = [
        solve_large(
            likelihood.task(b),
            TensorRows(rows),
            None if added is None else packed(added[b]),
            None if measures is None else measures[b % len(measures)],
            **options,
        )
        for b, rows in enumerate(query)
    ]
    return merged(solutions)


@on_cpu_without_gpu_code
def posterior(
    query: Tensor,
    likelihood: Likelihood,
    added: Tensor | None = None,
    measures: Tensor | None = None,
    *,
    max_iter: int,
    tol: float,
) -> tuple[Solution, Tensor]:
    """Classify small tasks [B, Q, D] in one native call; arguments as in `classify`.

    It finds the class proportions, and takes the absorb step.
    """
    (B, Q, D), (L, K), N = query.shape, likelihood.shots.shape, likelihood.scaled.shape[1]
    factor, real = likelihood.factor, query.dtype
    if likelihood.correction is not None:
        correction = likelihood.corrected(likelihood.centred(query))
        added = correction if added is None else correction.add_(added)
    if added is not None:
        added = packed(added)
    if measures is not None:
        measures = packed(measures.to(query.dtype).expand(B, -1, K))
    priors = 0 if measures is None else measures.shape[1]
    query = packed(query)
    M = 0 if factor is None else factor.shape[1]
    kinds = native_kinds(real, query.is_cuda, L=L, K=K, D=D, N=N, M=M)
    tables: dict[str, Any] = {}
    for name in EARLY + LATER:
        x, (dtype, shape) = getattr(likelihood, name), kinds[name]
        if L < B and name in OF_EACH_TASK:
            shape = (B, *shape[1:])
            x = packed(x.expand(shape))
        tables[name] = x, dtype, shape
    options = {
        "size": (B, Q, K, D, 0 if factor is None else min(N - K or D, D), N, L),
        "weight": likelihood.weight_of(Q),
        "temper": likelihood.temper,
        "mean_shots": likelihood.mean_shots,
        "max_iter": max_iter,
        "tol": tol,
        "priors": priors,
    }
    early = {name: tables[name] for name in EARLY}
    early["added"] = added, real, (B, Q, K)
    early["measures"] = measures, real, (B, priors, K)
    inputs = {NATIVE_TENSORS[name].name or name: tables[name] for name in LATER}
    inputs["query"] = query, real, (B, Q, D)
    outputs = {**adapt_table((B, Q), K, real, None), "finite": (torch.bool, (B,))}
    *results, finite = call_native(
        native.posterior_call, options, query, inputs, outputs, early=early
    )
    return solution_of(results, measures), finite
