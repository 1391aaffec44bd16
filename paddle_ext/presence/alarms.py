"""Alarms: a batch unlike the labelled rows, of which probabilities say nothing.

An encoder that was exchanged, a sensor that is stuck, or data of another source still get a label
each, often with a probability near 1. docs/presence.md has how often this is noticed, and how often
it is said of an ordinary batch.
"""

import inspect
import math
import warnings
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..prevalence import RATE, beyond_chance
from .unknown import unit_as

FEWEST_ROWS = 10  # of a batch, for an alarm: fewer may be unusual or alike by chance
MOST_STRANGERS = 0.3  # share of a batch that may look like no class, beyond what does by chance
MOST_COPIES = 0.5  # share of a batch that may be copies of one row
KINDS_TYPE = "U17"  # NumPy's type of `Alarm.kind`
SAME_ROW = 1e-6  # a smaller difference of products of unit-norm rows is rounding


class UnfamiliarBatchWarning(UserWarning):
    """A batch looks unlike the labelled rows, so its labels and probabilities mean little."""


class Alarm(NamedTuple):
    """What there is to be alarmed about in a batch."""

    rows: int
    strange: int  # rows with a novelty above 0.95
    strangers: float  # estimated share of rows of no known class; NaN if novelty is not known
    copies: int  # rows that are copies of one row, itself included; 1 if the rows are too few

    @property
    def kind(self) -> str:
        """ "copies", "strangers", or both: "copies, strangers"; empty if nothing is alarming."""
        return ", ".join(self.reasons)

    @property
    def reasons(self) -> dict[str, str]:
        """Why the batch looks unlike the labelled rows, by kind; empty if it does not."""
        found = dict[str, str]()
        if self.rows < FEWEST_ROWS:
            return found
        if self.copies > MOST_COPIES * self.rows:
            found["copies"] = (
                f"{self.copies} of {self.rows} rows are copies of one: is a sensor or the encoder "
                "stuck?"
            )
        if self.strangers > MOST_STRANGERS:  # False for NaN
            found["strangers"] = (
                f"{self.strange} of {self.rows} rows are like no class, where chance explains "
                f"{100 * RATE:.0f} %: do they come from another source or encoder?"
            )
        return found

    def warn(self) -> None:
        """Warn if there is a reason, where this package was called."""
        if self.reasons:
            what = "this batch looks unlike the labelled rows: " + " ".join(self.reasons.values())
            warnings.warn(what, UnfamiliarBatchWarning, stacklevel=calls_from_outside())


def alarm_of(rows: Tensor, novelty: Tensor | None) -> Alarm:
    """Look at the rows [n, D] of a batch, and at their novelty [n] if it is known."""
    strange, strangers = 0, math.nan
    if novelty is not None and len(rows):
        strange = int((novelty > 1 - RATE).sum())
        strangers = float(beyond_chance(novelty.new_tensor(strange), len(rows))) / len(rows)
    copies = copies_of_one(rows) if len(rows) >= FEWEST_ROWS else 1
    return Alarm(len(rows), strange, strangers, copies)


def calls_from_outside() -> int:
    """How many calls above this function's caller the package was called."""
    frame, calls = inspect.currentframe(), 0
    own = (__name__.partition(".")[0], "contextlib")  # which wraps methods
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in own:
        frame, calls = frame.f_back, calls + 1
    return calls


def copies_of_one(rows: Tensor) -> int:
    """How many rows [n, D] point in one direction, up to rounding; the most of any direction.

    Copies have the same product with any direction, and other rows hardly ever have with a random
    one.
    """
    direction = random_direction(rows.shape[1]).to(rows)
    places = (unit_as(rows, rows.dtype) @ direction).sort().values
    behind = torch.searchsorted(places, places + SAME_ROW, right=True)
    return int((behind - torch.arange(len(rows), device=rows.device)).max())


@lru_cache(maxsize=8)
def random_direction(features: int) -> Tensor:
    """The same in every call, [D] float64."""
    always = torch.Generator().manual_seed(0)
    random = torch.randn(features, generator=always, dtype=torch.float64, device="cpu")
    direction: Tensor = random / features**0.5
    return direction
