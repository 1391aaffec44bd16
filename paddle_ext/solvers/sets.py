"""Groups of few classes: sums over sets of a group's likeliest classes, step 5 of docs/groups.md.

Letters: Q rows, G groups of n rows, K classes.
"""

import torch
from torch import Tensor

from ..groups import Groups
from ..native.call import alike, call_native, packed
from ..native.load import module as native
from .groups import Shared, likeliest_mixture, members


class Sets:
    """Sets of the likeliest classes of each group, as models in which these are equally common."""

    def __init__(self, groups: Groups, weight: Tensor, found: Shared) -> None:
        """`weight` [G] is that of a row in the evidence; `found`, the groups in any proportions."""
        self.groups, self.weight, self.found = groups, weight, found
        mean = found.prior / found.prior.sum(-1, keepdim=True)
        log_mean = mean.log().clamp(min=native.IMPOSSIBLE)
        self.log_mean = packed(log_mean.to(found.probabilities.dtype))

    def chances(self, logits: Tensor, shots: float) -> Tensor:
        """How likely it is that a group has 1, 2, .. classes, or any proportions, [G, 9] float64.

        `shots` is the mean number of labelled rows of a class.
        """
        evidence, n = self.evidence(logits), self.groups.sizes.double()
        evidence[:, -1] = (self.found.bound - evidence[:, -1]).clamp(min=0)
        # Rows of a class share the error of its mean, so they are not independent.
        evidence *= ((1 + shots) / (n + shots)).unsqueeze(-1)
        likely = (evidence - evidence.amax(-1, keepdim=True)).exp()
        shares = torch.full_like(likely[0], 1 / len(likely[0]))
        likeliest_mixture(likely, torch.zeros_like(shares), shares)
        own = likely * shares
        return own / own.sum(-1, keepdim=True)

    def evidence(self, logits: Tensor) -> Tensor:
        """Log evidences of sets of 1, 2, .. classes and, last, of independent rows, [G, 9]."""
        shape = len(self.groups.names), native.SET_CLASSES + 1
        found = logits.new_empty(shape, dtype=torch.float64)
        self.call(logits, evidence=found)
        return found

    def mix(self, logits: Tensor, chances: Tensor) -> None:
        """Replace the probabilities by their mean over the models with these chances [G, 9]."""
        self.call(logits, chances=chances)

    def call(
        self, logits: Tensor, *, evidence: Tensor | None = None, chances: Tensor | None = None
    ) -> None:
        """Write the evidence [G, 9], or replace the probabilities by those with these chances."""
        (Q, K), G, real, double = logits.shape, len(self.groups.names), logits.dtype, torch.float64
        M = native.SET_CLASSES
        inputs = {
            **members(self.groups),
            **alike(real, Q, K, logits=logits, probabilities=self.found.probabilities),
            "log_mean": (self.log_mean, real, (G, K)),
            "weight": (self.weight, double, (G,)),
            "counts": (self.found.counts, double, (G, K)),
            **alike(double, G, M + 1, chances=chances, evidence=evidence),
        }
        sizes, outputs = {"B": G, "Q": Q, "K": K}, {"ratios": (real, (Q, M))}
        call_native(native.sets_call, sizes, logits, inputs, outputs)
