"""Accuracy against the number of classes present, 2 to 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from ...data.bank import FeatureBank
from .. import figures as pictures
from .. import paper
from ..drawing import distinct, shots_title, title_of
from ..tables import MISSING, accuracy_text
from .base import (
    EvaluationResult,
    Table,
    beside,
    check_data_set,
    chosen,
    evaluated,
    features_title,
    saved,
    with_shots,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class KEff(EvaluationResult):
    experiment: ClassVar[str] = "keff"
    title: ClassVar[str] = "Accuracy against the number of classes present"

    def published(self, method: str, shots: int | None) -> dict[int, float]:
        """The public curve of a method."""
        if self.dataset is None:
            return {}
        return paper.k_eff_curve(self.dataset, self.backbone, method, shots)

    def tables(self) -> list[Table]:
        return [self.table(shots) for shots in distinct(r.shots for r in self.evaluation)]

    def table(self, shots: int | None) -> Table:
        """K_eff in columns; below each method its public curve and the difference."""
        own = with_shots(self.evaluation, shots)
        every_k_eff = distinct(result.k_eff for result in own)
        rows = []
        for method in own.methods:
            found = {result.k_eff: result for result in own.select(method)}
            cells = [accuracy_text(found[k]) if k in found else MISSING for k in every_k_eff]
            rows.append([title_of(method), *cells])
            curve = self.published(method, shots)
            if set(curve) & set(every_k_eff):
                pairs = [
                    beside(found[k].accuracy if k in found else None, curve.get(k))
                    for k in every_k_eff
                ]
                theirs, differences = zip(*pairs, strict=True)
                rows += [["paper", *theirs], ["difference", *differences]]
        return Table(shots_title(shots), ["K_eff", *map(str, every_k_eff)], rows)

    def figures(self) -> dict[str, Figure]:
        every_shots = distinct(result.shots for result in self.evaluation)
        published = {shots: self.published("paddle", shots) for shots in every_shots}
        figure = pictures.accuracy_against_k_eff(self.evaluation, published)
        return {self.experiment: figure}


def run(
    bank: FeatureBank,
    *,
    dataset: str | None = "mini",
    backbone: str = "resnet18",
    methods: str | Sequence[str] = "paper",
    shots: int | Sequence[int] = (5, 10, 20),
    k_eff: int | Sequence[int] = paper.K_EFFS,
    n_tasks: int = 1000,
    n_query: int = 75,
    options: Mapping[str, Mapping[str, object]] | None = None,
    seed: int = 0,
    name: str = "",
    device: str | torch.device | None = None,
    memory: float | None = None,
    output: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
) -> KEff:
    """Evaluate methods for several numbers of effective classes.

    Parameters
    ----------
    bank : FeatureBank
    k_eff : sequence of int
        By default 2 to 10, as in the paper.
    n_tasks : int
        For each number of shots and effective classes.
    dataset, backbone, methods, options, name, output
        As in `table1.run`. The paper's numbers are the public repository's; see
        `paper.k_eff_curve`.
    shots, n_query, seed, device, memory, resume, progress
        As in `evaluate`.

    Returns
    -------
    KEff

    Examples
    --------
    >>> import paddle_ext
    >>> bank = paddle_ext.FeatureBank.load("mini_test.npz")  # doctest: +SKIP
    >>> run(bank, methods=["tim", "paddle"], output="keff")  # doctest: +SKIP
    """
    check_data_set(dataset, backbone)
    evaluation = evaluated(
        "keff",
        bank,
        chosen(methods, paper.METHODS, dataset, options),
        shots=shots,
        k_eff=k_eff,
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
    return saved(KEff(evaluation, dataset, backbone), output)
