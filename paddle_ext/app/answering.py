"""From features to predictions, batch by batch."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.classify import classify
from ..adaptive_rule.label_noise import AUTO
from ..adaptive_rule.solve import solve_tasks
from ..groups import Groups, groups_and_things
from ..integrations.fitted import Examples, counted_once, learned
from ..libraries import library
from ..presence.alarms import alarm_of
from ..presence.hierarchy import Hierarchy
from ..presence.unknown import Familiar, familiar
from ..prevalence import RATE, Prevalence, with_certain
from ..prior import measures_of
from ..progress import Progress
from ..rows import unit_rows
from ..solution import Solution, most_probable
from ..task import Task
from .answers import LIKELIEST, Answers
from .read.samples import (
    Batch,
    Labelled,
    check_finite,
    concatenated,
    grouped_by_shape,
    matched_names,
    rebatched,
)

# What is known of the class proportions: weights [K] for all samples, or for some of the groups.
Prior: TypeAlias = Tensor | dict[str, Tensor] | None

BATCH = 300
BATCHES = 8  # per call
MOST_AT_ONCE = 50_000_000  # limit on the probabilities of a batch
CONFIDENCE = 0.9  # of the node that a sample is rolled up to
MOST_GROUPED = 500  # strangers that are compared with each other


def answer(
    labelled: Labelled,
    batches: Iterable[Batch],
    *,
    device: str | torch.device = "cpu",
    hierarchy: Hierarchy | None = None,
    certain: Tensor | None = None,
    **options: Any,
) -> Answers:
    """Classify samples of any batches, with the options of `classified`.

    `certain` [K + 1] other samples count for the shares.
    """
    place = check.device(device)
    samples: list[Batch] = []  # without features
    shares, strangers, count = Shares(labelled, place), list[tuple[Tensor, ...]](), 0
    best: list[tuple[Tensor, ...]] = []
    nodes, sure = list[str](), list[Tensor]()  # of the nodes that samples are rolled up to
    K = len(labelled.class_names)
    certain = torch.zeros(K + 1, dtype=torch.float64) if certain is None else certain
    present = certain[:K] > 0
    group_sums = dict[str, Tensor]()
    for together, rows, solution in classified(labelled, batches, place, **options):
        for part in together:
            no_features, digests = torch.empty(len(part.names), 0), part.digests()
            samples.append(part._replace(features=no_features, contents=digests))
        u = solution.probabilities.flatten(0, -2)
        likeliest = most_probable(u, solution.labels.flatten(), LIKELIEST)
        columns = [u.gather(-1, likeliest), likeliest, solution.doubt().flatten()]
        novelty = shares.novelty(rows, solution)
        if shares.known is not None:
            flat = novelty.flatten()
            strange = (flat > 1 - RATE).nonzero().view(-1)
            strangers.append((rows.flatten(0, 1)[strange], flat[strange], strange + count))
            columns.append(flat.float())
        count += len(u)
        best.append(tuple(x.cpu() for x in columns))
        present |= solution.over_all().present().view(-1, K).any(0).cpu()
        own = shares.add(solution, novelty)
        for one in rows:
            shares.look_for_copies(one)
        if solution.groups is not None:
            group_sums |= zip(solution.groups.names, own, strict=True)
        if hierarchy is not None:
            one = hierarchy.roll_up(solution.probabilities, CONFIDENCE)
            nodes += [str(name or "") for name in one.names()]
            sure.append(one.probability.masked_fill(one.node < 0, math.nan).flatten().cpu())
    values, classes, doubts, *rest = (torch.cat(column) for column in zip(*best, strict=True))
    whole = concatenated(samples)
    return Answers(
        class_names=labelled.class_names,
        names=whole.names,
        texts=whole.texts,
        labels=classes[:, 0],
        second=classes[:, 1],
        probability=values[:, 0],
        second_probability=values[:, 1],
        doubt=doubts,
        present=present,
        truth=matched_names(whole.truth, labelled.class_names) if whole.truth else None,
        novelty=rest[0] if rest else None,
        nodes=nodes if sure else None,
        node_probability=torch.cat(sure) if sure else None,
        prevalence=shares.prevalence(certain),
        copies=shares.copies,
        alike=groups_of_strangers(strangers, labelled, place),
        digests=whole.digests(),
        likeliest=torch.nn.functional.pad(classes, (0, LIKELIEST - classes.shape[1]), value=-1),
        groups=whole.groups,
        group_sums=group_sums,
    )


def classified(
    labelled: Labelled,
    batches: Iterable[Batch],
    place: torch.device,
    *,
    batch: int | None = None,
    label_noise: float | str = AUTO,
    prior: Prior = None,
    share: bool = True,
    source: str = "unlabelled",
    total: int = 0,
    progress: bool = False,
) -> Iterator[tuple[list[Batch], Tensor, Solution]]:
    """Batches as they are classified, with their features [B, n, D]; all groups are one call."""
    size, together = batch_sizes(labelled, batch)
    solve = solver(labelled, place, label_noise, prior, share)
    D, batches = labelled.features.shape[1], iter(batches)
    first = next(batches, None)
    if first is None:
        raise ValueError(f"{source} must have at least one sample to classify, got none")
    grouped = batch is None and not first.groups is first.same is None
    batches = chain([first], batches)
    size = sys.maxsize if grouped else size
    with Progress("classifying", total, show=progress and total > size) as shown:
        for group in grouped_by_shape(rebatched(batches, size), together):
            for part in group:
                check_batch(part, D, labelled.source, source)
            rows = torch.stack([part.features for part in group])
            rows = labelled.columns.applied_to(rows.to(place, torch.float32))
            yield group, rows, solve(rows, group[0] if grouped else None)
            shown.advance(rows.shape[0] * rows.shape[1])


def batch_sizes(labelled: Labelled, batch: int | None) -> tuple[int, int]:
    """How many samples are classified together, and how many such batches per call."""
    K = len(labelled.class_names)
    size = check.integer("batch", BATCH if batch is None else batch)
    if batch is None:
        size = max(1, min(size, MOST_AT_ONCE // K))
    # With names, the likelihoods of the labelled samples are recomputed in each call, so calls have
    # many batches; and so they have if batches are small.
    again = labelled.prototypes is not None and len(labelled.labels) > 0
    together = max(BATCHES if again else 1, BATCH // size)
    return size, max(1, min(together, MOST_AT_ONCE // (K * size)))


def solver(
    labelled: Labelled, place: torch.device, label_noise: float | str, prior: Prior, share: bool
) -> Callable[[Tensor, Batch | None], Solution]:
    """The function that classifies batches in the coordinates of `Labelled.rows`.

    If it is given the samples too, they are one batch of groups or things.
    """
    examples, tied = examples_of(labelled, place), labelled.tied and labelled.tied.to(place)
    K, like = examples.num_classes, examples.support

    def measures_for(groups: Groups | None) -> Tensor | None:
        if isinstance(prior, dict) and groups is not None:
            each = torch.stack([prior.get(name, torch.ones(K).double()) for name in groups.names])
            return measures_of(each, K, len(each), like).values
        return None if prior is None else measures_of(prior, K, None, like).values

    likelihood, names = None, labelled.prototypes
    if names is None:
        likelihood = learned(examples, {"label_noise": label_noise, "tied": tied})
    else:
        names, examples = names.to(place, torch.float32)[None], counted_once(examples, tied)

    def solve(rows: Tensor, samples: Batch | None) -> Solution:
        together = (None, None) if samples is None else (samples.groups, samples.same)
        groups, same = groups_and_things(*together, rows.shape[1], place)
        options: Any = {"groups": groups, "same": same, "share": share}
        measures = measures_for(groups)
        if likelihood is not None:
            return classify(likelihood, rows, measures=measures, **options).solution
        support, labels = examples.support[None], examples.labels[None]
        task = Task(support, labels, rows, K, prototypes=names, measures=measures)
        return solve_tasks(task, "auto", logit_scale=labelled.logit_scale, **options)

    return solve


def examples_of(labelled: Labelled, place: torch.device) -> Examples:
    """The labelled samples in the coordinates of `Labelled.rows`."""
    sure = None if labelled.trusted is None else labelled.trusted.to(place)
    rows, labels = labelled.rows(place), labelled.labels.to(place)
    sources = None if labelled.sources is None else labelled.sources.to(place)
    return Examples(
        rows,
        labels,
        len(labelled.class_names),
        trusted=sure,
        sources=sources,
        inverse_regularisation=labelled.columns.inverse_regularisation,
    )


def things_of(labelled: Labelled, place: torch.device, alone: bool = False) -> Examples:
    """The same, one for each labelled thing: its samples would confirm one another's labels."""
    tied = labelled.tied and labelled.tied.to(place)
    return counted_once(examples_of(labelled, place), tied, alone)


