"""Table 1 of the paper: all methods at 5, 10 and 20 shots, 5 classes present."""

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
class Table1(EvaluationResult):
    experiment: ClassVar[str] = "table1"
    title: ClassVar[str] = "Table 1: accuracy of the methods"

    def published(self) -> dict[str, dict[int | None, float]]:
        return {} if self.dataset is None else paper.table1(self.dataset, self.backbone)

    def tables(self) -> list[Table]:
        return [comparison(self.evaluation, from_mapping(self.published()))]

    def figures(self) -> dict[str, Figure]:
        published = self.published() if self.evaluation.results[0].k_eff == 5 else {}
        return {self.experiment: pictures.accuracy_bars(self.evaluation, published=published)}


def run(
    bank: FeatureBank,
    *,
    dataset: str | None = "mini",
    backbone: str = "resnet18",
    methods: str | Sequence[str] = "paper",
    shots: int | Sequence[int] = (5, 10, 20),
    k_eff: int = 5,
    n_tasks: int = 10_000,
    n_query: int = 75,
    options: Mapping[str, Mapping[str, object]] | None = None,
    seed: int = 0,
    name: str = "",
    device: str | torch.device | None = None,
    memory: float | None = None,
    output: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
) -> Table1:
    """Evaluate the methods of Table 1 on a bank of test classes.

    Parameters
    ----------
    bank : FeatureBank
        All its classes are candidates.
    dataset : {"mini", "tiered"} or None
        What the bank is made of: chooses the presets of the methods and the paper's column. None:
        neither.
    backbone : {"resnet18", "wrn28_10"}
        Chooses the paper's rows.
    methods : {"paper", "all"}, or names
        The eight of the paper, or all there are.
    shots, k_eff, n_tasks, n_query, seed, device, memory, resume, progress
        As in `evaluate`.
    options : mapping, optional
        From names to options of methods, such as `Tuning.options`.
    name : str
        What pictures call the features; by default the data set and the backbone.
    output : path, optional
        A folder for the journal, from which a second call goes on, and for the result.

    Returns
    -------
    Table1

    Examples
    --------
    >>> import paddle_ext
    >>> bank = paddle_ext.FeatureBank.load("mini_test.npz")  # doctest: +SKIP
    >>> print(run(bank, n_tasks=1000).markdown())  # doctest: +SKIP
    """
    check_data_set(dataset, backbone)
    evaluation = evaluated(
        "table1",
        bank,
        chosen(methods, paper.METHODS, dataset, options),
        shots=shots,
        k_eff=check.integer("k_eff", k_eff),
        n_tasks=n_tasks,
        n_query=n_query,
        seed=seed,
        name=features_title(name, dataset, backbone),
        device=device,
        memory=memory,
        output=output,
        resume=resume,
        progress=progress,
    )
    return saved(Table1(evaluation, dataset, backbone), output)
