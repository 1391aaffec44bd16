"""A callable that maps a batch of embeddings to its predictions, for Ray, Spark or a loop.

It imports neither Ray nor Spark nor pandas: they call it, and it recognises their batches. It
stores arrays, which any process on any machine can load.
"""

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import check
from ..adaptive_rule.group_folds import check_trusted
from ..groups import Groups, groups_of
from ..presence.alarms import KINDS_TYPE, alarm_of
from ..presence.unknown import Familiar, familiar
from ..solution import Solution, calibrates
from ..solvers.groups import mean_proportions
from ..task import without_autocast
from . import fitted, inputs
from .columns import ROWS, Array, is_frame
from .fitted import (
    Examples,
    Fitted,
    FittedAdaptive,
    FittedNames,
    array,
    chosen_device,
    moved,
    to_tensor,
)

Frame: TypeAlias = Any  # a pandas.DataFrame; pandas is optional
ANSWERS = ("label", "probability", "doubt")
ALARMS = ("novelty", "strangers", "alarm")


def joined(first: Frame, second: Frame) -> Frame:
    """Two frames as one; a column whose values are of two kinds keeps them."""
    if sorted(map(str, first)) != sorted(map(str, second)):
        what = f"must have the same columns, got {', '.join(map(str, first))} and then "
        raise check.ArgumentValueError("frames", what + ", ".join(map(str, second)))
    kinds = [{*zip(x.columns, x.dtypes, strict=True)} for x in (first, second)]
    apart = {name for name, _ in kinds[0] ^ kinds[1]}
    both = (frame.astype(dict.fromkeys(apart, object)) for frame in (first, second))
    whole = sys.modules["pandas"].concat(both)
    in_pieces = {name: x.dtype for name, x in whole.items() if is_in_pieces(x.array)}
    return whole.astype(dict.fromkeys(in_pieces, object)).astype(in_pieces)


def is_in_pieces(column: Any) -> bool:
    """Whether a column has several chunks in Arrow, as joined text has; Spark refuses these."""
    to_arrow = getattr(column, "__arrow_array__", None)
    if to_arrow is None or "pyarrow" not in sys.modules:
        return False
    return getattr(to_arrow(), "num_chunks", 1) > 1


