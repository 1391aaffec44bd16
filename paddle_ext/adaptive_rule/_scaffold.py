"""TEMPORARY: the labelled part in plain torch, until the native code has it."""

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
