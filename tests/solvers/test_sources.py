"""Rows of tensors, indices and files: in order, in bounded memory, with no thread left behind."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_files import FORMATS, D, N, features, together, write, write_parquet

import paddle_ext
from paddle_ext.large.sources import FileRows, IndexedRows, Rows, TensorRows

# --- what a caller's rows must be -----------------------------------------------------------------


class Given:
    """Rows of a caller, which may not be what they say."""

    device = torch.device("cpu")

    def __init__(self, shape: tuple[int, ...], chunks: list[torch.Tensor], dtype: Any) -> None:
        self.shape, self.given, self.dtype = shape, chunks, dtype

    def chunks(self, size: int) -> Any:
        return iter(self.given)


@pytest.mark.parametrize("solver", [paddle_ext.solve, paddle_ext.adaptive])
@pytest.mark.parametrize(
    ("shape", "chunks", "dtype", "message"),
    [
        (
            (300, 8),
            [torch.randn(200, 8)],
            torch.float32,
            r"a chunk of shape \[300, 8\], float32, on cpu after 0 rows, got \[200, 8\]",
        ),
        ((300, 8), [], torch.float32, "300 rows, as its shape says, got 0"),
        ((300, 8), [torch.randn(301, 8)], torch.float32, r"got \[301, 8\], float32"),
        ((300, 8), [torch.randn(300, 8).double()], torch.float32, r"got \[300, 8\], float64"),
        ((300, 8), [torch.randn(300, 8), torch.randn(0, 8)], torch.float32, r"got \[0, 8\]"),
        ((300, 8), [np.ones((300, 8), np.float32)], torch.float32, "got ndarray"),
        ((300, 8), [torch.ones(300, 8).long()], torch.int64, "floating-point rows .*, got int64"),
        ((3, 2, 8), [torch.randn(3, 2, 8)], torch.float32, r"got float32 of shape \[3, 2, 8\]"),
    ],
)
def test_rows_that_are_not_what_they_say(
    solver: Any, shape: Any, chunks: Any, dtype: torch.dtype, message: str
) -> None:
    support, labels = torch.randn(20, 8), torch.arange(5).repeat(4)
    with pytest.raises(ValueError, match=f"query must .*{message}"):
        solver(support, labels, Given(shape, chunks, dtype))


def test_rows_of_a_file_that_are_too_large_for_the_support(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    centres, truth = random.normal(size=(5, 8)), random.integers(0, 5, 200)
    support = centres[np.arange(5).repeat(4)] + 0.1 * random.normal(size=(20, 8))
    rows = centres[truth] + 0.1 * random.normal(size=(200, 8))
    for length in (1.0, 1e40, 1e280):
        rows[50] *= length / np.linalg.norm(rows[50])
        np.save(tmp_path / "rows.npy", rows)
        known = torch.from_numpy(support).float(), torch.arange(5).repeat_interleave(4)
        for every in (True, False):
            found = paddle_ext.adaptive(*known, tmp_path / "rows.npy", return_assignments=every)
            assert (found.labels.numpy() == truth).mean() > 0.98


# --- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "dtype"), FORMATS)
def test_files_give_their_rows(tmp_path: Path, kind: str, dtype: str) -> None:
    """Whole and in part; in the inference mode of the caller too."""
    x = features(dtype)
    path = write(tmp_path, kind, x)
    rows = FileRows(path)
    assert isinstance(rows, Rows)
    assert (rows.shape, rows.dtype, rows.device) == ((N, D), x.dtype, torch.device("cpu"))
    for size in (7, 64, 250, N, 10 * N):
        lengths = [len(chunk) for chunk in rows.chunks(size)]
        assert lengths == [size] * (N // size) + [N % size] * (N % size > 0)
        with torch.inference_mode():
            assert torch.equal(together(rows, size), x)
    for start, stop in ((0, 1), (99, 101), (100, 200), (150, None)):
        rows = FileRows(path, start=start, stop=stop)
        assert rows.shape == tuple(x[start:stop].shape)
        assert torch.equal(together(rows, 32), x[start:stop])
    assert list(FileRows(path, start=N).chunks(32)) == []


def test_other_folders_processes_and_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object may be pickled, the working directory changed, the bytes in any order."""
    x = features("float64")
    np.save(tmp_path / "rows.npy", x.numpy().astype(">f8"))
    monkeypatch.chdir(tmp_path)
    rows = FileRows("rows.npy")
    monkeypatch.chdir("/")
    assert torch.equal(together(pickle.loads(pickle.dumps(rows)), 100), x)