class BatchClassifier:
    """Labels batches of embeddings; can be pickled and called anywhere.

    The labelled rows are processed once, in the constructor. Every call classifies one batch with
    the method `paddle_ext.methods.Adaptive`: it finds which classes are in the batch, from one to
    all, and labels its rows. Nothing carries over to the next batch, unless `remember` is True.

    Parameters
    ----------
    support : array [S, D]
        Embeddings of the labelled rows: numbers, or a column of vectors. None if there are only
        `prototypes`.
    labels : array [S]
        Text or integers. Every class must have a row, unless there are `prototypes`.
    names : sequence [K], optional
        The classes, all different, in the order of `prototypes` if given. Integer labels are
        indices of names that are text; other labels must be among the names. Default: the sorted
        labels, or 0 to K - 1 without labels.
    prototypes : array [K, D], optional
        One embedding per class that is not one of its rows, such as that of its name by a text
        encoder.
    column : str
        Name of the column of embeddings in a batch.
    keep_embedding : bool
        Whether the result contains the embeddings too.
    prefix : str
        Prefix of the columns that the result adds, in case a batch has such columns.
    alarms : bool
        Whether the result says how unlike the labelled rows a batch is: adds ``novelty``,
        ``strangers`` and ``alarm``, and warns. It adds one or two milliseconds to a small batch,
        and to a large one a third to all of its time.
    support_groups : array [S], optional
        The group of each labelled row, such as a patient, an integer or a string: as in
        `paddle_ext.adaptive`, so that probabilities are right for rows of other groups. Not with
        `prototypes`.
    group : str, optional
        Name of a column of groups in a batch, integers or strings: the rows of a group have
        proportions of their own, as in `paddle_ext.adaptive`.
    share : bool
        Whether the groups of a batch learn from each other, as in `paddle_ext.adaptive`.
    rows : {"auto", "table", "embeddings"}
        What rows are, as in `paddle_ext.PaddleClassifier`: the same labelled rows decide alike
        there and here.
    prior : array [K] or mapping of class to weight, optional
        What is known of the class proportions of every batch, as in `paddle_ext.adapt`.
    remember : bool
        Whether what earlier batches held is a prior of the next, for a stream whose proportions
        last or drift. It is dropped when a batch, or most of its groups, is likelier without it:
        see docs/large.md. It is pickled with the classifier. Not with `prior`.
    label_noise, max_iter, tol, logit_scale
        As in `paddle_ext.methods.Adaptive`; with `prototypes` every label is trusted.
    device : str or torch.device
        Device for batches, chosen in the process that computes them. "auto" is a GPU if available.

    Attributes
    ----------
    classes : array [K]
        The possible labels.
    rows : {"table", "embeddings"}
        What the rows were taken for.
    calibrated : bool
        Whether the probabilities are calibrated, as in `paddle_ext.PaddleClassifier`.

    Notes
    -----
    A batch is a dict of columns, a pandas DataFrame, or only the embeddings, [N, D]. The result is
    a DataFrame for a DataFrame and otherwise a dict: the other columns unchanged, then ``label``,
    ``probability`` and ``doubt``, the last two float32. An empty batch has an empty result.
    Everything is computed in single precision. Columns of a table are standardised by its labelled
    rows, as in `paddle_ext.PaddleClassifier`.

    Then follow the `alarms`. ``novelty``, float32, is how unlike its class a row is, as in
    `paddle_ext.presence.novelty`. The other two are the same for all rows of a batch:
    ``strangers``, float32, is the share of the batch that is like no class beyond what chance
    explains; ``alarm`` is a text: "strangers" if this is more than 0.3, "copies" if more than half
    of the rows are copies of one, or both, in a batch of ten rows or more, otherwise empty. With an
    alarm there is also a `paddle_ext.presence.UnfamiliarBatchWarning`, once for adjacent batches of
    one process. Novelty needs a labelled row of every class, and two of one; without them it is
    NaN, and so is ``strangers``.

    The same row may get another label in another batch, because the batch determines the class
    frequencies: docs/large.md says how large a batch should be, and what memory is worth.

    Examples
    --------
    >>> import numpy as np
    >>> from paddle_ext import BatchClassifier
    >>> support = np.array([[0.0, 1], [0.1, 1], [1, 0], [1, 0.1]])
    >>> classifier = BatchClassifier(support, ["up", "up", "right", "right"])
    >>> batch = {"id": np.array([7, 8, 9]), "embedding": np.array([[0.2, 1], [0.1, 0.9], [1, 0.2]])}
    >>> answer = classifier(batch)
    >>> list(answer)
    ['id', 'label', 'probability', 'doubt', 'novelty', 'strangers', 'alarm']
    >>> answer["label"].tolist()
    ['up', 'up', 'right']
    """

    classes: Array
    rows: str
    calibrated: bool

    def __init__(
        self,
        support: Any,
        labels: Any,
        names: Any = None,
        *,
        prototypes: Any = None,
        column: str = "embedding",
        keep_embedding: bool = False,
        prefix: str = "",
        alarms: bool = True,
        rows: str = "auto",
        label_noise: float | str = 0.0,
        prior: Any = None,
        support_groups: Any = None,
        group: str | None = None,
        share: bool = True,
        remember: bool = False,
        max_iter: int = 100,
        tol: float = 1e-3,
        logit_scale: float = 100.0,
        device: str | torch.device = "auto",
    ) -> None:
        self._options = inputs.checked_options(max_iter, tol, logit_scale, label_noise, share)
        for name, value in (("column", column), ("prefix", prefix), ("group", group)):
            if not isinstance(value, str) and not (name == "group" and value is None):
                raise check.ArgumentTypeError(name, f"must be a string, got {check.kind(value)}")
        self._alarms = check.flag("alarms", alarms)
        added = ANSWERS + ALARMS if alarms else ANSWERS
        self._column, self._added = column, [prefix + name for name in added]
        self._keep_embedding = check.flag("keep_embedding", keep_embedding)
        self._remember = check.flag("remember", remember)
        if remember and prior is not None:
            raise check.ArgumentValueError(
                "prior", f"must be None with remember=True, got {check.kind(prior)}"
            )
        self._group = group
        # Rows of each class, [K] float64: in the batches since a change, and in the last alone.
        self._memory: list[Tensor] = []
        self._believed = False  # whether the last batch was likelier with its memory
        # A GPU need not exist here: another machine may compute.
        named = re.fullmatch(r"auto|cuda(:\d+)?", str(device))
        self._device = str(device if named else check.device(device))
        check.choice("rows", rows, ROWS)
        if rows == "table" and prototypes is not None:
            raise check.ArgumentValueError(
                "rows", "must be 'auto' or 'embeddings' with prototypes, got 'table'"
            )
        text = None if prototypes is None else inputs.checked_prototypes(prototypes)
        given_rows = support_rows(support, text)
        given = () if labels is None and len(given_rows) == 0 else labels
        K = None if text is None else len(text)
        self.classes, places = inputs.classes_and_places(given, len(given_rows), names, K)
        self._options["prior"] = inputs.prior_weights(prior, self.classes)
        sources = None
        if support_groups is not None:
            if text is not None:
                raise check.ArgumentValueError(
                    "support_groups",
                    f"must be None with prototypes, got {check.kind(support_groups)}",
                )
            check_trusted(label_noise)
            place = torch.device("cpu")
            sources = groups_of(support_groups, len(given_rows), place, "support_groups").of_row
        self._width, self._labelled = given_rows.shape[1], len(given_rows)
        # Copies, because the caller's arrays may change.
        examples = Examples(
            torch.from_numpy(given_rows.copy()),
            torch.from_numpy(places),
            len(self.classes),
            sources=sources,
            names=None if text is None else torch.from_numpy(text.copy()),
        )
        shots = examples.labels.bincount(minlength=len(self.classes))
        self.calibrated = calibrates(shots, named=text is not None)
        self._fitted: Fitted = FittedNames(examples)
        self._familiar: Familiar | None = None
        # What was moved to the device of a process, and whether its last batch raised an alarm.
        self._here: tuple[torch.device, Fitted, Familiar | None] | None = None
        self._alarmed = False
        with torch.inference_mode(), without_autocast():
            self._columns, examples, _ = fitted.in_columns(examples, None, rows=rows)
            self.rows = self._columns.rows
            if text is None:
                self._fitted = FittedAdaptive(fitted.learned(examples, self._options)).to("cpu")
            if alarms and bool(shots.all()):
                self._familiar = familiar(
                    examples.support, examples.labels, examples.num_classes, None
                )

    def __repr__(self) -> str:
        names = ", names" if isinstance(self._fitted, FittedNames) else ""
        rows = f"{self._labelled} labelled rows{names}"
        return f"BatchClassifier({len(self.classes)} classes, {self._width} features, {rows})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_here": None, "_alarmed": False}  # of this process

    # --- batches --------------------------------------------------------------------------------

    @overload
    def __call__(self, batch: Mapping[str, Any] | npt.NDArray[Any]) -> dict[str, Array]: ...

    @overload
    def __call__(self, batch: Frame) -> Frame: ...

    def __call__(self, batch: Any) -> Any:
        """Classify a batch: a dict, a DataFrame or, without groups, an array [N, D]."""
        if isinstance(batch, np.ndarray) and self._group is None:
            return self._answers(batch, "batch")
        frame = is_frame(batch)
        if not frame and not isinstance(batch, Mapping):
            arrays = self._group is None
            kinds = "a dict, a DataFrame or an array" if arrays else "a dict or a DataFrame"
            raise check.ArgumentTypeError("batch", f"must be {kinds}, got {check.kind(batch)}")
        embeddings = self._embeddings_of(batch)
        groups = None if self._group is None else batch[self._group]
        answers = self._answers(embeddings, f"batch[{self._column!r}]", groups)
        if frame:
            rest = batch if self._keep_embedding else batch.drop(columns=[self._column])
            return rest.assign(**answers)
        kept = {
            name: x for name, x in batch.items() if self._keep_embedding or name != self._column
        }
        return kept | answers

    def map_in_pandas(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        """Classify one DataFrame after another, as Spark's ``mapInPandas`` requires.

        Adjacent rows of one `group` stay together, though frames may cut it in two.
        """
        if self._group is None:
            yield from map(self, frames)
            return
        waiting = None  # the last group so far, which may continue
        for frame in frames:
            if not is_frame(frame):
                what = f"must be DataFrames, one after another, got {check.kind(frame)}"
                raise check.ArgumentTypeError("frames", what)
            together = frame if waiting is None else joined(waiting, frame)
            if len(together) == 0:
                continue
            self._embeddings_of(together)  # checks the columns
            try:
                places, _ = sys.modules["pandas"].factorize(together[self._group])
            except TypeError as error:
                what = f"must have strings or integers as {self._group!r}, got {error}"
                raise check.ArgumentTypeError("frames", what) from error
            others = np.flatnonzero(places != places[-1])
            start = others[-1] + 1 if len(others) else 0
            waiting = together.iloc[start:]
            if start:
                yield self(together.iloc[:start])
        if waiting is not None:
            yield self(waiting)

    def _embeddings_of(self, batch: Any) -> Any:
        """The column of embeddings of a batch, after checking the columns."""
        for name in (self._column, self._group):
            if name is not None and name not in batch:
                there = ", ".join(str(other) for other in batch) or "none"
                raise check.ArgumentValueError("batch", f"must have a column {name!r}, got {there}")
        for name in self._added:
            if name in batch and (name != self._column or self._keep_embedding):
                raise check.ArgumentValueError(
                    "batch",
                    f"must have no column {name!r}, which the result adds, got one: choose another "
                    "prefix",
                )
        embeddings = batch[self._column]
        rows = inputs.length(embeddings)
        for name in batch:
            if inputs.length(batch[name]) != rows:
                raise check.ArgumentValueError(
                    "batch",
                    f"must have columns of one length, got {rows} rows of {self._column!r} and "
                    f"{inputs.length(batch[name])} of {name!r}",
                )
        return embeddings

    def _answers(self, embeddings: Any, name: str, groups: Any = None) -> dict[str, Array]:
        if inputs.length(embeddings) == 0:
            columns = [self.classes[:0], *(np.empty(0, dtype=np.float32) for _ in range(4))]
            columns = [*columns, np.empty(0, dtype=KINDS_TYPE)][: len(self._added)]
            return dict(zip(self._added, columns, strict=True))
        query = inputs.vectors(name, embeddings, width=self._width)
        with torch.inference_mode(), without_autocast():
            rows = self._columns.applied_to(to_tensor(query, chosen_device(self._device)))
            together = None
            if groups is not None:
                called = f"batch[{self._group!r}]"
                together = groups_of(groups, len(rows), rows.device, called)
            solve = self._solve_and_remember if self._remember else self._solve
            solution = solve(rows, together)
            highest, doubts = solution.probabilities.amax(-1), solution.doubt()
            columns = [self.classes[array(solution.labels)], array(highest), array(doubts)]
            if self._alarms:
                columns += self._alarm_columns(rows, solution)
        return dict(zip(self._added, columns, strict=True))

    def _alarm_columns(self, rows: Tensor, solution: Solution) -> list[Array]:
        """The novelty of the rows, and for each the share of strangers and whether to be alarmed.

        Warns if there is an alarm, unless there was one in the last batch.
        """
        _, _, model = self._moved_to(rows.device)
        novelty = None if model is None else model.novelty(rows, solution.labels)
        alarm = alarm_of(rows, novelty)
        if not self._alarmed:
            alarm.warn()
        self._alarmed = bool(alarm.kind)
        n = len(rows)
        strange = np.full(n, np.nan) if novelty is None else array(novelty)
        return [
            strange.astype(np.float32),
            np.full(n, alarm.strangers, dtype=np.float32),
            np.full(n, alarm.kind, dtype=KINDS_TYPE),
        ]

    def _moved_to(self, device: torch.device) -> tuple[torch.device, Fitted, Familiar | None]:
        """What was learned, moved to a device once per process."""
        if self._here is None or self._here[0] != device:
            known = None if self._familiar is None else moved(self._familiar, device)
            self._here = device, self._fitted.to(device), known
        return self._here

    def _solve(self, rows: Tensor, groups: Groups | None, prior: Any = None) -> Solution:
        options = self._options | {"groups": groups}
        if prior is not None:
            options["prior"] = prior
        _, here, _ = self._moved_to(rows.device)
        return here.solve(rows, options)

    def _solve_and_remember(self, rows: Tensor, groups: Groups | None) -> Solution:
        """Classify a batch with the memory as its prior, and add what the batch holds to it."""
        # It is not known how many labelled rows a name is worth.
        known = self._fitted
        labelled = known.likelihood.rows if isinstance(known, FittedAdaptive) else math.inf
        best, bound, kept, believes = None, -math.inf, None, False
        for held in self._memory:
            found = self._solve(rows, groups, mean_proportions(held, labelled))
            assert found.bound is not None
            assert found.prior_used is not None
            if best is None or float(found.bound.sum()) > bound:
                best, bound, kept = found, float(found.bound.sum()), held
                believes = float(found.prior_used.double().mean()) > 0.5
        # One batch may resemble the last by chance, so memory counts from the second such batch on.
        if best is None or (believes and not self._believed):
            best = self._solve(rows, groups)
        now = best.over_all().class_sums()[1].cpu()
        self._memory = [kept + now, now] if kept is not None and believes else [now]
        self._believed = believes
        return best


def support_rows(support: Any, prototypes: Array | None) -> Array:
    """The support as float32 [S, D]; S may be 0 if there are prototypes."""
    width = None if prototypes is None else prototypes.shape[1]
    if support is not None and inputs.length(support) != 0:
        return inputs.vectors("support", support, width=width)
    if width is None:
        raise check.ArgumentValueError(
            "support", "must have a row of every class, unless there are prototypes, got none"
        )
    return np.empty((0, width), dtype=np.float32)
