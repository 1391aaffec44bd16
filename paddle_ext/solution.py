"""Results of the solvers, and what can be read from them about a batch."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from . import check, prevalence
from .groups import Groups
from .limits import FEWEST_TO_CALIBRATE, MOST_PROBABILITIES, SEVERAL
from .native.call import Outputs

# `doubt` removes this share of PADDLE's preference for large classes. Without the preference,
# labels that are right thanks to it would be doubted; with all of it, wrong labels of queries that
# a large class has absorbed would be trusted. benchmarks/presence.py compares shares.
DUAL_SHARE = 2 / 3
PRESENT = 1.5  # queries that a class holds if it is present

# A batch looks mixed if at least this many classes would have a label without PADDLE's preference
# for large classes, and with it either this many have one, or more than this share of the queries
# change their label. Measured in docs/solver.md.
MIXED_CLASSES, MIXED_LABELS, MIXED_SHARE = 10, 8, 0.5
MIXED_HINT = "many classes seem present: consider paddle_ext.adaptive"


class Solution(NamedTuple):
    """Result of a solver, and its options; tensors have a batch dimension if the queries have one.

    `present` says which classes are in the batch, `prevalence` how much of it each of them is,
    `doubt` which labels to check, and `paddle_ext.presence.novelty` which queries are of an unknown
    class. `repr` is a summary, with a hint if a PADDLE batch looks mixed.
    """

    labels: Tensor  # [.., Q] int64: argmax of the probabilities
    # [.., Q, K]: each row sums to 1; with `classes`, only the largest of each row, [.., Q, top]
    probabilities: Tensor
    # [.., K]: shares of the classes in the batch; by `adaptive`, the estimate of `prevalence`
    proportions: Tensor
    dual: Tensor  # [.., K]: preference for each class; by `adapt`, the mean log proportions
    iterations: Tensor  # [..] int32
    criterion: Tensor  # [..]: how much the last iteration changed prototypes or, by `adapt`, counts
    prototypes: Tensor | None = None  # [.., K, D] in the coordinates of the inputs
    lam: float | None = None  # None stands for Q
    scaling: str = "auto"
    temperature: float = 1.0
    # [..], by `adapt`: the concentration a of the proportions, small if few classes are present
    concentration: Tensor | None = None
    bound: Tensor | None = None  # [..], by `adapt`: lower bound of the log evidence
    # [..] bool: whether the given prior p, of sum 1, was used, because it makes the batch likelier.
    # The proportions are Dirichlet(K a p) a priori with it, Dirichlet(a, .., a) without it
    prior_used: Tensor | None = None
    # If only the largest probabilities of each row are kept, in descending order:
    classes: Tensor | None = None  # [.., Q, top] their classes
    held: Tensor | None = None  # [.., K] sums of all probabilities over the queries
    # By `adaptive`: the labelled rows of each class [.., K], and the variance in it that they show
    # [..], in squared lengths of a row; 1 and 1 where class names decide
    shots: Tensor | None = None
    variance: Tensor | None = None
    # With `groups=`: labels and probabilities are [Q, ..] in the order of the queries, all else
    # [G, ..] in the order of `groups.names`
    groups: Groups | None = None
    # With `same=`: the thing of each query; shares, counts and presence are of things
    same: Groups | None = None

    def __repr__(self) -> str:
        return summary(self)

    @property
    def calibrated(self) -> bool:
        """Whether the probabilities are calibrated.

        Those of `adapt` are if its logits are. Those of `adaptive` are if, in every task, most
        classes have three labelled rows or more, and these 20 rows together (docs/presence.md);
        with class names only if every class has labelled rows. PADDLE's are overconfident, and only
        good for ranking.
        """
        if self.concentration is None or self.shots is None:
            return self.concentration is not None
        return calibrates(self.shots)

    @property
    def dual_weight(self) -> float:
        """The factor of the dual in the logits, lam / Q."""
        return 1.0 if self.lam is None else self.lam / self.labels.shape[-1]

    def present(self, threshold: float = PRESENT) -> Tensor:
        """Which classes occur among the queries, [.., K] bool.

        A class counts as present if its probabilities add up to at least `threshold` queries. The
        default requires two samples: on real features, with five classes or fewer present, a class
        with a single sample was nearly always a wrong label. 0.5 accepts one sample, which is
        better if many classes have few samples each. Measured in `docs/presence.md`.

        Examples
        --------
        >>> import torch, paddle_ext
        >>> support = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> query = torch.tensor([[0.5, 0.0], [3.5, 0.5], [4.0, 0.5]])
        >>> solution = paddle_ext.solve(support, torch.tensor([0, 1, 2]), query, scaling="none")
        >>> solution.present()
        tensor([False,  True, False])
        >>> solution.present(threshold=0.5)
        tensor([ True,  True, False])
        """
        if self.held is None and self.groups is None:
            return classes_present(self.things().probabilities, threshold)
        held = self.class_sums()[:, 1] if self.held is None else self.held
        return held >= check.real("threshold", threshold, positive=True)

    def prevalence(
        self,
        coverage: float = 0.9,
        sampling: bool = False,
        novelty: Tensor | None = None,
        hidden: float = 0.5,
    ) -> prevalence.Prevalence:
        """How much of the batch each class is, with an interval.

        The interval accounts for uncertain labels and for what few labelled rows do not tell. It is
        measured in `docs/presence.md`. PADDLE, whose probabilities are overconfident, has none.

        Parameters
        ----------
        coverage : float
            How often the interval of a class should contain its share, between 0 and 1.
        sampling : bool
            Whether the share is that in whatever the batch is a random sample of, rather than in
            the batch itself. Intervals are then wider.
        novelty : Tensor [.., Q], optional
            `paddle_ext.presence.novelty` of the queries, NaN where it is not known. With it, the
            queries of no known class have a share of their own, the last, instead of counting
            where they are nearest. Those like a known class still count there.
        hidden : float
            How many queries of no known class look ordinary, by `paddle_ext.presence.hidden`. With
            1/2, as of known classes, nothing limits their share from above.

        Returns
        -------
        Prevalence
            `estimate`, `low` and `high`, each [.., K] in float64, or [.., K + 1] with novelty.

        Examples
        --------
        >>> import torch, paddle_ext
        >>> logits = torch.tensor([[0.7, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
        >>> found = paddle_ext.adapt(logits).prevalence()
        >>> for share in found:
        ...     print(share)
        tensor([0.4170, 0.5830], dtype=torch.float64)
        tensor([0.2500, 0.5000], dtype=torch.float64)
        tensor([0.5000, 0.7500], dtype=torch.float64)
        """
        if self.concentration is None:
            raise ValueError(
                "the prevalence needs calibrated probabilities, and those of PADDLE are "
                "overconfident: use paddle_ext.adaptive"
            )
        return prevalence.from_sums(self.class_sums(novelty, hidden), coverage, sampling)

    def class_sums(self, novelty: Tensor | None = None, hidden: float = 0.5) -> Tensor:
        """The sums from which `prevalence` is computed; those of several batches may be added up.

        Returns
        -------
        Tensor [.., 4, K] or [.., 10, K + 1], float64
            Labels, probabilities u, u (1 - u), and 1 / n for n labelled rows of the class, each
            summed over the queries. With novelty also the first three over those that look like
            strangers, and the labels of those with a novelty up to 1/2, `hidden` times those with
            any novelty, and those; and a last column for queries that a person has labelled, which
            is 0.
        """
        hidden = check.real("hidden", hidden, most=1)
        if novelty is not None:
            (novelty,) = check.tensors(novelty)
            check.features("novelty", novelty)
            if novelty.shape != self.labels.shape:
                raise check.ArgumentValueError(
                    "novelty", f"must be {list(self.labels.shape)}, got {list(novelty.shape)}"
                )
            if (odd := novelty[(novelty < 0) | (novelty > 1)]).numel():
                raise check.ArgumentValueError(
                    "novelty", f"must be between 0 and 1, or NaN, got {odd[0]:g}"
                )
            if self.same is not None:
                of_things = self.same.means(novelty.reshape(-1, 1).to(self.labels.device))
                novelty = of_things.view(*self.labels.shape[:-1], -1)
        return sums_with_novelty(self.things(), novelty, hidden)

    def things(self) -> Solution:
        """The solution with one row for each thing of `same=`; without it, the same."""
        if self.same is None:
            return self
        first, classes, groups = self.same.first, self.classes, self.groups
        return self._replace(
            labels=self.labels[..., first],
            probabilities=self.probabilities[..., first, :],
            classes=None if classes is None else classes[..., first, :],
            groups=None if groups is None else groups.of_things(self.same),
            same=None,
        )

    def over_all(self) -> Solution:
        """The solution of all groups as one batch, which asks the same of all queries together.

        Labels and probabilities stay. The proportions are those of all queries, the concentration
        is the median of the groups', and the bound their sum. Without groups it is the same.

        Examples
        --------
        >>> import torch, paddle_ext
        >>> logits = torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.0, 5.0], [0.0, 4.0]])
        >>> found = paddle_ext.adapt(logits, groups=["south", "south", "north", "north"])
        >>> found.groups.names, found.present()
        (['north', 'south'], tensor([[False,  True],
                [ True, False]]))
        >>> found.over_all().present()
        tensor([True, True])
        """
        if self.groups is None:
            return self
        sums = self.class_sums().sum(0)
        shares = prevalence.estimated_shares(sums[0], sums[1], sums[0].sum()).to(self.proportions)
        a, bound, used = self.concentration, self.bound, self.prior_used
        return self._replace(
            proportions=shares,
            dual=shares.clamp(min=torch.finfo(shares.dtype).tiny).log(),
            iterations=self.iterations.amax(),
            criterion=self.criterion.amax(),
            concentration=None if a is None else a.median(),
            bound=None if bound is None else bound.sum(),
            prior_used=None if used is None else used.any(),
            held=None if self.held is None else self.held.sum(0),
            shots=None if self.shots is None else self.shots[0],
            variance=None if self.variance is None else self.variance[0],
            groups=None,
        )

    def doubt(self) -> Tensor:
        """How doubtful each label is, [.., Q] in [0, 1]: the probability of all other classes.

        PADDLE is confident even in wrong labels where a large class has absorbed the samples of
        another. So its preference for large classes (the dual) is first weakened to a third, unless
        only the largest probabilities are kept.

        Examples
        --------
        >>> import torch, paddle_ext
        >>> support = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
        >>> query = torch.tensor([[0.5, 0.0], [4.0, 0.5], [2.0, 0.0]])  # the last is between both
        >>> solution = paddle_ext.solve(support, torch.tensor([0, 1]), query, scaling="none")
        >>> solution.doubt().argmax()
        tensor(2)
        """
        if self.classes is not None:
            return (1 - self.probabilities[..., 0]).clamp(min=0)
        own = self.logits_without(DUAL_SHARE if self.concentration is None else 0.0).softmax(-1)
        own = own.gather(-1, self.labels.unsqueeze(-1)).squeeze(-1)
        return (1 - own).clamp(min=0)

    def balanced_labels(self) -> Tensor:
        """Labels [.., Q] for balanced accuracy, the mean over the classes of the share found.

        `labels` are right most often, so they give a doubtful query to the class that is frequent
        in the batch. These are the classes whose probability is largest in relation to their
        share, which counts as 1.5 queries at least: more of the rare classes are found, and more
        of the frequent ones are missed. With groups it is the share in all of them.

        Examples
        --------
        >>> import torch, paddle_ext
        >>> logits = torch.tensor([[0.2, 0.0]] + [[0.0, 5.0]] * 8 + [[5.0, 0.0]] * 2)
        >>> found = paddle_ext.adapt(logits)
        >>> int(found.labels[0]), int(found.balanced_labels()[0])
        (1, 0)
        """
        if self.groups is not None:
            return self.over_all().balanced_labels()
        shares = counted_shares(self.proportions, self.things().labels.shape[-1]).unsqueeze(-2)
        if self.classes is None:
            return (self.probabilities / shares).argmax(-1)
        own = shares.expand(*self.classes.shape[:-1], -1).gather(-1, self.classes)
        best = (self.probabilities / own).argmax(-1, keepdim=True)
        return self.classes.gather(-1, best).squeeze(-1)

    def logits_without(self, dual_share: float) -> Tensor:
        """Logits, up to a constant per query, minus this share of the dual; [.., Q, K]."""
        u = self.probabilities  # zeros in it are numbers that underflowed
        dual = self.dual.unsqueeze(-2) if self.groups is None else self.dual[self.groups.of_row]
        preference = dual_share * self.dual_weight * dual
        return u.clamp(min=torch.finfo(u.dtype).tiny).log() - preference

    def looks_mixed(self) -> Tensor:
        """Whether a batch seems to have more classes than PADDLE is made for, [..] bool.

        True if, without the preference for large classes, at least ten classes would have a label,
        and either eight have one with it or more than half of the queries would change theirs. If
        only the largest probabilities are kept, ten classes with a label are enough. Always False
        for Dirichlet proportions, which suit any number of classes.
        """
        if self.concentration is not None:
            return torch.zeros_like(self.iterations, dtype=torch.bool)
        K = self.proportions.shape[-1]
        if self.classes is not None:
            return distinct(self.labels, K) >= MIXED_CLASSES
        nearest = self.logits_without(1.0).argmax(-1)
        many = distinct(self.labels, K) >= MIXED_LABELS
        change = (nearest != self.labels).double().mean(-1) > MIXED_SHARE
        return (distinct(nearest, K) >= MIXED_CLASSES) & (many | change)


def sums_with_novelty(solution: Solution, novelty: Tensor | None, hidden: float) -> Tensor:
    """`Solution.class_sums` of rows that are things of their own."""
    fields = solution.labels, solution.probabilities, solution.classes, solution.held
    sum_up = partial(prevalence.sums_of, *fields)
    if solution.groups is not None:
        sum_up = partial(sums_by_group, solution, solution.groups)
    sums = sum_up()
    inexact = torch.zeros_like(sums[..., 0, :])
    if solution.shots is not None and solution.variance is not None:
        queries = sums[..., 0, :].sum(-1, keepdim=True)
        apart = (solution.variance / prevalence.NEAR_COPIES).clamp(max=1).unsqueeze(-1)
        # Near copies count as one row.
        inexact += queries / (1 + apart * (solution.shots - 1).clamp(min=0))
    sums = torch.cat([sums, inexact.unsqueeze(-2)], -2)
    if novelty is None:
        return sums
    novelty = novelty.to(sums.device)
    flagged = sum_up(novelty > 1 - prevalence.RATE)
    ordinary, judged = (
        label_counts(solution, among) for among in (novelty <= 0.5, ~novelty.isnan())
    )
    whole = torch.cat([sums, flagged, torch.stack([ordinary, hidden * judged, judged], -2)], -2)
    return torch.nn.functional.pad(whole, (0, 1))


def counted_shares(proportions: Tensor, count: int) -> Tensor:
    """Shares of the classes [.., K] in so many queries, as `balanced_labels` counts them."""
    return proportions.clamp(min=PRESENT / max(1, count))


def sums_by_group(solution: Solution, groups: Groups, among: Tensor | None = None) -> Tensor:
    """`sums_of` each group, [G, 3, K]; the order of summation is fixed."""
    G, K = solution.proportions.shape
    u, held, first = solution.probabilities, solution.held, groups.of_row * K
    if solution.classes is not None and held is not None:
        labels, classes = first + solution.labels, first.unsqueeze(-1) + solution.classes
        return (
            prevalence.sums_of(labels, u, classes, held.flatten(), among, K)
            .view(3, G, K)
            .transpose(0, 1)
        )
    u = u.double() if among is None else u.double() * among.unsqueeze(-1)
    held, counted = groups.sums(u), label_counts(solution, among)
    return torch.stack([counted, held, (held - groups.sums(u.square())).clamp(min=0)], -2)


def label_counts(solution: Solution, among: Tensor | None = None) -> Tensor:
    """How many queries, or of those `among` [.., Q] bool, have each label, [.., K] float64."""
    labels, shape = solution.labels, solution.proportions.shape
    counts = torch.zeros(shape, dtype=torch.float64, device=labels.device)
    if solution.groups is None:
        return prevalence.counts_of(labels, counts, among)
    prevalence.counts_of(solution.groups.of_row * shape[-1] + labels, counts.view(-1), among)
    return counts


def outweigh_names(shots: Tensor) -> Tensor:
    """Whether labelled rows, [.., K] of each class, decide next to class names, [..] bool."""
    on_average = shots.sum(-1) >= SEVERAL * shots.shape[-1]
    return on_average & (shots > 0).all(-1)


def calibrates(shots: Tensor, named: bool = False) -> bool:
    """Whether so many labelled rows of each class, [.., K], calibrate the probabilities.

    Of a class with one or two rows little is known of how far its rows are from its mean; if it is
    `named`, nothing of how far they are from its name.
    """
    several = shots >= SEVERAL
    enough = (shots * several).sum(-1) >= FEWEST_TO_CALIBRATE
    if named:
        enough = enough & outweigh_names(shots)
    return bool((enough & (2 * several.sum(-1) > shots.shape[-1])).all())


def most_probable(probabilities: Tensor, labels: Tensor, count: int) -> Tensor:
    """The `count` most probable classes of each row, its label first, [.., Q, count]."""
    # Of equals, topk takes any.
    label_first = probabilities.scatter(-1, labels.unsqueeze(-1), math.inf)
    return label_first.topk(min(count, probabilities.shape[-1]), -1).indices


def distinct(labels: Tensor, num_classes: int) -> Tensor:
    """The number of classes with a label, [.., Q] -> [..]."""
    seen = torch.zeros(*labels.shape[:-1], num_classes, dtype=torch.bool, device=labels.device)
    return seen.scatter_(-1, labels, True).sum(-1)


def summary(solution: Solution) -> str:
    """A short summary; for several tasks it gives the smallest and the largest value of each."""
    (*batch, Q), K = solution.labels.shape, solution.proportions.shape[-1]
    words = [*(f"{B} tasks" for B in batch), f"{Q} queries", f"{K} classes"]
    if solution.groups is not None:
        words.insert(0, f"{len(solution.groups.names)} groups")
    plain = type(solution.labels) is Tensor and solution.labels.device.type in ("cpu", "cuda")
    if plain and solution.labels.numel():  # a torch.compile tensor has no values
        present = solution.present().sum(-1)
        words += [f"{extremes(present)} present", f"{extremes(solution.iterations)} iterations"]
        if solution.concentration is not None:
            words.append(f"concentration {extremes(solution.concentration, '.2g')}")
        if not solution.calibrated:
            words.append("probabilities not calibrated")
        mixed = int(solution.looks_mixed().sum())
        if mixed:
            words.append((f"in {mixed} tasks " if batch else "") + MIXED_HINT)
    return f"Solution({', '.join(words)})"


def extremes(x: Tensor, form: str = "d") -> str:
    low, high = (format(extreme.item(), form) for extreme in torch.aminmax(x))
    return low if low == high else f"{low} to {high}"


def classes_present(probabilities: Tensor, threshold: float) -> Tensor:
    """Which classes have probabilities [.., Q, K] that add up to the threshold, [.., K] bool."""
    threshold = check.real("threshold", threshold, positive=True)
    return probabilities.sum(-2, dtype=torch.float64) >= threshold


class TimSolution(NamedTuple):
    """Result of TIM; has a batch dimension if the query has one."""

    labels: Tensor  # [.., Q] int64: argmax of the logits
    probabilities: Tensor  # [.., Q, K]: rows on the simplex
    prototypes: Tensor  # [.., K, D] in the coordinates of the (normalised) features
    losses: Tensor | None = None  # [max_iter, ..]: before each step


class Transport(NamedTuple):
    """Result of `sinkhorn`; has a batch dimension if the cost has one."""

    plan: Tensor  # [.., Q, K]
    iterations: Tensor  # [..] int32
    residual: Tensor  # [..]: largest error of a row sum after the last column step


def returns_all(return_assignments: bool | None, Q: int, K: int) -> bool:
    """Whether the probabilities of all classes are returned."""
    return Q * K <= MOST_PROBABILITIES if return_assignments is None else return_assignments


def output_table(
    of_query: tuple[int, ...], K: int, real: torch.dtype, top: int | None, others: Outputs
) -> Outputs:
    """The outputs of `solve` and `adapt`: the fields of `Solution` up to `criterion`, and others.

    If `top` is given, only so many probabilities of each query are returned, with `classes` and
    `held` at the end.
    """
    batch, best = of_query[:-1], (*of_query, K if top is None else min(top, K))
    table: dict[str, tuple[torch.dtype, tuple[int, ...]] | None] = {
        "labels": (torch.int64, of_query),
        "probabilities": (real, best),
        "proportions": (real, (*batch, K)),
        "dual": (real, (*batch, K)),
        "iterations": (torch.int32, batch),
        "criterion": (real, batch),
        **others,
    }
    if top is not None:
        table |= {"classes": (torch.int64, best), "held": (torch.float64, (*batch, K))}
    return table
