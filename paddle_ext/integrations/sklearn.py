"""A scikit-learn classifier for batches: of any classes, or by PADDLE of few."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import check, presence
from ..methods.adaptive import Adaptive
from ..methods.calibration import calibrated
from ..methods.names_rows import row_logits
from ..methods.task import Task
from ..ops import solve
from ..rows import class_means
from ..scaling import coordinates
from ..solution import Solution
from .fitted import (
    Array,
    Fitted,
    FittedAdaptive,
    FittedNames,
    FittedPaddle,
    array,
    chosen_device,
    means_of,
    on,
    without_batch,
)
from .labels import Named, labelled, named_classes, sorted_classes

try:
    from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(
        "PaddleClassifier needs scikit-learn 1.6 or newer: pip install 'paddle_ext[sklearn]'"
    ) from error

METHODS = ("adaptive", "paddle")
# Options that only PADDLE has, and their defaults.
OF_PADDLE = {"lam": None, "scaling": "auto", "temperature": 1.0, "epsilon": 1e-6}
TOL = {"adaptive": 1e-3, "paddle": 1e-6}


class PaddleClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Labels for the unlabelled rows of a batch, be one class present or all.

    `fit` takes labelled and unlabelled rows together, and classifies the unlabelled ones as a
    batch: ``transduction_``. Classes may also be known by an embedding of their name, and then need
    no labelled row. `predict` then classifies further rows one by one, by what the
    labelled rows say and the proportions that were found. For another batch that should be seen as
    a whole, fit again.

    Parameters
    ----------
    method : {"adaptive", "paddle"}
        "adaptive" is right for any number of classes present, see `paddle_ext.methods.Adaptive`.
        "paddle" is `paddle_ext.solve`, for batches that are known to hold few of the classes.
    max_iter : int
        At most this many iterations.
    tol : float, optional
        Where to stop, as `paddle_ext.adapt` or `paddle_ext.solve` mean it; by default theirs.
    lam : float, optional
        Only of "paddle", as the next three: weight of the number of classes present; by default the
        number of unlabelled rows.
    scaling : {"auto", "minmax", "none"}
        "auto" serves any embedding: unit-norm rows and one factor. "minmax" divides each feature by
        its range over the unlabelled rows. "none" takes the features as they are.
    temperature : float
        Factor on the squared distances.
    epsilon : float
        Added to the proportions inside the logarithm.
    logit_scale : float
        Factor that makes logits of cosines with the prototypes of names, where there are any; CLIP
        has learned 100.
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
        Means of the labelled rows of each class and of the others by their probabilities, in the
        coordinates of the inputs; zeros for a class that has neither.
    concentration_ : float or None
        Of "adaptive": small if few classes are present, large if all are, and equally often. None
        if no row is unlabelled.
    n_iter_ : int
    n_features_in_ : int
    feature_names_in_ : array [D] of str
        Only if the columns have names.

    Notes
    -----
    Unlabelled is -1 in numbers, as in `sklearn.semi_supervised`, so -1 cannot be a class; among
    objects and in pandas columns also None, NaN and pandas.NA. If all rows are labelled, the
    prototypes are the class means and the proportions those of the labels; for "paddle" the
    labelled rows then also stand for the unlabelled ones in `scaling` and in the default of `lam`.

    "adaptive" has no option but `max_iter` and `tol`; it refuses those of "paddle".

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

    Names alone, by their embeddings:

    >>> names = np.array([[0.0, 1], [1, 0], [-1, 0]])
    >>> model = PaddleClassifier().fit(X, None, prototypes=names, classes=["up", "right", "left"])
    >>> model.transduction_.tolist()
    ['up', 'right', 'up', 'up', 'right', 'right']
    """

    def __init__(
        self,
        *,
        method: str = "adaptive",
        max_iter: int = 100,
        tol: float | None = None,
        lam: float | None = None,
        scaling: str = "auto",
        temperature: float = 1.0,
        epsilon: float = 1e-6,
        logit_scale: float = 100.0,
        present_threshold: float = 1.5,
        device: str | torch.device = "auto",
    ) -> None:
        self.method = method
        self.max_iter = max_iter
        self.tol = tol
        self.lam = lam
        self.scaling = scaling
        self.temperature = temperature
        self.epsilon = epsilon
        self.logit_scale = logit_scale
        self.present_threshold = present_threshold
        self.device = device

    # --- fitting --------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any, *, prototypes: Any = None, classes: Any = None
    ) -> PaddleClassifier:
        """Classify the unlabelled rows.

        Parameters
        ----------
        X : array or DataFrame [n, D]
            Numbers, all finite; float32 is kept, everything else becomes float64.
        y : array or Series [n]
            A label for each row, or -1, None or NaN for an unlabelled one. At least two classes,
            unless there are `prototypes`; then there may be no label at all, or no `y`.
        prototypes : array [K, D], optional
            One embedding of each class that is no row of it: that of its name, by the text tower of
            the network whose image tower made `X`. For "adaptive".
        classes : array [K], optional
            The labels of the classes, in the order of `prototypes`; by default those of `y`,
            sorted, or 0 to K - 1 if it has none.

        Returns
        -------
        PaddleClassifier
            The same object.
        """
        options = self._checked_options()
        device = chosen_device(self.device)
        if y is None and prototypes is None:
            raise ValueError("PaddleClassifier requires y to be passed, but the target y is None")
        least = 2 if prototypes is None else 1
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=least)
        y = np.full(len(X), -1) if y is None else column_or_1d(y, warn=True)
        if len(y) != len(X):
            raise ValueError(f"y must have a label for each row of X, {len(X)}, got {len(y)}")
        known = labelled(y)
        named = self._checked_names(y[known], prototypes, classes)
        self.classes_, places = sorted_classes(y[known]) if named is None else named[:2]
        rows = on(X, device)
        if device.type == "cuda":
            rows = rows.float()
        mask = torch.from_numpy(known).to(device)
        support, labels = rows[mask], torch.from_numpy(places).to(device)
        names = None if named is None else on(named.prototypes, device).to(rows.dtype)
        if known.all():
            self._fit_labelled(support, labels, names)
            return self
        if names is not None:
            solution = self._fit_named(support, labels, rows[~mask], names, options)
        else:
            fit = self._fit_adaptive if self.method == "adaptive" else self._fit_paddle
            solution = fit(support, labels, rows[~mask], options)
        self._tell_all_rows(solution, labels, known)
        return self

    def fit_predict(self, X: Any, y: Any, *, prototypes: Any = None, classes: Any = None) -> Array:
        """Classify the unlabelled rows; returns ``transduction_``."""
        found: Array = self.fit(X, y, prototypes=prototypes, classes=classes).transduction_
        return found

    def _checked_names(self, y: Array, prototypes: Any, classes: Any) -> Named | None:
        if prototypes is None:
            if classes is not None:
                raise ValueError(
                    f"classes must be None without prototypes, got {check.kind(classes)}"
                )
            return None
        if self.method != "adaptive":
            raise ValueError(
                f"prototypes must be None unless method='adaptive', got {check.kind(prototypes)} "
                f"with {self.method!r}"
            )
        return named_classes(y, prototypes, classes, self.n_features_in_)

    def _fit_labelled(self, support: Tensor, labels: Tensor, names: Tensor | None) -> None:
        """Class means and the proportions of the labels."""
        K, n = len(self.classes_), len(labels)
        shots = labels.bincount(minlength=K).double()
        self.prototypes_ = array(means_of(support.double(), labels, K))
        self.class_proportions_ = array(shots / n)
        self.present_classes_ = self.classes_[array(shots > 0)]
        self.transduction_ = self.classes_[array(labels)]
        self.label_distributions_ = np.eye(K, dtype=array(support[:0]).dtype)[array(labels)]
        self.doubt_ = np.zeros(n)
        self.n_iter_ = 1  # the means are one pass
        self.concentration_: float | None = None
        if names is not None:
            task = Task(support[None], labels[None], support[None], K, prototypes=names[None])
            self._fitted: Fitted = FittedNames.of(
                row_logits(task, Adaptive(logit_scale=self.logit_scale), None)
            )
            return
        if self.method == "adaptive":
            likelihood = calibrated(support.unsqueeze(0), labels.unsqueeze(0), K)
            self._fitted = FittedAdaptive.of(likelihood, torch.log(shots / n))
            return
        space = coordinates(support, labels, support, K, self.scaling)
        w = class_means(space.of(support), labels, K)
        usual = presence.usual_distances(space, support, labels, w, torch.zeros_like(shots))
        preference = self._dual_weight(n) * (1 + torch.log(shots / n + self.epsilon))
        self._fitted = FittedPaddle.of(space, w, preference, self.temperature, usual)

    def _fit_adaptive(
        self, support: Tensor, labels: Tensor, query: Tensor, options: dict[str, Any]
    ) -> Solution:
        likelihood = calibrated(support.unsqueeze(0), labels.unsqueeze(0), len(self.classes_))
        solution = Adaptive(**options).solve_one(likelihood, query)
        K, u = len(self.classes_), solution.probabilities
        self.prototypes_ = array(means_of(support, labels, K, query, u))
        assert solution.concentration is not None
        self.concentration_ = float(solution.concentration)
        self._fitted = FittedAdaptive.of(likelihood, solution.dual)
        return solution

    def _fit_named(
        self,
        support: Tensor,
        labels: Tensor,
        query: Tensor,
        names: Tensor,
        options: dict[str, Any],
    ) -> Solution:
        K = len(self.classes_)
        method = Adaptive(logit_scale=self.logit_scale, **options)
        task = Task(support[None], labels[None], query[None], K, prototypes=names[None])
        found = method.solution(task)
        self._fitted = FittedNames.of(row_logits(task, method, found))
        solution = without_batch(found)
        self.prototypes_ = array(means_of(support, labels, K, query, solution.probabilities))
        assert solution.concentration is not None
        self.concentration_ = float(solution.concentration)
        return solution

    def _fit_paddle(
        self, support: Tensor, labels: Tensor, query: Tensor, options: dict[str, Any]
    ) -> Solution:
        K = len(self.classes_)
        solution = solve(support, labels, query, num_classes=K, return_prototypes=True, **options)
        u = solution.probabilities
        assert solution.prototypes is not None
        self.prototypes_ = array(solution.prototypes)
        self.concentration_ = None
        space = coordinates(support, labels, query, K, self.scaling)
        w = space.prototypes(support, labels, query, u)
        mass = u.sum(0, dtype=torch.float64)
        usual = presence.usual_distances(space, support, labels, w, mass)
        preference = self._dual_weight(len(query)) * solution.dual.double()
        self._fitted = FittedPaddle.of(space, w, preference, self.temperature, usual)
        return solution

    def _dual_weight(self, count: int) -> float:
        return 1.0 if self.lam is None else self.lam / count

    def _tell_all_rows(
        self, solution: Solution, labels: Tensor, known: npt.NDArray[np.bool_]
    ) -> None:
        """What is told of the batch and of every row, from what is known and what was found."""
        self.class_proportions_ = array(solution.proportions)
        self.present_classes_ = self.classes_[array(solution.present(self.present_threshold))]
        self.n_iter_ = int(solution.iterations)
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

    # --- new rows -------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Array:
        """How likely each class is for each row, [n, K]; each row by itself."""
        rows = self._checked_rows(X)
        return array(torch.cat([torch.softmax(x, dim=-1) for x in self._fitted.logits(rows)]))

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
        if len(self._fitted.usual) == 0:
            named = isinstance(self._fitted, FittedNames)
            raise ValueError(
                "y must have had a class with two labelled rows or more for novelty, which "
                f"compares with how far they lie apart, got {'names' if named else 'one of each'}"
            )
        distances = self._fitted.distances_to_own(rows, self._places_of(rows))
        return array(presence.rank(on(self._fitted.usual, rows.device), distances))

    def _checked_rows(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return on(X, chosen_device(self.device))

    def _places_of(self, rows: Tensor) -> Tensor:
        """The place of each row's label in ``classes_``."""
        return torch.cat([logits.argmax(-1) for logits in self._fitted.logits(rows)])

    def _checked_options(self) -> dict[str, Any]:
        """The options of the method."""
        check.choice("method", self.method, METHODS)
        tol = TOL[self.method] if self.tol is None else self.tol
        chosen = {name: getattr(self, name) for name in OF_PADDLE}
        check.options(
            None, **chosen, max_iter=self.max_iter, tol=tol, return_prototypes=True, validate=True
        )
        check.real("present_threshold", self.present_threshold, positive=True)
        check.real("logit_scale", self.logit_scale, positive=True)
        if self.method == "paddle":
            return chosen | {"max_iter": self.max_iter, "tol": tol}
        for name, default in OF_PADDLE.items():
            if chosen[name] != default:
                raise ValueError(
                    f"{name} must be left at {default!r} unless method='paddle', "
                    f"got {chosen[name]!r}"
                )
        return {"max_iter": self.max_iter, "tol": tol}
