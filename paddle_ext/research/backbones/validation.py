"""Few-shot accuracy of features by the nearest class mean, used to validate a training run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TASKS_AT_ONCE = 50
MOST_PER_CLASS = 400  # limit on samples of a large class


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
    >>> features = torch.eye(4).repeat_interleave(10, 0)
    >>> nearest_mean_accuracy(features, torch.arange(4).repeat_interleave(10), num_classes=3)
    1.0
    """
    table = rows_of_classes(labels, seed)  # [C, M], -1 where a class has no more
    sizes = (table >= 0).sum(1)
    if len(table) < num_classes:
        raise ValueError(f"labels must have at least {num_classes} classes, got {len(table)}")
    if int(sizes.min()) < shots + 1:
        raise ValueError(
            f"labels must have at least {shots + 1} samples of each class, got {int(sizes.min())}"
        )
    queries = min(queries_per_class, int(sizes.min()) - shots)
    features = features if centre is None else features - centre.to(features)
    features = F.normalize(features.float(), dim=1)
    random = torch.Generator().manual_seed(seed)
    correct = 0
    for start in range(0, n_tasks, TASKS_AT_ONCE):
        count = min(TASKS_AT_ONCE, n_tasks - start)
        classes = torch.rand(count, len(table), generator=random).topk(num_classes).indices
        rows = table[classes]  # [count, K, M]
        order = torch.rand(rows.shape, generator=random).masked_fill(rows < 0, -1.0)
        chosen = rows.gather(2, order.topk(shots + queries).indices).to(features.device)
        means = features[chosen[..., :shots]].mean(2)  # [count, K, D]
        query = features[chosen[..., shots:].flatten(1)]  # [count, K * queries, D]
        nearest = torch.cdist(query, means).argmin(2).view(count, num_classes, queries)
        truth = torch.arange(num_classes, device=nearest.device).unsqueeze(1)
        correct += int((nearest == truth).sum())
    return correct / (n_tasks * num_classes * queries)


def classes_of(labels: Tensor) -> list[int]:
    """The labels that occur."""
    found: list[int] = labels.bincount().nonzero().flatten().tolist()
    return found


def rows_of_classes(labels: Tensor, seed: int) -> Tensor:
    """The rows of each class, [C, M] int64, padded with -1."""
    labels = labels.cpu()
    random = torch.Generator().manual_seed(seed)
    found = [(labels == label).nonzero().flatten() for label in classes_of(labels)]
    found = [rows[torch.randperm(len(rows), generator=random)[:MOST_PER_CLASS]] for rows in found]
    return torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=-1)