class Strangeness(NamedTuple):
    """What is known of samples of no known class."""

    model: Familiar
    place: Tensor  # of each class among those with labelled samples; -1: it has none

    def of(self, rows: Tensor, labels: Tensor) -> Tensor:
        """The novelty of rows [n, D] with these labels; NaN if the class has one sample or none."""
        own = self.place[labels]
        few = (own < 0) | (self.model.shots[own.clamp(min=0)] < 2)
        return self.model.novelty(rows, own.clamp(min=0)).masked_fill(few, math.nan)


def strangeness_of(labelled: Labelled, device: torch.device) -> Strangeness | None:
    """None with too few labelled samples."""
    classes, number = labelled.classes_with_samples()
    if not len(classes):
        return None
    place = number.to(device)
    known = things_of(labelled, device, alone=True)  # as new samples are judged
    # Corrected samples were chosen because they are unusual; they count if there are few others.
    fair = None if known.trusted is None else ~known.trusted
    fair = None if fair is None or RATE * (int(fair.sum()) + 1) < 1 else fair
    model = familiar(known.support, place[known.labels], len(classes), fair)
    if model is None or RATE * (len(model.ordinary) + 1) < 1:
        return None
    return Strangeness(model, place)


class Shares:
    """The samples of each class, and of no known class, in the batches so far."""

    def __init__(self, labelled: Labelled, place: torch.device) -> None:
        self.K, self.known = len(labelled.class_names), strangeness_of(labelled, place)
        self.hidden = 0.5 if self.known is None else float(self.known.model.hidden)
        self.sums = torch.zeros(10, self.K + 1, dtype=torch.float64)
        self.copies = 0  # samples that are copies of one, in batches of which most are

    def novelty(self, rows: Tensor, solution: Solution) -> Tensor:
        """Of rows [B, n, D]; NaN where nothing is known of samples of no known class."""
        if self.known is None:
            return torch.full_like(solution.probabilities[..., 0], math.nan)
        novelty = self.known.of(rows.flatten(0, 1), solution.labels.flatten())
        return novelty.view_as(solution.labels)

    def add(self, solution: Solution, novelty: Tensor) -> Tensor:
        """Count these samples; returns the sums of each batch, or of each group."""
        own = solution.class_sums(novelty.float(), self.hidden).cpu()
        self.sums += own.sum(0)
        return own

    def look_for_copies(self, rows: Tensor) -> None:
        """Count the rows [n, D] of a batch that are copies of one, if that is alarming."""
        alarm = alarm_of(rows, None)
        self.copies += alarm.copies if "copies" in alarm.reasons else 0

    def prevalence(self, certain: Tensor) -> Prevalence:
        """The shares, with `certain` [K + 1] samples that a person has labelled."""
        if self.known is None and not certain[self.K]:
            return with_certain(self.sums[:4, : self.K], certain)  # no share of no known class
        return with_certain(self.sums, certain)


