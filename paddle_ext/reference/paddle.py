"""PADDLE in plain torch: the specification that the native code is tested against.

Letters: B tasks, Q queries, S support rows, K classes, D features. A task minimises

    T/2 sum_nk u_nk ||z_n - w_k||^2                          data: queries, and support with u = y
      + lam ( sum_k e^(v_k - 1) - sum_k v_k (p_k + epsilon) )      p_k = mean over queries of u_qk
      + sum_qk u_qk ln u_qk                                           keeps u inside the simplex

over the probabilities u, the dual v and the prototypes w, in turn, each in closed form.
With v at its optimum the second line is lam times the entropy of p: few classes are present.
"""

import torch
from torch import Tensor

from ..solution import Solution

AUTO_GAP = 13.0  # "auto" scales the mean lead of the nearest class to this, in squared distance
AUTO_MIN_GAP = 1e-12  # a smaller lead counts as zero,
AUTO_MIN_SHARE = 1e-5  # and so does one below this share of the distance to the median class

# The inverses of smaller numbers would overflow in the dtype of the computation. A smaller range of
# a feature counts as zero,
MIN_RANGE = {torch.float32: 1e-37, torch.float64: 1e-300}
# and rows of a smaller norm are divided by this instead of their norm.
MIN_NORM = {torch.float32: 1 / 3e38, torch.float64: 1 / 1.7e308}


def unit_rows(x: Tensor, least: float = 0.0) -> Tensor:
    """Rows of norm 1; shorter ones than `least` stay below norm 1, and zero rows stay zero."""
    largest = x.abs().amax(-1, keepdim=True)  # scale to at most 1, so that squares cannot overflow
    largest = torch.where(largest > 0, largest, 1)
    x = x / largest
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    shortest = torch.full_like(largest, least) / largest  # a number over a tensor would overflow
    return x / torch.where(norm > 0, torch.maximum(norm, shortest), 1)


def class_means(support: Tensor, one_hot: Tensor) -> Tensor:
    """[.., S, D] and [.., S, K] -> [.., K, D]."""
    return one_hot.mT @ support / one_hot.sum(-2).unsqueeze(-1)


def squared_distances(query: Tensor, prototypes: Tensor) -> Tensor:
    """[B, Q, D] and [B, K, D] -> [B, Q, K]; both centred, to avoid cancellation."""
    squares = query.square().sum(-1).unsqueeze(-1) + prototypes.square().sum(-1).unsqueeze(-2)
    return (squares - 2 * query @ prototypes.mT).clamp(min=0)


