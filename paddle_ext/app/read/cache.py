"""A cache of features, indexed by the content they were computed from."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...files import open_regular

DIGESTS_OF_A_QUERY = 500  # the database limits the number
SEAL = 8  # bytes


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=20).digest()


def digest_of_files(paths: Sequence[Path]) -> str:
    """Digest of the contents and names of some files."""
    found = hashlib.blake2b(digest_size=20)
    for path in paths:
        with open_regular(path) as file:
            name = os.fsencode(path.name)
            found.update(len(name).to_bytes(8, "big") + name)
            found.update(os.fstat(file.fileno()).st_size.to_bytes(8, "big"))
            while part := file.read(2**22):
                found.update(part)
    return found.hexdigest()


def sealed(key: bytes, row: bytes) -> bytes:
    """A row as it is stored: with a digest that no damaged row has, nor the row of another key."""
    return row + digest(key + row)[:SEAL]


def files_of(folder: Path) -> list[Path]:
    """All files in a folder and its subfolders."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


class FeatureCache:
    """Features by the digest of a sample's content, for one way to compute them.

    `key` is everything else the features depend on: the network and its preprocessing. A folder
    that cannot be written to is not an error: features are then not stored, which `notes` say;
    nor are they without a folder. A stored row that is damaged counts as missing.
    """

    def __init__(self, folder: Path | None, key: str, notes: list[str] | None = None) -> None:
        self.path: Path | None = None
        self.notes = notes
        self.writable = True
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{digest(key.encode()).hex()}.sqlite"
            with undamaged(path), closing(sqlite3.connect(str(path), timeout=60)) as database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS features (digest BLOB PRIMARY KEY, row BLOB)"
                )
                database.commit()
        except (OSError, sqlite3.OperationalError) as error:
            self.keep_nothing(folder, error)
        else:
            self.path = path

    def keep_nothing(self, place: Path, error: Exception) -> None:
        self.writable = False
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if self.notes is not None:
            self.notes.append(f"features are not cached: {place}: {why}")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(str(self.path), timeout=60)

    def get(self, digests: Sequence[bytes]) -> dict[bytes, Tensor]:
        """The features found in the cache, [D] float32 each."""
        found: dict[bytes, Tensor] = {}
        if self.path is None:
            return found
        try:
            with undamaged(self.path), closing(self.connect()) as database:
                for start in range(0, len(digests), DIGESTS_OF_A_QUERY):
                    asked = list(digests[start : start + DIGESTS_OF_A_QUERY])
                    marks = ",".join("?" * len(asked))
                    query = f"SELECT digest, row FROM features WHERE digest IN ({marks})"
                    for key, stored in database.execute(query, asked):
                        row = stored[:-SEAL] if isinstance(stored, bytes) else b""
                        if stored == sealed(key, row):
                            found[key] = torch.from_numpy(np.frombuffer(row, np.float32).copy())
        except sqlite3.OperationalError as error:  # locked, unreadable, or of another kind
            self.keep_nothing(self.path, error)
            self.path = None
        return found

    def put(self, features: dict[bytes, Tensor]) -> None:
        if self.path is None or not self.writable or not features:
            return
        rows = [(key, sealed(key, row.numpy().tobytes())) for key, row in features.items()]
        try:
            with undamaged(self.path), closing(self.connect()) as database, database:
                database.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)
        except sqlite3.OperationalError as error:  # read-only, or a full disk
            self.keep_nothing(self.path, error)


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """One-sentence error for a damaged cache; a file that cannot be opened is not damaged."""
    try:
        yield
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{path} is a damaged cache file (delete it), got: {error}") from error
