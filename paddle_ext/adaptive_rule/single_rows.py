"""Rows that come one by one, after a batch or after none; docs/adaptive.md has the equations."""

from dataclasses import replace

import torch
from torch import Tensor

from ..native.load import module as native
from ..solution import Solution
from .likelihood import Likelihood
from .rounds import Classified
from .steps import claimed


def expecting(likelihood: Likelihood, log_shares: Tensor) -> Likelihood:
    """The likelihood of single rows whose classes have these log proportions [K]."""
    return replace(likelihood, bias=likelihood.bias + log_shares.to(likelihood.bias))


def after_batch(found: Classified, likelihood: Likelihood) -> Likelihood:
    """The likelihood of single rows after a batch [1, Q, D], given that of the labelled rows.

    Its prototypes have absorbed the batch, whole things if rows are the same. After groups, whose
    proportions are no single row's, they are those of the labelled rows.
    """
    if found.after is not None:
        return found.after
    return expecting(likelihood, log_shares_over_groups(found.solution))


def log_shares_over_groups(solution: Solution) -> Tensor:
    """Log proportions [K] of the rows of all groups, up to a constant.

    The prior of a typical group counts too: a class that no row has may yet occur.
    """
    whole = solution.over_all()
    assert whole.concentration is not None
    held = whole.class_sums()[1]
    possible = held > 0  # unless a prior of the caller says that a class cannot occur
    log_shares = torch.where(possible, held + whole.concentration, 1.0).log()
    return log_shares.masked_fill(~possible, native.IMPOSSIBLE)


def claimed_by_logits(logits: Tensor, shots: Tensor) -> Tensor:
    """(16) The probabilities of rows with logits [N, K], with n_k labelled rows [K]."""
    return claimed(logits.softmax(-1).unsqueeze(0), shots.unsqueeze(0))[0]
