"""A scikit-learn classifier that labels the unlabelled rows of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import check
from ..large.arguments import returns_all
from ..presence import suggest
from ..prevalence import Prevalence
from ..solution import Solution
from .arguments import checked_class_names, checked_options, checked_sample_weight
from .columns import Columns
from .fitted import (
    Array,
    FittedAdaptive,
    FittedFamiliar,
    FittedNames,
    all_of_rows,
    array,
    arrays,
    chosen_device,
    largest_of_rows,
    tensors,
    to_tensor,
)
from .fitting import (
    Fit,
    FittedRows,
    Known,
    classified,
    fit_batch,
    fit_labelled,
    in_columns,
)
from .labels import labelled, prior_weights, sorted_classes

try:
    from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(
        "PaddleClassifier needs scikit-learn 1.6 or newer: pip install 'paddle_ext[sklearn]'"
    ) from error


class PaddleClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Labels the unlabelled rows of a batch, whether one class is present or all.

    `fit` takes labelled and unlabelled rows together and classifies the unlabelled ones as a batch:
    ``transduction_``. Classes may also be known by an embedding of their name, and then need no
    labelled row. `predict` classifies further rows one by one, using the labelled rows and the
    estimated proportions. To classify another batch as a whole, fit again or use `predict_batch`.

    Parameters
    ----------
    method : {"adaptive", "paddle"}
        "adaptive" suits any number of classes present, see `paddle_ext.methods.Adaptive`. "paddle"
        is `paddle_ext.solve`, for batches known to contain few of the classes.
    prior : array [K] or mapping of class to weight, optional
        What is known of the class proportions, as in `paddle_ext.adapt`; an array is in the order
        of ``classes_``. For "adaptive". Without a batch, `predict` trusts it.
    max_iter : int
        At most this many iterations.
    tol : float, optional
        Tolerance, as in `paddle_ext.adapt` or `paddle_ext.solve`; default: theirs.
    lam : float, optional
        Only for "paddle", like the next three: weight of the penalty on the number of classes
        present; default: the number of unlabelled rows.
    scaling : {"auto", "minmax", "none"}
        "auto" suits any embedding: unit-norm rows and one factor. "minmax" divides each feature by
        its range over the unlabelled rows. "none" leaves the features unchanged.
    temperature : float
        Factor on the squared distances.
    epsilon : float
        Added to the proportions inside the logarithm.
    logit_scale : float
        Factor on cosines with the prototypes of names in logits; CLIP learned 100.
    label_noise : float or "auto"
        For "adaptive": the share of labels that are wrong, in [0, 1), or "auto" to estimate it; the
        weight of a labelled row is then the probability that its label is right. With 0.0, or with
        `prototypes` of names, all labels are trusted.
    present_threshold : float
        A class is present if it holds at least this many unlabelled rows; see
        `paddle_ext.Solution.present`.
    device : str or torch.device
        "auto" is a GPU if available; features are float32 there.

    Attributes
    ----------
    classes_ : array [K]
        The labels, sorted.
    transduction_ : array [n]
        A label for every row of `fit`; labelled rows keep theirs.
    label_distributions_ : array [n, K]
        The probabilities; for labelled rows 1 for their class. With more than 2^28 of them, a
        `scipy.sparse.csr_array` of the five largest of each row.
    doubt_ : array [n]
        How doubtful each label is, in [0, 1]; 0 for labelled rows. See `paddle_ext.Solution.doubt`.
    class_proportions_ : array [K]
        The share of each class in the unlabelled rows.
    prevalence_ : Prevalence or None
        The same with intervals that cover 90 %: `estimate`, `low` and `high`, arrays [K]. None for
        "paddle", or if no row is unlabelled. See `paddle_ext.Solution.prevalence`.
    present_classes_ : array
        The labels of the classes that occur in the unlabelled rows.
    prototypes_ : array [K, D]
        Means of the labelled rows of each class and of the others by their probabilities, in the
        coordinates of the inputs; zeros for a class without either.
    concentration_ : float or None
        Of "adaptive": small if few classes are present, large if all are equally frequent. None if
        no row is unlabelled.
    prior_used_ : bool or None
        Whether `prior` was used, because it makes the unlabelled rows likelier; None without one.
    calibrated_ : bool
        Whether the probabilities are calibrated: not those of "paddle", nor with one labelled row
        per class, which leaves nothing to calibrate on.
    n_iter_ : int
    n_features_in_ : int
    feature_names_in_ : array [D] of str
        Only if the columns have names.

    Notes
    -----
    Unlabelled is -1 in numbers, as in `sklearn.semi_supervised`, so -1 cannot be a class; among
    objects and in pandas columns also None, NaN and pandas.NA. If all rows are labelled, the
    prototypes are the class means and the proportions those of the labels; "paddle" then also uses
    the labelled rows for `scaling` and the default of `lam`.

    "adaptive" has no options except `max_iter` and `tol`; it rejects those of "paddle". It makes
    rows unit-norm if they are embeddings, and standardises the columns of a table: how `fit`
    decides is in docs/estimator.md.

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

    Names only, by their embeddings:

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
        label_noise: float | str = 0.0,
        prior: Any = None,
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
        self.label_noise = label_noise
        self.prior = prior
        self.present_threshold = present_threshold
        self.device = device

    # --- fitting --------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        prototypes: Any = None,
        classes: Any = None,
    ) -> PaddleClassifier:
        """Classify the unlabelled rows.

        Parameters
        ----------
        X : array or DataFrame [n, D]
            Numbers, all finite; float32 is kept, anything else becomes float64.
        y : array or Series [n]
            A label for each row, or -1, None or NaN for an unlabelled one. At least two classes,
            unless there are `prototypes`; then there may be no label at all, or no `y`.
        sample_weight : array [n], optional
            Weight of each labelled row in its class, for "adaptive" without `prototypes`; 0 ignores
            the row, though it keeps its label. Weights of unlabelled rows are ignored. A weight of
            2 differs from repeating the row: two copies would confirm each other.
        prototypes : array [K, D], optional
            One embedding per class that is not one of its rows, such as its name by the text tower
            of the network whose image tower computed `X`. For "adaptive".
        classes : array [K], optional
            The labels of the classes, in the order of `prototypes`; default: those of `y`, sorted,
            or 0 to K - 1 if it has none.

        Returns
        -------
        PaddleClassifier
            The same object.
        """
        options = checked_options(self)
        device = chosen_device(self.device)
        if y is None and prototypes is None:
            raise ValueError("PaddleClassifier requires y to be passed, but the target y is None")
        least = 2 if prototypes is None else 1
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=least)
        y = np.full(len(X), -1) if y is None else column_or_1d(y, warn=True)
        if len(y) != len(X):
            raise ValueError(f"y must have a label for each row of X, {len(X)}, got {len(y)}")
        known = labelled(y)
        named = checked_class_names(self, y[known], prototypes, classes)
        self.classes_, places = sorted_classes(y[known]) if named is None else named[:2]
        self._add_prior(options)
        weights = checked_sample_weight(self, sample_weight, known, places, named is not None)
        rows = to_tensor(X, device)
        if device.type == "cuda":
            rows = rows.float()
        mask = torch.from_numpy(known).to(device)
        labels = torch.from_numpy(places).to(device)
        support, own, counts = rows[mask], labels, None
        if weights is not None:
            counts = to_tensor(weights, device)
            support, own, counts = (x[counts > 0] for x in (support, own, counts))
        names = None if named is None else to_tensor(named.prototypes, device).to(rows.dtype)
        given = Known(support, own, len(self.classes_), counts, names)
        query = None if known.all() else rows[~mask]
        columns, given, query = in_columns(given, query, self.method)
        if query is None:
            fit = fit_labelled(given, self.method, options)
        else:
            fit = fit_batch(given, query, self.method, options)
        fit = fit._replace(prototypes=columns.back(fit.prototypes))
        self._columns = arrays(columns)
        self._fitted, self._familiar = fit.fitted, FittedFamiliar.of(*given[:3])
        self._kept = None if isinstance(fit.fitted, FittedAdaptive) else FittedRows.of(given)
        named_or_two = names is not None or len(own) > len(self.classes_)
        self.calibrated_ = self.method == "adaptive" and named_or_two
        self._set_batch(fit)
        self._set_rows(fit.solution, labels, known, rows.dtype)
        self._batch = X, known
        return self

    def fit_predict(self, X: Any, y: Any, sample_weight: Any = None, **names: Any) -> Array:
        """Classify the unlabelled rows; returns ``transduction_``. Arguments as in `fit`."""
        found: Array = self.fit(X, y, sample_weight, **names).transduction_
        return found

    def _set_batch(self, fit: Fit) -> None:
        """Set the attributes that describe the batch or, without one, the labelled rows."""
        self.prototypes_ = array(fit.prototypes)
        self.class_proportions_ = array(fit.proportions)
        solution = fit.solution
        present = fit.proportions > 0
        self.n_iter_, self.concentration_ = 1, None  # computing the means is one pass
        self.prior_used_ = self.prevalence_ = None
        if solution is not None:
            present = solution.present(self.present_threshold)
            self.n_iter_ = int(solution.iterations)
            if solution.concentration is not None:
                self.concentration_ = float(solution.concentration)
                self.prevalence_ = Prevalence._make(map(array, solution.prevalence()))
            if solution.prior_used is not None:
                self.prior_used_ = bool(solution.prior_used)
        self.present_classes_ = self.classes_[array(present)]

    def _set_rows(
        self,
        solution: Solution | None,
        labels: Tensor,
        known: npt.NDArray[np.bool_],
        dtype: torch.dtype,
    ) -> None:
        """Set the attributes with an entry for every row, from the labels and the predictions."""
        n, K = len(known), len(self.classes_)
        place = np.empty(n, dtype=np.int64)  # index of each row's class in classes_
        place[known] = array(labels)
        self.doubt_ = np.zeros(n)
        if solution is not None:
            place[~known] = array(solution.labels)
            self.doubt_[~known] = array(solution.doubt())
        self.transduction_ = self.classes_[place]
        store = all_of_rows if returns_all(None, n, K) else largest_of_rows
        self.label_distributions_ = store(place, known, K, solution, dtype)

    def suggest(self, count: int) -> Array:
        """The unlabelled rows of `fit` whose labels would help most, as indices into `X`.

        [count] int64, the most useful first; all of them if there are fewer. For people who can
        label a few more rows; see `paddle_ext.presence.suggest`. `X` must not have been changed
        since, and a pickled model no longer has it.
        """
        check_is_fitted(self)
        count = check.integer("count", count)
        if not hasattr(self, "_batch"):
            raise ValueError("suggest must be called before a model is pickled, got a loaded one")
        X, known = self._batch
        unlabelled = np.flatnonzero(~known)
        if not len(unlabelled):
            return unlabelled
        rows = self._in_columns(X)
        support, query = (rows[torch.from_numpy(x).to(rows.device)] for x in (known, ~known))
        found: Array = unlabelled[array(suggest(support, query, count).queries)]
        return found

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        state.pop("_batch", None)  # as large as the data, and only for `suggest`
        return state

    # --- new rows -------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class for each row, [n, K], independently of other rows."""
        rows = self._checked_rows(X)
        return array(torch.cat([torch.softmax(x, dim=-1) for x in self._fitted.logits(rows)]))

    def predict(self, X: Any) -> Array:
        """The label of each row, [n], independently of other rows."""
        places = self._places_of(self._checked_rows(X))
        found: Array = self.classes_[array(places)]
        return found

    def predict_batch(self, X: Any) -> Array:
        """The labels [n] of rows that form a new batch.

        Equivalent to fitting again with the same labelled rows and these unlabelled ones; the batch
        of `fit` plays no role.
        """
        rows = self._checked_rows(X)
        options = checked_options(self)
        self._add_prior(options)
        if isinstance(self._fitted, FittedAdaptive):
            known = self._fitted.on(rows.device)
            solution = classified(known, rows.to(known.weights.dtype), options)
        else:
            assert self._kept is not None
            solution = self._kept.solved(rows, self.method, options)
        found: Array = self.classes_[array(solution.labels)]
        return found

    def novelty(self, X: Any) -> Array:
        """How unlike its class each row is, [n]: near 1 for a sample of an unknown class.

        The share of labelled rows that are less strange than this one; see
        `paddle_ext.presence.novelty`. Every class must have a labelled row, and one of them two.
        """
        rows = self._checked_rows(X)
        if self._familiar is None:
            named = isinstance(self._fitted, FittedNames)
            raise ValueError(
                "y must have had a labelled row of every class, and two or more of one, for "
                f"novelty, which measures their spread, "
                f"got {'fewer because of names' if named else 'one of each'}"
            )
        places = None if self.method == "paddle" else self._places_of(rows)
        return array(self._familiar.novelty(rows, places))

    def strangers(self, X: Any, rate: float = 0.05) -> Array:
        """Which rows are of no known class, [n] bool; about `rate` of the others are flagged.

        See `paddle_ext.presence.strangers`; the same conditions as for `novelty`.
        """
        rate = check.real("rate", rate, positive=True, most=1)
        found: Array = self.novelty(X) > 1 - rate
        return found

    def _checked_rows(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return self._in_columns(validate_data(self, X, dtype=[np.float64, np.float32], reset=False))

    def _in_columns(self, X: Array) -> Tensor:
        rows = to_tensor(X, chosen_device(self.device))
        return Columns(**tensors(self._columns, rows.device)).of(rows)

    def _places_of(self, rows: Tensor) -> Tensor:
        """The index of each row's label in ``classes_``."""
        return torch.cat([logits.argmax(-1) for logits in self._fitted.logits(rows)])

    def _add_prior(self, options: dict[str, Any]) -> None:
        """Add the checked prior, which needs the classes, to the options of "adaptive"."""
        if self.method == "adaptive":
            options["prior"] = prior_weights(self.prior, self.classes_)
