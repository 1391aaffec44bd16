"""Solving from files: the same as from tensors, with less memory than the file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from row_files import run_bounded, write
from torch import Tensor

import paddle_ext
from paddle_ext.large.sources import FileRows

K, D = 12, 7


def task(queries: int, classes: int = K, width: int = D) -> tuple[Tensor, Tensor, Tensor]:
    """Support, labels, and queries of a few classes."""
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, width, generator=random)
    labels = torch.arange(classes).repeat(3)
    present = torch.randint(0, 4, (queries,), generator=random)
    noise = torch.randn(len(labels) + queries, width, generator=random)
    rows = centres[torch.cat([labels, present])] + 0.5 * noise
    return rows[: len(labels)], labels, rows[len(labels) :]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("npy", "float32"),
        ("safetensors", "bfloat16"),
        ("lists.parquet", "float32"),
        ("fixed.parquet", "float16"),
    ],
)
@pytest.mark.parametrize("scaling", ["none", "auto"])
def test_the_same_from_a_file_as_from_a_tensor(
    tmp_path: Path, device: str, kind: str, dtype: str, scaling: str
) -> None:
    support, labels, query = task(3000)
    query = query.to(getattr(torch, dtype))
    path = write(tmp_path, kind, query)
    known = support.to(device, query.dtype), labels.to(device)
    options = {"scaling": scaling, "temperature": 30.0, "max_iter": 20, "tol": 0.0, "lam": 1.0}
    usual = paddle_ext.solve(*known, query.to(device), **options)
    for source in (path, FileRows(path, device=device)):
        found = paddle_ext.solve(*known, source, **options)
        assert found.labels.device == usual.labels.device
        torch.testing.assert_close(
            found.probabilities.float(), usual.probabilities.float(), atol=1e-4, rtol=0
        )
        clear = usual.probabilities.float().topk(2).values.diff().abs().squeeze(-1) > 1e-3
        assert torch.equal(found.labels[clear], usual.labels[clear])
        assert clear.float().mean() > 0.5


SOLVE = """
import paddle_ext

def work(path):
    with np.load(sys.argv[4]) as known:
        support, labels = (torch.from_numpy(known[name]) for name in ("support", "labels"))
    return paddle_ext.solve(
        support, labels, path, max_iter=2, tol=0.0, return_assignments=False
    )

found = bounded(work)
np.savez(sys.argv[5], labels=found.labels.numpy(), proportions=found.proportions.numpy())
"""


@pytest.mark.slow
def test_solving_in_less_memory_than_the_file_has(tmp_path: Path) -> None:
    """Two iterations, each of which reads the file again."""
    support, labels, query = task(80_000, 16, 128)
    query = (query * torch.linspace(0.7, 1.3, 8).view(-1, 1, 1)).flatten(0, 1)
    large, small, known, output = (
        tmp_path / name for name in ("large.npy", "small.npy", "known.npz", "found.npz")
    )
    np.save(large, query.numpy())
    np.save(small, query[:3000].numpy())
    np.savez(known, support=support.numpy(), labels=labels.numpy())
    allowed = 208 * 2**20
    assert query.nbytes > 1.5 * allowed
    try:
        refused, used = run_bounded(SOLVE, large, small, allowed, known, output)
    finally:
        large.unlink()  # pytest keeps the folders of some runs
    assert refused == "refused"
    assert int(used.split()[1]) < 160 * 2**20
    usual = paddle_ext.solve(support, labels, query, max_iter=2, tol=0.0)
    with np.load(output) as found:
        assert (found["labels"] == usual.labels.numpy()).mean() > 0.9999
        np.testing.assert_allclose(found["proportions"], usual.proportions.numpy(), atol=1e-5)
