"""From likelihoods and queries to probabilities; every caller of the rule `adaptive` uses this.

Letters: B tasks, Q queries, K classes, D features; those of likelihoods as there. The equations are
in docs/adaptive.md.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor

from ..groups import Groups
from ..large.passes import Queries
from ..large.sources import Rows, TensorRows
from ..native.call import packed
from ..native.devices import on_cpu_without_gpu_code
from ..solution import Solution
from ..solvers.groups import each_alone, of_rows
from ..task import merged
from .batch import ChunkedBatch, GramBatch, in_chunks
from .groups import by_thing, classify_groups
from .likelihood import Likelihood
from .rounds import Classified, rounds


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
    keep: bool = False,
) -> Classified:
    """Classify batches [B, Q, D], or `Rows`, with a likelihood of each batch or shared by all.

    `added` [B, Q, K] are further logits, such as those of names; `measures` [B or 1, n, K] the
    priors on the proportions to choose from, the first even; None: an even one and the counts of
    the labelled rows. `validate` checks a large batch for non-finite values. With `keep` the
    likelihood after the batch is found too, for one large task, or for small ones; not with groups.

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
            one = by_group(query[0], likelihood, extra, measures, groups, share, **options)
            return Classified(one, None)
        rows, extra = by_thing(query[0], likelihood, extra, same)
        options |= {"measures": measures, "share": share, "validate": validate, "keep": keep}
        options["groups"] = None if groups is None else groups.of_things(same)
        of_things = classify(likelihood, rows[None], extra[None], **options)
        return replace(of_things, solution=of_rows(of_things.solution, same, groups))
    options["keep"] = keep
    Q, D = query.shape[-2:]
    if isinstance(query, Tensor) and not in_chunks(likelihood, Q, D, cuda=query.is_cuda):
        found = small(query, likelihood, added, measures, **options)
    elif isinstance(query, Tensor):
        found = one_by_one(query, likelihood, added, measures, validate=validate, **options)
    else:
        assert added is None
        batch = ChunkedBatch(Queries(query), likelihood, validate=validate)
        found = rounds(batch, measures, **options)
    return replace(found, solution=with_shots(found.solution, likelihood))


def with_shots(solution: Solution, likelihood: Likelihood) -> Solution:
    """The solution with what the intervals of `prevalence` need of the labelled rows."""
    shots, variance = likelihood.shots, likelihood.variance_seen
    shape = solution.proportions.shape
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
        return classify(likelihood, query[rows], extra, measures=own, **options).solution

    return each_alone(groups, solve)


@on_cpu_without_gpu_code
def small(
    query: Tensor,
    likelihood: Likelihood,
    added: Tensor | None,
    measures: Tensor | None,
    **options: Any,
) -> Classified:
    """Classify small tasks [B, Q, D]; arguments as in `classify`."""
    query = query.to(likelihood.bias.dtype)
    return rounds(GramBatch(query, likelihood, added), measures, **options)


@on_cpu_without_gpu_code
def one_by_one(
    query: Tensor,
    likelihood: Likelihood,
    added: Tensor | None,
    measures: Tensor | None,
    *,
    validate: bool,
    **options: Any,
) -> Classified:
    """Classify large tasks [B, Q, D]; arguments as in `classify`."""
    found = []
    for b, rows in enumerate(query):
        extra = None if added is None else packed(added[b : b + 1])
        own = None if measures is None else measures[b % len(measures)].unsqueeze(0)
        queries = Queries(TensorRows(rows))
        batch = ChunkedBatch(queries, likelihood.task(b), extra, validate=validate)
        found.append(rounds(batch, own, **options))
    after = found[0].after if len(found) == 1 else None
    return Classified(merged([x.solution for x in found]), None, after)
