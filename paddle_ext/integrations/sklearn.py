"""PADDLE as a scikit-learn classifier."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import check, presence
from ..batches import TEMPERATURE, BatchSolver
from ..ops import native
from ..rows import class_means, parts
from ..scaling import Coordinates, coordinates
from ..solution import Solution

try:
    from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(
        "PaddleClassifier needs scikit-learn 1.6 or newer: pip install 'paddle_ext[sklearn]'"
    ) from error

Array: TypeAlias = "npt.NDArray[Any]"

LARGEST = 1e150  # coordinates are cut off here: products of them stay finite


class PaddleClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Labels for the unlabelled rows of a batch, of which only a few classes may be present.

    `fit` takes labelled and unlabelled rows together and classifies the unlabelled ones by PADDLE,
    as `paddle_ext.solve` does, or with fixed prototypes where that is safer: ``transduction_``.
    `predict` then classifies further rows one by
    one, by the prototypes and proportions that were found. For another batch that should be seen as
    a whole, fit again.

    Parameters
    ----------
    lam : float, optional
        Weight of the number of classes present; by default the number of unlabelled rows.
    scaling : {"auto", "minmax", "none"}
        "auto" serves any embedding: unit-norm rows and one factor. "minmax" divides each feature by
        its range over the unlabelled rows. "none" takes the features as they are.
    max_iter : int
        At most this many iterations.
    tol : float
        Stop when the prototypes move by at most this on average.
    temperature : float or "auto"
        Factor on the squared distances. "auto" is 1 if the answers are then much like those of
        fixed prototypes, and otherwise takes these; see Notes.
    epsilon : float
        Added to the proportions inside the logarithm.
    present_threshold : float
        Classes that hold at least this many unlabelled rows are present; see
        `paddle_ext.Solution.present`.
    device : str or torch.device
        "auto" is a GPU if there is one; there the features are float32.

    Attributes
    ----------
    classes_ : array [K]
        The labels, sorted.
    transduction_ : array [n]
        A label for every row of `fit`; labelled rows keep theirs.
    label_distributions_ : array [n, K]
        The probabilities; for labelled rows 1 for their class.
    doubt_ : array [n]
        How doubtful each label is, in [0, 1]; 0 for labelled rows. See `paddle_ext.Solution.doubt`.
    class_proportions_ : array [K]
        The share of each class in the unlabelled rows.
    present_classes_ : array
        The labels of the classes that occur in the unlabelled rows.
    prototypes_ : array [K, D]
        In the coordinates of the inputs.
    temperature_ : float or None
        Of the solver; None if fixed prototypes have answered.
    n_iter_ : int
    n_features_in_ : int
    feature_names_in_ : array [D] of str
        Only if the columns have names.

    Notes
    -----
    Unlabelled is -1 in numbers, as in `sklearn.semi_supervised`, so -1 cannot be a class; among
    objects and in pandas columns also None, NaN and pandas.NA. If all rows are labelled, the
    prototypes are the class means and the proportions those of the labels; the labelled rows then
    also stand for the unlabelled ones in `scaling` and in the default of `lam`.

    PADDLE expects few of the classes among the unlabelled rows. With most of them there, large
    classes swallow others, so temperature="auto" first makes an estimate that cannot do that:
    probabilities calibrated on the labelled rows, prototypes fixed at their class means, class
    proportions of maximum likelihood. The rule of `paddle_ext.batches` then takes the answers of
    PADDLE, of the estimate, or, with about all classes there and no `lam` given, of the nearest
    class mean. The estimate compares unit-norm rows, whatever the scaling.

    Examples
    --------
    >>> import numpy as np
    >>> from paddle_ext import PaddleClassifier
    >>> X = np.array([[0.0, 1], [1, 0], [0.1, 1], [0.2, 1], [0.9, 0.1], [0.8, 0]])
    >>> y = np.array(["up", "right", None, None, None, None], dtype=object)
    >>> model = PaddleClassifier().fit(X, y)
    >>> model.transduction_
    array(['up', 'right', 'up', 'up', 'right', 'right'], dtype=object)
    >>> model.present_classes_
    array(['right', 'up'], dtype=object)
    >>> model.predict([[0.3, 0.9]])
    array(['up'], dtype=object)
    """

    def __init__(
        self,
        *,
        lam: float | None = None,
        scaling: str = "auto",
        max_iter: int = 100,
        tol: float = 1e-6,
        temperature: float | str = "auto",
        epsilon: float = 1e-6,
        present_threshold: float = 1.5,
        device: str | torch.device = "auto",
    ) -> None:
        self.lam = lam
        self.scaling = scaling
        self.max_iter = max_iter
        self.tol = tol
        self.temperature = temperature
        self.epsilon = epsilon
        self.present_threshold = present_threshold
        self.device = device

    # --- fitting --------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> PaddleClassifier:
        """Classify the unlabelled rows.

        Parameters
        ----------
        X : array or DataFrame [n, D]
            Numbers, all finite; float32 is kept, everything else becomes float64.
        y : array or Series [n]
            A label for each row, or -1, None or NaN for an unlabelled one. At least two classes.

        Returns
        -------
        PaddleClassifier
            The same object.
        """
        options = self._checked_options()
        device = chosen_device(self.device)
        if y is None:
            raise ValueError("PaddleClassifier requires y to be passed, but the target y is None")
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        y = column_or_1d(y, warn=True)
        if len(y) != len(X):
            raise ValueError(f"y must have a label for each row of X, {len(X)}, got {len(y)}")
        known = labelled(y)
        self.classes_, places = sorted_classes(y[known])
        rows = tensor(X, device)
        if device.type == "cuda":
            rows = rows.float()
        mask = torch.from_numpy(known).to(device)
        support, labels = rows[mask], torch.from_numpy(places).to(device)
        if known.all():
            self._fit_labelled(support, labels, options)
        else:
            self._fit_mixed(support, labels, rows[~mask], known, options)
        return self

    def fit_predict(self, X: Any, y: Any) -> Array:
        """Classify the unlabelled rows; returns ``transduction_``."""
        found: Array = self.fit(X, y).transduction_
        return found

    def _fit_labelled(self, support: Tensor, labels: Tensor, options: dict[str, Any]) -> None:
        """Class means; what `_fit_mixed` finds where no row is unlabelled."""
        K, n = len(self.classes_), len(labels)
        shots = labels.bincount(minlength=K).double()
        space = coordinates(support, labels, support, K, self.scaling)
        self.prototypes_ = array(class_means(support.double(), labels, K))
        self.class_proportions_ = array(shots / n)
        self.present_classes_ = self.classes_
        self.transduction_ = self.classes_[array(labels)]
        self.label_distributions_ = np.eye(K, dtype=array(support[:0]).dtype)[array(labels)]
        self.doubt_ = np.zeros(n)
        self.n_iter_ = 1  # the means are one pass
        w = class_means(space.of(support), labels, K)
        usual = presence.usual_distances(space, support, labels, w, torch.zeros_like(shots))
        given = options["temperature"]
        self.temperature_: float | None = TEMPERATURE if given is None else given
        self._remember(space, w, usual, 1 + torch.log(shots / n + self.epsilon), n)

    def _fit_mixed(
        self,
        support: Tensor,
        labels: Tensor,
        query: Tensor,
        known: npt.NDArray[np.bool_],
        options: dict[str, Any],
    ) -> None:
        K, Q = len(self.classes_), len(query)
        solver = BatchSolver(support, labels, K, return_prototypes=True, **options)
        solution, self.temperature_, sharpness = solver(query)
        u = solution.probabilities
        self.prototypes_ = array(solution.prototypes)  # type: ignore[arg-type]
        self.class_proportions_ = array(solution.proportions)
        self.present_classes_ = self.classes_[array(solution.present(self.present_threshold))]
        self.n_iter_ = int(solution.iterations)
        self._of_all_rows(solution, labels, known)
        if self.temperature_ is None:
            # The coordinates in which the estimate has temperature 1.
            mass = torch.zeros(K, dtype=torch.float64, device=u.device)
            space = Coordinates(True, mass.new_full((1,), sharpness**0.5))
            w = class_means(space.of(support), labels, K)
        else:
            space = coordinates(support, labels, query, K, self.scaling)
            mass = u.sum(0, dtype=torch.float64)
            w = space.prototypes(support, labels, query, u)
        usual = presence.usual_distances(space, support, labels, w, mass)
        self._remember(space, w, usual, solution.dual.double(), Q)

    def _of_all_rows(
        self, solution: Solution, labels: Tensor, known: npt.NDArray[np.bool_]
    ) -> None:
        """What is told of every row, from what is known and what was found."""
        n, K = len(known), len(self.classes_)
        place = np.empty(n, dtype=np.int64)  # of each row's class in classes_
        place[known], place[~known] = array(labels), array(solution.labels)
        self.transduction_ = self.classes_[place]
        found = array(solution.probabilities)
        self.label_distributions_ = np.zeros((n, K), dtype=found.dtype)
        self.label_distributions_[~known] = found
        self.label_distributions_[known, place[known]] = 1
        self.doubt_ = np.zeros(n)
        self.doubt_[~known] = array(solution.doubt())

    def _remember(
        self, space: Coordinates, w: Tensor, usual: Tensor, dual: Tensor, count: int
    ) -> None:
        """What new rows are classified by; as arrays, so that any machine can load them."""
        weight = 1.0 if self.lam is None else self.lam / count
        self._unit, self._factor = space.unit, array(space.factor)
        self._prototypes, self._usual = array(w), array(usual)
        self._preference = array(weight * dual)
        self._sharpness = 1.0 if self.temperature_ is None else self.temperature_

    # --- new rows -------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Array:
        """How likely each class is for each row, [n, K]; each row by itself."""
        rows = self._checked_rows(X)
        return array(torch.cat([torch.softmax(x, dim=-1) for x in self._logits(rows)]))

    def predict(self, X: Any) -> Array:
        """The label of each row, [n]; each row by itself."""
        places = self._places_of(self._checked_rows(X))
        found: Array = self.classes_[array(places)]
        return found

    def novelty(self, X: Any) -> Array:
        """How unlike its class each row is, [n]: near 1 for a sample of none of the classes.

        The share of the labelled rows that lie nearer to their prototype than this row to that of
        its label; see `paddle_ext.presence.novelty`. A class must have two labelled rows or more.
        """
        rows = self._checked_rows(X)
        if len(self._usual) == 0:
            raise ValueError(
                "y must have had a class with two labelled rows or more for novelty, which "
                "compares with how far they lie apart, got one of each"
            )
        space, w = self._fitted(rows.device)
        distances = space.distances_to_own(rows, self._places_of(rows), w)
        return array(presence.rank(torch.from_numpy(self._usual).to(rows.device), distances))

    def _checked_rows(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return tensor(X, chosen_device(self.device))

    def _fitted(self, device: torch.device) -> tuple[Coordinates, Tensor]:
        """The coordinates of the fit, and its prototypes there."""
        factor, w = (torch.from_numpy(x).to(device) for x in (self._factor, self._prototypes))
        return Coordinates(self._unit, factor), w

    def _places_of(self, rows: Tensor) -> Tensor:
        """The place of each row's label in ``classes_``."""
        return torch.cat([logits.argmax(-1) for logits in self._logits(rows)])

    def _logits(self, rows: Tensor) -> Iterator[Tensor]:
        """For some rows after the other, so that any number of them fits the memory: [part, K]."""
        space, w = self._fitted(rows.device)
        preference = torch.from_numpy(self._preference).to(rows.device)
        centre = w.mean(0)
        w = (w - centre).clamp(-LARGEST, LARGEST)
        for part in parts(len(rows), sum(w.shape)):
            z = (space.of(rows[part]) - centre).clamp(-LARGEST, LARGEST)
            distance = w.square().sum(-1) - 2 * z @ w.mT  # less ||z||^2, the same for all classes
            behind = distance - distance.amin(-1, keepdim=True)
            yield preference - self._sharpness / 2 * behind

    def _checked_options(self) -> dict[str, Any]:
        """The options of `solve`; temperature None for "auto"."""
        names = ("lam", "scaling", "temperature", "epsilon", "max_iter", "tol")
        chosen = {name: getattr(self, name) for name in names}
        automatic = isinstance(self.temperature, str)
        if automatic:
            check.choice("temperature", self.temperature, ("auto",))
            chosen["temperature"] = TEMPERATURE
        check.options(None, **chosen, return_prototypes=True, validate=True)
        if automatic:
            chosen["temperature"] = None  # BatchSolver chooses
        check.real("present_threshold", self.present_threshold, positive=True)
        return chosen


# --- labels and devices -------------------------------------------------------------------------


def labelled(y: Array) -> npt.NDArray[np.bool_]:
    """Which rows have a label: not -1, None or NaN."""
    if y.dtype.kind == "O":
        return np.array([not is_missing(label) for label in y], dtype=bool)
    if y.dtype.kind in "iuf":
        return np.asarray(~(np.isnan(y) | (y == -1)))
    return np.ones(len(y), dtype=bool)


def is_missing(label: object) -> bool:
    # pandas.NA equals nothing, not even itself, and cannot be asked whether it does.
    if label is None or type(label).__name__ == "NAType":
        return True
    return bool(label != label) or (  # noqa: PLR0124 - so NaN tells itself, of whatever type
        isinstance(label, numbers.Real) and label == -1
    )


def sorted_classes(y: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    """The classes among labels, and the place of each label among them."""
    if len(y) == 0:
        raise ValueError("y must have labelled rows of at least two classes, got none")
    if y.dtype.kind == "O":
        y = unwrapped(y)
    # Not by scikit-learn's check_classification_targets: one label of each class makes it warn.
    if y.dtype.kind == "f" and not (np.isfinite(y) & (y == np.round(y))).all():
        odd = y[~np.isfinite(y) | (y != np.round(y))][0]
        raise ValueError(f"Unknown label type: y must be names or whole numbers, got {odd}")
    classes, places = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y must have labels of at least two classes, got one class: {classes[0]}")
    return classes, places.astype(np.int64)


def unwrapped(y: Array) -> Array:
    """Objects that are all text, as they are; all numbers, as an array of numbers."""
    if all(isinstance(label, str) for label in y):
        return y
    if all(isinstance(label, numbers.Real | np.bool_) for label in y):
        return np.array(y.tolist())
    kinds = sorted({check.kind(label) for label in y})
    raise ValueError(
        f"Unknown label type: y must be all text or all numbers, got {' and '.join(kinds)}"
    )


def chosen_device(device: str | torch.device) -> torch.device:
    if isinstance(device, str) and device == "auto":
        usable = torch.cuda.is_available() and native.has_cuda()
        return torch.device("cuda" if usable else "cpu")
    return check.device(device)


def tensor(x: Array, device: torch.device) -> Tensor:
    # torch warns of arrays that are not writable, as those that joblib maps into memory
    return torch.from_numpy(np.require(x, requirements=["C", "W"])).to(device)


def array(x: Tensor) -> Array:
    found: Array = x.detach().cpu().numpy()
    return found
