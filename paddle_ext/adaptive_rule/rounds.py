"""The rounds of a batch: prototypes and class proportions in turns, for tasks of all sizes.

Equations (9) to (11) and (16) of docs/adaptive.md, and their order; the arithmetic is native, in
csrc/common/rounds.h. Letters: B tasks, N queries of each, K classes.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .. import check
from ..large.passes import Queries, RowResults
from ..large.sources import TensorRows
from ..large.steps import State, assign_call
from ..limits import MOST_STORED_LIKELIHOODS, STORED_SHARE
from ..native.call import packed
from ..native.devices import moved_to
from ..native.load import module as native
from ..prevalence import counts_of, estimated_shares
from ..solution import Solution
from .batch import Batch, ChunkedBatch, GramBatch, Proportions, Prototypes, in_chunks
from .likelihood import Likelihood
from .steps import claimed_call

ROUNDS = 3


@dataclass(frozen=True)
class Classified:
    """What `classify` finds."""

    solution: Solution
    finite: Tensor | None  # [B] True if the queries are finite, False is inconclusive; or None
    # What the batch says of further rows, one by one: the likelihood with prototypes that absorbed
    # the queries, and with the class proportions in its bias; or None.
    after: Likelihood | None = None

    def to(self, device: torch.device) -> "Classified":
        return Classified(*(moved_to(getattr(self, field.name), device) for field in fields(self)))


class Turn(NamedTuple):
    """What queries are judged by, of which all queries are a part."""

    prototypes: Prototypes
    proportions: Proportions | None  # None: those of the bias
    bias: Tensor  # [B, K] added to the logits


def rounds(
    batch: Batch,
    measures: Tensor | None,
    *,
    max_iter: int,
    tol: float,
    top: int,
    all_classes: bool,
    keep: bool = False,
) -> Classified:
    """Classify a batch; arguments as in `classify`."""
    N = batch.shape[1]
    begun = batch.begun(
        labelled_measures(batch.likelihood) if measures is None else measures,
        max_iter=max_iter,
        tol=tol,
    )
    state = state_of(batch, begun.measure, begun.concentration)
    held = torch.zeros_like(batch.bias)  # sums of the probabilities
    learn = state.update_call(held)

    results = RowResults.empty(batch, top=1 if all_classes else top, all_classes=all_classes)
    u = results.probabilities if all_classes else stored_probabilities(batch)
    turns = [Turn(batch.first, None, begun.dual)]
    while True:
        held.zero_()
        batch.start()
        last = len(turns) > ROUNDS
        for part, x in batch.parts():
            found = judged(batch, turns, part, x, u, held)
            if keep or not last:
                batch.add(part, x, found)
            if last:
                write_claims(batch, part, found, results)
            del found, x  # before the next ones are computed, to save memory
        if last:
            break
        learn()
        proportions = Proportions(state.counts.clone(), state.concentration.clone(), state.measure)
        turns.append(Turn(batch.moved(), proportions, batch.nothing))

    state.learns = False
    state.update_call(held)()
    labels, real = results.top.classes[..., 0], batch.slope.dtype
    counted = counts_of(labels, torch.zeros_like(results.held))
    every = results.probabilities
    solution = Solution(
        labels,
        results.top.probabilities if every is None else every,
        estimated_shares(counted, results.held, float(N)).to(real),
        state.dual.to(real),
        begun.iterations,
        begun.criterion,
        concentration=state.concentration.to(real),
        bound=begun.bound,
        prior_used=None if measures is None else begun.chosen > 0,
        classes=results.top.classes if every is None else None,
        held=results.held if every is None else None,
    )
    after = after_batch(batch, state) if keep else None
    return Classified(solution, batch.finite, after)


def labelled_measures(likelihood: Likelihood) -> Tensor:
    """(9) Proportions a priori are even, or those of the labelled rows, [B or 1, 2, K]."""
    shots = likelihood.shots
    of_labels = shots * shots.shape[-1] / shots.sum(-1, keepdim=True)
    return torch.stack([torch.ones_like(of_labels), of_labels], 1)


def state_of(batch: Batch, measure: Tensor, concentration: Tensor) -> State:
    """The state of class proportions that were iterated already."""
    B, K = batch.before.shape
    state = State(
        B,
        K,
        batch.before.device,
        prior=check.PRIORS["dirichlet"],
        total=batch.weight * batch.shape[1],
        weight=batch.weight,
        epsilon=1.0,
        tol=0.0,
        measure=measure,
    )
    state.concentration.copy_(concentration)
    return state


def stored_probabilities(batch: Batch) -> Tensor | None:
    """Memory for the probabilities of all queries; None if they would take too much."""
    u = batch.before.new_empty(batch.shape, device="meta")
    device, most = batch.before.device, float(MOST_STORED_LIKELIHOODS)
    if device.type == "cuda":
        # Of all its memory: what is free may change from call to call, and results must not.
        most = max(most, STORED_SHARE * torch.cuda.get_device_properties(device).total_memory)
    return torch.empty_like(u, device=device) if u.nbytes <= most else None


def judged(
    batch: Batch, turns: list[Turn], part: slice, x: Tensor, stored: Tensor | None, held: Tensor
) -> Tensor:
    """Probabilities [B, n, K] of some queries after all turns; `held` [B, K] adds them up.

    Those after all turns but the last one are `stored`, and replaced; or all turns are repeated.
    """
    u = None if stored is None else stored[:, part]
    for turn in turns if stored is None else turns[-1:]:
        before = None if turn is turns[0] else u
        logits = batch.logits(part, x, turn.prototypes, before, proportions=turn.proportions)
        u = logits if u is None or stored is None else u
        sums = held if turn is turns[-1] else None
        assign_call(logits, batch.slope, turn.bias, probabilities=u, held=sums)()
    assert u is not None
    return u


def write_claims(batch: Batch, part: slice, u: Tensor, results: RowResults) -> None:
    """(16) The results of some queries with probabilities u [B, n, K], which are overwritten."""
    confidence = u.new_empty(u.shape[:2])
    claimed_call(u, batch.shots, confidence)()
    every = results.probabilities
    assign_call(
        u,
        batch.slope,
        batch.nothing,
        length=confidence,
        probabilities=None if every is None else every[:, part],
        held=results.held,
        top=results.top.rows(part),
    )()


def after_batch(batch: Batch, state: State) -> Likelihood:
    """The likelihood of further rows; its `scaled` and `solved` are those of before the batch."""
    added, prototypes = batch.absorbed()
    likelihood, prior = batch.likelihood, state.concentration.unsqueeze(-1) * state.measure
    share = torch.where(prior > 0, (state.counts + prior).log(), native.IMPOSSIBLE)
    if likelihood.absorbed is not None:
        added = added + likelihood.absorbed
    return replace(
        likelihood,
        prototypes=prototypes,
        squares=likelihood.squared(prototypes),
        absorbed=added,
        bias=likelihood.bias + share.to(prototypes.dtype),
    )


# --- parts of the rounds, for groups --------------------------------------------------------------


def batch_of(query: Tensor, likelihood: Likelihood, added: Tensor | None = None) -> Batch:
    """The batch of queries [N, D] of one task, with further logits [N, K], in the better form."""
    added = None if added is None else packed(added).unsqueeze(0)
    if in_chunks(likelihood, *query.shape, cuda=query.is_cuda):
        return ChunkedBatch(Queries(TensorRows(query)), likelihood, added)
    return GramBatch(query.to(likelihood.bias.dtype).unsqueeze(0), likelihood, added)


def first_logits(batch: Batch) -> Tensor:
    """(5) The logits [B, N, K] of single queries, before any is absorbed."""
    return torch.cat([logits for _, logits, _ in batch.chunks()], 1)


def absorbed_logits(batch: Batch, u: Tensor, worth: Tensor | None = None) -> Tensor:
    """(10) The logits [B, N, K] by prototypes that absorbed the other queries.

    u [B, N, K] are their probabilities, and `worth` [B, N] factors on their weights.
    """
    batch.start()
    for part, x in batch.parts():
        of_part = None if worth is None else packed(worth[:, part])
        batch.add(part, x, packed(u[:, part]), of_part)
    moved, logits = batch.moved(), torch.empty_like(u)
    for part, x in batch.parts():
        of_part = None if worth is None else packed(worth[:, part])
        logits[:, part] = batch.logits(part, x, moved, packed(u[:, part]), worth=of_part)
    return logits