def check_batch(part: Batch, D: int, labelled: str, source: str) -> None:
    if part.features.shape[1] != D:
        raise ValueError(
            f"{source} must have as many features as {labelled}, {D}, got {part.features.shape[1]}"
        )
    check_finite(part.features, source, part.names)


# --- groups of strangers: maybe a class without labels --------------------------------------------
#
# Two samples are alike by the product of their unit-norm features. Groups are merged by the mean
# product of their samples (average linkage) while it is nearer to that of labelled samples of one
# class than to that of different classes. A group that is more like a known class than its samples
# are like one another is none.


def groups_of_strangers(
    parts: Sequence[tuple[Tensor, ...]], labelled: Labelled, device: torch.device
) -> list[list[int]]:
    """Groups by number, the largest first; `parts` have features, novelty and number of each."""
    if not parts:
        return []
    features, novelty, numbers = (torch.cat(column) for column in zip(*parts, strict=True))
    chosen = novelty.argsort(descending=True, stable=True)[:MOST_GROUPED].sort().values
    if len(chosen) < 2:
        return []
    rows, places = unit_rows(features[chosen]), numbers[chosen].tolist()
    known = things_of(labelled, device, alone=True)
    counts = torch.bincount(known.labels, minlength=known.num_classes)
    sums = rows.new_zeros(len(counts), rows.shape[1])
    sums.index_add_(0, known.labels, unit_rows(known.support))
    groups = [
        members
        for members in merged(rows @ rows.mT, same_class_limit(sums, counts))
        if is_new(rows[members], sums[counts > 0] / counts[counts > 0].unsqueeze(1))
    ]
    return [[places[row] for row in members] for members in sorted(groups, key=len)[::-1]]


def same_class_limit(sums: Tensor, counts: Tensor) -> float:
    """Half-way between the mean product of rows of one class and of different classes."""
    n, squares = counts.double(), sums.double().square().sum(1)
    whole, total = sums.double().sum(0).square().sum(), n.sum()
    within = (squares - n).sum() / (n * (n - 1)).sum()
    between = (whole - squares.sum()) / (total.square() - n.square().sum())
    return float((within + between) / 2)


def merged(products: Tensor, limit: float) -> list[list[int]]:
    """Groups of two or more rows by average linkage of products [n, n], down to this limit."""
    trees = library("scipy.cluster.hierarchy", "finding groups of strangers", "'paddle_ext[cli]'")
    one, two = torch.triu_indices(len(products), len(products), 1)
    apart = (1 - products.double()).clamp(min=0)  # below 0 by rounding, of equal rows
    tree = trees.linkage(apart[one, two].cpu().numpy(), "average")
    groups: dict[int, list[int]] = {}
    for row, number in enumerate(trees.fcluster(tree, 1 - limit, "distance").tolist()):
        groups.setdefault(number, []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def is_new(rows: Tensor, means: Tensor) -> bool:
    """Whether rows [n, D] are more like one another than like any class, with these means."""
    n, total = len(rows), rows.double().sum(0)
    within = (total.square().sum() - n) / (n * (n - 1))
    return float(within) > float((means.double() @ total / n).max())
