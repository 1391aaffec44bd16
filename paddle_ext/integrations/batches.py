"""A callable that maps a batch of embeddings to its predictions, for Ray, Spark or a loop.

It imports neither Ray nor Spark nor pandas: they call it, and it recognises their batches. It
stores arrays, which any process on any machine can load.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, cast, overload

import numpy as np
import numpy.typing as npt
import torch

from .. import check
from ..adaptive_rule.correction import corrected_likelihood
from ..adaptive_rule.label_noise import check_label_noise
from ..adaptive_rule.likelihood import Likelihood
from ..adaptive_rule.solve import check_options, solve_tasks
from ..solution import Solution
from ..task import Task, without_batch
from .columns import Columns, columns_for
from .embeddings import length, vectors
from .fitted import (
    Array,
    FittedAdaptive,
    array,
    arrays,
    chosen_device,
    tensors,
    to_tensor,
)
from .fitting import classified, measures_in, of_names
from .labels import checked_prototypes, classes_and_places, prior_weights

Frame: TypeAlias = Any  # a pandas.DataFrame; pandas is optional
ANSWERS = ("label", "probability", "doubt")


class BatchClassifier:
    """Labels batches of embeddings, each independently; can be pickled and called anywhere.

    The labelled rows are processed once, in the constructor. Every call classifies one batch with
    the method `paddle_ext.methods.Adaptive`: it finds which classes are in the batch, from one to
    all, and labels its rows; nothing carries over to the next batch.

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
        Prefix of "label", "probability" and "doubt", in case a batch has such columns.
    prior : array [K] or mapping of class to weight, optional
        What is known of the class proportions of every batch, as in `paddle_ext.adapt`.
    label_noise, max_iter, tol, logit_scale
        As in `paddle_ext.methods.Adaptive`; with `prototypes` every label is trusted.
    threads : int, optional
        Threads of torch during a call; default: torch's setting. Use 1 if an engine runs a process
        on every core and does not set ``OMP_NUM_THREADS``; Ray and Spark set it.
    device : str or torch.device
        Device for batches, chosen in the process that computes them. "auto" is a GPU if available.

    Attributes
    ----------
    classes : array [K]
        The possible labels.

    Notes
    -----
    A batch is a dict of columns, a pandas DataFrame, or only the embeddings, [N, D]. The result is
    a DataFrame for a DataFrame and otherwise a dict: the other columns unchanged, then ``label``,
    ``probability`` and ``doubt``, the last two float32. An empty batch has an empty result.
    Everything is computed in single precision. Columns of a table are standardised by its labelled
    rows, as in `paddle_ext.PaddleClassifier`.

    The same row may get another label in another batch, because the batch determines the class
    frequencies: docs/large.md says how large a batch should be.

    Examples
    --------
    >>> import numpy as np
    >>> from paddle_ext import BatchClassifier
    >>> support = np.array([[0.0, 1], [0.1, 1], [1, 0], [1, 0.1]])
    >>> classifier = BatchClassifier(support, ["up", "up", "right", "right"])
    >>> batch = {"id": np.array([7, 8, 9]), "embedding": np.array([[0.2, 1], [0.1, 0.9], [1, 0.2]])}
    >>> answer = classifier(batch)
    >>> list(answer)
    ['id', 'label', 'probability', 'doubt']
    >>> answer["label"].tolist()
    ['up', 'up', 'right']
    """

    classes: Array

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
        label_noise: float | str = 0.0,
        prior: Any = None,
        max_iter: int = 100,
        tol: float = 1e-3,
        logit_scale: float = 100.0,
        threads: int | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        _, max_iter, tol = check_options("auto", max_iter, tol)
        scale = check.real("logit_scale", logit_scale, positive=True)
        noise = check_label_noise("label_noise", label_noise)
        self._options: dict[str, Any] = {"max_iter": max_iter, "tol": tol, "logit_scale": scale}
        self._column = checked_text("column", column)
        self._prefix = checked_text("prefix", prefix)
        self._keep_embedding = check.flag("keep_embedding", keep_embedding)
        self._threads = None if threads is None else check.integer("threads", threads)
        self._device = device_name(device)
        text = None if prototypes is None else checked_prototypes(prototypes)
        rows = support_rows(support, text)
        given = () if labels is None and len(rows) == 0 else labels
        K = None if text is None else len(text)
        self.classes, self._places = classes_and_places(given, len(rows), names, K)
        self._options["prior"] = prior_weights(prior, self.classes)
        # Copy what is stored, because the caller's arrays may change.
        self._support = rows if text is None else rows.copy()
        self._prototypes = None if text is None else text.copy()
        self._fitted: FittedAdaptive | None = None
        self._columns: dict[str, Any] = {}  # the fields of `Columns`
        self._here: tuple[torch.device, Likelihood] | None = None
        if text is None:
            self._fit(noise)

    def _fit(self, label_noise: float | str) -> None:
        """Learn the likelihood of the labelled rows on the CPU, and drop the rows."""
        K = len(self.classes)
        with torch_threads(self._threads), torch.inference_mode():
            cpu = torch.device("cpu")
            support, labels = to_tensor(self._support, cpu), to_tensor(self._places, cpu)
            columns = columns_for(support, labels, K)
            self._columns, support = arrays(columns), columns.of(support)
            # No batch was seen, so there are no proportions to keep.
            known = corrected_likelihood(support, labels, K, label_noise=label_noise)
            self._fitted = FittedAdaptive.of(known, torch.zeros(K))
        self._support = self._support[:0]

    def __repr__(self) -> str:
        D = self._support.shape[1]
        known = f"{len(self._places)} labelled rows"
        if self._prototypes is not None:
            known += ", names"
        return f"BatchClassifier({len(self.classes)} classes, {D} features, {known})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_here": None}  # tensors of this process

    # --- batches --------------------------------------------------------------------------------

    @overload
    def __call__(self, batch: Mapping[str, Any] | npt.NDArray[Any]) -> dict[str, Array]: ...

    @overload
    def __call__(self, batch: Frame) -> Frame: ...

    def __call__(self, batch: Any) -> Any:
        """Classify a batch: a dict, a DataFrame or an array [N, D]."""
        if isinstance(batch, np.ndarray):
            return self._answers(batch, "batch")
        frame = is_frame(batch)
        if not frame and not isinstance(batch, Mapping):
            raise check.ArgumentTypeError(
                "batch", f"must be a dict, a DataFrame or an array, got {check.kind(batch)}"
            )
        embeddings = self._embeddings_of(batch)
        answers = self._answers(embeddings, f"batch[{self._column!r}]")
        if frame:
            rest = batch if self._keep_embedding else batch.drop(columns=[self._column])
            return rest.assign(**answers)
        kept = {
            name: x for name, x in batch.items() if self._keep_embedding or name != self._column
        }
        return kept | answers

    def map_in_pandas(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        """Classify one DataFrame after another, as Spark's ``mapInPandas`` requires."""
        for frame in frames:
            yield self(frame)

    def _embeddings_of(self, batch: Any) -> Any:
        """The column of embeddings of a batch, after checking the columns."""
        if self._column not in batch:
            there = ", ".join(str(name) for name in batch) or "none"
            raise check.ArgumentValueError(
                "batch", f"must have a column {self._column!r}, got {there}"
            )
        for name in self._names_of_answers():
            if name in batch and (name != self._column or self._keep_embedding):
                raise check.ArgumentValueError(
                    "batch",
                    f"must have no column {name!r}, which the result adds, got one: choose another "
                    "prefix",
                )
        embeddings = batch[self._column]
        rows = length(embeddings)
        for name in batch:
            if length(batch[name]) != rows:
                raise check.ArgumentValueError(
                    "batch",
                    f"must have columns of one length, got {rows} rows of {self._column!r} and "
                    f"{length(batch[name])} of {name!r}",
                )
        return embeddings

    def _names_of_answers(self) -> list[str]:
        return [self._prefix + name for name in ANSWERS]

    def _answers(self, embeddings: Any, name: str) -> dict[str, Array]:
        if length(embeddings) == 0:
            none = np.empty(0, dtype=np.float32)
            found = (self.classes[:0], none, none.copy())
        else:
            query = vectors(name, embeddings, width=self._support.shape[1])
            with torch_threads(self._threads), torch.inference_mode():
                solution = self._solve(query)
                own = solution.probabilities.amax(-1)
                answers = (solution.labels, own, solution.doubt())
            places, probability, doubt = (array(x) for x in answers)
            found = (self.classes[places], probability, doubt)
        return dict(zip(self._names_of_answers(), found, strict=True))

    def _solve(self, query: Array) -> Solution:
        device = chosen_device(self._device)
        rows = Columns(**tensors(self._columns, device)).of(to_tensor(query, device))
        if self._fitted is not None:
            return classified(self._known(self._fitted, device), rows, self._options)
        known = (self._support, self._places, cast("Array", self._prototypes))
        support, labels, names = (to_tensor(x, device).unsqueeze(0) for x in known)
        K, measures = len(self.classes), measures_in(self._options, len(self.classes), rows)
        batch = rows.unsqueeze(0)
        task = Task(support, labels, batch, K, prototypes=names, measures=measures)
        return without_batch(solve_tasks(task, "auto", **of_names(self._options)))

    def _known(self, fitted: FittedAdaptive, device: torch.device) -> Likelihood:
        """The likelihood of the labelled rows on a device, moved there once per process."""
        if self._here is None or self._here[0] != device:
            self._here = device, fitted.on(device)
        return self._here[1]


# --- arguments ----------------------------------------------------------------------------------


def support_rows(support: Any, prototypes: Array | None) -> Array:
    """The support as float32 [S, D]; S may be 0 if there are prototypes."""
    width = None if prototypes is None else prototypes.shape[1]
    if support is not None and length(support) != 0:
        return vectors("support", support, width=width)
    if width is None:
        raise check.ArgumentValueError(
            "support", "must have a row of every class, unless there are prototypes, got none"
        )
    return np.empty((0, width), dtype=np.float32)


def checked_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise check.ArgumentTypeError(name, f"must be a string, got {check.kind(value)}")
    return value


def is_frame(batch: object) -> bool:
    """Whether it is a pandas.DataFrame; without pandas loaded it cannot be one."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(batch, pandas.DataFrame)


# --- the process --------------------------------------------------------------------------------


def device_name(device: str | torch.device) -> str:
    """The checked name of a device, which need not exist here: another machine may compute."""
    name = str(device)
    if name == "auto" or re.fullmatch(r"cuda(:\d+)?", name):
        return name
    return str(check.device(device))


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use this many threads in a context; None leaves its setting."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
