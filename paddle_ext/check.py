"""Checks of arguments before any work: errors of one sentence with argument, expected and got.

Invalid types raise TypeError, invalid values ValueError. Checks of types, shapes, dtypes, devices
and options are cheap and always run. Checks of the values of tensors, at the end, need a pass over
them: a native one that only says whether all are valid, and if not, torch to say what is wrong.
"""

import difflib
import math
import numbers
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from .limits import (
    LARGEST_FEATURE_FLOAT32,
    LARGEST_FEATURE_FLOAT64,
    LARGEST_FLOAT,
    LARGEST_INT32,
    MOST_TOP,
)
from .native import call
from .native.devices import has_code_for, warn_once
from .native.load import module as native

SCALINGS = {"none": 0, "minmax": 1, "auto": 2}
PRIORS = {"paddle": 0, "dirichlet": 1}  # native numbers
DEFAULT_TOL = 1e-6  # of `solve`
PROBABILITY_ROUNDING = 0.01  # how far from 1 a row of rounded probabilities may sum to
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

LARGEST_FEATURE = dict.fromkeys(call.DTYPES, LARGEST_FEATURE_FLOAT32)
LARGEST_FEATURE[torch.float64] = LARGEST_FEATURE_FLOAT64


# --- errors -------------------------------------------------------------------------------------


class ArgumentError(Exception):
    """An invalid argument with its name, so that a command can name its own option.

    `problem` is the rest of the sentence: what is expected, and what was given. `or_pass` is an
    alternative to pass, such as "resume=False", and `context` text before the sentence.
    """

    def __init__(self, argument: str, problem: str, or_pass: str = "", context: str = "") -> None:
        super().__init__(argument, problem, or_pass, context)  # all of them, for pickling
        self.argument, self.problem, self.or_pass = argument, problem, or_pass
        self.context = context

    def sentence(self, names: Mapping[str, str]) -> str:
        """The message, with arguments renamed by a mapping."""
        hint = f" (or pass {names.get(self.or_pass, self.or_pass)})" if self.or_pass else ""
        return f"{self.context}{names.get(self.argument, self.argument)} {self.problem}{hint}"

    def __str__(self) -> str:
        return self.sentence({})


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of the wrong type."""


class ArgumentValueError(ArgumentError, ValueError):
    """An argument with an invalid value."""


# --- options ------------------------------------------------------------------------------------


def real(name: str, value: object, *, positive: bool = False, most: float = LARGEST_FLOAT) -> float:
    """A finite number >= 0, or > 0 if `positive`, and at most `most`."""
    if type(value) is float:
        number = value
    elif not isinstance(value, bool) and isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    else:
        raise ArgumentTypeError(name, f"must be a number, got {kind(value)}")
    if not (0.0 <= number <= most) or (positive and number == 0.0):
        least = "> 0" if positive else ">= 0"
        expected = (
            f"finite and {least}" if most == LARGEST_FLOAT else f"{least} and at most {most:g}"
        )
        raise ArgumentValueError(name, f"must be {expected}, got {value}")
    return number


def integer(name: str, value: object, *, least: int = 1, most: int = LARGEST_INT32) -> int:
    """An integer >= `least` that fits the counters of the native code, or is at most `most`."""
    if type(value) is int or isinstance(value, torch.SymInt):  # a size that is not fixed
        number = cast(int, value)
    elif not isinstance(value, bool) and isinstance(value, numbers.Integral):
        number = int(value)
    else:
        raise ArgumentTypeError(name, f"must be an integer, got {kind(value)}")
    if not (least <= number <= most):
        raise ArgumentValueError(name, f"must be an integer in [{least}, {most}], got {value}")
    return number


def triple(name: str, values: object, *, positive: bool = False) -> tuple[float, float, float]:
    """Three numbers >= 0, or > 0 if `positive`."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{name} must be three numbers, got {kind(values)}")
    if len(values) != 3:
        raise ValueError(f"{name} must be three numbers, got {len(values)}")
    first, second, third = (
        real(f"{name}[{i}]", value, positive=positive) for i, value in enumerate(values)
    )
    return first, second, third


