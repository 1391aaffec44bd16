"""TIM with the native code: the public function, its checks and the native call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from .. import check
from ..native.call import call_native, packed_features, packed_int64, solver
from ..native.load import module as native
from ..rows import computing_dtype
from ..solution import TimSolution

SOLVERS = ("gd", "adm")  # in the native numbering
TINY = 1e-30  # relative to the largest query


@solver(TimSolution)
def tim(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    *,
    num_classes: int | None = None,
    solver: str = "gd",
    weights: Sequence[float] = (1.0, 0.3, 1.0),
    alphas: Sequence[float] = (1.0, 1.0, 1.0),
    temperature: float = 15.0,
    learning_rate: float = 1e-4,
    max_iter: int = 1000,
    normalize: bool = True,
    return_losses: bool = False,
    validate: bool = True,
) -> TimSolution:
    r"""Classify the queries of few-shot tasks with transductive information maximisation, TIM.

    A class is a prototype ``w_k``, initially the mean of its support, and
    ``p_nk = softmax_k( -temperature/2 ||x_n - w_k||^2 )``. Every task minimises over prototypes::

        weights[0] mean_s CE(y_s, p_s) - weights[1] H(mean_q p_q) + weights[2] mean_q H(p_q)

    so that the support is fitted, every query is confident, and all classes are used.

    Parameters
    ----------
    support, support_labels, query, num_classes
        As in `paddle_ext.adaptive`, except that the queries are a tensor.
    solver : {"gd", "adm"}
        "gd" takes `max_iter` steps of Adam on the prototypes, TIM-GD; "adm" alternates between
        auxiliary assignments of the queries and prototypes, both in closed form, TIM-ADM.
    weights : three floats
        Weights of the cross-entropy of the support, the marginal entropy and the conditional
        entropy of the queries, >= 0.
    alphas : three floats
        Orders of these entropies, > 0. 1 is Shannon's, others are Tsallis', as in alpha-TIM:
        ``H(p) = (1 - sum_k p_k^alpha) / (alpha - 1)``, ``CE = (p_y^(1-alpha) - 1) / (alpha - 1)``.
        All are 1 for "adm".
    temperature : float
        Sharpness of the probabilities, > 0.
    learning_rate : float
        Learning rate of Adam, > 0; for "adm" the fraction of the step to the closed-form solution,
        1.0 being a full step.
    max_iter : int
        Steps; no task stops earlier.
    normalize : bool
        Make all rows unit-norm first.
    return_losses : bool
        Also return the loss before every step.
    validate : bool
        Check the values of the tensors, as in `solve`. Without it `num_classes` must be given, the
        result for invalid values is undefined, and nothing synchronises with the host.

    Returns
    -------
    TimSolution
        Of equally probable classes, the label is the smallest.

    Notes
    -----
    Errors, precision, devices and reproducibility are as in `paddle_ext.solve`. Gradients are
    computed in closed form. 1e-12 is added to every probability inside a logarithm or a power. For
    alpha > 1 the cross-entropy continues as a straight line in ``ln p_y`` where its power is above
    1e15, which float32 could not square.

    Examples
    --------
    >>> import torch, paddle_ext
    >>> support = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> query = torch.tensor([[3.0, 1.0], [1.0, 2.0], [1.0, 4.0]])
    >>> paddle_ext.tim(support, torch.tensor([0, 1]), query, max_iter=100).labels
    tensor([0, 1, 1])
    """
    check.choice("solver", solver, SOLVERS)
    weights = check.triple("weights", weights)
    alphas = check.triple("alphas", alphas, positive=True)
    if solver == "adm" and alphas != (1.0, 1.0, 1.0):
        raise ValueError(f"alphas must be (1.0, 1.0, 1.0) for solver 'adm', got {alphas}")
    temperature = check.real("temperature", temperature, positive=True)
    learning_rate = check.real("learning_rate", learning_rate, positive=True)
    max_iter = check.integer("max_iter", max_iter)
    check.flag("normalize", normalize)
    check.flag("return_losses", return_losses)
    num_classes = check.classes(num_classes, check.flag("validate", validate))
    support, support_labels, query = check.tensors(support, support_labels, query)
    check.dense(support, support_labels, query)
    if validate:
        num_classes = check.dense_values(support, support_labels, query, num_classes)
    K = cast(int, num_classes)
    support, query = packed_features(support), packed_features(query)
    labels = packed_int64(support_labels)
    if query.is_cuda and not normalize:
        support = without_tiny(support, query)
    *batch, Q, D = query.shape
    of_support, of_query = tuple(labels.shape), (*batch, Q)
    shared = len(of_support) < len(of_query)
    dtype, real = query.dtype, computing_dtype(query)
    options = {
        "size": (batch[0] if batch else 1, Q, of_support[-1], K, D, 0, shared),
        "solver": SOLVERS.index(solver),
        "normalize": normalize,
        "temperature": temperature,
        "weight": weights,
        "alpha": alphas,
        "learning_rate": learning_rate,
        "max_iter": max_iter,
    }
    inputs = {
        "support": (support, dtype, (*of_support, D)),
        "support_labels": (labels, torch.int64, of_support),
        "query": (query, dtype, (*of_query, D)),
    }
    outputs = {
        "labels": (torch.int64, of_query),
        "probabilities": (real, (*of_query, K)),
        "prototypes": (real, (*batch, K, D)),
        "losses": (real, (max_iter, *batch)) if return_losses else None,
    }
    return TimSolution(*call_native(native.tim_call, options, query, inputs, outputs))


def without_tiny(support: Tensor, query: Tensor) -> Tensor:
    """The support with zeros for what is negligible: CUDA code divides a task by its size."""
    largest = query.abs().amax((-2, -1), keepdim=True)
    if support.dim() < query.dim():
        largest = largest.amax(0) if len(query) else support.new_zeros(())
    return torch.where(support.abs() < TINY * largest, 0, support)
