"""The numbers of the paper, under the names of our methods, from ``paper.json``.

Tables 1 and 2, the ablation and the convergence table are those of S. Martin, M. Boudiaf,
E. Chouzenoux, J.-C. Pesquet, I. Ben Ayed, "Towards Practical Few-Shot Query Sets: Transductive
Minimum Description Length Inference", NeurIPS 2022. The paper shows accuracy against K_eff only as
figures; the numbers behind them are from the history of its public repository
(SegoleneMartin/PADDLE, commit 1fcde3f, ``results_test``; its KM-UNBIASED and KM-BIASED are PADDLE
and soft K-means).

"dirichlet" is from O. Veilleux, M. Boudiaf, P. Piantanida, I. Ben Ayed, "Realistic Evaluation of
Transductive Few-Shot Learning", NeurIPS 2021, and its public repository
(oveilleux/Realistic_Transductive_Few_Shot); "stata" from M. Zanella, C. Fuchs, C. De Vleeschouwer,
I. Ben Ayed, "Realistic Test-Time Adaptation of Vision-Language Models", CVPR 2025
(MaxZanella/StatA). Accuracies are in percent.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ... import check
from ...methods import available
from ...methods.base import DATA_SETS

TABLES = ("table1", "table2", "ablation", "dirichlet")
BACKBONES = ("resnet18", "wrn28_10")
SHOTS = (5, 10, 20)
DIRICHLET_SHOTS = (1, *SHOTS)
K_EFFS = tuple(range(2, 11))


class Convergence(NamedTuple):
    """A row of the convergence table."""

    seconds: float | None  # until the criterion is at most 1e-6; None: not applicable
    accuracy: float  # on the one task of the figure


@cache
def numbers() -> Any:
    """The contents of the file."""
    return json.loads(Path(__file__).with_suffix(".json").read_text())


def data_sets(table: str) -> tuple[str, ...]:
    """The datasets of a table."""
    return tuple(numbers()[check.choice("table", table, TABLES)])


def methods(table: str) -> tuple[str, ...]:
    """The methods of a table, in its order.

    Examples
    --------
    >>> methods("ablation")
    ('soft_kmeans', 'paddle')
    """
    return tuple(accuracies(table, data_sets(table)[0]))


def accuracies(
    table: str, dataset: str, backbone: str = "resnet18"
) -> dict[str, dict[int | None, float]]:
    """A table: accuracy with K_eff = 5, for each method and number of shots.

    Table 2 is for i-Nat, where all tasks share one support, so shots are None. The ablation is
    PADDLE without the partition complexity (`soft_kmeans`) and with it. "dirichlet" has five
    candidates, all of them present.

    Parameters
    ----------
    table : {"table1", "table2", "ablation", "dirichlet"}
    dataset : {"mini", "tiered", "inat"}
        One that the table has.
    backbone : {"resnet18", "wrn28_10"}
        Only Table 1 has the second one.

    Returns
    -------
    dict
        From methods to shots to accuracy; empty if nothing was published. Intractable methods are
        missing.

    Examples
    --------
    >>> accuracies("table1", "tiered")["paddle"]
    {5: 45.8, 10: 62.5, 20: 72.0}
    >>> accuracies("table2", "inat")["paddle"]
    {None: 84.3}
    """
    check.choice("dataset", dataset, data_sets(table))
    check.choice("backbone", backbone, BACKBONES)
    shots: tuple[int | None, ...] = DIRICHLET_SHOTS if table == "dirichlet" else SHOTS
    shots = (None,) if dataset == "inat" else shots
    rows = numbers()[table][dataset].get(backbone, {})
    return {name: dict(zip(shots, row, strict=True)) for name, row in rows.items()}


def stata() -> dict[str, list[float]]:
    """Zero-shot methods by StatA's batches, the mean of 11 datasets with CLIP ViT-B/16.

    Batches of 64 queries of 1 to 4, 2 to 10 and 5 to 25 classes, of 1000 queries of 5 to 25, 25 to
    50 and 50 to 100 classes, and the whole datasets.

    Examples
    --------
    >>> stata()["stata"]
    [70.4, 69.3, 67.4, 69.7, 69.8, 69.0, 69.9]
    """
    return dict(numbers()["stata"])


def convergence() -> dict[str, Convergence]:
    """Seconds until the criterion is 1e-6, and accuracy, on one 20-shot task of tiered-ImageNet.

    Examples
    --------
    >>> convergence()["paddle"]
    Convergence(seconds=0.026, accuracy=77.0)
    """
    return {name: Convergence(**row) for name, row in numbers()["convergence"].items()}


def k_eff_curve(dataset: str, backbone: str, method: str, shots: int | None) -> dict[int, float]:
    """Accuracy against K_eff, from the history of the public repository.

    PADDLE ran 20 iterations with lambda = 75; the other methods had other options than the current
    public code. The values at K_eff = 5 are those of Table 1. LaplacianShot's rows are noisy; those
    for mini-ImageNet with a WRN28-10 are of one task each, and left out.

    Parameters
    ----------
    dataset : {"mini", "tiered", "inat"}
    backbone : {"resnet18", "wrn28_10"}
    method : str
        A name of the registry.
    shots : int or None

    Returns
    -------
    dict
        From K_eff to accuracy; empty if nothing was published.

    Examples
    --------
    >>> k_eff_curve("mini", "resnet18", "ici", 5)
    {2: 48.6, 3: 52.5, 5: 54.7}
    """
    check.choice("dataset", dataset, DATA_SETS)
    check.choice("backbone", backbone, BACKBONES)
    check.choice("method", method, available(named=False))
    rows = numbers()["k_eff"].get(dataset, {}).get(backbone, {}).get(method, {})
    row = rows.get(str(shots), [None] * len(K_EFFS))
    return {k: value for k, value in zip(K_EFFS, row, strict=True) if value is not None}
