"""Features that were computed before, found again by what they were computed from."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

DIGESTS_OF_A_QUERY = 500  # the database limits how many there may be


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=20).digest()


class FeatureCache:
    """Features by the digest of a sample's content, for one way to compute them.

    Parameters
    ----------
    folder : Path or None
        None: nothing is kept.
    key : str
        Everything else that the features depend on: the network and how it is fed.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self.path: Path | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.path = folder / f"{digest(key.encode()).hex()}.sqlite"
            with undamaged(self.path), closing(self.connect()) as database, database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS features (digest BLOB PRIMARY KEY, row BLOB)"
                )

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(str(self.path), timeout=60)

    def get(self, digests: Sequence[bytes]) -> dict[bytes, Tensor]:
        """Those of the features that are there, [D] float32 each."""
        found: dict[bytes, Tensor] = {}
        if self.path is None:
            return found
        with undamaged(self.path), closing(self.connect()) as database:
            for start in range(0, len(digests), DIGESTS_OF_A_QUERY):
                asked = list(digests[start : start + DIGESTS_OF_A_QUERY])
                marks = ",".join("?" * len(asked))
                query = f"SELECT digest, row FROM features WHERE digest IN ({marks})"
                for key, row in database.execute(query, asked):
                    found[key] = torch.from_numpy(np.frombuffer(row, np.float32).copy())
        return found

    def put(self, features: dict[bytes, Tensor]) -> None:
        if self.path is None or not features:
            return
        rows = [(key, row.numpy().tobytes()) for key, row in features.items()]
        with undamaged(self.path), closing(self.connect()) as database, database:
            database.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """One sentence for a damaged cache."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise ValueError(
            f"{path} must be a whole file of the cache (delete it), got: {error}"
        ) from error
