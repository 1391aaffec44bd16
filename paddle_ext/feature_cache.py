"""A cache of features, indexed by the content they were computed from."""

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SEAL = 20  # bytes of a digest


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=SEAL).digest()


def written_digest(of_content: bytes) -> str:
    """A digest as tables have it; the letter keeps spreadsheets from reading a number."""
    return f"x{of_content.hex()[:15]}"


class FeatureCache:
    """Features by the digest of a sample's content, for one way to compute them.

    `key` is everything else they depend on: the network and its preprocessing. Without a folder
    nothing is stored, nor if it cannot be written to, which `notes` say; without notes that is an
    error. A damaged row is missing.
    """

    def __init__(self, folder: Path | None, key: str, notes: list[str] | None = None) -> None:
        self.path = None if folder is None else folder / f"{digest(key.encode()).hex()}.sqlite"
        self.notes, self.writable = notes, True
        create = "CREATE TABLE IF NOT EXISTS features (digest BLOB PRIMARY KEY, row BLOB)"
        self.attempt(lambda database: database.execute(create))

    def attempt(
        self, work: Callable[[sqlite3.Connection], object], *, writing: bool = False
    ) -> None:
        """One transaction; a database that is locked or read-only is not tried twice."""
        path = self.path
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(str(path), timeout=60)) as database, database:
                work(database)
        except (OSError, sqlite3.OperationalError) as error:
            place = path.parent if isinstance(error, OSError) else path
            note = f"features are not cached: {place}: {getattr(error, 'strerror', None) or error}"
            if self.notes is None:
                raise OSError(note) from error
            self.notes.append(note)
            self.writable = False
            self.path = path if writing else None
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path} is a damaged cache file (delete it), got: {error}") from error

    def get(self, digests: Sequence[bytes]) -> dict[bytes, Tensor]:
        """The features found in the cache, [D] float32 each."""
        rows: dict[bytes, Tensor] = {}

        def select(database: sqlite3.Connection) -> None:
            for key in digests:
                found = database.execute("SELECT row FROM features WHERE digest = ?", (key,))
                for (stored,) in found:
                    row = stored[:-SEAL] if isinstance(stored, bytes) else b""
                    if stored == row + digest(key + row):
                        rows[key] = torch.from_numpy(np.frombuffer(row, np.float32).copy())

        self.attempt(select)
        return rows

    def put(self, features: dict[bytes, Tensor]) -> None:
        """Store rows, each with a digest that no damaged row has, nor the row of another key."""
        if self.writable and features:
            pairs = ((key, row.numpy().tobytes()) for key, row in features.items())
            rows = [(key, row + digest(key + row)) for key, row in pairs]
            insert = "INSERT OR REPLACE INTO features VALUES (?, ?)"
            self.attempt(lambda database: database.executemany(insert, rows), writing=True)

    def complete(
        self, digests: Sequence[bytes], compute: Callable[[list[int]], Iterable[Tensor]]
    ) -> Tensor:
        """The features of all samples, [n, D], each computed once; in parts, which are stored.

        `compute` is given the places of the samples that the cache lacks.
        """
        rows, missing = self.get(digests), dict[bytes, int]()
        for place, key in enumerate(digests):
            if key not in rows:
                missing.setdefault(key, place)
        keys = iter(missing)
        for part in compute([*missing.values()]) if missing else ():
            new = {key: row for row, key in zip(part, keys, strict=False)}
            self.put(new)
            rows |= new
        return torch.stack([rows[key] for key in digests])
