"""What a fit of the scikit-learn classifier keeps for new rows: arrays, which any machine can load.

Each row is judged by itself, in parts, so that any number of them fits the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import presence
from ..methods.calibration import Likelihood
from ..rows import parts, unit_rows
from ..scaling import Coordinates

Array: TypeAlias = "npt.NDArray[Any]"

LARGEST = 1e150  # coordinates are cut off here: products of them stay finite


def array(x: Tensor) -> Array:
    found: Array = x.detach().cpu().numpy()
    return found


class Fitted(Protocol):
    """What new rows [n, D], on any device, are classified by."""

    @property
    def usual(self) -> Array:
        """Squared distances of labelled rows to their own prototypes, sorted; [m]."""

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        """For some rows after the other, [part, K] float64."""

    def distances_to_own(self, rows: Tensor, places: Tensor) -> Tensor:
        """Squared, to the prototypes of the classes at these places, [n] float64."""


@dataclass(frozen=True)
class FittedAdaptive:
    """The likelihood of the labelled rows, and the mean log proportions of the others."""

    likelihood: dict[str, Any]  # its fields
    dual: Array  # [K]
    usual: Array

    @classmethod
    def of(cls, likelihood: Likelihood, dual: Tensor) -> FittedAdaptive:
        kept = {field.name: getattr(likelihood, field.name) for field in fields(likelihood)}
        kept = {name: array(x) if isinstance(x, Tensor) else x for name, x in kept.items()}
        usual = array(presence.usual_distances_of(likelihood))
        return cls(kept, array(dual.double()), usual)

    def on(self, device: torch.device) -> Likelihood:
        kept: dict[str, Any] = {
            name: on(x, device) if isinstance(x, np.ndarray) else x
            for name, x in self.likelihood.items()
        }
        return Likelihood(**kept)

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        likelihood, dual = self.on(rows.device), on(self.dual, rows.device)
        for part in parts(len(rows), sum(likelihood.weights.shape)):
            # Unit-norm first: what float64 can hold may be too large for the dtype of the fit.
            found = likelihood.logits(unit_rows(rows[part].double()))
            yield (found.double() + dual) * likelihood.temper

    def distances_to_own(self, rows: Tensor, places: Tensor) -> Tensor:
        return presence.distances_to_own(self.on(rows.device), unit_rows(rows.double()), places)


@dataclass(frozen=True)
class FittedPaddle:
    """Prototypes in the coordinates of the fit, and a preference for each class."""

    unit: bool
    factor: Array  # [1] or [D]: with `unit` the coordinates
    prototypes: Array  # [K, D]
    preference: Array  # [K]
    temperature: float
    usual: Array

    @classmethod
    def of(
        cls, space: Coordinates, w: Tensor, preference: Tensor, temperature: float, usual: Tensor
    ) -> FittedPaddle:
        factor, prototypes, preferences = (array(x) for x in (space.factor, w, preference))
        return cls(space.unit, factor, prototypes, preferences, temperature, array(usual))

    def on(self, device: torch.device) -> tuple[Coordinates, Tensor]:
        return Coordinates(self.unit, on(self.factor, device)), on(self.prototypes, device)

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        space, w = self.on(rows.device)
        preference = on(self.preference, rows.device)
        centre = w.mean(0)
        w = (w - centre).clamp(-LARGEST, LARGEST)
        for part in parts(len(rows), sum(w.shape)):
            z = (space.of(rows[part]) - centre).clamp(-LARGEST, LARGEST)
            distance = w.square().sum(-1) - 2 * z @ w.mT  # less ||z||^2, the same for all classes
            behind = distance - distance.amin(-1, keepdim=True)
            yield preference - self.temperature / 2 * behind

    def distances_to_own(self, rows: Tensor, places: Tensor) -> Tensor:
        space, w = self.on(rows.device)
        return space.distances_to_own(rows, places, w)


def on(x: Array, device: torch.device) -> Tensor:
    # torch warns of arrays that are not writable, as those that joblib maps into memory
    return torch.from_numpy(np.require(x, requirements=["C", "W"])).to(device)