def auto_factor(query: Tensor, means: Tensor) -> Tensor:
    """The factor of scaling="auto", [B]: it sets the lead of the nearest class over the median."""
    distance = squared_distances(query, means)
    median = distance.kthvalue(means.shape[-2] // 2 + 1, dim=-1).values
    gap = (median - distance.amin(-1)).mean(-1)
    least = (AUTO_MIN_SHARE * median.mean(-1)).clamp(min=AUTO_MIN_GAP)
    return torch.where(gap > least, (AUTO_GAP / gap).sqrt(), 1)


def prepare(
    support: Tensor,
    one_hot: Tensor,
    query: Tensor,
    scaling: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Queries [B, Q, D] and class means [B, K, D], scaled and centred at the query mean."""
    if scaling == "auto":
        support, query = (unit_rows(x, MIN_NORM[dtype]) for x in (support, query))
    means = class_means(support, one_hot)
    if scaling == "minmax":
        width = query.amax(-2, keepdim=True) - query.amin(-2, keepdim=True)
        width = torch.where(width > MIN_RANGE[dtype], width, 1)
        query, means = query / width, means / width
    centre = query.mean(-2, keepdim=True)
    query, means = query - centre, means - centre
    if scaling == "auto":
        factor = auto_factor(query, means).view(-1, 1, 1)
        query, means = query * factor, means * factor
    return query, means


def batched(
    support: Tensor, support_labels: Tensor, query: Tensor, num_classes: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Support [B or 1, S, D], its one-hot labels [B or 1, S, K] and query [B, Q, D]; float64."""
    support, query = support.detach().double(), query.detach().double()
    if num_classes is None:
        num_classes = int(support_labels.max()) + 1
    one_hot = torch.nn.functional.one_hot(support_labels.long(), num_classes).double()
    if support.dim() == 2:
        support, one_hot = support.unsqueeze(0), one_hot.unsqueeze(0)
    return support, one_hot, query if query.dim() == 3 else query.unsqueeze(0)


def computing_dtype(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def solve(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    lam: float | None = None,
    scaling: str = "auto",
    temperature: float = 1.0,
    epsilon: float = 1e-6,
    max_iter: int = 100,
    tol: float | None = None,
    return_prototypes: bool = False,
) -> Solution:
    """Solve transductive few-shot tasks with PADDLE, with explicit prototypes and distances.

    See `paddle_ext.solve` for the equations and parameters; the result is in float64 for float64
    features, else in float32.
    """
    dtype = computing_dtype(query)
    raw_support, one_hot, raw_query = batched(support, support_labels, query, num_classes)
    z, means = prepare(raw_support, one_hot, raw_query, scaling, dtype)
    counts = one_hot.sum(-2).unsqueeze(-1)  # [B or 1, K, 1]
    B, Q, _ = raw_query.shape
    K = one_hot.shape[-1]
    weight = float(Q) if lam is None else lam
    tol = 1e-6 if tol is None else tol

    # Scale coordinates to about 1, so that neither squares nor logits overflow.
    unit = power_of_two_above(torch.cat([z, means], dim=-2))
    steep = (temperature / 2 * unit.square()).clamp(max=torch.finfo(dtype).max).to(dtype)
    z, means, shots = (z / unit).to(dtype), (means / unit).to(dtype), counts.to(dtype)
    u, v, w = z.new_zeros(B, Q, K), z.new_zeros(B, 1, K), means
    criterion = z.new_zeros(B)
    iterations = torch.zeros(B, dtype=torch.int32, device=z.device)
    running = torch.ones(B, dtype=torch.bool, device=z.device)
    for _ in range(max_iter):
        # 1) probabilities; subtracting the distance to the nearest class prevents overflow
        distance = squared_distances(z, w)
        behind = distance - distance.amin(-1, keepdim=True)
        u_next = torch.softmax(weight / Q * v - steep * behind, dim=-1)
        # 2) dual
        v_next = 1 + torch.log(u_next.mean(-2, keepdim=True, dtype=torch.float64) + epsilon)
        # 3) prototypes
        w_next = (shots * means + u_next.mT @ z) / (shots + u_next.sum(-2).unsqueeze(-1))
        moved = torch.linalg.vector_norm(w_next - w, dim=-1).mean(-1) * unit.view(-1)

        live = running.view(-1, 1, 1)  # stopped tasks keep their state
        u, v = torch.where(live, u_next, u), torch.where(live, v_next.to(dtype), v)
        w = torch.where(live, w_next, w)
        criterion = torch.where(running, moved.to(dtype), criterion)
        iterations += running.int()
        if tol > 0:
            running = running & (criterion > tol)
        if not running.any():
            break

    one = slice(None) if query.dim() == 3 else 0
    prototypes = None
    if return_prototypes:  # in the coordinates of the inputs
        weights = u.double()
        sums = counts * class_means(raw_support, one_hot) + weights.mT @ raw_query
        prototypes = (sums / (counts + weights.sum(-2).unsqueeze(-1))).to(dtype)[one]
    return Solution(
        labels=u.argmax(-1)[one],
        probabilities=u[one],
        proportions=u.mean(-2)[one],
        dual=v.squeeze(-2)[one],
        iterations=iterations[one],
        criterion=criterion[one],
        prototypes=prototypes,
        lam=lam,
        scaling=scaling,
        temperature=temperature,
    )


def power_of_two_above(x: Tensor) -> Tensor:
    """The smallest power of two above all coordinates, exact to divide by, [B, 1, 1]."""
    exponent = torch.frexp(x.abs().amax((-2, -1), keepdim=True)).exponent
    return torch.exp2(exponent.clamp(min=-1000).double())
