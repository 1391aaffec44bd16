"""TIM in plain torch: the specification that the native code is tested against.

Letters: B tasks, Q queries, S support rows, K classes, D features. With the probabilities
``p_nk = softmax_k( -temperature/2 ||x_n - w_k||^2 )`` a task minimises over its prototypes w

    weights[0] mean_s CE(y_s, p_s)  -  weights[1] H(mean_q p_q)  +  weights[2] mean_q H(p_q)
       the support fits                 all classes are used          every query is certain

from the class means of the support. The entropies of Shannon, alpha a = 1, and of Tsallis are

    H(p) = -sum_k p_k ln(p_k + e)                    CE(y, p) = -ln(p_y + e)
    H(p) = (1 - sum_k (p_k + e)^a) / (a - 1)         CE(y, p) = ((p_y + e)^(1-a) - 1) / (a - 1)

with e = 1e-12. Gradients are those of autograd.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..solution import TimSolution
from .paddle import batched, class_means, computing_dtype, power_of_two_above, unit_rows

EPSILON = 1e-12
# The cross-entropy of alpha > 1 explodes for small p_y. Beyond this power it continues as its
# tangent in ln p_y: float32 could not square the derivative.
MAX_POWER = 1e15
# Limits on coordinates of prototypes, in units of the spread of the queries, and on temperatures,
# in the same units: nothing overflows, whatever the options.
FAR_AWAY = 1e60
MAX_TEMPERATURE = 1e60
MAX_LOG = 1e200
# A labelled row beyond FAR_AWAY is cut off if queries are out of its reach, and other rows nearer
# by this factor. Otherwise the unit grows.
NEAR_FAR = 1024.0

BETA1, BETA2, ADAM_EPSILON = 0.9, 0.999, 1e-8


class Task(NamedTuple):
    """A batch of tasks, centred at the query mean and in units of the spread of the queries."""

    query: Tensor  # [B, Q, D]
    support: Tensor  # [B, S, D]
    labels: Tensor  # [B or 1, S]
    one_hot: Tensor  # [B or 1, S, K]
    temperature: Tensor  # [B, 1, 1]
    unit: Tensor  # [B, 1, 1]
    centre: Tensor  # [B, 1, D]


def prepare(
    support: Tensor, one_hot: Tensor, query: Tensor, temperature: float, normalize: bool
) -> Task:
    if normalize:
        support, query = unit_rows(support), unit_rows(query)
    centre = query.mean(-2, keepdim=True)
    query, support = query - centre, support - centre
    spread = query.abs().amax((-2, -1), keepdim=True) > 0
    unit = torch.where(spread, power_of_two_above(query), power_of_two_above(support))  # [B, 1, 1]
    length = support.abs().amax(-1, keepdim=True)
    farthest, nearest = length.amax(-2, keepdim=True), length.amin(-2, keepdim=True)
    decisive = temperature * unit * unit * FAR_AWAY >= 1
    kept = torch.where(decisive, torch.minimum(farthest, NEAR_FAR * nearest), farthest)
    unit = torch.where(kept > FAR_AWAY * unit, power_of_two_above(kept / FAR_AWAY), unit)
    return Task(
        query=query / unit,
        support=(support / unit).clamp(-FAR_AWAY, FAR_AWAY),
        labels=one_hot.argmax(-1),
        one_hot=one_hot,
        temperature=(temperature * unit * unit).clamp(max=MAX_TEMPERATURE),
        unit=unit,
        centre=centre,
    )


def logits(task: Task, w: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the support [B, S, K] and the query [B, Q, K], minus the largest of each row."""
    half_norms = w.square().sum(-1).unsqueeze(-2) / 2  # [B, 1, K]
    scores = [rows @ w.mT - half_norms for rows in (task.support, task.query)]
    support, query = (x - x.detach().amax(-1, keepdim=True) for x in scores)
    return task.temperature * support, task.temperature * query


def entropy(p: Tensor, alpha: float) -> Tensor:
    """The entropy of order alpha, [.., K] -> [..]."""
    if alpha == 1:
        return -(p * (p + EPSILON).log()).sum(-1)
    powers = (p + EPSILON).clamp(max=1).pow(alpha)  # above 1 a huge alpha would overflow
    return (1 - powers.sum(-1)) / (alpha - 1)


def cross_entropy(p: Tensor, alpha: float) -> Tensor:
    """Cross-entropy from the probability of a row's own class."""
    surprise = -(p + EPSILON).log()
    if alpha == 1:
        return surprise
    exponent = (alpha - 1) * surprise
    bounded = exponent.clamp(max=math.log(MAX_POWER))
    return (bounded.exp() * (1 + exponent - bounded) - 1) / (alpha - 1)


