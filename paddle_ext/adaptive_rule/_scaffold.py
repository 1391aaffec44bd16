"""TEMPORARY: the labelled part and one batch in plain torch, until the native code has them."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


def learn(support: Tensor, labels: Tensor, K: int, metric: str) -> tuple[dict[str, Any], Tensor]:
    from laboratory import rule
    from laboratory.tasks import unit_norm

    from ..native.load import module as native

    real = support.dtype
    B, S, D = support.shape
    members = torch.nn.functional.one_hot(labels, K).double()
    counts = members.sum(1)
    x = unit_norm(support.double())
    centre = ((members.mT @ x) / counts.unsqueeze(-1)).mean(1, keepdim=True)
    if K == 1:
        centre = torch.zeros_like(centre)
    labelled = rule.Labelled(unit_norm(x - centre), labels, members, counts)
    full = S > K and metric != "diagonal"
    mixtures = rule.MIXTURES
    if not full:
        rule.MIXTURES = (0.0,)
    m = rule.metric_of(labelled)
    model = rule.model_of(labelled, m)
    left = rule.leave_rows_out(labelled, m, model)
    calibration = rule.calibrate(labelled, left)
    rule.MIXTURES = mixtures
    root = m.root
    prototypes = model.prototypes(labelled)
    rows = prototypes.rows * root
    found: dict[str, Any] = {
        "centre": centre.squeeze(1), "prototypes": prototypes.rows, "bias": calibration.bias,
        "shots": counts, "prior_rows": model.prior_rows.view(B), "variance": model.variance.view(B),
        "sharpness": calibration.sharpness, "scale": root.squeeze(1).square(),
    }
    t, length = calibration.mixture.share, left.lengths
    scaled = rows
    found["squares"] = calibration.mixture.of(m.see(prototypes.rows).squares())
    if full:
        ridge = m.ridge.view(B)
        by_rows = S < D
        M = min(S, D)
        if by_rows:
            L = m.factor / ridge.view(B, 1, 1).sqrt()
            right = torch.linalg.solve_triangular(L, m.offsets @ rows.mT, upper=False).mT
            scaled = torch.cat([m.offsets, rows], 1)
            plain, projected = 1 - t + t / length, -t / length / ridge
        else:
            gram = m.offsets.mT @ m.offsets / ridge.view(B, 1, 1)
            gram.diagonal(dim1=-2, dim2=-1).add_(1)
            L = torch.linalg.cholesky(gram)
            right = torch.linalg.solve_triangular(L, rows.mT, upper=False).mT
            plain, projected = 1 - t, t / length
        block = native.FACTOR_BLOCK
        pad = -M % block
        L = torch.nn.functional.pad(L, (0, pad, 0, pad))
        L.diagonal(dim1=-2, dim2=-1)[..., M:].fill_(1)
        for start in range(0, M + pad, block):
            here = slice(start, start + block)
            L[:, here, here] = torch.linalg.inv(L[:, here, here]).tril()
        found |= {"factor": L, "solved": torch.nn.functional.pad(right, (0, pad)),
                  "shares": torch.stack([t, plain, projected], -1)}
    found["scaled"] = scaled
    task = torch.arange(B)
    best = (t * 4).round().long()
    distances = left.distances[best, task]
    found = {k: v.to(real) for k, v in found.items()}
    if support.is_cuda:
        raise NotImplementedError
    return found, distances.to(real)


def posterior(
    likelihood: Any, query: Tensor, added: Tensor | None, measures: Tensor | None,
    *, max_iter: int, tol: float,
) -> tuple[Any, Any]:
    """Returns the solution and the likelihood after the batch, with ln(N + a m) in its bias."""
    from dataclasses import replace

    from laboratory import rule

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


def absorbed_logits(likelihood: Any, batch: Tensor, u: Tensor, worth: Tensor) -> Tensor:
    """(10) Logits [Q, K] of centred rows [Q, D]; a row of probabilities u is worth so much, [Q]."""
    from laboratory import rule

    S, Q = likelihood.rows, len(batch)
    W = 2 * S / (2 * S + Q) * worth.unsqueeze(1) * u.square()
    mass = likelihood.labelled_mass[0]
    own = likelihood.squared(batch[None])[0].unsqueeze(1)
    sums = mass.unsqueeze(1) * likelihood.prototypes[0] + W.mT @ batch
    in_metric = likelihood.in_metric(sums[None])[0]
    x_sum = batch @ in_metric.mT
    square = (in_metric * sums).sum(-1)
    rest = mass + W.sum(0) - W
    square = (square - 2 * W * x_sum + W * W * own) / rest.square()
    cross = (x_sum - W * own) / rest
    model = rule.Model(likelihood.variance[0], likelihood.prior_rows[0])
    distances = model.distances(own, cross, square, rest, mass)
    return likelihood.bias[0] - likelihood.sharpness[0] / 2 * distances


def claimed(likelihood: Any, u: Tensor) -> Tensor:
    """(16) The claims of rows [Q, K]."""
    n = likelihood.shots[0]
    confidence = (u * (n / (n + 1))).sum(-1, keepdim=True)
    logs = (confidence * u.clamp(min=1e-30).log()).masked_fill(u == 0, -torch.inf)
    return logs.softmax(-1)
