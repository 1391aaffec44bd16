"""Few-shot accuracy of features by the nearest class mean, used to validate a training run."""

from __future__ import annotations

from torch import Tensor

from ...methods import SimpleShot
from ..sampler import TaskSampler

TASKS_AT_ONCE = 50


def nearest_mean_accuracy(
    features: Tensor,
    labels: Tensor,
    *,
    num_classes: int = 5,
    shots: int = 5,
    queries_per_class: int = 15,
    n_tasks: int = 500,
    centre: Tensor | None = None,
    seed: int = 0,
) -> float:
    """Mean accuracy over random tasks, of unit-norm features and the nearest mean of the support.

    Parameters
    ----------
    features : Tensor [N, D]
    labels : Tensor [N]
        Integers.
    num_classes, shots, queries_per_class, n_tasks : int
        Classes per task, labelled samples per class, limit on other samples per class, tasks.
    centre : Tensor [D] or None
        Subtracted from the features: the mean feature of the base classes.
    seed : int
        The tasks depend only on it and on the labels.

    Returns
    -------
    float
        In [0, 1].

    Examples
    --------
    >>> import torch
    >>> features = torch.eye(4).repeat_interleave(10, 0)
    >>> nearest_mean_accuracy(features, torch.arange(4).repeat_interleave(10), num_classes=3)
    1.0
    """
    counts = labels.cpu().bincount()
    sizes = counts[counts > 0]
    if len(sizes) < num_classes:
        raise ValueError(f"labels must have at least {num_classes} classes, got {len(sizes)}")
    fewest = int(sizes.min())
    if fewest < shots + 1:
        raise ValueError(
            f"labels must have at least {shots + 1} samples of each class, got {fewest}"
        )
    n_query = num_classes * min(queries_per_class, fewest - shots)
    sampler = TaskSampler(
        ((counts > 0).cumsum(0) - 1)[labels.cpu()],  # without numbers that do not occur
        shots=shots,
        n_query=n_query,
        k_eff=num_classes,
        num_classes=num_classes,
        sampling="balanced",
        seed=seed,
    )
    method = SimpleShot(scaling="l2n" if centre is None else "cl2n")
    correct = 0
    for start in range(0, n_tasks, TASKS_AT_ONCE):
        tasks = sampler.batch(start, min(TASKS_AT_ONCE, n_tasks - start)).to(features.device)
        prediction = method.predict_indexed(
            features,
            tasks.support_index,
            tasks.support_labels,
            tasks.query_index,
            num_classes=num_classes,
            base_mean=None if centre is None else centre.to(features),
            validate=False,
        )
        correct += int((prediction.labels == tasks.query_labels).sum())
    return correct / (n_tasks * n_query)
