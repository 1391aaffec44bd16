"""What a fitted scikit-learn classifier stores to classify new rows: arrays for any machine.

Each row is classified independently, in parts, so any number of rows fits in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.likelihood import Likelihood
from ..adaptive_rule.names import RowLogits
from ..native import devices
from ..presence.unknown import Familiar, familiar
from ..rows import class_sums, parts, unit_rows
from ..scaling import RowScaling
from ..solution import Solution

Array: TypeAlias = "npt.NDArray[Any]"

KEPT = 5  # probabilities kept of a row, if all would be too many
LARGEST = 1e150  # coordinates are clamped here, so that their products stay finite


def chosen_device(device: str | torch.device) -> torch.device:
    """The device that "auto" means in this process, or the device itself."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if devices.usable_gpu() else "cpu")
    return check.device(device)


def array(x: Tensor) -> Array:
    found: Array = x.detach().cpu().numpy()
    return found


class Fitted(Protocol):
    """Classifies new rows [n, D] on any device."""

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        """Scores of successive parts of the rows, [part, K] float64."""


def arrays(kept: Any) -> dict[str, Any]:
    """The fields of a dataclass, with tensors turned into arrays."""
    found = {field.name: getattr(kept, field.name) for field in fields(kept)}
    return {name: array(x) if isinstance(x, Tensor) else x for name, x in found.items()}


