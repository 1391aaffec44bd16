"""What is measured of a rule: on every task, and summed up over the cells of a table.

Letters as in tasks.py: B tasks, Q queries, K classes. Percentages are 0 to 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor

LEAST_PROBABILITY = 1e-6  # of the true class, in the negative log-likelihood


@dataclass
class Measured:
    """What a rule did on the tasks of one cell.

    The lists have one entry for each task. It is None where the rule failed: where it raised an
    exception, or returned a probability that is not finite.
    """

    accuracy: list[float | None] = field(default_factory=list)  # per cent
    balanced: list[float | None] = field(default_factory=list)  # per cent
    claim: list[float | None] = field(default_factory=list)  # per cent
    nll: list[float | None] = field(default_factory=list)
    seconds: float = 0.0
    messages: list[str] = field(default_factory=list)  # of exceptions, each once

    @property
    def errors(self) -> int:
        """The number of tasks on which the rule failed."""
        return self.accuracy.count(None)

    def add(self, probabilities: Tensor, truth: Tensor) -> None:
        """Measure a batch of tasks: probabilities [B, Q, K], true classes [B, Q].

        A query with truth -1 is of no class, and is not counted.
        """
        expected = (*truth.shape, probabilities.shape[-1])
        if probabilities.shape != expected:
            raise ValueError(f"probabilities must be {expected}, got {tuple(probabilities.shape)}")

        probabilities = probabilities.double().cpu()
        truth = truth.cpu()
        for of_task, truth_of_task in zip(probabilities, truth, strict=True):
            if torch.isfinite(of_task).all():
                self.add_task(of_task, truth_of_task)
            else:
                self.add_failure(1, "probabilities that are not finite")

    def add_task(self, probabilities: Tensor, truth: Tensor) -> None:
        """Measure one task: finite probabilities [Q, K], true classes [Q]."""
        counted = truth >= 0
        probabilities = probabilities[counted]
        truth = truth[counted]

        right = (probabilities.argmax(-1) == truth).double()
        right_of_class = [right[truth == k].mean() for k in truth.unique()]
        of_truth = probabilities.gather(-1, truth.unsqueeze(-1)).clamp(min=LEAST_PROBABILITY)

        self.accuracy.append(100 * float(right.mean()))
        self.balanced.append(100 * float(torch.stack(right_of_class).mean()))
        self.claim.append(100 * float(probabilities.amax(-1).mean()))
        self.nll.append(-float(of_truth.log().mean()))

    def add_failure(self, n_tasks: int, message: str) -> None:
        """Count so many tasks as failed."""
        for values in (self.accuracy, self.balanced, self.claim, self.nll):
            values.extend([None] * n_tasks)
        if message not in self.messages:
            self.messages.append(message)


@dataclass(frozen=True)
class Summary:
    """Means over cells, in which every cell counts the same, however many tasks it has.

    Tasks on which the rule failed are left out of every mean, and counted in `errors`.
    """

    cells: int
    accuracy: float
    balanced: float
    off: float  # claimed minus right
    off_absolute: float  # the mean of its absolute values, one for each cell
    off_worst: float  # that of the cell where it is farthest from zero
    nll: float
    worst_tenth: float  # accuracy of the worst tenth of the tasks of a cell
    errors: int
    seconds: float  # the sum


def done(values: Sequence[float | None]) -> list[float]:
    """The values of the tasks on which the rule did not fail."""
    return [value for value in values if value is not None]


def off(cell: Measured) -> float:
    """Claimed minus right, of one cell."""
    return fmean(done(cell.claim)) - fmean(done(cell.accuracy))


def worst_tenth(cell: Measured) -> float:
    """The mean accuracy of the worst tenth of the tasks: of one task, if they are fewer than 20."""
    accuracies = sorted(done(cell.accuracy))
    count = max(1, len(accuracies) // 10)
    return fmean(accuracies[:count])


def summary(cells: Sequence[Measured]) -> Summary:
    """Sum up the cells of one rule.

    If it failed on every task, all is not-a-number except the counts of cells, errors and seconds.
    """
    usable = [cell for cell in cells if done(cell.accuracy)]
    differences = [off(cell) for cell in usable]

    def mean(values: list[float]) -> float:
        return fmean(values) if values else math.nan

    return Summary(
        cells=len(cells),
        accuracy=mean([fmean(done(cell.accuracy)) for cell in usable]),
        balanced=mean([fmean(done(cell.balanced)) for cell in usable]),
        off=mean(differences),
        off_absolute=mean([abs(difference) for difference in differences]),
        off_worst=max(differences, key=abs, default=math.nan),
        nll=mean([fmean(done(cell.nll)) for cell in usable]),
        worst_tenth=mean([worst_tenth(cell) for cell in usable]),
        errors=sum(cell.errors for cell in cells),
        seconds=sum(cell.seconds for cell in cells),
    )
