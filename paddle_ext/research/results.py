"""Results of an evaluation: exact counts, and statistics derived from them.

Correct predictions are counted as integers, so that the same tasks give the same result whatever
the order or the batch size. The counts of each task are kept: all methods see the same tasks, so
that two of them can be compared task by task.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .. import check
from ..files import open_regular, replacing

FORMAT = 2  # of every file with results
COUNTS = ("k_eff", "num_classes", "n_query", "n_tasks", "correct", "squares")


@dataclass(frozen=True)
class Result:
    """One method on the tasks of one setting."""

    method: str  # its name in tables
    options: Mapping[str, object]  # of the method, all of them
    shots: int | None  # None: the support is the same in all tasks
    k_eff: int
    num_classes: int  # candidates, K
    n_query: int
    n_tasks: int
    correct: int  # correct predictions, summed over the tasks
    squares: int  # their squares per task, summed
    seconds: float  # in the method, over all tasks
    # Correct predictions of each task; none in the files of older versions.
    correct_by_task: tuple[int, ...] = field(default=(), repr=False)

    @property
    def accuracy(self) -> float:
        """Mean accuracy in percent."""
        return 100.0 * self.correct / (self.n_tasks * self.n_query)

    @property
    def interval(self) -> float:
        """Half the width of the 95 % confidence interval of the accuracy, in points.

        NaN for a single task, which says nothing about others.
        """
        return half_interval(self.n_tasks, self.n_query, self.correct, self.squares)

    @property
    def seconds_per_task(self) -> float:
        return self.seconds / self.n_tasks

    def as_fields(self) -> dict[str, object]:
        """The fields for a file, with the counts of the tasks in one line."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return own | {"correct_by_task": " ".join(map(str, self.correct_by_task))}


@dataclass(frozen=True)
class Difference:
    """How much more accurate one method is than another one on the same tasks, in points."""

    points: float
    interval: float  # half the width of its 95 % confidence interval; NaN for a single task

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.points - self.interval

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.points + self.interval


def half_interval(n_tasks: int, n_query: int, total: int, squares: int) -> float:
    """Half the width of the 95 % confidence interval of a mean, in points.

    `total` is the sum of a count of queries over the tasks, `squares` that of its squares.
    """
    if n_tasks < 2:
        return math.nan
    spread = n_tasks * squares - total**2  # exact: integers
    variance = spread / (n_tasks * (n_tasks - 1))
    return 196.0 * math.sqrt(variance / n_tasks) / n_query


def difference(first: Result, second: Result) -> Difference | None:
    """The paired difference of two results; None if their tasks differ, or have no counts."""
    drawn = [
        (one.shots, one.k_eff, one.num_classes, one.n_query, one.n_tasks) for one in (first, second)
    ]
    if drawn[0] != drawn[1] or not first.correct_by_task or not second.correct_by_task:
        return None
    pairs = zip(first.correct_by_task, second.correct_by_task, strict=True)
    more = [ours - theirs for ours, theirs in pairs]
    total, squares = sum(more), sum(count * count for count in more)
    points = 100.0 * total / (first.n_tasks * first.n_query)
    return Difference(points, half_interval(first.n_tasks, first.n_query, total, squares))


@dataclass(frozen=True)
class Evaluation:
    """All results of one evaluation; every method saw the same tasks."""

    results: tuple[Result, ...]
    bank: str  # description of the features
    sampling: str = "uniform"
    alpha: float = 1.0
    seed: int = 0
    machine: str = ""
    notes: Mapping[str, object] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def select(
        self, method: str | None = None, *, shots: int | None = None, k_eff: int | None = None
    ) -> tuple[Result, ...]:
        """Results of a method, of a number of shots, of a number of effective classes."""
        asked = {"method": method, "shots": shots, "k_eff": k_eff}
        given = {name: value for name, value in asked.items() if value is not None}
        return tuple(result for result in self.results if given.items() <= vars(result).items())

    def difference(
        self, first: str, second: str, *, shots: int | None = None, k_eff: int | None = None
    ) -> Difference:
        """How much more accurate one method is than another one, with its interval.

        Parameters
        ----------
        first, second : str
            Methods of this evaluation. They saw the same tasks, so the interval is that of the
            difference within each task, and narrower than those of the two accuracies suggest.
        shots, k_eff : int, optional
            Which setting, if there are several.

        Returns
        -------
        Difference
            ``points``, and the ends of the 95 % confidence interval, ``low`` and ``high``. An
            interval that contains 0 means that these tasks do not tell which method is better.
        """
        ours = self.only("first", first, shots, k_eff)
        theirs = self.only("second", second, shots, k_eff)
        found = difference(ours, theirs)
        if found is None:
            raise ValueError(
                f"{first!r} and {second!r} must have counts of the same tasks: evaluate both again"
            )
        return found

    def only(self, name: str, method: str, shots: int | None, k_eff: int | None) -> Result:
        """The one result of a method in a setting; `name` is the argument that has the method."""
        found = self.select(check.choice(name, method, self.methods), shots=shots, k_eff=k_eff)
        if len(found) != 1:
            settings = ", ".join(f"shots={one.shots} k_eff={one.k_eff}" for one in found)
            raise ValueError(
                f"shots and k_eff must choose one setting of {method!r}, got {settings or 'none'}"
            )
        return found[0]

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in their order."""
        return tuple(dict.fromkeys(result.method for result in self.results))

    def as_fields(self) -> dict[str, object]:
        """The fields for a file."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return own | {"results": [result.as_fields() for result in self.results]}

    def save(self, path: str | Path) -> None:
        """Write a JSON file; an interrupted call keeps the old one."""
        write_json(Path(path), self.as_fields())

    @classmethod
    def load(cls, path: str | Path) -> "Evaluation":
        """Read a file written by `save`."""
        with contents_of(Path(path), "an evaluation") as contents:
            return cls.from_fields(contents)

    @classmethod
    def from_fields(cls, contents: Mapping[str, Any]) -> "Evaluation":
        """From the fields of an evaluation in a file, where tuples have become lists."""
        fields, results = dict(contents), []
        if not isinstance(fields["notes"], dict):
            raise TypeError("notes that are no object")
        for own in fields.pop("results"):
            options = {name: as_tuple(value) for name, value in own["options"].items()}
            by_task = tuple(map(int, own.get("correct_by_task", "").split()))
            result = Result(**{**own, "options": options, "correct_by_task": by_task})
            results.append(result)
            if not isinstance(own["method"], str):
                raise TypeError("a method that is not a text")
            if not all(isinstance(own[name], int) for name in COUNTS):
                raise ValueError("a count that is not an integer")
            if by_task and (len(by_task), sum(by_task)) != (result.n_tasks, result.correct):
                raise ValueError("counts of tasks that do not add up")
        return cls(tuple(results), **fields)


def as_tuple(value: object) -> object:
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


def write_json(path: Path, contents: Mapping[str, object]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"format": FORMAT, **contents}, indent=1) + "\n")


@contextmanager
def contents_of(path: Path, what: str) -> Iterator[dict[str, Any]]:
    """The contents of a JSON file; any problem raises a one-sentence error."""
    try:
        with open_regular(path) as file:
            contents = json.loads(file.read())
        if contents.pop("format") != FORMAT:
            raise ValueError("another format")
        yield contents
    except RecursionError:
        raise ValueError(f"{path} is not {what}: it is nested too deeply") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is not {what}: {error}") from error
