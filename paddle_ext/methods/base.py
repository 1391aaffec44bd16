"""The protocol of a method: a frozen dataclass of options with the function `predict`."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from .. import check
from ..rows import computing_dtype
from ..solution import PRESENT, classes_present
from ..task import IndexedTask, Task, batched, without_autocast

T = TypeVar("T")

DATA_SETS = ("mini", "tiered", "inat")
# "paper" has the options of the tables of the paper; the presets of datasets extend it.
PRESETS = ("paper", *DATA_SETS)
Options: TypeAlias = Mapping[str, object]
Presets: TypeAlias = Mapping[str, Options]
Grid: TypeAlias = Mapping[str, Sequence[object]]

NAME_ARGUMENTS = {"prototypes", "logits"}  # what stands for the names of the classes

# All methods by name; `register` fills it.
known_methods: dict[str, type[Method]] = {}


# A rule takes the name and the value of an option, and raises an error for an invalid one.
positive = partial(check.real, positive=True)
bounded = partial(check.real, most=1e6)  # products with it stay finite in float32
factor = partial(bounded, positive=True)


def one_of(*choices: str) -> Callable[[str, object], str]:
    return partial(check.choice, choices=choices)


def option(default: T, rule: Callable[[str, Any], object]) -> T:
    """A field of a dataclass with a rule for its values; None is valid if it is the default."""
    field: T = dataclasses.field(default=default, metadata={"rule": rule})
    return field


def fields_of(one: object) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a dataclass or its instance; none for anything else."""
    return dataclasses.fields(one) if dataclasses.is_dataclass(one) else ()


def attributes_of(one: object) -> set[str]:
    """The names of what an object holds, in slots too."""
    slots = [getattr(base, "__slots__", ()) for base in type(one).__mro__]
    names = {name for own in slots for name in ([own] if isinstance(own, str) else own)}
    return {name for name in names | {*getattr(one, "__dict__", ())} if hasattr(one, name)}


class Display(NamedTuple):
    """How tables and figures show a method."""

    title: str = ""  # default: its name
    order: int = 100  # its place in tables: the methods of the paper, ours, then registered ones
    # With `marker` distinct for colour-blind readers, among methods with names and among others.
    colour: str = "#555555"
    marker: str = "8"  # of matplotlib


