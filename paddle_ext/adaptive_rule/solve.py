"""The function `adaptive`, for tensors and files."""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from .. import check
from ..groups import GroupNames, groups_and_things, groups_of
from ..large.sources import Source, comes_in_chunks, queries_of
from ..prior import measures_of
from ..rows import computing_dtype, unit_rows
from ..solution import Solution, returns_all
from ..solvers.adapt import groups_of_one_batch, no_tasks
from ..task import Task, batched, how_many, merged, without_autocast, without_batch
from .classify import classify
from .group_folds import check_trusted, likelihood_by_groups
from .groups import ties_of
from .label_noise import check_label_noise, models_noise, noisy_likelihood
from .learn import calibration_count, uses_full_metric
from .likelihood import Likelihood
from .names import solve_named

METRICS = ("auto", "diagonal")


def adaptive(
    support: Tensor,
    support_labels: Tensor,
    query: Source,
    *,
    num_classes: int | None = None,
    metric: str = "auto",
    label_noise: float | str = 0.0,
    prior: Tensor | None = None,
    groups: GroupNames | None = None,
    share: bool = True,
    same: GroupNames | None = None,
    support_same: GroupNames | None = None,
    support_groups: GroupNames | None = None,
    max_iter: int = 100,
    tol: float = 1e-3,
    return_assignments: bool | None = None,
    top: int = 5,
    validate: bool = True,
) -> Solution:
    """Classify any batch, whether one class is present or all.

    The labelled rows determine feature weights, how sharp distances are, and which classes attract
    rows of others; the batch determines its class proportions, under a Dirichlet prior that is
    learned too. In three rounds prototypes absorb the queries, and each query is classified
    without itself. The equations are in docs/adaptive.md.

    Parameters
    ----------
    support : Tensor [S, D] or [B, S, D]
        Labelled features: float16, bfloat16, float32 or float64, on the CPU or a CUDA device.
        Without a batch dimension but with a batched query, all tasks share the support.
    support_labels : Tensor [S] or [B, S]
        Integers in [0, K). Every class must occur in every task; the numbers of shots may differ.
    query : Tensor [Q, D] or [B, Q, D], path or Rows
        Features to classify. A path, or `paddle_ext.FileRows`, is a file of one task, read in
        chunks: about twelve times if the likelihoods of all classes fit in 2 GiB, else in every
        iteration.
    num_classes : int, optional
        K. By default the largest label + 1.
    metric : {"auto", "diagonal"}
        "diagonal" weights every feature by its variance within the classes. "auto" also uses the
        covariance, if any class has two rows: in the largest share with which the labels of
        left-out rows are about as likely as with the best one.
    label_noise : float or "auto"
        The share of labels that are wrong, in [0, 1), or "auto" to estimate it; the weight of a
        labelled row is then the probability that its label is right. All labels are trusted with
        0.0, with one row per class, and with "auto" if labelled rows times classes exceed 2^26.
    prior : Tensor or array [K] or [B, K], optional
        What is known of the class proportions, as in `paddle_ext.adapt`; with groups [K] or [G, K].
    groups : Tensor, array or sequence [Q], optional
        The group of each query, an integer or a string, such as its place or its day: groups have
        proportions of their own and share the labelled rows. The queries are [Q, D] in a tensor;
        labels and probabilities are in their order, and the fields of the solution that describe a
        batch are [G, ..], in the order of `solution.groups.names`. See docs/groups.md.
    share : bool
        Whether groups also learn from each other: how few classes a group has, which small ones
        do not show alone, and where the classes lie. With False, or with a single group, each is a
        task of its own.
    same : Tensor, array or sequence [Q], optional
        Which queries are the same thing, an integer or a string for each, such as the images of a
        burst: they get one label. Their log-likelihoods add up, less so the more alike they are,
        and a thing counts once in proportions and shares. The queries are [Q, D] in a tensor; a
        thing is in one group. See docs/groups.md.
    support_same : Tensor, array or sequence [S], optional
        The same for labelled rows [S, D]: a thing, which is of one class, counts as one row, the
        mean of its own, and they too tell how alike such rows are.
    support_groups : Tensor, array or sequence [S], optional
        The group of each labelled row [S, D], such as a patient, an integer or a string. Labelled
        rows then calibrate the likelihoods without all rows of their group, in up to ten folds, so
        that the probabilities are right for queries of other groups. All labels are trusted, and
        `label_noise` must be 0.0 or "auto".
    max_iter : int
        Limit on iterations for the proportions, >= 1.
    tol : float
        Stop when no class count changes by more than this many queries, >= 0; 0.0 runs all
        iterations.
    return_assignments : bool, optional
        Whether to return the probabilities of all classes, or only the `top` largest of each query,
        with their classes in `classes`; default: all, unless a task has more than 2^28.
    top : int
        At most 64.
    validate : bool
        Check the values of the tensors: labels in range, a support for every class, features finite
        and of a magnitude that can be summed. Without it `num_classes` must be given, and invalid
        values have an undefined result.

    Returns
    -------
    Solution

    Examples
    --------
    >>> import torch, paddle_ext
    >>> support = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> query = torch.tensor([[3.0, 1.0], [4.0, 1.0], [5.0, 2.0], [1.0, 4.0]])
    >>> paddle_ext.adaptive(support, torch.tensor([0, 1, 2]), query).labels
    tensor([0, 0, 0, 1])
    """
    metric = check_metric("metric", metric)
    max_iter, tol = check.integer("max_iter", max_iter), check.real("tol", tol)
    label_noise = check_label_noise("label_noise", label_noise)
    check.classes(num_classes, check.flag("validate", validate))
    top = check.top(return_assignments, top)
    support, support_labels, query = check.tensors(support, support_labels, query)
    from_file = comes_in_chunks(query)
    check.flag("share", share)
    for name, value in {"groups": groups, "same": same}.items():
        if value is not None and from_file:
            raise ValueError(f"{name} must be None for queries from a file, got {name}")
    check.dense(support, support_labels, support if from_file else cast(Tensor, query))
    rows = cast(Tensor, query) if not from_file else queries_of(query, support)
    if validate:
        visible = support[:1] if from_file else cast(Tensor, query)
        num_classes = check.dense_values(support, support_labels, visible, num_classes)
    assert num_classes is not None
    *batch, Q, _ = rows.shape
    tasks, grouped, things = batch[0] if batch else None, None, None
    if groups is not None or same is not None:
        grouped, things = groups_of_one_batch(groups, same, cast(Tensor, query))
    if grouped is not None:
        tasks = len(grouped.names)
    measures = None
    if prior is not None:
        measures = measures_of(prior, num_classes, tasks, support).values
    options: dict[str, Any] = {
        "max_iter": max_iter,
        "tol": tol,
        "all_classes": returns_all(return_assignments, Q, num_classes),
        "top": top,
    }
    tied = None
    for name, value in {"support_same": support_same, "support_groups": support_groups}.items():
        if value is not None and support.dim() != 2:
            raise ValueError(f"{name} must be None for [B, S, D], got {[*support.shape]}")
    if support_same is not None:
        known = support_labels, support_same, len(support), support.device
        tied = groups_and_things(*known, "support_same", "class")[1]
    sources = None
    if support_groups is not None:
        check_trusted(label_noise)
        sources = groups_of_support(support_groups, support_same, support)
    if batch == [0]:
        none = support.new_empty(0, Q, num_classes)
        return no_tasks(none, None if options["all_classes"] else top)
    labelled = batched(support.to(computing_dtype(support)), 3)
    labels = batched(support_labels.long(), 2)
    if tied is not None:
        labelled, labels = tied.means(unit_rows(labelled[0]))[None], labels[:, tied.first]
        sources = None if sources is None else sources[tied.first]
    with torch.no_grad(), without_autocast():
        rows = batched(rows, 3) if isinstance(rows, Tensor) else rows
        if isinstance(rows, Tensor) and grouped is things is None:
            task = Task(labelled, labels, rows, num_classes, measures=measures)
            options |= {"label_noise": label_noise, "sources": sources}
            solution = solve_tasks(task, metric, **options)
        else:
            likelihood = known_likelihood(
                labelled, labels, num_classes, metric, label_noise, sources
            )
            if tied is not None:
                likelihood = replace(likelihood, ties=ties_of(support, likelihood, tied))
            options |= {"groups": grouped, "share": share, "same": things}
            options["validate"] = validate and from_file
            solution = classify(likelihood, rows, measures=measures, **options).solution
    return solution if batch or grouped is not None else without_batch(solution)


