"""Checks of arguments before any work: errors of one sentence with argument, expected and got.

Invalid types raise TypeError, invalid values ValueError. Checks of types, shapes, dtypes, devices
and options are cheap and always run; checks of the values of tensors need a pass over them, and are
in `check_values`.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from . import check_values

# lam, the native number of the scaling, temperature, epsilon, max_iter, tol
Options: TypeAlias = tuple[float | None, int, float, float, int, float]

SCALINGS = {"none": 0, "minmax": 1, "auto": 2}
SCALING_NAMES = tuple(SCALINGS)
PRIORS = {"paddle": 0, "dirichlet": 1}  # native numbers
DEFAULT_TOL = 1e-6  # of `solve`
DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

LEAST_WEIGHT = 1e-30  # of a query
MOST = 2**31 - 1  # iterations and classes are counted in int32

# The checks of values are called through this module.
LARGEST, SUMMABLE = check_values.LARGEST, check_values.SUMMABLE
dense_values, indexed_values = check_values.dense_values, check_values.indexed_values
values, outside, too_large = check_values.values, check_values.outside, check_values.too_large
numbers_of, plainly_summable = check_values.numbers_of, check_values.plainly_summable


# --- errors -------------------------------------------------------------------------------------


class ArgumentError(Exception):
    """An invalid argument with its name, so that a command can name its own option.

    Parameters
    ----------
    argument : str
    problem : str
        The rest of the sentence: what is expected, and what was given.
    or_pass : str
        An alternative to pass, such as "resume=False".
    context : str
        Text before the sentence.
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


def real(name: str, value: object, *, positive: bool = False, most: float = LARGEST) -> float:
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
        expected = f"finite and {least}" if most == LARGEST else f"{least} and at most {most:g}"
        raise ArgumentValueError(name, f"must be {expected}, got {value}")
    return number


def query_weight(value: object) -> float:
    """The weight of a query in class counts: at most 1, and a number in single precision too."""
    number = real("weight", value)
    if not LEAST_WEIGHT <= number <= 1.0:
        raise ArgumentValueError("weight", f"must be from {LEAST_WEIGHT:g} to 1, got {value}")
    return number


def integer(name: str, value: object, *, least: int = 1, most: int = MOST) -> int:
    """An integer >= `least` that fits the counters of the native code, or is at most `most`."""
    if type(value) is int:
        number = value
    elif not isinstance(value, bool) and isinstance(value, numbers.Integral):
        number = int(value)
    else:
        raise ArgumentTypeError(name, f"must be an integer, got {kind(value)}")
    if not (least <= number <= most):
        raise ArgumentValueError(name, f"must be an integer in [{least}, {most}], got {value}")
    return number


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        not_a_choice(name, value, choices)
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
        found = torch.device(value)
    except RuntimeError:  # not a device name for torch
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise ArgumentValueError("device", f"must be the CPU or a CUDA device, got {str(value)!r}")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentValueError(
            "device", f"must be 'cpu' because torch finds no usable GPU, got {value}"
        )
    return found


def classes(num_classes: int | None, validate: bool) -> int | None:
    if num_classes is not None:
        return integer("num_classes", num_classes)
    if not validate:
        raise ValueError(
            "num_classes must be given with validate=False, which does not read the labels, "
            "got None"
        )
    return None


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
    """Check the options of a call; returns num_classes, and the others for the operators."""
    if scaling not in SCALING_NAMES:
        not_a_choice("scaling", scaling, SCALING_NAMES)
    flag("return_prototypes", return_prototypes)
    flag("validate", validate)
    return classes(num_classes, validate), (
        None if lam is None else real("lam", lam),
        SCALINGS[scaling],
        real("temperature", temperature, positive=True),
        real("epsilon", epsilon, positive=True),
        integer("max_iter", max_iter),
        DEFAULT_TOL if tol is None else real("tol", tol),
    )