def test_names_of_tensors_and_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    x = features()
    path = tensors(tmp_path / "rows.safetensors", features=X, text=-X, mean=X[0])
    assert torch.equal(together(FileRows(path), 300), x)
    assert torch.equal(together(FileRows(path, name="text"), 300), -x)
    path = tmp_path / "rows.parquet"
    kind = pa.fixed_shape_tensor(pa.float32(), [D])  # of another library
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D)
    write_parquet(path, "lists", -X, tensors=pa.ExtensionArray.from_storage(kind, lists))
    assert torch.equal(together(FileRows(path, column="tensors"), 300), x)
    assert torch.equal(together(FileRows(path), 300), -x)


def test_tensors_and_indices() -> None:
    x = features("float16")
    index = torch.tensor([5, 0, 1000, 5])
    for rows, expected in ((TensorRows(x), x), (IndexedRows(x, index), x[index])):
        assert isinstance(rows, Rows)
        assert (rows.shape, rows.dtype) == (tuple(expected.shape), torch.float16)
        assert torch.equal(together(rows, 3), expected)
    assert next(TensorRows(x).chunks(10)).data_ptr() == x.data_ptr()


def test_progress(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = write(tmp_path, "npy", features())
    rows = FileRows(path, progress=lambda done, total: told.append((done, total)))
    for _ in rows.chunks(400):
        pass
    assert told == [(400, N), (800, N), (N, N)]


# --- what is refused ----------------------------------------------------------------------------


def cut(path: Path, kept: float = 0.9) -> Path:
    os.truncate(path, int(path.stat().st_size * kept))
    return path


def tensors(path: Path, **given: Any) -> Path:
    library = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    library.save_file({k: torch.from_numpy(x).clone() for k, x in given.items()}, path)
    return path


X = features().numpy()
BAD_FILES: list[tuple[str, Callable[[Path], object], str]] = [
    ("x.txt", lambda p: p.write_bytes(b"1"), r"must end in one of \.npy, .*\.parquet"),
    ("x.npy", os.mkfifo, "must be a regular file, got a pipe"),
    ("x.parquet", os.mkfifo, "must be a regular file, got a pipe"),
    ("x.npy", Path.mkdir, "must be a file, got a folder"),
    (
        "x.npy",
        lambda p: p.write_bytes(b"\x93NUMPY\x01\x00\xff\xff{"),
        "must be a complete .npy file",
    ),
    ("x.npy", lambda p: (np.save(p, X), cut(p)), "must be a complete .npy file"),
    ("x.npy", lambda p: np.save(p, X[0]), r"shape \[N, D\] .* got float32 of shape \[7\]"),
    ("x.npy", lambda p: np.save(p, X[:0]), r"got float32 of shape \[0, 7\]"),
    ("x.npy", lambda p: np.save(p, X.astype(int)), "floating-point rows .* got int64"),
    ("x.npy", lambda p: np.save(p, X.astype(np.longdouble)), "floating-point rows .* got float128"),
    ("x.npy", lambda p: np.save(p, X.astype(object)), "got Python objects"),
    ("x.npy", lambda p: np.save(p, np.asfortranarray(X)), "got float32 in Fortran order"),
    ("x.npz", lambda p: p.write_bytes(b"PK"), r"must not be an archive, .* numpy\.save as \.npy"),
    ("x.safetensors", lambda p: cut(tensors(p, x=X)), "must be a complete .safetensors file"),
    ("x.safetensors", lambda p: tensors(p, x=X.astype(int)), r"got I64 of shape \[1001, 7\]"),
    ("x.safetensors", lambda p: tensors(p, x=X[0], y=X[1]), r"name must be .* \('x', 'y'\)"),
    ("x.safetensors", lambda p: tensors(p, x=X, y=X), r"name must be .* \('x', 'y'\) .* None"),
]


@pytest.mark.parametrize(("name", "make", "sentence"), BAD_FILES)
def test_bad_files(
    tmp_path: Path, name: str, make: Callable[[Path], object], sentence: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    make(tmp_path / name)
    with pytest.raises(ValueError, match=sentence) as raised:
        FileRows(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value)


def lists(*rows: Any) -> Any:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    return pa.array(rows, pa.list_(pa.float32()))


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (lambda: lists([1, 2], [3], [4, 5]), "2 numbers in each row, got 1 in row 1"),
        (lambda: lists([1, 2], [3, 4], None), "2 numbers in each row, got nothing in row 2"),
        (lambda: lists([1, 2], [3, None]), "2 numbers in each row, got a missing value in row 1"),
        (lambda: lists(*[[1, 2]] * 37, [1]), "got 1 in row 37"),  # of the file, not of a row group
        (lambda: lists(), "at least one row .* got 0 rows and 0 features"),
        (lambda: lists(None, [1]), "at least one feature .* got 2 rows and 0 features"),
        (lambda: [1.0, 2.0], "lists of float16, float32 or float64 .* got double"),
        (lambda: [[1, 2], [3, 4]], "lists of float16, float32 or float64 .* got list<"),
    ],
)
def test_bad_columns(tmp_path: Path, column: Callable[[], Any], sentence: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"embedding": column()}), path, row_group_size=10)
    with pytest.raises(ValueError, match=sentence) as raised:
        together(FileRows(path), 4)
    assert str(path) in str(raised.value)


