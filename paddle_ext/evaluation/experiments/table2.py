"""Table 2 of the paper: i-Nat, where one support serves all tasks."""

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

DATA_SETS = ("inat",)


@dataclass(frozen=True)
class Table2(EvaluationResult):
    experiment: ClassVar[str] = "table2"
    title: ClassVar[str] = "Table 2: accuracy with one support for all tasks"

    def published(self) -> dict[str, dict[int | None, float]]:
        return {} if self.dataset is None else paper.table2()

    def tables(self) -> list[Table]:
        return [comparison(self.evaluation, from_mapping(self.published()))]

    def figures(self) -> dict[str, Figure]:
        published = self.published() if self.evaluation.results[0].k_eff == 5 else {}
        return {self.experiment: pictures.accuracy_bars(self.evaluation, published=published)}


def run(
    bank: FeatureBank,
    *,
    dataset: str | None = "inat",
    backbone: str = "resnet18",
    methods: str | Sequence[str] = "paper",
    k_eff: int = 5,
    n_tasks: int = 10_000,
    n_query: int = 75,
    support: str = "repr",
    query: str = "query",
    options: Mapping[str, Mapping[str, object]] | None = None,
    seed: int = 0,
    name: str = "",
    device: str | torch.device | None = None,
    memory: float | None = None,
    output: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
) -> Table2:
    """Evaluate the methods of Table 2 on a bank with a split for the support and one for queries.

    Parameters
    ----------
    bank : FeatureBank
    dataset : {"inat"} or None
        None: other features, without the paper's numbers and the presets for i-Nat.
    support, query : str
        The splits; `open_images("inatural", ...)` calls them ``"repr"`` and ``"query"``. All rows
        of `support` are in the support of every task.
    backbone, methods, options, name, output
        As in `table1.run`.
    k_eff, n_tasks, n_query, seed, device, memory, resume, progress
        As in `evaluate`.

    Returns
    -------
    Table2

    Examples
    --------
    >>> import paddle_ext
    >>> bank = paddle_ext.FeatureBank.load("inat.npz")  # doctest: +SKIP
    >>> print(run(bank, n_tasks=1000).markdown())  # doctest: +SKIP
    """
    check_data_set(dataset, backbone, DATA_SETS)
    evaluation = evaluated(
        "table2",
        bank,
        chosen(methods, paper.TABLE2_METHODS, dataset, options),
        shots=None,
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
    return saved(Table2(evaluation, dataset, backbone), output)
