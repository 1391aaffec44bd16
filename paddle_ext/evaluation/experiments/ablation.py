"""The ablation: PADDLE without the partition complexity, which is soft K-means, and with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from ...data.bank import FeatureBank
from ...ops import check
from .. import figures as pictures
from .. import paper
from .base import (
    EvaluationResult,
    Table,
    check_data_set,
    chosen,
    comparison,
    evaluated,
    features_title,
    from_mapping,
    saved,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Ablation(EvaluationResult):
    experiment: ClassVar[str] = "ablation"
    title: ClassVar[str] = "Ablation: without and with the partition complexity"

    def published(self) -> dict[str, dict[int | None, float]]:
        if self.dataset is None or self.backbone != "resnet18":
            return {}
        return paper.ablation(self.dataset)

    def tables(self) -> list[Table]:
        return [comparison(self.evaluation, from_mapping(self.published()))]

    def figures(self) -> dict[str, Figure]:
        published = self.published() if self.evaluation.results[0].k_eff == 5 else {}
        return {self.experiment: pictures.ablation(self.evaluation, published)}


def run(
    bank: FeatureBank,
    *,
    dataset: str | None = "mini",
    backbone: str = "resnet18",
    shots: int | Sequence[int] | None = (5, 10, 20),
    k_eff: int = 5,
    n_tasks: int = 10_000,
    n_query: int = 75,
    support: str | None = None,
    query: str | None = None,
    options: Mapping[str, Mapping[str, object]] | None = None,
    seed: int = 0,
    name: str = "",
    device: str | torch.device | None = None,
    memory: float | None = None,
    output: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
) -> Ablation:
    """Evaluate `soft_kmeans` and `paddle` on the same tasks.

    Parameters
    ----------
    bank : FeatureBank
    dataset : {"mini", "tiered", "inat"} or None
        For ``"inat"`` the support is that of `table2.run`, whatever `shots` is.
    support, query : str, optional
        Splits to draw from; for i-Nat by default ``"repr"`` and ``"query"``.
    backbone, options, name, output
        As in `table1.run`; the paper has a ResNet-18 alone.
    shots, k_eff, n_tasks, n_query, seed, device, memory, resume, progress
        As in `evaluate`.

    Returns
    -------
    Ablation

    Examples
    --------
    >>> import paddle_ext
    >>> bank = paddle_ext.FeatureBank.load("mini_test.npz")  # doctest: +SKIP
    >>> run(bank, n_tasks=1000).save("ablation")  # doctest: +SKIP
    """
    check_data_set(dataset, backbone, paper.DATA_SETS)
    if dataset == "inat":
        shots, support, query = None, support or "repr", query or "query"
    evaluation = evaluated(
        "ablation",
        bank,
        chosen(paper.ABLATION_METHODS, (), dataset, options),
        shots=shots,
        k_eff=check.integer("k_eff", k_eff),
        n_tasks=n_tasks,
        n_query=n_query,
        support=support,
        query=query,
        seed=seed,
        name=features_title(name, dataset, backbone),
        device=device,
        memory=memory,
        output=output,
        resume=resume,
        progress=progress,
    )
    return saved(Ablation(evaluation, dataset, backbone), output)
