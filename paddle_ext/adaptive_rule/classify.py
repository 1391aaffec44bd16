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
from ..solution import Solution, most_probable
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
    if not isinstance(query, Tensor):
        query = torch.cat([*query.chunks(2**20)]).unsqueeze(0)
    found, finite = posterior(query, likelihood, added, measures, max_iter=max_iter, tol=tol)
    found = with_shots(found, likelihood)
    if not all_classes:
        u = found.probabilities
        classes = most_probable(u, found.labels, top)
        held = u.double().sum(-2)
        found = found._replace(probabilities=u.gather(-1, classes), classes=classes, held=held)
    return found, finite


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
        top = None if options["all_classes"] else options["top"]
        found = classify_groups(query, likelihood, groups, added, measures, top=top)
        return with_shots(found, likelihood)

    def solve(rows: Tensor, places: Tensor) -> Solution:
        own = measures if measures is None or len(measures) == 1 else measures[places]
        extra = None if added is None else added[rows]
        return classify(likelihood, query[rows], extra, measures=own, **options)[0]

    return each_alone(groups, solve)


def posterior(
    query: Tensor,
    likelihood: Likelihood,
    added: Tensor | None = None,
    measures: Tensor | None = None,
    *,
    max_iter: int,
    tol: float,
) -> tuple[Solution, Tensor | None]:
    """Classify small tasks [B, Q, D]; arguments as in `classify`."""
    from ._scaffold import posterior

    found, _ = posterior(likelihood, query, added, measures, max_iter=max_iter, tol=tol)
    return found, None
