"""The label cost and its relaxation, for two classes: a figure that needs no bank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import figures as pictures
from ..settings import RunSettings
from .base import ExperimentResult, Table, save_on_first_rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 11  # rows of the table


@dataclass(frozen=True, kw_only=True)
class LabelCost(ExperimentResult):
    experiment: str = "label-cost"

    @property
    def title(self) -> str:
        return "The label cost and its relaxation"

    def summary(self) -> str:
        return (
            "Two classes. The label cost is the number of classes that are used; the partition "
            "complexity, the entropy of the proportions in nats, relaxes it."
        )

    def tables(self) -> list[Table]:
        rows = [
            [f"{p:g}", "1" if p in (0.0, 1.0) else "2", f"{entropy:.3f}"]
            for p, entropy in pictures.label_costs(POINTS)
        ]
        header = ["proportion of the first class", "label cost", "relaxation"]
        return [Table("", header, rows)]

    def figures(self) -> dict[str, Figure]:
        return {self.experiment: pictures.label_cost()}


def run(**run: Any) -> LabelCost:
    """Draw the label cost.

    Parameters
    ----------
    **run
        See `RunSettings`; only `output` has an effect.

    Returns
    -------
    LabelCost

    Examples
    --------
    >>> run().tables()[0].rows[5]
    ['0.5', '2', '0.693']
    """
    return save_on_first_rank(LabelCost(), RunSettings(**run))
