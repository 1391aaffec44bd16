"""Sinkhorn's iteration for a task too large for one thread block: in torch, in the log domain.

Letters: Q rows, K columns. Potentials f and g are float64, and the plan is exp(logits + f + g), as
in `paddle_ext.reference.sinkhorn`. The matrix is visited in chunks of rows, so that the memory in
addition to the plan is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

LARGE = 2**20  # numbers of a matrix: below, a thread block for each of many tasks is faster
CHUNK = 2**22  # numbers of a chunk
KEPT = 2**25  # numbers whose logits are kept; of more they are computed again for every sum
LOWEST = -1e300  # logit, so that sums of potentials stay finite


def solve_large(
    cost: Tensor, row_mass: Tensor, col_mass: Tensor, reg: float, max_iter: int, tol: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Plan [Q, K], iterations and residual of one task; the cost and its result are float32."""
    task = Task(cost, row_mass, col_mass, reg)
    f, g = torch.zeros_like(task.row_mass), torch.zeros_like(task.col_mass)
    row_sums = task.row_log_sums(g)
    residual = torch.zeros_like(f[0])
    iterations = torch.zeros_like(residual, dtype=torch.int32)
    running = torch.ones_like(residual, dtype=torch.bool)
    # Recorded in a CUDA graph, a task that has stopped goes through the rest of the iterations.
    watched = tol > 0 and not (cost.is_cuda and torch.cuda.is_current_stream_capturing())
    for _ in range(max_iter):
        f = torch.where(running, task.row_log - row_sums, f)
        g = torch.where(running, task.col_log - task.column_log_sums(f), g)
        row_sums = task.row_log_sums(g)
        residual = ((f + row_sums).exp() - task.row_mass).abs().amax()
        iterations += running
        if tol > 0:
            running = running & (residual > tol)
        if watched and not bool(running):
            break
    return task.plan(f, g), iterations, residual.to(cost.dtype)


class Task:
    """One task, with column masses scaled to the exact total of the rows."""

    def __init__(self, cost: Tensor, row_mass: Tensor, col_mass: Tensor, reg: float) -> None:
        self.cost, self.reg = cost, reg
        self.row_mass, columns = row_mass.double(), col_mass.double()
        self.col_mass = columns * (self.row_mass.sum() / columns.sum())
        self.row_log, self.col_log = self.row_mass.log(), self.col_mass.log()
        self.rows = max(1, CHUNK // cost.shape[1])
        self.kept = [*self.compute()] if cost.numel() <= KEPT else None

    def logits(self) -> Iterable[tuple[slice, Tensor]]:
        """Chunks of rows: where they are, and -cost / reg in float64, at most 0."""
        return self.compute() if self.kept is None else self.kept

    def compute(self) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, len(self.cost), self.rows):
            part = slice(start, start + self.rows)
            cost = self.cost[part].double()
            yield part, ((cost.amin(-1, keepdim=True) - cost) / self.reg).clamp_(min=LOWEST)

    def row_log_sums(self, g: Tensor) -> Tensor:
        return torch.cat([torch.logsumexp(logits + g, -1) for _, logits in self.logits()])

    def column_log_sums(self, f: Tensor) -> Tensor:
        sums = torch.full_like(self.col_mass, -torch.inf)
        for part, logits in self.logits():
            sums = torch.logaddexp(sums, torch.logsumexp(logits + f[part].unsqueeze(-1), -2))
        return sums

    def plan(self, f: Tensor, g: Tensor) -> Tensor:
        out = torch.empty_like(self.cost)
        for part, logits in self.logits():
            out[part] = (logits + f[part].unsqueeze(-1) + g).exp()
        return out
