"""Results of an evaluation: exact counts, and statistics derived from them.

Correct predictions are summed as integers, so that the same tasks give the same result whatever the
order or the batch size.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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

    @property
    def accuracy(self) -> float:
        """Mean accuracy in percent."""
        return 100.0 * self.correct / (self.n_tasks * self.n_query)

    @property
    def interval(self) -> float:
        """Half the width of the 95 % confidence interval of the accuracy, in points.

        NaN for a single task, which says nothing about others.
        """
        if self.n_tasks < 2:
            return math.nan
        spread = self.n_tasks * self.squares - self.correct**2  # exact: integers
        variance = spread / (self.n_tasks * (self.n_tasks - 1))
        return 196.0 * math.sqrt(variance / self.n_tasks) / self.n_query

    @property
    def seconds_per_task(self) -> float:
        return self.seconds / self.n_tasks


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

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in their order."""
        return tuple(dict.fromkeys(result.method for result in self.results))

    def save(self, path: str | Path) -> None:
        """Write a JSON file; an interrupted call keeps the old one."""
        write_json(Path(path), asdict(self))

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
            results.append(Result(**{**own, "options": options}))
            if not isinstance(own["method"], str):
                raise TypeError("a method that is not a text")
            if not all(isinstance(own[name], int) for name in COUNTS):
                raise ValueError("a count that is not an integer")
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