def loss(
    task: Task, w: Tensor, weights: tuple[float, float, float], alphas: tuple[float, float, float]
) -> Tensor:
    """The loss of every task, [B]."""
    p_support, p_query = (x.softmax(-1) for x in logits(task, w))
    own = p_support.gather(-1, task.labels.expand(len(w), -1).unsqueeze(-1)).squeeze(-1)
    fit = cross_entropy(own, alphas[0]).mean(-1)
    marginal = entropy(p_query.mean(-2), alphas[1])
    conditional = entropy(p_query, alphas[2]).mean(-1)
    return weights[0] * fit - weights[1] * marginal + weights[2] * conditional


def gradient_step(
    task: Task,
    w: Tensor,
    moments: tuple[Tensor, Tensor],
    gradient: Tensor,
    learning_rate: float,
    step: int,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One step of Adam, with the result that it would have in the coordinates of the features."""
    rate = (learning_rate / task.unit).clamp(max=MAX_LOG)
    epsilon = (ADAM_EPSILON * task.unit).clamp(min=1 / MAX_LOG)  # gradients are `unit` times larger
    first = BETA1 * moments[0] + (1 - BETA1) * gradient
    second = BETA2 * moments[1] + (1 - BETA2) * gradient.square()
    root = (second / (1 - BETA2**step)).sqrt()
    w = w - rate * (first / (1 - BETA1**step)) / (root + epsilon)
    return w.clamp(-FAR_AWAY, FAR_AWAY), (first, second)


def alternating_step(
    task: Task, w: Tensor, weights: tuple[float, float, float], learning_rate: float
) -> Tensor:
    """One step of TIM-ADM: auxiliary assignments q, then prototypes w, each in closed form.

    ``q_nk ~ p_nk^(1 + l2) / (sum_n p_nk^(1 + l2))^(l1 / (1 + l1))``, rows on the simplex, in
    logarithms; then ``w + learning_rate (w_new - w)`` with ``w_new`` the mean of the rows under
    ``y + (w's pull on them)``: support rows count l0 / (1 + l2) each, queries S / Q.
    """
    log_support, log_query = (x.log_softmax(-1) for x in logits(task, w))
    S, Q = log_support.shape[-2], log_query.shape[-2]
    exponent = min(1 + weights[2], MAX_LOG)
    sharpened = (exponent * log_query).clamp(min=-MAX_LOG)
    used = sharpened.logsumexp(-2, keepdim=True)
    q = (sharpened - weights[1] / (1 + weights[1]) * used).softmax(-1)

    per_support, per_query = weights[0] / (1 + weights[2]), S / Q
    a_support = per_support * (task.one_hot - log_support.exp())
    a_query = per_query * (q - log_query.exp())
    pull = a_support.mT @ task.support + a_query.mT @ task.query
    pull = pull - (a_support.sum(-2) + a_query.sum(-2)).unsqueeze(-1) * w
    mass = (per_support * task.one_hot.sum(-2) + per_query * q.sum(-2)).clamp(min=EPSILON)
    return (w + learning_rate * pull / mass.unsqueeze(-1)).clamp(-FAR_AWAY, FAR_AWAY)


def tim(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    solver: str = "gd",
    weights: tuple[float, float, float] = (1.0, 0.3, 1.0),
    alphas: tuple[float, float, float] = (1.0, 1.0, 1.0),
    temperature: float = 15.0,
    learning_rate: float = 1e-4,
    max_iter: int = 1000,
    normalize: bool = True,
    return_losses: bool = False,
) -> TimSolution:
    """Classify the queries of few-shot tasks by TIM; see `paddle_ext.tim` for the parameters.

    Always computed in float64, with autograd and Adam written out; the result is in float64 for
    float64 features, else in float32.
    """
    dtype = computing_dtype(query)
    raw_support, one_hot, raw_query = batched(support, support_labels, query, num_classes)
    task = prepare(raw_support, one_hot, raw_query, temperature, normalize)
    w = class_means(task.support, one_hot)  # [B, K, D]
    moments = torch.zeros_like(w), torch.zeros_like(w)
    losses = []
    for step in range(1, max_iter + 1):
        with torch.enable_grad():
            w.requires_grad_(solver == "gd")
            value = loss(task, w, weights, alphas)
            total = value.sum()
        losses.append(value.detach())
        if solver == "gd":
            (gradient,) = torch.autograd.grad(total, w)
            w = w.detach()
            w, moments = gradient_step(task, w, moments, gradient, learning_rate, step)
        else:
            w = alternating_step(task, w, weights, learning_rate)

    _, final = logits(task, w)
    one = slice(None) if query.dim() == 3 else 0
    return TimSolution(
        labels=final.argmax(-1)[one],
        probabilities=final.softmax(-1).to(dtype)[one],
        prototypes=(task.centre + task.unit * w).to(dtype)[one],
        losses=torch.stack(losses)[:, one].to(dtype) if return_losses else None,
    )