class Prediction(NamedTuple):
    """Result of a method; has a batch dimension if the query has one."""

    labels: Tensor  # [.., Q] int64: argmax of the probabilities
    probabilities: Tensor  # [.., Q, K]: rows on the simplex

    def present(self, threshold: float = PRESENT) -> Tensor:
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
        """Apply the rules of all fields that were declared with `option`, in their order."""
        for field in fields_of(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):  # which no JSON file can hold
                value = value.item()
                object.__setattr__(self, field.name, value)
            if "rule" in field.metadata and not (value is None and field.default is None):
                field.metadata["rule"](field.name, value)

    def checks_values_itself(self, support: Tensor, query: Tensor, num_classes: int | None) -> bool:
        """Whether `prediction` finds invalid values in passing, and calls `Task.check_values`."""
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
        support, support_labels, query, num_classes
            As in `paddle_ext.adaptive`. With `prototypes` or `logits` a class may have no label,
            and the support no row.
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
            labels [.., Q] int64, the most probable class, of equals the smallest; probabilities
            [.., Q, K], in float64 for float64 features, else in float32.

        Notes
        -----
        Inputs are not modified. Results have no gradient, and a warning says so once if an input
        requires one. The result of a task does not depend on its batch, except for rounding where
        torch sums in another order for other batch sizes.

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
        extras = self.extras_given(base_mean, prototypes, logits)
        least_rows = 0 if NAME_ARGUMENTS & extras.keys() else 1
        check.dense(support, support_labels, query, least_rows=least_rows)
        K = check_extras(extras, query, query.shape[:-1], num_classes)
        check_all = partial(
            check_values, {"support": support, "query": query}, support_labels, extras, {}, K
        )
        checks_itself = not extras and self.checks_values_itself(support, query, K)
        K = K if checks_itself else check_all()
        assert K is not None  # given, or read from the labels
        dtype = computing_dtype(query)
        *batch, Q, _ = query.shape
        if batch == [0]:
            return no_tasks(query, Q, K)
        task = Task(
            support=batched(support.to(dtype), 3),
            support_labels=batched(support_labels.long(), 2),
            query=batched(query.to(dtype), 3),
            num_classes=K,
            check_values=check_all if checks_itself else None,
            **converted(extras, dtype),
        )
        with torch.no_grad(), without_autocast():
            found = self.prediction(task)
        return found if batch else Prediction(*(x[0] for x in found))

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
        features, support_index, support_labels, query_index
            As in `paddle_ext.solve_indexed`.
        num_classes, base_mean, prototypes, logits
            As in `predict`.
        validate : bool
            Check the values of the tensors, including the whole bank for NaN and infinity; without
            it `num_classes` must be given, and the result for invalid values is undefined.
        """
        features, support_index, support_labels, query_index = check.tensors(
            features, support_index, support_labels, query_index
        )
        base_mean, prototypes, logits = check.tensors(base_mean, prototypes, logits)
        extras = self.extras_given(base_mean, prototypes, logits)
        rows = support_index, support_labels, query_index
        check.indexed(features, *rows, least_rows=0 if NAME_ARGUMENTS & extras.keys() else 1)
        K = check_extras(extras, features, query_index.shape, num_classes)
        K = check.classes(K, check.flag("validate", validate))
        if validate:
            indices = {"support_index": support_index, "query_index": query_index}
            limits = dict.fromkeys(indices, len(features))
            K = check_values({**indices, "features": features}, support_labels, extras, limits, K)
        assert K is not None  # given, or read from the labels
        *batch, Q = query_index.shape
        if batch == [0]:
            return no_tasks(features, Q, K)
        task = IndexedTask(
            features=features,
            support_index=batched(support_index.long(), 2),
            support_labels=batched(support_labels.long(), 2),
            query_index=batched(query_index.long(), 2),
            num_classes=K,
            **converted(extras, computing_dtype(features)),
        )
        with torch.no_grad(), without_autocast():
            probabilities = self.solve_indexed(task).reshape(*batch, Q, K)
        return Prediction(probabilities.argmax(-1), probabilities)

    def extras_given(self, base_mean: Any, prototypes: Any, logits: Any) -> dict[str, Any]:
        """What is given next to the rows, by the name of its argument."""
        given = {"base_mean": base_mean, "prototypes": prototypes, "logits": logits}
        given = {name: x for name, x in given.items() if x is not None}
        for name in NAME_ARGUMENTS & given.keys() if not self.takes_prototypes else ():
            takers = sorted(name for name, cls in known_methods.items() if cls.takes_prototypes)
            raise check.ArgumentValueError(
                name,
                f"must be None with the method {self.name!r} because only "
                f"{', '.join(map(repr, takers))} can use it, got {check.kind(given[name])}",
            )
        if self.needs_prototypes and not NAME_ARGUMENTS & given.keys():
            raise check.ArgumentValueError(
                "prototypes", f"or logits must be given with the method {self.name!r}, got None"
            )
        if given.keys() >= NAME_ARGUMENTS:
            raise check.ArgumentValueError(
                "logits", f"must be None with prototypes, got {check.kind(logits)}"
            )
        return given


def converted(extras: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Any]:
    """What is given next to the rows, as fields of a task."""
    own = {name: x.to(dtype) for name, x in extras.items()}
    return {name: batched(x, 3) if name in NAME_ARGUMENTS else x for name, x in own.items()}


def no_tasks(features: Tensor, Q: int, K: int) -> Prediction:
    """The prediction for a batch of zero tasks."""
    probabilities = features.new_empty(0, Q, K, dtype=computing_dtype(features))
    return Prediction(features.new_empty(0, Q, dtype=torch.int64), probabilities)


def check_extras(
    extras: Mapping[str, Any], features: Tensor, queries: torch.Size, num_classes: int | None
) -> int | None:
    """Check types and shapes of what is given next to the rows; returns K, None if not known."""
    D, tasks = features.shape[-1], list(queries[:-1])
    expected: dict[str, list[list[object]]] = {
        "base_mean": [[D]],
        "prototypes": [["K", D], [*tasks, "K", D]][: len(tasks) + 1],
        "logits": [[*queries, "K"]],
    }
    if num_classes is not None:
        num_classes = check.integer("num_classes", num_classes)
    for name, x in extras.items():
        check.features(name, x)
        if (x.dtype is torch.float64) != (features.dtype is torch.float64):
            raise check.ArgumentValueError(
                name,
                f"must be as precise as the features, {check.plain(features.dtype)}, "
                f"got {check.plain(x.dtype)}",
            )
        if x.device != features.device:
            check.one_device(**{name: x, "query": features})
        shapes = [shape for shape in expected[name] if len(shape) == x.dim()]
        K = x.shape[shapes[0].index("K")] if shapes and name in NAME_ARGUMENTS else 1
        if K < 1 or list(x.shape) not in [[K if n == "K" else n for n in s] for s in shapes]:
            listed = " or ".join(str(shape).replace("'", "") for shape in expected[name])
            least = " with K at least 1" if name in NAME_ARGUMENTS else ""
            raise check.ArgumentValueError(
                name, f"must have shape {listed}{least}, got {list(x.shape)}"
            )
        if name in NAME_ARGUMENTS and num_classes not in (None, K):
            raise check.ArgumentValueError(
                name, f"must have num_classes classes, {num_classes}, got {K}"
            )
        num_classes = K if name in NAME_ARGUMENTS else num_classes
    return num_classes


def check_values(
    rows: dict[str, Tensor],
    labels: Tensor,
    extras: Mapping[str, Tensor],
    limits: dict[str, int],
    num_classes: int | None,
) -> int:
    """Check the values of all tensors; returns K. With class names a class may have no row."""
    every_class_in = labels[..., :0] if NAME_ARGUMENTS & extras.keys() else labels
    seen = {"support_labels": labels, **rows, **extras}
    return check.values(seen, every_class_in, limits, num_classes)
