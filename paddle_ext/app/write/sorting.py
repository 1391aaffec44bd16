"""Copy images into folders by class; nothing is moved or overwritten."""

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ... import check
from ...files import PARTIAL, check_writable, naming
from ...text import encodable, printable
from ..answers import Answers
from ..outcome import reasons

# What some file system forbids in a name.
FORBIDDEN = re.compile(r'[\x00-\x1f<>:"/\\|?*]')
MOST_BYTES = 255  # of a name in most file systems
DOUBTFUL_FOLDER = "doubtful"  # of samples to check
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def check_sort_into(folder: Path, data: Sequence[Path | None]) -> None:
    """Reject a folder that has files, or is within the data, before any work."""
    problem = ""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        problem = f"must be a new or empty folder, so that nothing is overwritten, got {folder}"
    for path in filter(None, data):
        if folder.resolve().is_relative_to(path.resolve()):
            problem = f"must be outside {path}, which is read, got {folder}"
    if problem:
        raise check.ArgumentValueError("sort_into", problem)
    check_writable(folder)


def sort_into(folder: Path, answers: Answers) -> None:
    """Copy the images into a folder per class, ``unknown`` and ``doubtful``, at once."""
    labels, why = [answers.label(row) for row in range(len(answers))], reasons(answers)
    doubtful = class_called_doubtful(labels)
    for row, label in enumerate(labels):
        if why[row] and row not in answers.corrected:
            labels[row] = why[row]
        elif label == DOUBTFUL_FOLDER:
            labels[row] = doubtful
    folders = folder_names(labels)
    taken: set[str] = set()
    folder.mkdir(parents=True, exist_ok=True)
    with naming(folder), tempfile.TemporaryDirectory(prefix=PARTIAL, dir=folder) as place:
        new = Path(place)
        for path, label in zip(map(Path, answers.texts), labels, strict=True):
            target = new / folders[label]
            target.mkdir(parents=True, exist_ok=True)
            name = unused(f"{target.name}/{path.stem}", path.suffix, taken).partition("/")[2]
            shutil.copy2(path, target / name)
        for name in {folders[label] for label in labels}:
            (new / name).replace(folder / name)


def class_called_doubtful(labels: Sequence[str]) -> str:
    """What the folder of such a class is called, unlike those of all other classes."""
    name = DOUBTFUL_FOLDER
    while name in {*labels, DOUBTFUL_FOLDER}:
        name += " (class)"
    return name


def folder_names(labels: Sequence[str]) -> dict[str, str]:
    """A folder name for each label that any file system accepts, all of them different.

    Examples
    --------
    >>> folder_names(["cat", "a/b", "a:b", "..", "unknown"])
    {'cat': 'cat', 'a/b': 'a_b', 'a:b': 'a_b (2)', '..': '__', 'unknown': 'unknown'}
    """
    folders: dict[str, str] = {}
    taken: set[str] = set()
    for label in dict.fromkeys(labels):
        name = FORBIDDEN.sub("_", printable(encodable(label))).strip()
        name = re.sub(r"^\.|[. ]$", "_", in_bytes(name, MOST_BYTES // 2)) or "_"
        name = f"_{name}" if RESERVED.match(name) else name
        folders[label] = unused(name, "", taken)
    return folders


def unused(stem: str, suffix: str, taken: set[str]) -> str:
    """The name, with a number if it is taken; names that differ by case count as one."""
    name, number = stem + suffix, 1
    while name.casefold() in taken:
        number += 1
        end = f" ({number}){suffix}"
        folder, slash, file = stem.rpartition("/")
        name = folder + slash + in_bytes(file, MOST_BYTES - len(os.fsencode(end))) + end
    taken.add(name.casefold())
    return name


def in_bytes(name: str, most: int) -> str:
    """A name, or its beginning if it has more bytes."""
    content = os.fsencode(name)
    return name if len(content) <= most else content[:most].decode("utf-8", "ignore")