def not_a_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if not isinstance(value, str):
        raise ArgumentTypeError(name, f"must be a string, got {kind(value)}")
    listed, near = ", ".join(map(repr, choices)), did_you_mean(value, choices)
    raise ArgumentValueError(name, f"must be one of {listed}, got {value!r}{near}")


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest choice, if any.

    Examples
    --------
    >>> did_you_mean("padle", ["paddle", "tim"])
    " (did you mean 'paddle'?)"
    """
    near = difflib.get_close_matches(value, list(choices), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


# --- tensors, without reading their values ------------------------------------------------------


def tensors(*given: Any) -> tuple[Any, ...]:
    """NumPy arrays as tensors, sharing their memory if possible; anything else unchanged."""
    return tuple([of_array(x) if isinstance(x, np.ndarray) else x for x in given])


def of_array(x: np.ndarray[Any, Any]) -> Any:
    if x.dtype.kind not in "biuf" or x.itemsize > 8:
        return x  # the next check raises the error
    # torch supports neither foreign byte orders, negative strides nor unaligned numbers, and warns
    # about read-only memory.
    order_known = x.dtype.isnative and min(x.strides, default=0) >= 0 and x.flags.aligned
    wide = x.dtype.kind == "u" and 1 < x.itemsize < 8  # torch supports few operations on these
    if wide or not order_known or not x.flags.writeable:
        x = x.astype(np.int64 if wide else x.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(x)


def dense_tensor(name: str, x: Tensor) -> None:
    """A tensor with all its numbers in memory: not sparse, nested or on the device meta."""
    if x.layout is not torch.strided or x.is_nested:
        form = "nested" if x.is_nested else str(x.layout).removeprefix("torch.").removeprefix("_")
        raise TypeError(f"{name} must be a dense tensor, got a {form} one")
    if x.device.type == "meta":
        raise TypeError(f"{name} must be a tensor with data, got one on the device meta")


def features(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {described(x)}")
    if x.layout is not torch.strided or x.is_nested:
        dense_tensor(name, x)
    if x.dtype not in DTYPES:
        raise TypeError(
            f"{name} must be float16, bfloat16, float32 or float64, got {plain(x.dtype)}"
        )


def integers(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {described(x)}")
    if x.layout is not torch.strided or x.is_nested:
        dense_tensor(name, x)
    if x.dtype not in INTEGERS:
        raise TypeError(f"{name} must be a tensor of integers, got {plain(x.dtype)}")


def one_device(**tensors: Tensor) -> None:
    """All on the CPU, or all on one CUDA device."""
    found = list(tensors.values())
    first = found[0]
    for x in found:  # names only in errors, because torch 2.4 cannot compile their use
        if x.device != first.device:
            got = ", ".join([str(one.device) for one in found])
            raise ValueError(f"{', '.join(tensors)} must be on one device, got {got}")
    if not (first.is_cpu or first.is_cuda):
        raise ValueError(
            f"{', '.join(tensors)} must be on the CPU or a CUDA device, got {first.device}"
        )


def rows(name: str, shape: torch.Size, letter: str, end: str) -> int:
    """The number of rows of a task; `end` is ", D" if the shape has a feature dimension."""
    rank = len(shape) - (1 if end else 0)
    if rank != 1 and rank != 2:
        raise ValueError(
            f"{name} must have shape [{letter}{end}] or [B, {letter}{end}], got {list(shape)}"
        )
    count = shape[rank - 1]
    if count < 1:
        raise ValueError(f"{name} must have at least one row per task, got {list(shape)}")
    return count


def layout(
    support_name: str,
    support: torch.Size,
    labels: torch.Size,
    query_name: str,
    query: torch.Size,
    end: str,
) -> None:
    """Shapes of support, its labels and query; `end` as in `rows`."""
    rows(query_name, query, "Q", end)
    count = rows(support_name, support, "S", end)
    unbatched = 2 if end else 1
    shared = len(support) == unbatched
    if (len(labels) != 1 or labels[0] != count) if shared else labels != support[:2]:
        expected = list(support)[: -1 if end else None]
        raise ValueError(
            f"support_labels must have one label for each row of {support_name}, "
            f"shape {expected}, got {list(labels)}"
        )
    if shared:
        return
    if len(query) == unbatched:
        raise ValueError(
            f"{query_name} must have a batch dimension, as {support_name} has, got {list(query)}"
        )
    if support[0] != query[0]:
        raise ValueError(
            f"{query_name} must have as many tasks as {support_name}, {support[0]}, got {query[0]}"
        )


def dense(support: Tensor, support_labels: Tensor, query: Tensor) -> None:
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
    layout("support", support_shape, support_labels.shape, "query", query_shape, ", D")
    D = query_shape[-1]
    if support_shape[-1] != D:
        raise ValueError(
            f"query must have as many features as support, {support_shape[-1]}, got {D}"
        )
    if D < 1:
        raise ValueError(f"query must have at least one feature, got shape {list(query_shape)}")


def logits(x: Tensor) -> None:
    features("logits", x)
    if not (x.is_cpu or x.is_cuda):
        one_device(logits=x)
    shape = x.shape
    if len(shape) not in (2, 3) or shape[-2] < 1 or shape[-1] < 1:
        raise ValueError(
            f"logits must have shape [Q, K] or [B, Q, K] with Q and K at least 1, got {list(shape)}"
        )


def indexed(
    bank: Tensor, support_index: Tensor, support_labels: Tensor, query_index: Tensor
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
    layout(
        "support_index",
        support_index.shape,
        support_labels.shape,
        "query_index",
        query_index.shape,
        "",
    )


# --- words of messages --------------------------------------------------------------------------


def kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def described(x: object) -> str:
    return f"an array of {x.dtype}" if isinstance(x, np.ndarray) else kind(x)


def plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
