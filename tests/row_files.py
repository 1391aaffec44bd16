"""Files of rows in all formats, for the tests of their readers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripts import run_code
from torch import Tensor

from paddle_ext.large.sources import Rows

N, D = 1001, 7
FORMATS = [
    ("npy", "float16"),
    ("npy", "float32"),
    ("npy", "float64"),
    ("safetensors", "float16"),
    ("safetensors", "bfloat16"),
    ("safetensors", "float32"),
    ("safetensors", "float64"),
    ("lists.parquet", "float32"),
    ("lists.parquet", "float64"),
    ("large_lists.parquet", "float32"),
    ("fixed.parquet", "float16"),
    ("fixed.parquet", "float32"),
]


def features(dtype: str = "float32", rows: int = N) -> Tensor:
    drawn = torch.randn(rows, D, generator=torch.Generator().manual_seed(0))
    return drawn.to(getattr(torch, dtype))


def write(folder: Path, kind: str, x: Tensor) -> Path:
    """A file of that format, with other contents next to the features where possible."""
    path = folder / f"rows.{kind}"
    if kind == "npy":
        np.save(path, x.numpy())
    elif kind == "safetensors":
        library = pytest.importorskip("safetensors.torch", reason="needs safetensors")
        library.save_file({"labels": torch.arange(len(x)), "rows": x.contiguous()}, path)
    else:
        write_parquet(path, kind.partition(".")[0], x.numpy())
    return path


def write_parquet(path: Path, kind: str, x: np.ndarray, group: int = 100, **columns: Any) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    numbers = pa.array(x.ravel())
    if kind == "fixed":
        lists = pa.FixedSizeListArray.from_arrays(numbers, x.shape[1])
    else:
        offsets = np.arange(len(x) + 1) * x.shape[1]
        made = pa.ListArray if kind == "lists" else pa.LargeListArray
        ends = pa.array(offsets, pa.int32() if kind == "lists" else pa.int64())
        lists = made.from_arrays(ends, numbers)
    table = pa.table({"id": np.arange(len(x)), "embedding": lists, **columns})
    pq.write_table(table, path, row_group_size=group)


def together(rows: Rows, size: int) -> Tensor:
    return torch.cat([chunk.clone() for chunk in rows.chunks(size)])


# --- a process with little memory ---------------------------------------------------------------

BOUNDED = """
import resource, sys
import numpy as np
import torch

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))

def bounded(work):
    path, small, allowed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    work(small)  # whatever is loaded at first use
    limit = status("VmData") + allowed
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forgets the peak
    before = status("VmRSS")
    if path.endswith(".npy"):
        try:
            np.load(path)
        except MemoryError:
            print("refused")
    found = work(path)
    print(limit, status("VmHWM") - before)
    return found
"""


def run_bounded(code: str, path: Path, small: Path, allowed: int, *arguments: object) -> list[str]:
    """What code prints that calls `bounded` with its work on a file, after one on a small file.

    Its process may then allocate so many bytes more. A line "refused" says that the file, if it is
    .npy, does not fit; the next has the limit in bytes and what was used of it.
    """
    # An allocator of torch would else take memory for much more than it needs.
    variables = {"OMP_NUM_THREADS": "1", "MIMALLOC_ARENA_EAGER_COMMIT": "0"}
    return run_code(BOUNDED + code, path, small, allowed, *arguments, **variables)
