"""PGD: the paper's objective, minimised by projected gradient descent to compare with PADDLE.

It minimises, over probabilities u on the simplex and prototypes w,

    T/2 sum_nk u_nk ||z_n - w_k||^2 - lam sum_k (p_k + epsilon) ln(p_k + epsilon)

with p the mean of u over the queries: PADDLE's objective at its optimal dual, without the barrier.
The second term is lam times the entropy of the proportions: it is minimised, so few classes remain.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from ..solution import Solution
from .paddle import (
    Task,
    batched,
    computing_dtype,
    data_term,
    elapsed,
    finish,
    input_prototypes,
    prepare,
    squared_distances,
)


def simplex_project(x: Tensor) -> Tensor:
    """Euclidean projection of every row of x [.., K] onto the simplex.

    The projection is max(x - t, 0), with the t that makes it sum to 1: t = (sum of the m largest
    entries - 1) / m for the largest m whose m-th entry exceeds it.
    """
    ordered = x.sort(-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    shift = (ordered.cumsum(-1) - 1) / count
    last = (ordered > shift).sum(-1, keepdim=True) - 1
    return (x - shift.gather(-1, last)).clamp(min=0)


def objective(
    task: Task, temperature: float, lam: float, epsilon: float, u: Tensor, w: Tensor
) -> Tensor:
    """The objective, [B]."""
    u, w = u.double(), w.double()
    p = u.mean(-2) + epsilon
    return temperature / 2 * data_term(task, u, w) - lam * (p * p.log()).sum(-1)


def pgd(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    lam: float | None = None,
    scaling: str = "auto",
    temperature: float = 1.0,
    epsilon: float = 1e-6,
    max_iter: int = 1000,
    learning_rate: float = 1e-4,
    tol: float = 1e-6,
    return_prototypes: bool = False,
    trace: bool = False,
) -> Solution:
    """Solve transductive few-shot tasks by projected gradient descent with Adam.

    From the support means and the probabilities they give (the first u-step of PADDLE), each
    iteration takes one step of Adam on u and w together, and projects every row of u onto the
    simplex. The public code maximises the entropy instead, and stops updating u after one
    iteration; this function follows the paper.

    Parameters
    ----------
    support, support_labels, query, num_classes, lam, scaling, temperature, epsilon
        As in `paddle_ext.reference.solve`.
    max_iter, learning_rate : int, float
        Iterations and learning rate of Adam, as in the public code. (The paper's text has a
        learning rate of 1e-3.)
    tol : float
        A task stops when its prototypes move by at most this on average; 0.0 runs all iterations.
    return_prototypes, trace : bool
        As in `paddle_ext.reference.solve`.

    Returns
    -------
    Solution
        Its `dual` is the optimal one for the proportions, 1 + ln(p + epsilon).

    Notes
    -----
    This is not a descent method. Adam moves every entry of u at about the same speed, while the
    projection is Euclidean and subtracts the same from all entries of a row; so the objective
    decreases at first and can increase later, the sooner the larger the learning rate.

    Examples
    --------
    >>> import torch
    >>> support = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> query = torch.tensor([[0.5, 0.0], [3.5, 0.5], [4.0, 0.5]])
    >>> pgd(support, torch.tensor([0, 1, 2]), query, scaling="none", learning_rate=1e-2).labels
    tensor([0, 1, 1])
    """
    start = time.perf_counter()
    dtype = computing_dtype(query)
    raw_support, one_hot, raw_query = batched(support, support_labels, query, num_classes)
    task = prepare(raw_support, one_hot, raw_query, scaling, trace)
    B, Q, _ = raw_query.shape
    weight = float(Q) if lam is None else lam

    z, means, shots = task.query.to(dtype), task.means.to(dtype), task.shots.to(dtype)
    w = means.clone()
    u = torch.softmax(-temperature / 2 * squared_distances(z, w), dim=-1)
    adam = torch.optim.Adam([u, w], lr=learning_rate)
    criterion = z.new_zeros(B)
    iterations = torch.zeros(B, dtype=torch.int32, device=z.device)
    running = torch.ones(B, dtype=torch.bool, device=z.device)
    rows: list[tuple[Tensor, Tensor, float]] = []
    for _ in range(max_iter):
        u_before, w_before = u.clone(), w.clone()
        v = 1 + torch.log(u.mean(-2, keepdim=True) + epsilon)
        u.grad = temperature / 2 * squared_distances(z, w) - weight / Q * v
        w.grad = temperature * (shots * (w - means) + u.sum(-2).unsqueeze(-1) * w - u.mT @ z)
        adam.step()

        # In place, because Adam holds these tensors; stopped tasks keep their state.
        live = running.view(-1, 1, 1)
        u.copy_(torch.where(live, simplex_project(u), u_before))
        w.copy_(torch.where(live, w, w_before))
        moved = torch.linalg.vector_norm(w - w_before, dim=-1).mean(-1)
        criterion = torch.where(running, moved, criterion)
        iterations += running.int()
        if trace:
            seconds = elapsed(start, z)
            value = objective(task, temperature, weight, epsilon, u, w)
            rows.append((value, criterion, seconds))
            start = time.perf_counter() - seconds
        if tol > 0:
            running = running & (criterion > tol)
        if not running.any():
            break

    v = 1 + torch.log(u.mean(-2, keepdim=True) + epsilon)
    prototypes = input_prototypes(raw_support, one_hot, raw_query, u) if return_prototypes else None
    found = finish(u, v, iterations, criterion, prototypes, rows, query.dim() == 3)
    return found._replace(lam=lam, scaling=scaling, temperature=temperature)
