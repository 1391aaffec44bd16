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

from .. import check, presence
from ..methods.calibration import Likelihood
from ..methods.names_rows import RowLogits
from ..ops import native
from ..rows import class_sums, parts, unit_rows
from ..scaling import Coordinates
from ..solution import Solution

Array: TypeAlias = "npt.NDArray[Any]"

LARGEST = 1e150  # coordinates are cut off here: products of them stay finite


def chosen_device(device: str | torch.device) -> torch.device:
    """What "auto" is in this process, or the device itself."""
    if isinstance(device, str) and device == "auto":
        usable = torch.cuda.is_available() and native.has_cuda()
        return torch.device("cuda" if usable else "cpu")
    return check.device(device)


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
class FittedNames:
    """What names, labelled rows and the batch say of one more row."""

    kept: dict[str, Array]  # the fields of `RowLogits`

    @property
    def usual(self) -> Array:
        return np.empty(0)

    @classmethod
    def of(cls, found: RowLogits) -> FittedNames:
        return cls({field.name: array(getattr(found, field.name)) for field in fields(found)})

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        judge = RowLogits(**{name: on(x, rows.device) for name, x in self.kept.items()})
        for part in parts(len(rows), sum(judge.weights.shape)):
            yield judge(unit_rows(rows[part].double())).double()

    def distances_to_own(self, rows: Tensor, places: Tensor) -> Tensor:
        raise NotImplementedError  # `usual` is empty, so nobody may ask


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


def means_of(
    support: Tensor,
    labels: Tensor,
    K: int,
    query: Tensor | None = None,
    u: Tensor | None = None,
) -> Tensor:
    """Means of labelled rows, and of others by their probabilities [Q, K]; zeros without any."""
    sums = support.new_zeros(K, support.shape[1])
    mass = labels.bincount(minlength=K).to(support.dtype)
    if len(support):
        sums, _ = class_sums(support, labels, K)
    if query is not None and u is not None:
        sums, mass = sums + u.mT @ query, mass + u.sum(0)
    return sums / mass.clamp(min=torch.finfo(mass.dtype).tiny).unsqueeze(-1)


def without_batch(solution: Solution) -> Solution:
    """That of the only task of a batch."""
    alone: dict[str, Any] = {
        name: x[0] for name, x in solution._asdict().items() if isinstance(x, Tensor)
    }
    return solution._replace(**alone)


def on(x: Array, device: torch.device) -> Tensor:
    # torch warns of arrays that are not writable, as those that joblib maps into memory
    return torch.from_numpy(np.require(x, requirements=["C", "W"])).to(device)
