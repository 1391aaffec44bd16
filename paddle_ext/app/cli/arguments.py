"""The syntax of the command line.

The option names of the public few-shot code also work: ``--k_eff``, ``--n_ways``,
``--shots 5 10 20``, and ``--opts k_eff 5 shots [5,10,20] n_ways full``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Annotated

import typer
from typer import BadParameter

# Options shared by several commands.
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: a GPU if any.")]
Memory = Annotated[float | None, typer.Option(help="Memory limit of a batch of tasks, in GiB.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over instead of resuming.")]

OTHER_NAMES = {
    "--number-tasks": "--n-tasks",
    "--tasks": "--n-tasks",
    "--n-ways": "--num-classes",
    "--classes": "--num-classes",
}
LISTS = ("--shots", "--k-eff")  # options that take several numbers
NUMBERS = re.compile(r"[\[\](),\d]*\d[\[\](),\d]*")  # 5 or 5,10 or [5, or 20]


def normalised(arguments: Sequence[str]) -> list[str]:
    """The arguments in our spelling: dashes, lists with commas, no ``--opts``.

    Examples
    --------
    >>> normalised(["evaluate", "a.npz", "--opts", "k_eff", "5", "shots", "[5,10]"])
    ['evaluate', 'a.npz', '--k-eff', '5', '--shots', '[5,10]']
    >>> normalised(["evaluate", "--shots", "5", "10", "20", "a_b.npz", "--n_ways=full"])
    ['evaluate', '--shots', '5,10,20', 'a_b.npz', '--num-classes=full']
    """
    return join_lists([normalised_name(item) for item in expand_opts(arguments)])


def expand_opts(arguments: Sequence[str]) -> list[str]:
    """Replace ``--opts`` and the pairs after it by options."""
    result: list[str] = []
    rest = list(arguments)
    while rest:
        item = rest.pop(0)
        if item != "--opts":
            result.append(item)
            continue
        pairs: list[str] = []
        while rest and not rest[0].startswith("--"):
            pairs.append(rest.pop(0))
        number = 0
        while number < len(pairs):
            value = [pairs[number + 1]] if number + 1 < len(pairs) else []
            result += [f"--{pairs[number]}", *value]
            number += 2
            # A list may be split into several words: [5, 10, 20]
            while number < len(pairs) and NUMBERS.fullmatch(pairs[number]):
                result.append(pairs[number])
                number += 1
    return result


def normalised_name(item: str) -> str:
    """An option with dashes, under our name; anything else unchanged."""
    if not item.startswith("--") or item == "--":
        return item
    name, equals, value = item.partition("=")
    name = name.replace("_", "-")
    return OTHER_NAMES.get(name, name) + equals + value


def join_lists(arguments: Sequence[str]) -> list[str]:
    """Join the numbers after a list option into one word."""
    result: list[str] = []
    collecting = False
    for item in arguments:
        if collecting and NUMBERS.fullmatch(item) and result[-1] not in LISTS:
            result[-1] = f"{result[-1].rstrip(',')},{item}"
            continue
        collecting = item in LISTS or (collecting and result[-1] in LISTS)
        result.append(item)
    return result


def comma_separated(given: Sequence[str]) -> list[str]:
    """The items of an option that may be repeated and may contain commas."""
    text = ",".join(given).translate(str.maketrans("", "", "[]()"))
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, given: Sequence[str]) -> list[int]:
    """Integers, at least one.

    Examples
    --------
    >>> numbers("--shots", ["[5,10]", "20"])
    [5, 10, 20]
    """
    found = []
    for word in comma_separated(given):
        if not re.fullmatch(r"\d+", word):
            raise BadParameter(f"{option} must be integers such as 5,10,20, got {word!r}")
        found.append(int(word))
    if not found:
        raise BadParameter(f"{option} must be at least one number, got none")
    return found


def class_count(given: str) -> int | None:
    """Number of candidate classes of a task, or None for ``full``."""
    if given == "full":
        return None
    if not re.fullmatch(r"\d+", given):
        raise BadParameter(f"--num-classes must be an integer or full, got {given!r}")
    return int(given)


def method_options(given: Sequence[str]) -> dict[str, dict[str, object]]:
    """Options of methods, from words such as ``paddle.scaling=auto``.

    Examples
    --------
    >>> method_options(["tim.weights=1,0.3,1", "tim.max_iter=500", "paddle.scaling=auto"])
    {'tim': {'weights': (1, 0.3, 1), 'max_iter': 500}, 'paddle': {'scaling': 'auto'}}
    """
    from ...check import did_you_mean
    from ...methods import available, describe

    found: dict[str, dict[str, object]] = {}
    for word in given:
        parts = re.fullmatch(r"(\w+)\.(\w+)=(.+)", word)
        if parts is None:
            raise BadParameter(f"--option must be METHOD.NAME=VALUE, got {word!r}")
        method, name, text = parts.groups()
        if method not in available():
            near = did_you_mean(method, available())
            raise BadParameter(
                f"--option must belong to one of the methods {', '.join(available())}, "
                f"got {method!r}{near}"
            )
        known = {option.name: option for option in describe(method)}
        if name not in known:
            raise BadParameter(
                f"--option must be an option of {method} ({', '.join(known)}), "
                f"got {name!r}{did_you_mean(name, known)}"
            )
        value = option_value(word, text, known[name].default)
        found.setdefault(method, {})[name] = value
    return found


def option_value(word: str, text: str, default: object) -> object:
    """A value of the same type as the default; the method itself checks its range."""
    if isinstance(default, str):
        return text
    if text.lower() in ("true", "false", "none"):
        text = text.capitalize()
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise BadParameter(
            f"--option must have a value such as {default!r}, got {word!r}"
        ) from None
    return value