def check_metric(name: str, metric: object) -> str:
    if metric == "full":
        raise check.ArgumentValueError(name, "must be 'auto', which means the same, got 'full'")
    return check.choice(name, metric, METRICS)


def solve_tasks(
    task: Task,
    metric: str,
    *,
    logit_scale: float = 100.0,
    label_noise: float | str = 0.0,
    sources: Tensor | None = None,
    **options: Any,
) -> Solution:
    """Classify checked tasks, as many at a time as fit in memory; `options` are of `classify`.

    `sources` [S] are the numbers of groups of labelled rows that all tasks share.
    """
    if task.prototypes is not None or task.logits is not None:
        return solve_named(task, metric, logit_scale, **options)
    B, K = len(task.query), task.num_classes
    step = how_many(bytes_per_task(task, metric, label_noise), task.query)
    validate = task.check_values is not None
    likelihood, solutions, finite = None, [], []
    for start in range(0, B, step):
        part = task if step >= B else task.part(slice(start, start + step))
        if likelihood is None or len(task.support) > 1:
            rows = part.support, part.support_labels
            likelihood = known_likelihood(*rows, K, metric, label_noise, sources)
        found = classify(
            likelihood, part.query, measures=part.measures, **options, validate=validate
        )
        solutions.append(found.solution)
        finite += [x for x in (likelihood.finite, found.finite) if x is not None]
    # Only now does the caller wait for the device.
    if task.check_values is not None and finite and not bool(torch.cat(finite).all()):
        task.check_values()
    return merged(solutions)


