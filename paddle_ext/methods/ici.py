"""LR + ICI: logistic regression that absorbs queries by the credibility of their pseudo-labels."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import check
from ..rows import unit_rows
from ..task import Task, in_chunks
from .base import Display, Grid, Method, Presets, factor, option
from .registry import register

LEAST_SPREAD = 1e-6  # of unit-norm rows along a principal axis; less is rounding
PENALTIES = 100
SMALLEST_PENALTY = 1e-3  # as a share of the largest
AT_ONCE = 10  # penalties for which reweighting runs together
MAX_REWEIGHTINGS = 200
RESIDUAL_TOL = 1e-9  # change of the residuals at which reweighting stops


@register
@dataclass(frozen=True, kw_only=True)
class Ici(Method):
    """Logistic regression that absorbs the queries, the most credible pseudo-labels first.

    Wang et al., *Instance Credibility Inference for Few-Shot Learning*, CVPR 2020. Rows are made
    unit-norm. A multinomial logistic regression is fitted to the support, and then in every round:

    1. The model labels all queries, including those absorbed before.
    2. The one-hot labels of all rows are regressed on their first principal components. Each row
       has an incidental parameter, a vector, which absorbs what the regression does not explain,
       under a penalty on its norm. The smaller the penalty at which it is zero, of 100 down to a
       thousandth of the one at which all are zero, the more credible the label.
    3. The `step` most credible remaining queries of each class are absorbed; of equals, the first.
    4. The model is fitted again to the support and all absorbed queries.

    A task stops when all its queries are absorbed. The probabilities are those of its last model.

    Parameters
    ----------
    step : int
        Limit on queries absorbed per class and round, >= 1.
    max_iter : int
        Limit on rounds, >= 1.
    dimension : int
        Principal components that the labels are regressed on, >= 1. Fewer are used if rows have
        fewer directions.
    inverse_regularisation : float
        C, > 0 and up to 1e6: the model minimises 1/2 ||W||^2 + C * cross-entropy, summed over
        rows; intercepts are not penalised. With two classes it has one logit, as in scikit-learn,
        and W is its weight vector.
    tol : float
        Accuracy of the fits, >= 0: the error of the logits is at most about this, or C times this
        for C < 1.
    """

    name: ClassVar[str] = "ici"
    display: ClassVar[Display] = Display("LR+ICI", 3, "#8c6d31", "D")
    tuning_grid: ClassVar[Grid] = {"dimension": (2, 5, 10), "step": (3, 5, 10)}
    presets: ClassVar[Presets] = {"tiered": {"dimension": 5}, "inat": {"dimension": 5}}

    step: int = option(5, check.integer)
    max_iter: int = option(100, check.integer)
    dimension: int = option(2, check.integer)
    inverse_regularisation: float = option(10.0, factor)
    tol: float = option(0.01, check.real)

    def solve(self, task: Task) -> Tensor:
        N, D = task.support.shape[1] + task.query.shape[1], task.query.shape[2]
        size = 8 * N * (8 * D + 3 * AT_ONCE * task.num_classes)
        with torch.inference_mode(False):  # the caller may use it, and there are gradients here
            return in_chunks(self.solve_chunk, task, size)

    def solve_chunk(self, task: Task) -> Tensor:
        B, Q, _ = task.query.shape
        S, K = task.support.shape[-2], task.num_classes
        rows = torch.cat([task.support.expand(B, -1, -1), task.query], dim=1)
        features, axes = principal_components(unit_rows(rows.double()), self.dimension)
        # cross_entropy ignores rows of the class -100, which have no label yet.
        labels = F.pad(task.support_labels.expand(B, -1), (0, Q), value=-100)
        absorbed = (torch.arange(S + Q, device=labels.device) < S).repeat(B, 1)
        weights = features.new_zeros(B, features.shape[-1], K)
        weights = self.fitted(features, labels, absorbed, weights)
        order, ordered = torch.zeros_like(labels), torch.zeros_like(labels) - 1
        tasks = torch.arange(B, device=labels.device)  # those with queries left
        for _ in range(self.max_iter):
            x, inside, own = features[tasks], absorbed[tasks], labels[tasks]
            own[:, S:] = (x[:, S:] @ weights[tasks]).argmax(-1)
            labels[tasks] = own
            classes = torch.where(inside, K, own)
            # Credibility depends on the labels alone, and decides only where a class has more
            # queries left than may be absorbed.
            contested = (F.one_hot(classes, K + 1).sum(1)[:, :K] > self.step).any(-1)
            new = tasks[contested & (own != ordered[tasks]).any(-1)]
            if len(new):
                order[new], ordered[new] = first_zeros(axes[new], labels[new], K), labels[new]
            inside = inside | (place_in_class(classes, order[tasks]) < self.step)
            weights[tasks] = self.fitted(x, own, inside, weights[tasks])
            absorbed[tasks] = inside
            tasks = tasks[~inside.all(-1)]
            if len(tasks) == 0:
                break
        return torch.softmax(features[:, S:] @ weights, dim=-1).to(task.query.dtype)

    def fitted(self, features: Tensor, labels: Tensor, inside: Tensor, weights: Tensor) -> Tensor:
        """The weights [B, F, K] of the model of each task, from a start."""
        # With two classes, one logit of weights w is two of weights w/2 and -w/2: half of the
        # penalty on w.
        C = self.inverse_regularisation / (2 if weights.shape[-1] == 2 else 1)
        row_weights = C * inside.flatten().to(features.dtype)
        weights = weights.clone().requires_grad_()
        # All tasks stop together, at gradients so small that it hardly shows.
        optimiser = torch.optim.LBFGS(
            [weights],
            max_iter=1000,
            tolerance_grad=1e-3 * self.tol * min(1.0, C),
            tolerance_change=1e-14,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def objective() -> Tensor:
            optimiser.zero_grad()
            logits = (features @ weights).flatten(0, 1)
            entropy = F.cross_entropy(logits, labels.flatten(), reduction="none")
            # The last feature is that of the intercept.
            loss = weights[:, :-1].square().sum() / 2 + entropy @ row_weights
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with torch.enable_grad():
            optimiser.step(objective)  # type: ignore[no-untyped-call]
        return weights.detach()


def principal_components(rows: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """Coordinates of rows [B, N, D] along their principal axes and a 1 (the intercept), [B, N, F].

    Also a basis [B, N, d] of the first `dimension` of them, zero where the rows have no spread.
    """
    left, spread, _ = torch.linalg.svd(rows - rows.mean(1, keepdim=True), full_matrices=False)
    wide = spread > LEAST_SPREAD * rows.shape[1] ** 0.5
    features = F.pad(left * spread.unsqueeze(1), (0, 1), value=1.0)
    return features, (left * wide.unsqueeze(1))[..., :dimension]


def first_zeros(axes: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """The number of the smallest penalty that makes each row's parameter zero, [B, N] int64.

    ICI minimises ``1/2 ||Y - U W - G||^2 + penalty sum_n ||G_n||`` over the incidental parameters G
    [N, K] and W [d, K], with U the basis and Y the one-hot labels. Eliminating G row by row leaves
    a Huber loss of the residual norms ||y_n - u_n W||, for reweighted least squares; G_n is zero
    where the norm is at most the penalty. All are zero at the largest penalty, number 99.
    """
    one_hot = F.one_hot(labels, num_classes).to(axes.dtype).unsqueeze(1)  # [B, 1, N, K]
    unused = torch.diag_embed((axes == 0).all(1).to(axes.dtype)).unsqueeze(1)
    axes = axes.unsqueeze(1)
    norms = torch.linalg.vector_norm(one_hot - axes @ (axes.mT @ one_hot), dim=-1)  # [B, 1, N]
    largest = norms.amax(-1, keepdim=True)
    first = torch.full_like(labels, PENALTIES - 1)
    for top in range(PENALTIES - 2, -1, -AT_ONCE):
        numbers = torch.arange(top, max(top - AT_ONCE, -1), -1, device=labels.device).view(-1, 1)
        penalties = largest * SMALLEST_PENALTY ** (1 - numbers.to(axes) / (PENALTIES - 1))
        norms = norms[:, -1:].expand(-1, len(numbers), -1)  # [B, AT_ONCE, N]
        for _ in range(MAX_REWEIGHTINGS):
            weighted = (axes / torch.maximum(norms, penalties).unsqueeze(-1)).mT
            W = torch.linalg.solve(weighted @ axes + unused, weighted @ one_hot)
            before, norms = norms, torch.linalg.vector_norm(one_hot - axes @ W, dim=-1)
            if float((norms - before).abs().max()) < RESIDUAL_TOL:
                break
        zero = norms <= penalties
        first = torch.minimum(first, torch.where(zero, numbers, PENALTIES).amin(1))
        if not bool(zero[:, -1].any()):  # the sum of the norms is minimal, for any smaller penalty
            break
    return first


def place_in_class(classes: Tensor, order: Tensor) -> Tensor:
    """The place of each row in its class when sorted by `order`, then by index, [B, N]."""
    rank = (classes * PENALTIES + order).argsort(dim=-1, stable=True).argsort(dim=-1)
    return rank - torch.searchsorted(classes.sort(dim=-1).values, classes)
