"""A scikit-learn classifier that labels the unlabelled rows of a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.group_folds import check_trusted
from ..groups import groups_and_things
from ..presence import suggest
from ..presence.alarms import Alarm, alarm_of
from ..presence.stability import changes, check_halvings, part_of, prior_of
from ..presence.unknown import check_rate, familiar
from ..prevalence import Prevalence
from ..solution import Solution, calibrates, counted_shares
from ..task import without_autocast
from . import fitted, inputs
from .columns import ROWS, Array, TableEncoder, frame_cells, is_frame
from .estimator_state import PickledWithoutRows, unchanged_by_errors
from .fitted import Examples, array, chosen_device, moved, to_tensor

try:
    from sklearn import config_context  # type: ignore[import-untyped]
    from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
    from sklearn.utils.validation import (  # type: ignore[import-untyped]
        check_array,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "PaddleClassifier needs scikit-learn 1.6 or newer: pip install 'paddle_ext[sklearn]'"
    ) from error

REAL = [np.float64, np.float32]


class ClassifiedBatch(NamedTuple):
    """What `PaddleClassifier.classify_batch` finds out about the rows of a new batch."""

    labels: Array  # [n]
    # [n, K] in the order of `classes_`; more than 2^28 of them are a scipy.sparse.csr_array of the
    # five largest of each row
    probabilities: Any
    doubt: Array  # [n]
    novelty: Array  # [n], as in `PaddleClassifier.novelty`; NaN where that is not known
    strangers: float  # estimated share of rows of no known class; NaN where that is not known
    # How the batch looks unlike the labelled rows: "copies", "strangers" or "copies, strangers";
    # empty if it does not
    alarm: str


class PaddleClassifier(PickledWithoutRows, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Labels the unlabelled rows of a batch by `paddle_ext.adaptive`.

    `fit` takes labelled and unlabelled rows together and classifies the unlabelled ones as a batch:
    ``transduction_``. Classes may also be known by an embedding of their name, and then need no
    labelled row. `predict` classifies further rows one by one, using the labelled rows and the
    estimated proportions. To classify another batch as a whole, fit again or use `predict_batch`.

    Parameters
    ----------
    prior : array [K], or mapping or Series of class to weight, optional
        What is known of the class proportions, as in `paddle_ext.adapt`; an array is in the order
        of ``classes_``. Without a batch, `predict` trusts it. With groups an array [G, K] is a
        prior for each, in the order of ``groups_``.
    share, max_iter, tol
        As in `paddle_ext.adaptive`.
    logit_scale : float
        Factor on cosines with the prototypes of names in logits; CLIP learned 100.
    label_noise : float or "auto"
        The share of labels that are wrong, in [0, 1), or "auto" to estimate it; the weight of a
        labelled row is then the probability that its label is right. With 0.0, or with `prototypes`
        of names, all labels are trusted.
    rows : {"auto", "table", "embeddings"}
        What the rows of `X` are. In a table every column is a quantity of its own, and may have
        gaps and, in a DataFrame, categories; embeddings are vectors. "auto" decides by the numbers
        and the labels: ``rows_`` is the result.
    balanced : bool
        Whether labels are for balanced accuracy: more of the rare classes are found, and more of
        the frequent ones missed. See `paddle_ext.Solution.balanced_labels`; no probability changes.
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
        The same with intervals that cover 90 %: `estimate`, `low` and `high`, arrays [K]. None if
        no row is unlabelled. See `paddle_ext.Solution.prevalence`.
    groups_ : array [G] or None
        The groups of the unlabelled rows, in ascending order, if `fit` was given groups.
    group_prevalence_ : Prevalence or None
        Like ``prevalence_``, of each group: arrays [G, K]. All other attributes are of all groups
        together.
    present_classes_ : array
        The labels of the classes that occur in the unlabelled rows.
    prototypes_ : array [K, D]
        Means of the labelled rows of each class and of the others by their probabilities, in the
        coordinates of the inputs; zeros for a class without either. Categories have a column each,
        after all numbers.
    concentration_ : float or None
        Small if few classes are present, large if all are equally frequent. None if no row is
        unlabelled.
    prior_used_ : bool or None
        Whether `prior` was used, because it makes the unlabelled rows likelier, or those of a
        group; None without one.
    calibrated_ : bool
        Whether the probabilities are calibrated: not with fewer than 20 labelled rows in classes of
        three or more, or if half of the classes or more have fewer, which is too little; and with
        `prototypes` only if every class has rows, too.
    alarm_ : str
        "copies" or "strangers" or both if the unlabelled rows look unlike the labelled ones, as in
        `classify_batch`, with a warning; otherwise empty.
    rows_ : {"table", "embeddings"}
        What the rows were taken for.
    n_iter_ : int
    n_features_in_ : int
    feature_names_in_ : array [D] of str
        Only if the columns have names.

    Notes
    -----
    Unlabelled is -1, as in `sklearn.semi_supervised`, so -1 cannot be a class; NaN, None and
    pandas.NA; and text that means a missing label in files too, such as "", "-1", "NA" and
    "unknown": `paddle_ext/labels.py` lists it. A warning names such words. If all rows are
    labelled, the prototypes are the class means and the proportions those of the labels.

    Rows are made unit-norm if they are embeddings, and the columns of a table standardised: how
    `fit` decides is in docs/estimator.md.

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

    _encoder: TableEncoder | None

    def __init__(
        self,
        *,
        max_iter: int = 100,
        tol: float = 1e-3,
        logit_scale: float = 100.0,
        label_noise: float | str = 0.0,
        prior: Any = None,
        share: bool = True,
        rows: str = "auto",
        balanced: bool = False,
        present_threshold: float = 1.5,
        device: str | torch.device = "auto",
    ) -> None:
        self.max_iter = max_iter
        self.tol = tol
        self.logit_scale = logit_scale
        self.label_noise = label_noise
        self.prior = prior
        self.share = share
        self.rows = rows
        self.balanced = balanced
        self.present_threshold = present_threshold
        self.device = device

    # --- fitting --------------------------------------------------------------------------------

    @unchanged_by_errors
    @without_autocast()
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        prototypes: Any = None,
        classes: Any = None,
        groups: Any = None,
        same: Any = None,
    ) -> PaddleClassifier:
        """Classify the unlabelled rows.

        Parameters
        ----------
        X : array or DataFrame [n, D]
            Numbers; float32 is kept, anything else becomes float64. A table may have gaps (NaN,
            None, pandas.NA) and, in a DataFrame, categories: text, objects, pandas.Categorical.
        y : array or Series [n]
            A label for each row, or -1, None, NaN or "" for an unlabelled one. At least two
            classes, unless there are `prototypes`; then there may be no label at all, or no `y`.
        sample_weight : array [n], optional
            Weight of each labelled row in its class, without `prototypes`: between 1e-30 and 1e30,
            or 0, which ignores the row, though it keeps its label. Weights of
            unlabelled rows are ignored. A weight of 2 differs from repeating the row: two copies
            would confirm each other.
        prototypes : array [K, D], optional
            One embedding per class that is not one of its rows, such as its name by the text tower
            of the network whose image tower computed `X`.
        classes : array [K], optional
            The labels of the classes, in the order of `prototypes`; default: those of `y`, sorted,
            or 0 to K - 1 if it has none.
        groups : array or Series [n], optional
            The group of each row, an integer or a string, such as its place or its day: groups have
            proportions of their own, as in `paddle_ext.adaptive`. Labelled rows count for all
            groups; without `prototypes` they calibrate the probabilities without the rows of their
            own group, as with ``support_groups`` there. One with -1, None or NaN is in a group of
            its own; if all are, each is left out alone.
        same : array or Series [n], optional
            Which rows are the same thing, as in `paddle_ext.adaptive`: unlabelled ones get one
            label, and labelled ones, of one class, count as one row. A row with -1, None or NaN is
            a thing of its own.

        Returns
        -------
        PaddleClassifier
            The same object.
        """
        options = self._options()
        device = chosen_device(self.device)
        if y is None and prototypes is None:
            raise ValueError("PaddleClassifier requires y to be passed, but the target y is None")
        least = 2 if prototypes is None else 1
        if self.rows == "table" and prototypes is not None:
            raise ValueError("rows must be 'auto' or 'embeddings' with prototypes, got 'table'")
        may_be_table = prototypes is None and self.rows != "embeddings"
        X = self._validated(X, may_be_table, ensure_min_samples=least)
        y = np.full(len(X), -1) if y is None else column_or_1d(inputs.label_array(y), warn=True)
        if len(y) != len(X):
            raise ValueError(f"y must have a label for each row of X, {len(X)}, got {len(y)}")
        has_label = inputs.labelled(y)
        options |= self._together({"groups": groups, "same": same}, ~has_label, device)
        if prototypes is not None:
            self.classes_, places, names = inputs.named_classes(
                y[has_label], prototypes, classes, self.n_features_in_
            )
        elif classes is not None:
            raise ValueError(f"classes must be None without prototypes, got {check.kind(classes)}")
        else:
            self.classes_, places = inputs.sorted_classes(y[has_label])
        options["prior"] = inputs.prior_weights(self.prior, self.classes_, options["groups"])
        tied = inputs.labelled_things(same, self.classes_[places], has_label, device)
        if tied is not None and sample_weight is not None:
            raise ValueError("sample_weight must be None with labelled things, got weights")
        sources = None if prototypes is not None else inputs.labelled_groups(groups, has_label)
        if sources is not None:
            check_trusted(self.label_noise)
            if tied is not None:
                together = sources, tied.of_row
                groups_and_things(*together, len(sources), torch.device("cpu"), "same")
        options["tied"], rows = tied, to_tensor(X, device)
        if device.type == "cuda":
            rows = rows.float()
        mask, labels = (torch.from_numpy(x).to(device) for x in (has_label, places))
        in_groups = None if sources is None else torch.from_numpy(sources).to(device)
        examples = Examples(rows[mask], labels, len(self.classes_), sources=in_groups)
        alone = fitted.counted_once(examples, tied, alone=True)
        if prototypes is not None:
            of_classes = to_tensor(names, device).to(rows.dtype)
            examples = replace(fitted.counted_once(examples, tied), names=of_classes)
        examples = self._weighted(examples, sample_weight, has_label, places)
        query = None if has_label.all() else rows[~mask]
        given, asked = (examples, query), dict[str, Any](rows=self.rows)
        if self._encoder is not None:  # embeddings have neither gaps nor categories
            asked = {"rows": "table", "made_of": torch.from_numpy(self._encoder.made_of).to(device)}
        columns, examples, query = fitted.in_columns(examples, query, **asked)
        if query is None:
            fit = fitted.fit_labelled(examples, options)
        else:
            fit = fitted.fit_batch(examples, query, options)
        if columns.rows == "table":
            fit = fit._replace(prototypes=fitted.means_of(*given, fit.solution))
            if self._encoder is None:  # further rows may have gaps
                self._encoder = TableEncoder(X, [])
        self.rows_ = columns.rows
        of_batch = labels if fit.solution is None else fit.solution.things().labels
        shares = fit.proportions if fit.prior is None else fit.prior
        self._shares = counted_shares(shares, of_batch.shape[-1]).cpu()
        self._columns, self._fitted = moved(columns, "cpu"), fit.fitted
        own = alone if prototypes is not None else fitted.counted_once(examples, tied, alone=True)
        shots, known = own.labels.bincount(minlength=own.num_classes), None
        if shots.all():
            known = familiar(own.support, own.labels, own.num_classes, None)
        self._familiar = None if known is None else moved(known, "cpu")
        self.alarm_ = ""
        if query is not None and fit.solution is not None:
            self.alarm_ = self._alarm(query, fit.solution)[1].kind
        self.calibrated_ = calibrates(shots, named=prototypes is not None)
        self._set_results(fit, labels, has_label, rows.dtype)
        self._batch = X, has_label
        return self

    def _options(self) -> dict[str, Any]:
        """Check all parameters, and return the options of the rule, except for the prior."""
        check.real("present_threshold", self.present_threshold, positive=True)
        check.choice("rows", self.rows, ROWS)
        check.flag("balanced", self.balanced)
        given = self.max_iter, self.tol, self.logit_scale, self.label_noise, self.share
        return inputs.checked_options(*given)

    def _weighted(
        self, examples: Examples, sample_weight: Any, has_label: Array, places: Array
    ) -> Examples:
        """The labelled rows of positive weight, with their weights."""
        if sample_weight is None:
            return examples
        if examples.names is not None:
            kind = check.kind(sample_weight)
            raise ValueError(f"sample_weight must be None with prototypes, got {kind}")
        given = inputs.checked_weights(sample_weight, has_label, places, self.classes_)
        weights = to_tensor(given, examples.labels.device)
        rows = examples.support, examples.labels, weights
        support, labels, kept = (x[weights > 0] for x in rows)
        sources = None if examples.sources is None else examples.sources[weights > 0]
        return replace(examples, support=support, labels=labels, weights=kept, sources=sources)

    def _together(self, given: dict[str, Any], of_batch: Array, device: Any) -> dict[str, Any]:
        """The groups and the things of the rows that are in the batch, as options of its rule."""
        own: Any = {name: inputs.row_groups(value, of_batch, name) for name, value in given.items()}
        grouped, things = groups_and_things(**own, rows=int(of_batch.sum()), device=device)
        return {"groups": grouped, "same": things}

    def fit_predict(self, X: Any, y: Any, sample_weight: Any = None, **more: Any) -> Array:
        """Classify the unlabelled rows; returns ``transduction_``. Arguments as in `fit`."""
        return np.asarray(self.fit(X, y, sample_weight, **more).transduction_)

    def _set_results(
        self, fit: fitted.Fit, labels: Tensor, has_label: Array, dtype: torch.dtype
    ) -> None:
        """Set the attributes of the batch, or else of the labelled rows, and of every row."""
        self.prototypes_ = array(fit.prototypes)
        self.class_proportions_ = array(fit.proportions)
        solution = fit.solution
        present = fit.proportions > 0
        self.n_iter_, self.concentration_ = 1, None  # computing the means is one pass
        self.prior_used_ = self.prevalence_ = self.groups_ = self.group_prevalence_ = None
        if fit.by_group is not None and fit.by_group.groups is not None:
            self.groups_ = np.array(fit.by_group.groups.names)
            self.group_prevalence_ = Prevalence._make(map(array, fit.by_group.prevalence()))
        n, K = len(has_label), len(self.classes_)
        place = np.empty(n, dtype=np.int64)  # index of each row's class in classes_
        place[has_label] = array(labels)
        self.doubt_ = np.zeros(n)
        if solution is not None:
            place[~has_label] = array(self._labels_of(solution))
            self.doubt_[~has_label] = array(solution.doubt())
            present = solution.present(self.present_threshold)
            self.n_iter_ = int(solution.iterations)
            if solution.concentration is not None:
                self.concentration_ = float(solution.concentration)
                self.prevalence_ = Prevalence._make(map(array, solution.prevalence()))
            if solution.prior_used is not None:
                self.prior_used_ = bool(solution.prior_used)
        self.present_classes_ = self.classes_[array(present)]
        self.transduction_ = self.classes_[place]
        self.label_distributions_ = fitted.label_distributions(place, has_label, K, solution, dtype)

    @without_autocast()
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
        X, has_label = self._batch
        unlabelled = np.flatnonzero(~has_label)
        if not len(unlabelled):
            return unlabelled
        rows = self._in_columns(X)
        mask = torch.from_numpy(has_label).to(rows.device)
        return np.asarray(unlabelled[array(suggest(rows[mask], rows[~mask], count).queries)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.rows != "embeddings"
        return tags

    # --- new rows -------------------------------------------------------------------------------

    @without_autocast()
    def predict_proba(
        self, X: Any, *, as_batch: bool = False, groups: Any = None, same: Any = None
    ) -> Any:
        """The probability of each class for each row, [n, K].

        Independently of other rows, or `as_batch`, with groups and things as in `classify_batch`.
        """
        if self._as_batch(as_batch, groups, same):
            return self.classify_batch(X, groups, same).probabilities
        rows = self._checked_rows(X)
        return array(fitted.probabilities(self._fitted, rows))

    @without_autocast()
    def predict(
        self, X: Any, *, as_batch: bool = False, groups: Any = None, same: Any = None
    ) -> Array:
        """The label of each row, [n].

        Independently of other rows, or `as_batch`, with groups and things as in `classify_batch`: a
        pipeline has no other method, and passes the argument on, as in
        ``pipeline.predict(X, as_batch=True)``.
        """
        if self._as_batch(as_batch, groups, same):
            return self.predict_batch(X, groups, same)
        places = self._places_of(self._checked_rows(X), balanced=self.balanced)
        return np.asarray(self.classes_[array(places)])

    def predict_batch(self, X: Any, groups: Any = None, same: Any = None) -> Array:
        """The labels [n] of rows that form a new batch; see `classify_batch`."""
        return self.classify_batch(X, groups, same).labels

    @without_autocast()
    def classify_batch(self, X: Any, groups: Any = None, same: Any = None) -> ClassifiedBatch:
        """Classify rows that form a new batch, or a batch for each of the groups [n].

        Rows that are the `same` [n] thing get one label. Equivalent to fitting again with the same
        labelled rows and these unlabelled ones, except that the columns of a table stay prepared as
        in `fit`; its batch plays no role.

        Warns by a `paddle_ext.presence.UnfamiliarBatchWarning` if the batch looks unlike the
        labelled rows: if more than 0.3 of ten rows or more are strangers, or more than half are
        copies of one. ``alarm`` says which.

        Examples
        --------
        >>> import numpy as np
        >>> from paddle_ext import PaddleClassifier
        >>> X = np.array([[0.0, 1], [0.1, 1], [1, 0], [1, 0.1]])
        >>> model = PaddleClassifier().fit(X, ["up", "up", "right", "right"])
        >>> batch = model.classify_batch([[0.2, 1], [0.1, 0.9], [1, 0.2]])
        >>> batch.labels.tolist(), batch.probabilities.shape, batch.alarm
        (['up', 'up', 'right'], (3, 2), '')
        """
        rows = self._checked_rows(X)
        solution = self._solved(rows, self._options_of_batch(rows, groups, same))
        places = array(self._labels_of(solution))
        K, dtype = len(self.classes_), solution.probabilities.dtype
        none = np.zeros(len(rows), dtype=bool)
        novelty, alarm = self._alarm(rows, solution)
        return ClassifiedBatch(
            labels=np.asarray(self.classes_[places]),
            probabilities=fitted.label_distributions(places, none, K, solution, dtype),
            doubt=array(solution.doubt()),
            novelty=np.full(len(rows), np.nan) if novelty is None else array(novelty),
            strangers=alarm.strangers,
            alarm=alarm.kind,
        )

    @without_autocast()
    def label_changes(
        self, X: Any, groups: Any = None, same: Any = None, *, halvings: int = 5, seed: int = 0
    ) -> Array:
        """How often each label changes if the batch is split in two at random, [n] in [0, 1].

        See `paddle_ext.presence.label_changes`; the labels are those of `predict_batch`. For the
        batch of `fit`, pass its unlabelled rows.
        """
        check_halvings(halvings, seed)
        rows = self._checked_rows(X)
        options = self._options_of_batch(rows, groups, same)
        grouped, things = options["groups"], options["same"]

        def labels_of(part: Tensor) -> Tensor:
            own = {
                "groups": part_of(grouped, part),
                "same": part_of(things, part),
                "prior": prior_of(options["prior"], grouped, part),
            }
            return self._labels_of(self._solved(rows[part], options | own))

        whole = self._labels_of(self._solved(rows, options))
        return array(changes(whole, labels_of, things, halvings, seed))

    def _alarm(self, rows: Tensor, solution: Solution) -> tuple[Tensor | None, Alarm]:
        """The novelty of a batch, None if it is not known, and what it is alarming for; warns."""
        novelty = None
        if self._familiar is not None:
            novelty = moved(self._familiar, rows.device).novelty(rows, solution.labels)
        alarm = alarm_of(rows, novelty)
        alarm.warn()
        return novelty, alarm

    def _options_of_batch(self, rows: Tensor, groups: Any, same: Any) -> dict[str, Any]:
        """The options of the rule for rows that form a new batch."""
        options, every = self._options(), np.ones(len(rows), dtype=bool)
        options |= self._together({"groups": groups, "same": same}, every, rows.device)
        options["prior"] = inputs.prior_weights(self.prior, self.classes_, options["groups"])
        return options

    def _solved(self, rows: Tensor, options: dict[str, Any]) -> Solution:
        return self._fitted.solve(rows, options).over_all()

    def _as_batch(self, as_batch: bool, groups: Any, same: Any) -> bool:
        if not check.flag("as_batch", as_batch) and not (groups is None and same is None):
            raise ValueError("as_batch must be True with groups or same, got False")
        return as_batch

    @without_autocast()
    def novelty(self, X: Any) -> Array:
        """How unlike its class each row is, [n]: near 1 for a sample of an unknown class.

        The share of labelled rows that are less strange than this one; see
        `paddle_ext.presence.novelty`. Every class must have a labelled row, and one of them two.
        """
        rows = self._checked_rows(X)
        if self._familiar is None:
            named = isinstance(self._fitted, fitted.FittedNames)
            raise ValueError(
                "y must have had a labelled row of every class, and two or more of one, for "
                f"novelty, which measures their spread, "
                f"got {'fewer because of names' if named else 'one of each'}"
            )
        return array(moved(self._familiar, rows.device).novelty(rows, self._places_of(rows)))

    def strangers(self, X: Any, rate: float = 0.05) -> Array:
        """Which rows are of no known class, [n] bool; about `rate` of the others are flagged.

        See `paddle_ext.presence.strangers`; the same conditions as for `novelty`, and enough
        labelled rows for the rate.
        """
        rate = check.real("rate", rate, positive=True, most=1)
        strange: Array = self.novelty(X) > 1 - rate
        assert self._familiar is not None  # `novelty` raises
        check_rate(rate, self._familiar.shots)
        return strange

    def _checked_rows(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return self._in_columns(self._validated(X, self.rows_ == "table", reset=False))

    def _in_columns(self, X: Array) -> Tensor:
        return self._columns.applied_to(to_tensor(X, chosen_device(self.device)))

    @config_context(assume_finite=False)  # type: ignore[untyped-decorator]
    def _validated(self, X: Any, table: bool, *, reset: bool = True, **options: Any) -> Array:
        """Numbers of what a user gave; `reset` in `fit`, which learns the encoder of a table."""
        options |= {"dtype": REAL, "ensure_all_finite": "allow-nan" if table else True}
        if isinstance(X, np.ma.MaskedArray):  # scikit-learn would ignore the mask
            X = np.ma.filled(X.astype(float), np.nan)
        X = inputs.plain(X) if isinstance(X, Tensor) else X
        known = None if reset else self._encoder
        categories = [] if known is None else known.categories
        if table and is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            cells, categories = frame_cells(X, None if reset else categories)
            cells = cells if categories else check_array(cells, **options)
        elif categories:
            raise TypeError(f"X must be a DataFrame, as in fit, got {check.kind(X)}")
        else:
            cells = validate_data(self, X, reset=reset, **options)
        if reset:
            encodes = len(categories) > 0 or (table and bool(np.isnan(cells).any()))
            known = TableEncoder(cells, categories) if encodes else None
            self._encoder = known
        return cells if known is None else known(cells)

    def _places_of(self, rows: Tensor, *, balanced: bool = False) -> Tensor:
        """The index of each row's label in ``classes_``."""
        less = self._shares.log().to(rows.device) if balanced else 0.0
        # What they claim plays no role: (16) changes no label.
        return torch.cat([(logits - less).argmax(-1) for logits in self._fitted.logits(rows)])

    def _labels_of(self, solution: Solution) -> Tensor:
        return solution.balanced_labels() if self.balanced else solution.labels
