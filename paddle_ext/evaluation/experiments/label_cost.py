"""The label cost and its relaxation, for two classes: a picture that needs no bank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from .. import figures as pictures
from .base import ExperimentResult, Table, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LabelCost(ExperimentResult):
    experiment: ClassVar[str] = "label-cost"
    title: ClassVar[str] = "The label cost and its relaxation"

    points: int = 11  # rows of the table

    def summary(self) -> str:
        return (
            "Two classes. The label cost is the number of classes that are used; the partition "
            "complexity, the entropy of the proportions in nats, relaxes it."
        )

    def tables(self) -> list[Table]:
        rows = [
            [f"{p:g}", "1" if p in (0.0, 1.0) else "2", f"{entropy:.3f}"]
            for p, entropy in pictures.label_costs(self.points)
        ]
        header = ["proportion of the first class", "label cost", "relaxation"]
        return [Table("", header, rows)]

    def figures(self) -> dict[str, Figure]:
        return {self.experiment: pictures.label_cost()}


def run(*, output: str | Path | None = None, progress: bool = True) -> LabelCost:
    """Draw the label cost.

    Parameters
    ----------
    output : path, optional
        A folder for the result.
    progress : bool
        Without effect: there is nothing to wait for.

    Returns
    -------
    LabelCost

    Examples
    --------
    >>> run().tables()[0].rows[5]
    ['0.5', '2', '0.693']
    """
    return saved(LabelCost(), output)