def tensors(kept: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The inverse of `arrays`: the fields, with arrays turned into tensors on a device."""
    return {
        name: to_tensor(x, device) if isinstance(x, np.ndarray) else x for name, x in kept.items()
    }


@dataclass(frozen=True)
class FittedFamiliar:
    """The model of known classes behind `novelty`, stored as arrays."""

    kept: dict[str, Any]  # the fields of `presence.unknown.Familiar`

    @classmethod
    def of(cls, support: Tensor, labels: Tensor, num_classes: int) -> FittedFamiliar | None:
        """None if no class has two labelled rows, or one has none."""
        if len(labels) == 0 or int(labels.bincount(minlength=num_classes).amin()) == 0:
            return None
        found = familiar(support, labels, num_classes)
        return None if found is None else cls(arrays(found))

    def novelty(self, rows: Tensor, places: Tensor | None) -> Tensor:
        return Familiar(**tensors(self.kept, rows.device)).novelty(rows, places)


@dataclass(frozen=True)
class FittedAdaptive:
    """The likelihood of the labelled rows, and the mean log proportions of the unlabelled ones."""

    likelihood: dict[str, Any]  # the fields of `Likelihood`
    weights: Array  # its weights, stored so that `predict` need not compute them again
    dual: Array  # [K] mean log proportions

    @classmethod
    def of(cls, known: Likelihood, dual: Tensor) -> FittedAdaptive:
        return cls(arrays(known.to("cpu")), array(known.weights), array(dual.double()))

    def on(self, device: torch.device) -> Likelihood:
        known = Likelihood(**tensors(self.likelihood, torch.device("cpu"))).to(device)
        vars(known)["weights"] = to_tensor(self.weights, device)
        return known

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        known, dual = self.on(rows.device), to_tensor(self.dual, rows.device)
        for part in parts(len(rows), sum(known.weights.shape)):
            # Unit-norm first: float64 values may be too large for the dtype of the fit.
            found = known.logits(unit_rows(rows[part].double()))
            yield (found.double() + dual) * known.temper


@dataclass(frozen=True)
class FittedNames:
    """The logits of one more row, from names, labelled rows and the batch."""

    kept: dict[str, Array]  # the fields of `RowLogits`

    @classmethod
    def of(cls, found: RowLogits) -> FittedNames:
        return cls(arrays(found))

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        row_logits = RowLogits(**tensors(self.kept, rows.device))
        for part in parts(len(rows), sum(row_logits.weights.shape)):
            yield row_logits(unit_rows(rows[part].double())).double()


@dataclass(frozen=True)
class FittedPaddle:
    """Prototypes in the coordinates of the fit, and a preference for each class."""

    unit: bool
    factor: Array  # [1] or [D]: `unit` and `factor` are the fields of `RowScaling`
    prototypes: Array  # [K, D]
    preference: Array  # [K]
    temperature: float

    @classmethod
    def of(
        cls, space: RowScaling, w: Tensor, preference: Tensor, temperature: float
    ) -> FittedPaddle:
        factor, prototypes, preferences = (array(x) for x in (space.factor, w, preference))
        return cls(space.unit, factor, prototypes, preferences, temperature)

    def on(self, device: torch.device) -> tuple[RowScaling, Tensor]:
        space = RowScaling(self.unit, to_tensor(self.factor, device))
        return space, to_tensor(self.prototypes, device)

    def logits(self, rows: Tensor) -> Iterator[Tensor]:
        space, w = self.on(rows.device)
        preference = to_tensor(self.preference, rows.device)
        centre = w.mean(0)
        w = (w - centre).clamp(-LARGEST, LARGEST)
        for part in parts(len(rows), sum(w.shape)):
            z = (space.apply(rows[part]) - centre).clamp(-LARGEST, LARGEST)
            distance = w.square().sum(-1) - 2 * z @ w.mT  # minus ||z||^2, the same for all classes
            behind = distance - distance.amin(-1, keepdim=True)
            yield preference - self.temperature / 2 * behind


def means_of(
    support: Tensor,
    labels: Tensor,
    K: int,
    query: Tensor | None = None,
    solution: Solution | None = None,
    counts: Tensor | None = None,
) -> Tensor:
    """Class means of labelled rows, and of queries weighted by their probabilities.

    `counts` are the weights of the labelled rows, 1 by default. Empty classes have zeros.
    """
    sums = support.new_zeros(K, support.shape[1])
    weights = None if counts is None else counts.to(support.dtype)
    mass = labels.bincount(weights, minlength=K).to(support.dtype)
    if len(support):
        sums, _ = class_sums(support, labels, K, weights)
    if query is not None and solution is not None:
        u = solution.probabilities
        if solution.classes is None:
            sums, mass = sums + u.mT @ query, mass + u.sum(0)
        else:  # only the largest of each row
            for rank, classes in enumerate(solution.classes.unbind(-1)):
                weights = u[:, rank]
                sums = sums + class_sums(query, classes, K, weights)[0]
                mass = mass.index_add(0, classes, weights)
    return sums / mass.clamp(min=torch.finfo(mass.dtype).tiny).unsqueeze(-1)


def all_of_rows(
    place: Array,
    known: npt.NDArray[np.bool_],
    num_classes: int,
    solution: Solution | None,
    dtype: torch.dtype,
) -> Array:
    """The probabilities [n, K] of all rows: a labelled row has 1 for its class.

    `place` [n] are the classes of all rows, `known` [n] says which are labelled, and `solution` is
    that of the others, if there are any.
    """
    empty = torch.zeros(0, num_classes, dtype=dtype)
    predicted = array(empty if solution is None else solution.probabilities)
    found: Array = np.zeros((len(place), num_classes), dtype=predicted.dtype)
    found[known, place[known]] = 1
    found[~known] = predicted
    return found


def largest_of_rows(
    place: Array,
    known: npt.NDArray[np.bool_],
    num_classes: int,
    solution: Solution | None,
    dtype: torch.dtype,
) -> Any:
    """The same as a `scipy.sparse.csr_array` of the largest probabilities of each row."""
    from scipy.sparse import csr_array  # type: ignore[import-untyped]

    if solution is None:
        largest = torch.zeros(0, 1, dtype=dtype), torch.zeros(0, 1, dtype=torch.int64)
    elif solution.classes is None:
        largest = solution.probabilities.topk(min(KEPT, num_classes))
    else:
        largest = solution.probabilities, solution.classes
    values, classes = (array(x) for x in largest)
    kept = np.where(known, 1, values.shape[1])
    starts = np.concatenate([[0], kept.cumsum()])
    owner = np.repeat(known, kept)  # whether a number belongs to a labelled row
    data, index = np.ones(starts[-1], values.dtype), np.empty(starts[-1], np.int64)
    index[owner] = place[known]
    data[~owner], index[~owner] = values.ravel(), classes.ravel()
    return csr_array((data, index, starts), shape=(len(place), num_classes))


def to_tensor(x: Array, device: torch.device) -> Tensor:
    # torch warns about read-only arrays, such as those memory-mapped by joblib
    return torch.from_numpy(np.require(x, requirements=["C", "W"])).to(device)
