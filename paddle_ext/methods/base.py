"""The protocol of a method: a frozen dataclass of options with the function `predict`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import check
from ..rows import computing_dtype
from ..solution import classes_present
from ..task import IndexedTask, Task, batched, detached, without_autocast
from . import names_check
from .options import check_options

DATA_SETS = ("mini", "tiered", "inat")
# "paper" has the options of the tables of the paper; the presets of datasets extend it.
PRESETS = ("paper", *DATA_SETS)
Options: TypeAlias = Mapping[str, object]
Presets: TypeAlias = Mapping[str, Options]
Grid: TypeAlias = Mapping[str, Sequence[object]]


class Display(NamedTuple):
    """How tables and figures show a method."""

    title: str = ""  # default: its name
    order: int = 100  # its place in tables: the methods of the paper, ours, then registered ones
    colour: str = "#555555"  # distinct for colour-blind readers, with `marker` and lightness
    marker: str = "8"  # of matplotlib


class Prediction(NamedTuple):
    """Result of a method; has a batch dimension if the query has one."""

    labels: Tensor  # [.., Q] int64: argmax of the probabilities
    probabilities: Tensor  # [.., Q, K]: rows on the simplex

    def present(self, threshold: float = 1.5) -> Tensor:
        """Which classes hold `threshold` queries or more, [.., K] bool; see `Solution.present`."""
        return classes_present(self.probabilities, threshold)

    def doubt(self) -> Tensor:
        """How doubtful each label is, [.., Q]: the probability of all other classes."""
        return (1 - self.probabilities.amax(-1)).clamp(min=0)


class Method(ABC):
    """A classifier of the queries of few-shot tasks; see `create`.

    A subclass is a frozen dataclass of options, declared with `option` and documented in the
    Parameters section of its docstring. It implements `solve`; `register` adds it by its name.
    """

    name: ClassVar[str]
    display: ClassVar[Display] = Display()
    # For each preset in PRESETS, the option values that differ from the defaults.
    presets: ClassVar[Presets] = {}
    # Option values that `tune` tries in all combinations, in addition to the default and presets.
    tuning_grid: ClassVar[Grid] = {}
    # Whether the method can use class prototypes or zero-shot logits in addition to labelled rows.
    takes_prototypes: ClassVar[bool] = False
    # Whether it cannot work without either.
    needs_prototypes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_options(self)

    def checks_values_itself(
        self,
        support: Tensor,
        support_labels: Tensor,
        query: Tensor,
        num_classes: int | None,
        base_mean: Tensor | None,
    ) -> bool:
        """Whether `prediction` looks for invalid values itself, and then calls `Task.check_values`.

        A method that passes over the rows anyway saves a separate pass for the check.
        """
        return False

    def prediction(self, task: Task) -> Prediction:
        """Labels and probabilities of a task."""
        probabilities = self.solve(task)
        return Prediction(probabilities.argmax(-1), probabilities)

    @abstractmethod
    def solve(self, task: Task) -> Tensor:
        """Probabilities [B, Q, K], B >= 1, in the dtype of the task; rows on the simplex."""

    def solve_indexed(self, task: IndexedTask) -> Tensor:
        """`solve` for rows of a bank; methods that need not copy them override this."""
        return self.solve(task.gathered())

    def predict(
        self,
        support: Tensor,
        support_labels: Tensor,
        query: Tensor,
        *,
        num_classes: int | None = None,
        base_mean: Tensor | None = None,
        prototypes: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> Prediction:
        """Classify the queries of one task, or of many.

        Parameters
        ----------
        support : Tensor [S, D] or [B, S, D]
            Labelled features: float16, bfloat16, float32 or float64, on the CPU or a CUDA device.
            Without a batch dimension but with a batched query, all tasks share the support.
        support_labels : Tensor [S] or [B, S]
            Integers in [0, K). Every class must occur in every task; the numbers of shots may
            differ. With `prototypes` or `logits` a class may have none, and the support no row.
        query : Tensor [Q, D] or [B, Q, D]
            Features to classify, of the dtype of `support`.
        num_classes : int, optional
            K. By default the largest label + 1.
        base_mean : Tensor [D], optional
            Mean feature of the classes the embedding was trained on, for methods that centre the
            features (CL2N); default: the mean of a task's support. Other methods ignore it.
        prototypes : Tensor [K, D] or [B, K, D], optional
            One embedding per class that is not a labelled row, such as its name by the text tower
            of the network whose image tower computed the features. For methods with
            ``takes_prototypes``.
        logits : Tensor [Q, K] or [B, Q, K], optional
            Zero-shot logits of the queries, computed elsewhere, instead of `prototypes`.

        Returns
        -------
        Prediction
            labels : Tensor [.., Q] int64
                The most probable class; of equals, the smallest.
            probabilities : Tensor [.., Q, K]
                In float64 for float64 features, else in float32.

        Raises
        ------
        TypeError, ValueError
            For an invalid argument, before any work, in one sentence that names it, what is
            expected and what was given.

        Notes
        -----
        Inputs are not modified, and results are detached. The result of a task does not depend on
        its batch, except for rounding where torch sums in another order for other batch sizes.

        Examples
        --------
        >>> import torch, paddle_ext
        >>> support = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> query = torch.tensor([[3.0, 1.0], [1.0, 2.0], [1.0, 4.0]])
        >>> method = paddle_ext.methods.create("simpleshot")
        >>> method.predict(support, torch.tensor([0, 1]), query).labels
        tensor([0, 1, 1])
        """
        support, support_labels, query, base_mean, prototypes, logits = check.tensors(
            support, support_labels, query, base_mean, prototypes, logits
        )
        num_classes = self.classes_given(num_classes, prototypes, logits)
        named: dict[str, Tensor] = {}
        if prototypes is None and logits is None:
            check.dense(support, support_labels, query)
        else:
            names_check.dense(support, support_labels, query)
            named = names_check.prototypes_or_logits(query, query.shape[:-1], prototypes, logits)
        if base_mean is not None:
            check_base_mean(base_mean, query)
        check_values = None
        if named:
            assert num_classes is not None  # that of the prototypes or logits
            rows = {"support_labels": support_labels, "support": support, "query": query}
            K = names_check.values({**rows, "base_mean": base_mean, **named}, num_classes, {})
        else:
            seen = support, support_labels, query, num_classes, base_mean
            if self.checks_values_itself(*seen):
                assert num_classes is not None
                K, check_values = num_classes, partial(check.dense_values, *seen)
            else:
                K = check.dense_values(*seen)

        dtype = computing_dtype(query)
        *batch, Q, _ = query.shape
        if batch == [0]:
            return no_tasks(query, Q, K)
        task = Task(
            support=batched(detached(support, dtype), 3),
            support_labels=batched(detached(support_labels, torch.int64), 2),
            query=batched(detached(query, dtype), 3),
            num_classes=K,
            base_mean=None if base_mean is None else detached(base_mean, dtype),
            check_values=check_values,
            **{name: batched(detached(x, dtype), 3) for name, x in named.items()},
        )
        with torch.no_grad(), without_autocast(query):
            found = self.prediction(task)
        return found if batch else Prediction(found.labels[0], found.probabilities[0])

    def predict_indexed(
        self,
        features: Tensor,
        support_index: Tensor,
        support_labels: Tensor,
        query_index: Tensor,
        *,
        num_classes: int | None = None,
        base_mean: Tensor | None = None,
        prototypes: Tensor | None = None,
        logits: Tensor | None = None,
        validate: bool = True,
    ) -> Prediction:
        """Classify the queries of tasks whose features are rows of one bank.

        The result is that of `predict` on the gathered rows; PADDLE never gathers them.

        Parameters
        ----------
        features : Tensor [N, D]
            The bank: float16, bfloat16, float32 or float64, on the CPU or a CUDA device.
        support_index, support_labels : Tensor [S] or [B, S]
            Rows of the bank, and their labels in [0, K). Without a batch dimension but with a
            batched `query_index`, all tasks share the support.
        query_index : Tensor [Q] or [B, Q]
            Rows of the bank to classify.
        num_classes, base_mean, prototypes, logits
            As in `predict`.
        validate : bool
            Check the values of the tensors, including the whole bank for NaN and infinity; without
            it `num_classes` must be given, and the result for invalid values is undefined.

        Returns
        -------
        Prediction
            As in `predict`.

        Examples
        --------
        >>> import torch, paddle_ext
        >>> bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 1.0], [1.0, 4.0]])
        >>> support = torch.tensor([0, 1])
        >>> method = paddle_ext.methods.create("simpleshot")
        >>> method.predict_indexed(bank, support, support, torch.tensor([2, 3])).labels
        tensor([0, 1])
        """
        features, base_mean, prototypes, logits = check.tensors(
            features, base_mean, prototypes, logits
        )
        support_index, support_labels, query_index = check.tensors(
            support_index, support_labels, query_index
        )
        K = self.classes_given(num_classes, prototypes, logits)
        K = check.classes(K, check.flag("validate", validate))
        if prototypes is None and logits is None:
            check.indexed(features, support_index, support_labels, query_index)
        else:
            names_check.indexed(features, support_index, support_labels, query_index)
        named = names_check.prototypes_or_logits(features, query_index.shape, prototypes, logits)
        if base_mean is not None:
            check_base_mean(base_mean, features)
        if validate and named:
            assert K is not None
            N = features.shape[0]
            rows = {"support_labels": support_labels, "support_index": support_index}
            rows |= {"query_index": query_index, "features": features}
            seen = {**rows, "base_mean": base_mean, **named}
            names_check.values(seen, K, {"support_index": N, "query_index": N})
        elif validate:
            K = check.indexed_values(
                features, support_index, support_labels, query_index, num_classes, base_mean
            )
        *batch, Q = query_index.shape
        if batch == [0]:
            return no_tasks(features, Q, K or 0)
        assert K is not None  # given, or read from the labels
        dtype = computing_dtype(features)
        task = IndexedTask(
            features.detach(),
            batched(support_index.long(), 2),
            batched(support_labels.long(), 2),
            batched(query_index.long(), 2),
            K,
            None if base_mean is None else detached(base_mean, dtype),
            **{name: batched(detached(x, dtype), 3) for name, x in named.items()},
        )
        with torch.no_grad(), without_autocast(features):
            probabilities = self.solve_indexed(task).reshape(*batch, Q, K)
        return Prediction(probabilities.argmax(-1), probabilities)

    def classes_given(
        self, num_classes: int | None, prototypes: Tensor | None, logits: Tensor | None
    ) -> int | None:
        """K if `num_classes`, prototypes or logits determine it, else None."""
        if num_classes is not None:
            num_classes = check.integer("num_classes", num_classes)
        if prototypes is None and logits is None:
            return num_classes
        takers = {name for name, cls in known_methods.items() if cls.takes_prototypes}
        if self.takes_prototypes:
            takers.add(self.name)
        return names_check.classes(
            num_classes, prototypes, logits, method=self.name, takers=sorted(takers)
        )


def no_tasks(features: Tensor, Q: int, K: int) -> Prediction:
    """The prediction for a batch of zero tasks."""
    probabilities = features.new_empty(0, Q, K, dtype=computing_dtype(features))
    return Prediction(features.new_empty(0, Q, dtype=torch.int64), probabilities)


def check_base_mean(mean: Tensor, query: Tensor) -> None:
    """A vector [D] matching checked queries; half and single precision may be mixed."""
    check.features("base_mean", mean)
    if (mean.dtype is torch.float64) != (query.dtype is torch.float64):
        raise ValueError(
            f"base_mean must be as precise as query, {check.plain(query.dtype)}, got "
            f"{check.plain(mean.dtype)}"
        )
    if mean.device != query.device:
        check.one_device(base_mean=mean, query=query)
    D = query.shape[-1]
    if mean.shape != (D,):
        raise ValueError(
            f"base_mean must have one number for each feature, shape [{D}], got {list(mean.shape)}"
        )


# All methods by name; `registry.py` fills it.
known_methods: dict[str, type[Method]] = {}
