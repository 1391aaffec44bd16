"""Entropic optimal transport by Sinkhorn's iteration, in plain torch: the specification.

Letters: B tasks, Q rows, K columns. The result is the plan

    P_qk = exp(-cost_qk / reg + f_q + g_k)      with row sums row_mass and column sums col_mass,

which minimises sum P cost + reg sum P ln P under these sums. f and g are computed alternately, each
in closed form, starting from g = 0.
"""

import torch
from torch import Tensor

from ..solution import Transport


def sinkhorn(
    cost: Tensor,
    row_mass: Tensor,
    col_mass: Tensor,
    *,
    reg: float,
    max_iter: int = 1000,
    tol: float = 1e-6,
) -> Transport:
    """Find the transport plans of a batch of tasks, in the log domain and in float64.

    See `paddle_ext.sinkhorn` for the parameters; the result is in float64 for a float64 cost, else
    in float32.
    """
    dtype = torch.float64 if cost.dtype == torch.float64 else torch.float32
    *batch, Q, K = cost.shape
    r = row_mass.detach().double().reshape(-1, Q, 1)
    c = col_mass.detach().double().reshape(-1, 1, K)
    c = c * (r.sum(-2, keepdim=True) / c.sum(-1, keepdim=True))

    # Offsets of rows and columns of the cost do not change the plan: f and g absorb them. They are
    # subtracted first, so that large ones do not hide differences; g starts with the columns'.
    cost = cost.detach().double().reshape(-1, Q, K)
    logits = (cost.amin(-1, keepdim=True) - cost) / reg
    logits = logits.clamp(min=-1e300)
    g = logits.amax(-2, keepdim=True)
    logits = logits - g

    plan = torch.zeros_like(logits)
    iterations = torch.zeros(len(plan), dtype=torch.int32, device=plan.device)
    residual = plan.new_zeros(len(plan))
    running = torch.ones_like(iterations, dtype=torch.bool)
    for _ in range(max_iter):
        if not running.any():
            break
        f = r.log() - torch.logsumexp(logits + g, dim=-1, keepdim=True)
        g = c.log() - torch.logsumexp(logits + f, dim=-2, keepdim=True)
        next_plan = c * torch.softmax(logits + f, dim=-2)  # exp(logits + f + g)
        off = (next_plan.sum(-1, keepdim=True) - r).abs().amax((-2, -1))

        plan = torch.where(running.view(-1, 1, 1), next_plan, plan)  # stopped tasks keep their plan
        residual = torch.where(running, off, residual)
        iterations += running.int()
        if tol > 0:
            running = running & (residual > tol)
    return Transport(
        plan.to(dtype).reshape(*batch, Q, K),
        iterations.reshape(batch),
        residual.to(dtype).reshape(batch),
    )
