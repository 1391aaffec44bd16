"""Groups of few classes: sums over sets of a group's likeliest classes, as in docs/groups.md.

Letters: Q rows, G groups, K classes.
"""

import torch
from torch import Tensor

from ..groups import Groups
from ..native.call import Inputs, alike, call_native
from ..native.load import module as native
from .groups import Shared, members, posterior_of_mixture


def mix_few_classes(
    logits: Tensor, groups: Groups, weight: Tensor, found: Shared, likeness: Tensor | None = None
) -> None:
    """Replace the probabilities by their mean over what a group may hold.

    It may hold any proportions, those of `found`, or 1, 2, .. classes that are equally common.
    `weight` [G] is that of a row in the counts, `likeness` [1] is r.
    """
    evidence = evidence_of_sets(logits, groups, weight, found, likeness)
    posterior_of_mixture(evidence)
    call_sets(logits, groups, weight, found, likeness, chances=evidence)


def evidence_of_sets(
    logits: Tensor, groups: Groups, weight: Tensor, found: Shared, likeness: Tensor | None = None
) -> Tensor:
    """Log evidences of sets of 1, 2, .. classes and, last, of any proportions, [G, 9] float64.

    They are relative to rows that are drawn from the measure.
    """
    evidence = logits.new_empty(len(groups.names), native.CASES, dtype=torch.float64)
    call_sets(logits, groups, weight, found, likeness, evidence=evidence)
    return evidence


def call_sets(
    logits: Tensor,
    groups: Groups,
    weight: Tensor,
    found: Shared,
    likeness: Tensor | None,
    *,
    evidence: Tensor | None = None,
    chances: Tensor | None = None,
) -> None:
    """Write the evidence [G, 9], or replace the probabilities by those with these chances."""
    (Q, K), G, real, double = logits.shape, len(groups.names), logits.dtype, torch.float64
    inputs: Inputs = {
        **members(groups),
        **alike(real, Q, K, logits=logits, probabilities=found.probabilities),
        **alike(double, G, concentration=found.prior.concentration, weight=weight),
        **alike(double, G, K, measure=found.prior.measure, counts=found.counts),
        **alike(double, G, native.CASES, chances=chances, evidence=evidence),
        "likeness": (likeness, double, (1,)),
    }
    sizes, outputs = {"B": G, "Q": Q, "K": K}, {"ratios": (real, (Q, native.SET_CLASSES))}
    call_native(native.sets_call, sizes, logits, inputs, outputs)
