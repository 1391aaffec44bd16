"""Options of several commands, and values of several words."""

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter


def about(text: str, **more: Any) -> Parameter:
    return Parameter(help=text, **more)


class UsageError(ValueError):
    """A command line that is wrong whatever the data are."""


def shown_default(value: object) -> str | None:
    """Flags and options without a default show none."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or None
    return None if value is None or isinstance(value, bool) else str(value)


def words(_: object, tokens: Sequence[Any]) -> tuple[str, ...]:
    """The items of an option that may be repeated and may contain commas."""
    text = ",".join(token.value for token in tokens).translate(str.maketrans("", "", "[]()"))
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(_: object, tokens: Sequence[Any]) -> tuple[int, ...] | None:
    """Integers, at least one; None for ``all``."""
    given = words(_, tokens)
    if given == ("all",):
        return None
    if not given or not all(re.fullmatch(r"\d+", word) for word in given):
        raise ValueError(f"must be integers such as 5,10,20, got {','.join(given) or 'none'}")
    return tuple(map(int, given))


DEFAULTS = Parameter(negative_bool=(), negative_iterable=(), show_default=shown_default)
LIST = Parameter(consume_multiple=True, converter=words)
NUMBERS = Parameter(consume_multiple=True, converter=numbers)

Device: TypeAlias = Annotated[str | None, about("cpu, cuda, cuda:1; default: a GPU if any.")]
Fresh: TypeAlias = Annotated[bool, about("Start over instead of resuming.")]

Bank: TypeAlias = Annotated[Path, about("A feature bank: .npz, .safetensors, .pt.")]
Tasks: TypeAlias = Annotated[int, about("Tasks per setting.", alias="--tasks")]
Classes: TypeAlias = Annotated[
    int | Literal["full"],
    about("Candidate classes per task: a number, or full.", show_choices=False),
]
Sampling: TypeAlias = Annotated[str, about("uniform, balanced or dirichlet.")]
Alpha: TypeAlias = Annotated[float, about("Parameter of the Dirichlet distribution.")]

Root: TypeAlias = Annotated[Path | None, about("The images; omit for glyphs.")]
Layout: TypeAlias = Annotated[
    str, about("mini, tiered, inatural, folder, npz or glyphs (drawn on the fly).")
]
Size: TypeAlias = Annotated[int | None, about("Resize images to squares of this many pixels.")]
Samples: TypeAlias = Annotated[int, about("Images per class, for the layout glyphs.")]
Precision: TypeAlias = Annotated[str, about("auto, float32 or bfloat16.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Compared:
    """Options of `evaluate` and of `tune`."""

    methods: Annotated[tuple[str, ...], LIST] = ("all",)
    """Names, such as paddle,tim; or all. Your own: my_module:MyMethod."""
    n_query: int = 75
    """Queries per task."""
    seed: int = 0
    """Random seed of the tasks."""
    preset: str | None = None
    """Published options of the methods: paper, mini, tiered or inat."""
    option: tuple[str, ...] = ()
    """An option of a method: METHOD.NAME=VALUE; may be repeated."""
    split: str | None = None
    """Use only the rows of this split."""
    device: Device = None
    memory: float | None = None
    """Memory limit of a batch of tasks, in GiB."""
    fresh: Fresh = False

    def run(self) -> dict[str, Any]:
        """How tasks are drawn and solved, as arguments of the Python functions."""
        own = {name: getattr(self, name) for name in ("n_query", "seed", "device", "memory")}
        return {**own, "resume": not self.fresh}


def method_options(given: Iterable[str], chosen: Collection[str]) -> dict[str, dict[str, object]]:
    """Options of chosen methods, from words such as ``paddle.scaling=auto``.

    Examples
    --------
    >>> method_options(["tim.weights=1,0.3,1", "tim.max_iter=500"], ["paddle", "tim"])
    {'tim': {'weights': (1, 0.3, 1), 'max_iter': 500}}
    """
    from ...check import did_you_mean
    from ...methods import describe

    options: dict[str, dict[str, object]] = {}
    for word in given:
        parts = re.fullmatch(r"(\w+)\.(\w+)=(.+)", word)
        if parts is None:
            raise UsageError(f"--option must be METHOD.NAME=VALUE, got {word!r}")
        method, name, text = parts.groups()
        if method not in chosen:
            raise UsageError(
                f"--option must belong to a chosen method, {', '.join(chosen)}, got {method!r}"
                f"{did_you_mean(method, chosen)}"
            )
        defaults = {option.name: option.default for option in describe(method)}
        if name not in defaults:
            raise UsageError(
                f"--option must be an option of {method} ({', '.join(defaults)}), "
                f"got {name!r}{did_you_mean(name, defaults)}"
            )
        options.setdefault(method, {})[name] = option_value(word, text, defaults[name])
    return options


def option_value(word: str, text: str, default: object) -> object:
    """A value of the same type as the default; the method itself checks its range."""
    if isinstance(default, str):
        return text
    if text.lower() in ("true", "false", "none"):
        text = text.capitalize()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise UsageError(f"--option must have a value such as {default!r}, got {word!r}") from None
