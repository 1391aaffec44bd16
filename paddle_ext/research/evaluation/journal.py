"""The progress of an interrupted evaluation: a file of JSON lines for each rank.

The first line identifies the evaluation. Then follows one line for each block of tasks that a
method has finished, flushed at once; a block that takes long has one for its tasks so far.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from torch import Tensor

from ...check import ArgumentValueError
from .blocks import BLOCK, Count, Part

FORMAT = 2
PATTERN = "journal-*.jsonl"
SECONDS = 15.0  # between two lines, at the end of a batch; with the batch itself, half a minute
ROWS = 2**16  # read at once: a mapped bank may exceed the memory


class Key(NamedTuple):
    """One block of tasks of one method in one setting."""

    shots: int | None
    k_eff: int
    method: str  # its name, and a digest of its options
    block: int
    n_tasks: int  # of this block; the last one may be shorter


class Journal:
    """The journal of one rank, in a folder shared by all ranks.

    The header is everything that the counts depend on, in addition to a `Key`.
    """

    def __init__(self, folder: Path, header: Mapping[str, object], rank: int) -> None:
        self.folder, self.header = folder, {"journal": FORMAT, **header}
        self.path = folder / f"journal-{rank}.jsonl"
        self.file: TextIO | None = None
        self.parts: dict[Key, Part] = {}  # of unfinished blocks
        self.written = time.monotonic()

    def clear(self) -> None:
        """Delete everything."""
        for path in self.folder.glob(PATTERN):
            path.unlink(missing_ok=True)  # another rank may have been faster

    def read(self) -> dict[Key, Count]:
        """The progress of all ranks."""
        done: dict[Key, Count] = {}
        for path in sorted(self.folder.glob(PATTERN)):
            header, *entries = whole_lines(path) or [self.header]
            self.check_header(path, header)
            for entry in entries:
                try:
                    key, count = Key(*entry["task"]), Count(*entry["count"])
                    tasks = entry.get("tasks", key.n_tasks)
                except (AttributeError, KeyError, TypeError) as error:
                    raise ValueError(f"{path} is not a journal of an evaluation") from error
                so_far = key._replace(n_tasks=tasks)
                if not possible(so_far, count, self.header.get("n_query")) or not (
                    type(key.n_tasks) is int and tasks <= key.n_tasks
                ):
                    raise ValueError(
                        f"{path} is not a journal of an evaluation: no {so_far} can have {count}"
                    )
                if tasks == key.n_tasks:
                    done[key] = count
                elif key not in self.parts or tasks > self.parts[key].tasks:
                    self.parts[key] = Part(tasks, count)
        return done

    def check_header(self, path: Path, header: object) -> None:
        if not isinstance(header, dict) or "journal" not in header:
            raise ValueError(f"{path} is not a journal of an evaluation")
        different = [
            f"{name} (there {header.get(name)!r}, here {self.header.get(name)!r})"
            for name in dict.fromkeys([*self.header, *header])
            if header.get(name) != self.header.get(name)
        ]
        if different:
            raise ArgumentValueError(
                "output",
                f"must be a folder of the same evaluation to resume, got {str(self.folder)!r} "
                f"with another {', another '.join(different)}",
                or_pass="resume=False",
            )

    def open(self) -> None:
        """Start writing after the last complete line."""
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = whole_bytes(self.path)
        self.file = self.path.open("a")
        self.file.truncate(kept)
        if kept == 0:
            self.write(self.header)

    def add(self, key: Key, count: Count) -> None:
        self.write({"task": key, "count": count})

    def add_part(self, key: Key, part: Part) -> None:
        """Record an unfinished block, if nothing was written for a while."""
        if time.monotonic() - self.written >= SECONDS:
            self.write({"task": key, "tasks": part.tasks, "count": part.answers})

    def write(self, line: Mapping[str, object]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()
            self.written = time.monotonic()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


def possible(key: Key, count: Count, n_query: object) -> bool:
    """Whether tasks of this many queries can have such counts; a damaged line may say anything."""
    whole = [key.k_eff, key.block, key.n_tasks, count.correct, count.squares]
    if key.shots is not None:
        whole.append(key.shots)
    if not all(type(number) is int for number in whole) or not isinstance(key.method, str):
        return False
    if min(whole) < 0 or not 1 <= key.n_tasks <= BLOCK or type(count.seconds) not in (int, float):
        return False
    # For a given sum, equal counts minimise the sum of squares, and all-or-nothing ones maximise
    # it.
    least = count.correct**2 <= key.n_tasks * count.squares
    if isinstance(n_query, int):
        most = count.correct <= key.n_tasks * n_query
        least = least and most and count.squares <= n_query * count.correct
    return least and math.isfinite(count.seconds) and count.seconds >= 0


def whole_bytes(path: Path) -> int:
    """Bytes up to the last complete line: a process may be killed while it writes."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0


def whole_lines(path: Path) -> list[Any]:
    try:
        text = path.read_bytes()[: whole_bytes(path)].decode()
        return [json.loads(line) for line in text.split("\n") if line]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a journal of an evaluation: {error}") from error


def digest(*parts: object) -> str:
    """A short digest of tensors, and of anything that is identified by its printed form."""
    result = hashlib.blake2b(digest_size=10)
    for part in parts:
        if isinstance(part, Tensor):
            result.update(f"{part.dtype} {list(part.shape)} ".encode())
            for rows in torch.split(part.detach(), ROWS):
                result.update(rows.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        else:
            result.update(f"{part!r} ".encode())
    return result.hexdigest()
