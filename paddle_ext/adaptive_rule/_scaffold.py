"""TEMPORARY: the labelled part and one batch in plain torch, until the native code has them."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


def posterior(
    likelihood: Any, query: Tensor, added: Tensor | None, measures: Tensor | None,
    *, max_iter: int, tol: float,
) -> tuple[Any, Any]:
    """Returns the solution and the likelihood after the batch, with ln(N + a m) in its bias."""
    from dataclasses import replace

    import adaptive_torch as rule

    from ..prevalence import counts_of, estimated_shares
    from ..reference.adapt import next_concentration
    from ..solvers.adapt import call_adapt, solution_of

    real = likelihood.bias.dtype
    x = likelihood.centred(query.to(real)).double()
    B, Q, D = x.shape
    K = likelihood.bias.shape[-1]
    S = likelihood.rows
    if added is None:
        added = x.new_zeros(B, Q, K)
    if likelihood.correction is not None:
        added = added + likelihood.corrected(x.to(real))
    doubles = {k: v.double() for k, v in likelihood.tensors().items() if v.is_floating_point()}
    wide = replace(likelihood, **doubles)
    labelled_mass, mass, f, V = wide.labelled_mass, wide.mass, wide.sharpness, wide.variance
    xm = wide.in_metric(wide.prototypes)
    gram = wide.in_metric(x) @ x.mT
    model = rule.Model(V.view(-1, 1, 1), wide.prior_rows.view(-1, 1, 1))
    batch = rule.Batch(gram, gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1), x @ xm.mT,
                       wide.squares.unsqueeze(1), labelled_mass.unsqueeze(1), wide.shots,
                       f.view(-1, 1, 1) / 2, wide.bias.unsqueeze(1), model)
    l = batch.first_logits() + added
    even = torch.ones(K).double().expand(B, K) if measures is None else measures.double()[:, 0].expand(B, K)
    of_labels = wide.shots * (K / wide.shots.sum(-1, keepdim=True))
    second = of_labels.expand(B, K) if measures is None else measures.double()[:, 1].expand(B, K)
    both = torch.stack([even, second], 1)
    rho = S / (S + Q)
    adapted = solution_of(call_adapt(l, rho, max_iter, tol, both, None), True)
    used = adapted.prior_used
    measure = torch.where(used.unsqueeze(-1), second, even)
    u, a = adapted.probabilities, adapted.concentration.unsqueeze(-1)
    possible = measure > 0
    for _ in range(rule.ROUNDS):
        W = 2 * S / (2 * S + Q) * u.square()
        logits = batch.absorbed_logits(W) + added
        counts = rho * u.sum(1, keepdim=True)
        a = next_concentration(a, counts.squeeze(1), rho * Q, measure, torch.full_like(a, 1e-4))
        others = ((counts - rho * u).clamp(min=0) + (a * measure).unsqueeze(1)).log()
        u = (logits + others.masked_fill(~possible.unsqueeze(1), -1e30)).softmax(-1)
    counts = rho * u.sum(1)
    own = torch.where(possible, counts + a * measure, 1.0)
    dual = torch.where(possible, torch.digamma(own) - torch.digamma(rho * Q + K * a), -1e30)
    W = 2 * S / (2 * S + Q) * u.square()
    more = W.sum(1)
    sums = labelled_mass.unsqueeze(-1) * wide.prototypes + W.mT @ x
    prototypes = sums / (labelled_mass + more).unsqueeze(-1)
    moved = replace(wide, prototypes=prototypes, squares=wide.squared(prototypes), absorbed=more,
                    bias=wide.bias + torch.where(possible, own.log(), -1e30))
    u = rule.claimed(u, wide.shots.expand(B, K)).to(real)
    labels = u.argmax(-1)
    counted = counts_of(labels, torch.zeros(B, K, dtype=torch.float64))
    shares = estimated_shares(counted, u.double().sum(1), float(Q))
    found = adapted._replace(labels=labels, probabilities=u, proportions=shares.to(real),
                             dual=dual.to(real), concentration=a.squeeze(-1).to(real),
                             criterion=adapted.criterion.to(real), bound=adapted.bound.to(real),
                             prior_used=None if measures is None else used)
    back = {k: v.to(real) for k, v in moved.tensors().items() if v.is_floating_point()}
    return found, replace(moved, **back)