def known_likelihood(
    support: Tensor,
    labels: Tensor,
    num_classes: int,
    metric: str,
    label_noise: float | str,
    sources: Tensor | None,
) -> Likelihood:
    """What is learned from labelled rows whose labels may be wrong, or that belong to groups."""
    if sources is None:
        return noisy_likelihood(support, labels, num_classes, metric, label_noise)
    return likelihood_by_groups(support, labels, num_classes, sources, metric)


def groups_of_support(groups: GroupNames, same: GroupNames | None, support: Tensor) -> Tensor:
    """The number of the group of each labelled row [S]; the rows of a thing are in one group."""
    rows, place = len(support), support.device
    found = groups_of(groups, rows, place, "support_groups")
    if same is not None:
        groups_and_things(found.of_row, same, rows, place, "support_same")
    return found.of_row


def bytes_per_task(task: Task, metric: str, label_noise: float | str) -> int:
    """Memory of the temporary tensors of one task."""
    (_, Q, D), (supports, S, _), K = task.query.shape, task.support.shape, task.num_classes
    full = uses_full_metric(metric, S, K)
    M = min(S, D) if full else 0
    numbers = Q * (2 * D + 8 * K + Q + M)
    if supports > 1:
        noisy = models_noise(label_noise, S, K)
        R = S if noisy else calibration_count(S, K)
        numbers += 2 * K * D + R * K
        if full:
            numbers += M * (M + K + R) + (S + R if D <= S else S) * D + (S + 4 * R + K) * K
        if noisy:  # the likelihood of all rows that count alike, and chances
            numbers += (S + 2 * K) * D + (M + K) * M + 8 * S * K
    return numbers * task.support.itemsize