def choice(name: str, value: object, choices: Collection[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise_not_a_choice(name, value, choices)
    return str(value)


def flag(name: str, value: object) -> bool:
    if value is not True and value is not False:
        raise ArgumentTypeError(name, f"must be True or False, got {kind(value)}")
    return value


def device(value: object) -> torch.device:
    """The CPU or a usable CUDA device; for None a GPU, if available."""
    if value is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(value, str | torch.device):
        raise ArgumentTypeError("device", f"must be a string or a torch.device, got {kind(value)}")
    try:
        place = torch.device(value)
    except RuntimeError:  # not a device name for torch
        place = torch.device("meta")
    if place.type not in ("cpu", "cuda"):
        raise ArgumentValueError("device", f"must be the CPU or a CUDA device, got {str(value)!r}")
    if place.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (place.index or 0) >= count:
            last = f"at most cuda:{count - 1}"
            there = last if count else "'cpu' because torch finds no usable GPU"
            raise ArgumentValueError("device", f"must be {there}, got {value}")
    return place


def classes(num_classes: int | None, validate: bool) -> int | None:
    if num_classes is not None:
        return integer("num_classes", num_classes)
    if not validate:
        raise ValueError(
            "num_classes must be given with validate=False, which does not read the labels, "
            "got None"
        )
    return None


def top(return_assignments: bool | None, top: int) -> int:
    """Check how many probabilities of a query are returned: all, or the `top` largest."""
    if return_assignments is not None:
        flag("return_assignments", return_assignments)
    return integer("top", top, most=MOST_TOP)


class Options(NamedTuple):
    """Checked options of PADDLE; see `paddle_ext.solve`."""

    lam: float | None = None
    scaling: str = "auto"
    temperature: float = 1.0
    epsilon: float = 1e-6
    max_iter: int = 100
    tol: float = DEFAULT_TOL
    prototypes: bool = False
    # Of tasks in chunks alone:
    precision: str = "auto"
    all_classes: bool = True  # return all probabilities, else those of the `top` classes
    top: int = 5
    validate: bool = False


def options(
    num_classes: int | None,
    lam: float | None,
    scaling: str,
    temperature: float,
    epsilon: float,
    max_iter: int,
    tol: float | None,
    return_prototypes: bool,
    validate: bool,
) -> tuple[int | None, Options]:
    """Check the options of PADDLE; returns num_classes, and the others."""
    return classes(num_classes, flag("validate", validate)), Options(
        None if lam is None else real("lam", lam),
        choice("scaling", scaling, SCALINGS),
        real("temperature", temperature, positive=True),
        real("epsilon", epsilon, positive=True),
        integer("max_iter", max_iter),
        DEFAULT_TOL if tol is None else real("tol", tol),
        flag("return_prototypes", return_prototypes),
    )


def raise_not_a_choice(name: str, value: object, choices: Collection[str]) -> None:
    if not isinstance(value, str):
        raise ArgumentTypeError(name, f"must be a string, got {kind(value)}")
    listed, near = ", ".join(map(repr, choices)), did_you_mean(value, choices)
    raise ArgumentValueError(name, f"must be one of {listed}, got {value!r}{near}")


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """The end of a message about an unknown name: " (did you mean 'paddle'?)", or nothing."""
    near = difflib.get_close_matches(value, list(choices), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


# --- tensors, without reading their values ------------------------------------------------------


def tensors(*given: Any) -> list[Any]:
    """Tensors without a gradient; those of arrays share their memory if possible. Others stay."""
    return [as_tensor(x) for x in given]


def as_tensor(x: Any) -> Any:
    """The tensor of an array of any library, or of a table; others unchanged."""
    if isinstance(x, Tensor):
        return without_gradient(x).resolve_neg()
    if isinstance(x, np.ndarray):
        return of_array(x)
    if hasattr(x, "__dlpack__"):
        try:
            return torch.utils.dlpack.from_dlpack(x)
        except (TypeError, ValueError, RuntimeError, BufferError):  # types that torch has not
            return x
    return of_array(x.to_numpy()) if hasattr(x, "to_numpy") else x


def without_gradient(x: Tensor) -> Tensor:
    """The tensor detached; a loss of our results would otherwise train nothing, without a word."""
    if not x.requires_grad:
        return x
    if torch.is_grad_enabled():
        warn_once(
            "results of paddle_ext have no gradient, but were asked of a tensor that requires one: "
            "pass tensor.detach(), or call under torch.no_grad(), if that is intended"
        )
    return x.detach()


def of_array(x: np.ndarray[Any, Any]) -> Any:
    masked = isinstance(x, np.ma.MaskedArray) and bool(np.ma.getmaskarray(x).any())
    if x.dtype.kind not in "biuf" or x.itemsize > 8 or masked:
        return x  # the next check raises the error
    # torch supports neither foreign byte orders, negative strides nor unaligned numbers, and warns
    # about read-only memory.
    order_known = x.dtype.isnative and min(x.strides, default=0) >= 0 and x.flags.aligned
    wide = x.dtype.kind == "u" and 1 < x.itemsize < 8  # torch supports few operations on these
    if wide or not order_known or not x.flags.writeable:
        x = x.astype(np.int64 if wide else x.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(x)


def dense_tensor(name: str, x: object) -> None:
    """A tensor with all its numbers in memory: not sparse, nested or on the device meta."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor or an array, got {described(x)}")
    if x.layout is not torch.strided or x.is_nested:
        form = "nested" if x.is_nested else str(x.layout).removeprefix("torch.").removeprefix("_")
        raise TypeError(f"{name} must be a dense tensor, got a {form} one")
    if x.device.type == "meta":
        raise TypeError(f"{name} must be a tensor with data, got one on the device meta")


def features(name: str, x: object) -> None:
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.is_nested:
        dense_tensor(name, x)
    elif x.dtype not in call.DTYPES:
        raise TypeError(
            f"{name} must be float16, bfloat16, float32 or float64, got {plain(x.dtype)}"
        )
    else:
        call.require_memory(x)


def integers(name: str, x: object) -> None:
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.is_nested:
        dense_tensor(name, x)
    elif x.dtype not in INTEGERS:
        raise TypeError(f"{name} must be a tensor of integers, got {plain(x.dtype)}")
    else:
        call.require_memory(x)


def row_numbers(name: str, given: Any, limit: int) -> Tensor:
    """Numbers [n] of rows, at least one, in [0, limit)."""
    (rows,) = tensors(given)
    integers(name, rows)
    dense_tensor(name, rows)
    if rows.dim() != 1 or len(rows) < 1:
        raise ValueError(f"{name} must have shape [n] with n at least 1, got {list(rows.shape)}")
    low, high = torch.aminmax(rows)
    require_in_range(name, int(low), int(high), limit)
    return cast(Tensor, rows)


def one_device(**tensors: Tensor) -> None:
    """All on the CPU, or all on one CUDA device."""
    places = [x.device for x in tensors.values()]
    if any(place != places[0] for place in places):
        got = ", ".join(map(str, places))
        raise ValueError(f"{', '.join(tensors)} must be on one device, got {got}")
    if places[0].type not in ("cpu", "cuda"):
        raise ValueError(
            f"{', '.join(tensors)} must be on the CPU or a CUDA device, got {places[0]}"
        )


def layout(names: Sequence[str], shapes: Sequence[torch.Size], end: str, least_rows: int) -> None:
    """Check that the shapes of support, labels and query fit together; `end` is ", D" or empty."""
    (support_name, query_name), (support, labels, query) = names, shapes
    unbatched = 2 if end else 1
    task_rows(query_name, query, unbatched, "Q" + end, 1)
    task_rows(support_name, support, unbatched, "S" + end, least_rows)
    of_rows = tuple(support)[:-1] if end else support
    if labels != of_rows:
        raise ValueError(
            f"support_labels must have one label for each row of {support_name}, "
            f"shape {list(of_rows)}, got {list(labels)}"
        )
    if len(support) == unbatched:  # shared by all tasks
        return
    if len(query) == unbatched:
        raise ValueError(
            f"{query_name} must have a batch dimension, as {support_name} has, got {list(query)}"
        )
    if support[0] != query[0]:
        raise ValueError(
            f"{query_name} must have as many tasks as {support_name}, {support[0]}, got {query[0]}"
        )


def task_rows(name: str, shape: torch.Size, unbatched: int, letters: str, least: int) -> None:
    if not unbatched <= len(shape) <= unbatched + 1:
        raise ValueError(f"{name} must have shape [{letters}] or [B, {letters}], got {list(shape)}")
    if shape[-unbatched] < least:
        raise ValueError(f"{name} must have at least one row per task, got {list(shape)}")


def dense(support: Tensor, support_labels: Tensor, query: Tensor, *, least_rows: int = 1) -> None:
    """Types, devices and shapes of tasks with at least so many labelled rows."""
    features("support", support)
    integers("support_labels", support_labels)
    features("query", query)
    dtype = query.dtype
    if support.dtype is not dtype:
        raise ValueError(
            f"query must have the dtype of support, {plain(support.dtype)}, got {plain(dtype)}"
        )
    if not (support.is_cpu and support_labels.is_cpu and query.is_cpu):
        one_device(support=support, support_labels=support_labels, query=query)
    support_shape, query_shape = support.shape, query.shape
    shapes = support_shape, support_labels.shape, query_shape
    layout(("support", "query"), shapes, ", D", least_rows)
    D = query_shape[-1]
    if support_shape[-1] != D:
        raise ValueError(
            f"query must have as many features as support, {support_shape[-1]}, got {D}"
        )
    if D < 1:
        raise ValueError(f"query must have at least one feature, got shape {list(query_shape)}")


def of_classes(name: str, x: Tensor) -> None:
    """Check that a tensor has a number for each query and class, [Q, K] or [B, Q, K]."""
    features(name, x)
    if not (x.is_cpu or x.is_cuda):
        one_device(**{name: x})
    shape = x.shape
    if len(shape) not in (2, 3) or shape[-2] < 1 or shape[-1] < 1:
        raise ValueError(
            f"{name} must have shape [Q, K] or [B, Q, K] with Q and K at least 1, got {list(shape)}"
        )


def indexed(
    bank: Tensor,
    support_index: Tensor,
    support_labels: Tensor,
    query_index: Tensor,
    *,
    least_rows: int = 1,
) -> None:
    features("features", bank)
    integers("support_index", support_index)
    integers("support_labels", support_labels)
    integers("query_index", query_index)
    one_device(
        features=bank,
        support_index=support_index,
        support_labels=support_labels,
        query_index=query_index,
    )
    if bank.dim() != 2 or bank.shape[0] < 1 or bank.shape[1] < 1:
        raise ValueError(
            f"features must have shape [N, D] with N and D at least 1, got {list(bank.shape)}"
        )
    shapes = support_index.shape, support_labels.shape, query_index.shape
    layout(("support_index", "query_index"), shapes, "", least_rows)


# --- values of tensors --------------------------------------------------------------------------


def dense_values(
    support: Tensor, support_labels: Tensor, query: Tensor, num_classes: int | None
) -> int:
    """Labels and finiteness; returns the number of classes."""
    seen = {"support_labels": support_labels, "support": support, "query": query}
    return values(seen, support_labels, {}, num_classes)


def labelled_rows(support: Tensor, support_labels: Tensor) -> tuple[Tensor, Tensor, int]:
    """Valid labelled rows of one task, their labels as int64, and the number of classes."""
    support, support_labels = tensors(support, support_labels)
    dense(support, support_labels, support)
    if support.dim() != 2:
        raise ValueError(f"support must have shape [S, D], got {list(support.shape)}")
    K = dense_values(support, support_labels, support, None)
    return support, support_labels.long(), K


def classes_of_valid(
    labels: Tensor, *given: Tensor, indices: Sequence[Tensor] = (), limit: int = 0
) -> int:
    """The number of classes if a native pass finds all values valid; 0 is inconclusive."""
    if not (labels.numel() and 1 <= len(given) <= 3):
        return 0
    dtype, device, S = given[0].dtype, labels.get_device(), labels.shape[-1]
    numbers = [call.packed_address(x, dtype, device) for x in given]
    if min(numbers) < 0:
        return 0
    labels, absent = call.packed_int64(labels), [0] * (3 - len(given))
    try:
        if labels.is_cuda and not (has_code_for(device) and S <= native.VALUES_ROWS):
            return 0
        pass_over = native.values_call(
            target=call.target(labels),
            dtype=call.DTYPES[dtype],
            B=labels.numel() // S,
            S=S,
            most=LARGEST_FEATURE[dtype],
            counts=[x.numel() for x in given] + absent,
        )
    except ImportError:  # methods in torch need no native code
        return 0
    extremes = torch.empty(2, dtype=torch.int64, device=labels.device)
    pass_over.run(
        labels=call.pointer(labels, torch.int64, labels.shape, device),
        numbers=numbers + absent,
        found=extremes.data_ptr(),
    )
    ends = [end for x in indices if x.numel() for end in torch.aminmax(x)]
    least, most, *read = numbers_of([*extremes, *ends]) if ends else extremes.tolist()
    valid = least == -most and (not read or 0 <= min(read) <= max(read) < limit)
    return int(least) if valid else 0


def values(
    seen: dict[str, Tensor], labels: Tensor, limits: dict[str, int], num_classes: int | None
) -> int:
    """Check all tensors; returns the number of classes, which is read from the labels if not given.

    Every class must be in `labels`, unless they are empty. `limits` are those of indices, by name.
    On CUDA one synchronisation if all are valid; more to say what is not.
    """
    if call.is_traced():
        if num_classes is None:
            raise ValueError(
                "num_classes must be given for torch.compile, which does not read labels, got None"
            )
        return num_classes
    numbers = [x for x in seen.values() if x.dtype in call.DTYPES]
    indices, limit = [seen[name] for name in limits], (min(limits.values()) if limits else 0)
    classes = classes_of_valid(labels, *numbers, indices=indices, limit=limit)
    if classes and num_classes in (None, classes):
        return classes
    seen = {name: x for name, x in seen.items() if x.numel()}
    # A NaN anywhere makes both extremes NaN, so they show finiteness too.
    scalars = [extreme for x in seen.values() for extreme in torch.aminmax(x)]
    if num_classes is not None:
        scalars += every_class(labels, num_classes)
    read = numbers_of(scalars)
    ranges = {name: (read[2 * i], read[2 * i + 1]) for i, name in enumerate(seen)}

    low, high = ranges.get("support_labels", (0, -1))
    if num_classes is None:
        if low < 0:
            raise ValueError(f"support_labels must be at least 0, got {low:.0f}")
        num_classes = int(high) + 1
        complete = numbers_of(every_class(labels, num_classes))
    else:
        require_in_range("support_labels", low, high, num_classes)
        complete = read[2 * len(seen) :]
    if labels.numel() and complete != [True]:
        raise_missing_class(labels, num_classes)
    for name, limit in limits.items():
        if name in ranges:
            require_in_range(name, *ranges[name], limit)
    for name, (low, high) in ranges.items():
        most = LARGEST_FEATURE.get(seen[name].dtype, LARGEST_FLOAT)
        if not (low >= -most and high <= most):  # false for NaN
            raise_too_large(name, seen[name], most)
    if "logits" in ranges:
        not_probabilities(seen["logits"], *ranges["logits"])
    return num_classes


def not_probabilities(logits: Tensor, low: float, high: float) -> None:
    """Reject rows that sum to 1, with these extremes; only numbers in [0, 1] are read again.

    A single row of logits may do so by chance, several hardly ever.
    """
    if not (0 <= low <= high <= 1 + PROBABILITY_ROUNDING) or logits.shape[-1] == 1:
        return
    if logits.shape[:-1].numel() == 1:
        return

    least, most = numbers_of([*torch.aminmax(logits.sum(-1, dtype=torch.float64))])
    if 1 - PROBABILITY_ROUNDING <= least <= most <= 1 + PROBABILITY_ROUNDING:
        raise ValueError(
            "logits must be log-likelihoods or log-probabilities, got probabilities, numbers of at "
            "least 0 that sum to 1 in every row: pass probabilities.log()"
        )


def numbers_of(scalars: list[Tensor]) -> list[float]:
    """Read zero-dimensional tensors, with one synchronisation for all."""
    if scalars and scalars[0].is_cuda:
        together: list[float] = torch.stack([x.double() for x in scalars]).tolist()
        return together
    return [x.item() for x in scalars]


def every_class(labels: Tensor, num_classes: int) -> list[Tensor]:
    """Whether every task has every class, as one scalar; none if rows are fewer than classes."""
    if num_classes > labels.shape[-1]:
        return []
    return [classes_in_tasks(labels, num_classes).all()]


def classes_in_tasks(labels: Tensor, num_classes: int) -> Tensor:
    """[B or 1, K] bool; ignores labels out of range, which are reported separately."""
    labels = labels.long().reshape(-1, labels.shape[-1]).clamp(0, num_classes - 1)
    there = torch.zeros(labels.shape[0], num_classes, dtype=torch.bool, device=labels.device)
    return there.scatter_(1, labels, True)


def require_in_range(name: str, low: float, high: float, limit: int) -> None:
    if low < 0 or high >= limit:
        got = low if low < 0 else high
        raise ValueError(f"{name} must be in [0, {limit}), got {got:.0f}")


def raise_missing_class(labels: Tensor, num_classes: int) -> None:
    if num_classes > labels.shape[-1]:  # every task misses one, and K may be too large to list
        task, there = 0, set(labels.reshape(-1, labels.shape[-1])[0].tolist())
        label = next(k for k in range(num_classes) if k not in there)
    else:
        task, label = (~classes_in_tasks(labels, num_classes)).nonzero()[0].tolist()
    where = f" in task {task}" if labels.dim() == 2 else ""
    raise ValueError(
        f"support_labels must have every class in [0, {num_classes}) at least once, "
        f"got none of class {label}{where}"
    )


def raise_too_large(name: str, x: Tensor, most: float) -> None:
    place = (~(x.double().abs() <= most)).nonzero()[0].tolist()
    value = x[tuple(place)].item()
    expected = f"at most {most:g} in magnitude" if math.isfinite(value) else "finite"
    raise ValueError(f"{name} must be {expected}, got {value:g} at {place}")


# --- words of messages --------------------------------------------------------------------------


def kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def described(x: object) -> str:
    if isinstance(x, np.ma.MaskedArray):
        return f"a masked array of {x.dtype} with missing values"
    return f"an array of {x.dtype}" if isinstance(x, np.ndarray) else kind(x)


def plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
