"""Files replaced atomically, and cache folders."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from ..ops.large.files import RefusedError, first_line

PARTIAL = ".partial-"
ABANDONED = re.compile(re.escape(PARTIAL) + r"\w{8}")
NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # errors of writing alone


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file that replaces the old one once it is complete.

    It is written in a separate folder next to the old one, so no other thread, process or machine
    can write to it, and it gets the permissions of any new file. An error names the file.
    """
    with naming(path):
        remove_abandoned(path.parent)
        with locked_folder(path.parent) as folder:
            new = folder / path.name
            yield new
            with new.open("rb") as file:
                os.fsync(file.fileno())  # a power failure could leave an empty file
            new.replace(path)


def write_tensors(
    path: Path, module: Any, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a file with `module`, which is safetensors.torch; it has errors of its own."""
    with replacing(path) as new:
        try:
            module.save_file(tensors, new, metadata)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{path} cannot be written: {first_line(error)}") from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of writing in a `locked_folder` name the file or folder that they are about."""
    try:
        yield
    except OSError as error:
        unnamed = error.filename is None and error.errno in NOT_WRITTEN
        if unnamed or PARTIAL in f"{error.filename} {error.filename2}":
            error.filename = str(path)
            del error.filename2
        raise


@contextmanager
def locked_folder(parent: Path) -> Iterator[Path]:
    """A new folder, locked while it is in use, so that no other run takes it for abandoned."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=parent))
        with suppress(FileNotFoundError):  # another run removed it before it was locked
            descriptor = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                break
            os.close(descriptor)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Make a folder and lock it for a run that writes several files there."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} must belong to one run, got a second one") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


@functools.cache
def remove_abandoned(parent: Path) -> None:
    """Remove what killed runs left in a folder: unlocked folders with one unfinished file.

    It happens once in a process, because a cache may have many files.
    """
    for folder in parent.iterdir() if parent.is_dir() else ():
        if not ABANDONED.fullmatch(folder.name):
            continue
        with suppress(OSError):  # locked, so in use; or removed by another run
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if len(list(folder.iterdir())) <= 1:
                    shutil.rmtree(folder)
            finally:
                os.close(descriptor)


class UnmappableError(RefusedError):
    """An intact file that cannot be mapped."""


def user_cache(part: str) -> Path | None:
    """A cache folder of the user for one part of the package; None for a user without a home.

    In a container the user may be a number unknown to the system.
    """
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "paddle_ext" / part


def cache_or_temporary(part: str) -> Path:
    """The cache folder of `user_cache`, or a temporary folder if it is not writable."""
    folder = user_cache(part)
    if folder is not None:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return Path(tempfile.mkdtemp(prefix="paddle_ext-"))