def test_damaged_parquet(tmp_path: Path) -> None:
    """One wrong bit, which the checksum of its page finds, and a file that was cut."""
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    path = tmp_path / "rows.parquet"
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"embedding": lists(*features().tolist())}), path, **options)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"rows\.parquet must be a complete .* CRC"):
        together(FileRows(path), 400)
    with pytest.raises(ValueError, match=r"must be a complete \.parquet file"):
        FileRows(cut(path, 0.999))


@pytest.mark.parametrize("kind", ["npy", "safetensors", "lists.parquet"])
def test_files_that_change(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind, features())
    rows = FileRows(path)
    assert len(together(rows, 400)) == N
    write(tmp_path, kind, features(rows=N - 1))
    with pytest.raises(ValueError, match="must not change while it is in use"):
        together(rows, 400)


def test_a_file_cut_while_it_is_read(tmp_path: Path) -> None:
    """An error, where a mapped file would end the process."""
    path = write(tmp_path, "npy", features(rows=20 * N))
    chunks = FileRows(path).chunks(10)
    next(chunks)
    os.truncate(path, 10_000)
    with pytest.raises(ValueError, match="not change while it is in use, got one that was cut"):
        list(chunks)


@pytest.mark.parametrize(
    ("kind", "arguments", "sentence"),
    [
        ("npy", {"start": 5, "stop": 3}, "start and stop must be .* got 5 and 3"),
        ("npy", {"stop": N + 1}, f"<= {N}, the rows of .* got 0 and {N + 1}"),
        ("npy", {"start": -1}, "start must be an integer in"),
        ("npy", {"start": 0.5}, "start must be an integer, got float"),
        ("npy", {"device": "mps"}, "device must be the CPU or a CUDA device"),
        ("npy", {"name": "x"}, "name must be None unless the file is .safetensors, got 'x'"),
        ("safetensors", {"name": "x"}, "name must be the tensor of .*'labels'.* got 'x'"),
        ("lists.parquet", {"column": "x"}, "column must be a column of .*'id'.* got 'x'"),
    ],
)
def test_bad_arguments(tmp_path: Path, kind: str, arguments: dict[str, Any], sentence: str) -> None:
    path = write(tmp_path, kind, features())
    with pytest.raises((TypeError, ValueError), match=sentence):
        FileRows(path, **arguments)
    with pytest.raises(ValueError, match=r"size must be an integer in \[1"):
        FileRows(path).chunks(0)
    with pytest.raises(FileNotFoundError, match=r"there\.npy"):
        FileRows(tmp_path / "there.npy")
