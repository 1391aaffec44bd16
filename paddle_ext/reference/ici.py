"""LR + ICI in plain torch, task by task, with the lasso's design matrix written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .paddle import batched, unit_rows

PENALTIES = 100
SMALLEST = 1e-3  # the smallest penalty, as a share of the largest
LEAST_SPREAD = 1e-6  # of unit-norm rows along a principal axis; less is rounding


def annihilator(rows: Tensor, dimension: int) -> Tensor:
    """I - H, with H the projector on the first principal components of rows [N, D]; [N, N]."""
    N = len(rows)
    left, spread, _ = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    left = left[:, :dimension][:, spread[:dimension] > LEAST_SPREAD * N**0.5]
    projector: Tensor = left @ left.T
    return torch.eye(N, dtype=rows.dtype, device=rows.device) - projector


def lasso_path(design: Tensor, target: Tensor) -> list[Tensor]:
    """Coefficients [N, K] of the multi-task lasso at up to 100 decreasing penalties.

    Minimises ``1/2 ||target - design G||^2 + penalty sum_n ||G_n||`` for a projector, by
    accelerated proximal gradients that restart when they overshoot. The first penalty is the least
    at which G = 0, the others decrease geometrically to a thousandth of it. The path ends early if
    no row is zero: then none is at any smaller penalty.
    """
    largest = float((design.T @ target).norm(dim=-1).max())
    path = [torch.zeros_like(target)]
    for j in range(1, PENALTIES):
        penalty = largest * SMALLEST ** (j / (PENALTIES - 1))
        G = ahead = path[-1]
        momentum = 1.0
        for _ in range(100_000):
            old = G
            z = ahead + design.T @ (target - design @ ahead)
            norm = z.norm(dim=-1, keepdim=True)
            G = torch.where(norm > penalty, (1 - penalty / norm) * z, 0)
            if float((G - ahead).abs().max()) < 1e-11:
                break
            if float(((ahead - G) * (G - old)).sum()) > 0:
                momentum = 1.0
            after = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead, momentum = G + (momentum - 1) / after * (G - old), after
        path.append(G)
        if bool(G.any(-1).all()):
            break
    return path


def logistic_regression(x: Tensor, labels: Tensor, num_classes: int, C: float) -> Tensor:
    """Weights [D + 1, K], the last row the intercepts, of 1/2 ||W||^2 + C * cross-entropy.

    A model of two classes has one logit, with weights w: its penalty is 1/2 ||w||^2, while the two
    logits w/2 and -w/2 have 1/4 ||w||^2.
    """
    C = C / 2 if num_classes == 2 else C
    weights = x.new_zeros(x.shape[1] + 1, num_classes).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [weights],
        max_iter=10_000,
        tolerance_grad=1e-7,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimiser.zero_grad()
        W, b = weights[:-1], weights[-1]
        loss = W.square().sum() / 2 + C * F.cross_entropy(x @ W + b, labels, reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimiser.step(objective)  # type: ignore[no-untyped-call]
    return weights.detach()


def ici(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    step: int = 5,
    max_iter: int = 100,
    dimension: int = 2,
    inverse_regularisation: float = 10.0,
) -> Tensor:
    """Classify queries by logistic regression that absorbs them, credible pseudo-labels first.

    With unit-norm rows, H the projector on their first principal components and Y the one-hot
    labels of all rows, with those of the model for queries, each round solves the multi-task lasso
    ``(I - H) Y ~ (I - H) G`` at 100 penalties. From the smallest penalty up it absorbs the queries
    whose row of G is zero, in order, at most `step` per class, and then fits the model again.
    Absorbed queries are labelled again in every round.

    Parameters
    ----------
    support, support_labels, query, num_classes
        As in `paddle_ext.reference.solve`.
    step, max_iter : int
        Limits on queries absorbed per class and round, and on rounds.
    dimension : int
        Number of principal components.
    inverse_regularisation : float
        C of the logistic regression, ``1/2 ||W||^2 + C * cross-entropy``, summed over rows.

    Returns
    -------
    Tensor [.., Q, K]
        Probabilities, in float64.

    Examples
    --------
    >>> import torch
    >>> support, query = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0]])
    >>> ici(support, torch.tensor([0, 1]), query).argmax(-1)
    tensor([0])
    """
    supports, one_hots, queries = batched(support, support_labels, query, num_classes)
    K, S = one_hots.shape[-1], supports.shape[1]
    results = []
    for b, z in enumerate(queries):
        own = b if len(supports) > 1 else 0
        rows = unit_rows(torch.cat([supports[own], z]))
        labels = one_hots[own].argmax(-1)
        design = annihilator(rows, dimension)
        included = list(range(S))
        weights = logistic_regression(rows[:S], labels, K, inverse_regularisation)
        for _ in range(max_iter):
            pseudo_labels = (rows[S:] @ weights[:-1] + weights[-1]).argmax(-1)
            if not torch.equal(labels[S:], pseudo_labels):
                labels = torch.cat([labels[:S], pseudo_labels])
                path = lasso_path(design, design @ F.one_hot(labels, K).to(rows.dtype))
            included += most_credible(path, labels, included, step)
            weights = logistic_regression(
                rows[included], labels[included], K, inverse_regularisation
            )
            if len(included) == len(rows):
                break
        results.append(torch.softmax(rows[S:] @ weights[:-1] + weights[-1], dim=-1))
    return torch.stack(results) if query.dim() == 3 else results[0]


def most_credible(path: list[Tensor], labels: Tensor, included: list[int], step: int) -> list[int]:
    """Rows to absorb, of those not included, from the smallest penalty up."""
    chosen: list[int] = []
    taken = [0] * path[0].shape[1]
    for coefficients in reversed(path):
        for n in (coefficients.abs().sum(-1) == 0).nonzero().flatten().tolist():
            label = int(labels[n])
            if n not in included and n not in chosen and taken[label] < step:
                chosen.append(n)
                taken[label] += 1
    return chosen
