"""Files that are damaged or hostile: one sentence that names them, and little memory."""

import io
import re
import resource
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paddle_ext.labels import label_text, numbered, sorted_names, whole_numbers
from paddle_ext.research.data import FeatureBank, image_arrays

pytest.importorskip("safetensors", reason="needs safetensors")

ROWS, WIDTH = 4000, 8
SUFFIXES = (".npz", ".safetensors", ".pt", "")  # the last is a folder of .npy files


def whole_file(folder: Path, suffix: str) -> tuple[Path, Path]:
    """An intact bank, and the file in it that has the features."""
    path = folder / f"bank{suffix}"
    bank = FeatureBank(torch.randn(ROWS, WIDTH), torch.arange(ROWS) % 5)
    if suffix == ".pt":
        torch.save({"features": bank.features, "labels": bank.labels}, path)
    elif suffix:
        bank.save(path)
    else:
        path.mkdir()
        np.save(path / "features.npy", bank.features.numpy())
        np.save(path / "labels.npy", bank.labels.numpy())
        return path, path / "features.npy"
    return path, path


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """A file that takes much memory fails instead of filling that of the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with Path("/proc/self/status").open() as file:
        used = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + 2**31, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def refused(path: Path, message: str, mmap: bool = False) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        FeatureBank.load(path, mmap=mmap)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:5],
        lambda whole: whole[:100],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-30],
        lambda whole: b"\x00\xff" * 400,
        lambda whole: whole[:6] + b"\xff" * 40 + whole[46:],
    ],
    ids=["empty", "5 bytes", "100 bytes", "half", "all but 30", "other", "header"],
)
def test_damaged(tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes]) -> None:
    path, file = whole_file(tmp_path, suffix)
    assert len(FeatureBank.load(path, mmap=suffix != ".npz")) == ROWS
    file.write_bytes(damage(file.read_bytes()))
    for mmap in (False, True):
        if suffix != ".npz" or not mmap:
            refused(path, f"{re.escape(file.name)} must (be a complete|hold only) ", mmap)


def test_changed_bytes(tmp_path: Path) -> None:
    """An archive has checksums."""
    path, _ = whole_file(tmp_path, ".npz")
    whole = bytearray(path.read_bytes())
    whole[2000] ^= 1
    path.write_bytes(whole)
    refused(path, "must be a complete .npz file .* Bad CRC")


def npy(shape: tuple[int, ...], data: bytes) -> bytes:
    """A file whose header claims any shape."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


@pytest.mark.parametrize("shape", [(10**6, 5120), (10**12, 10**6), (-1, 3)])
def test_claimed_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    folder, file = whole_file(tmp_path, "")
    file.write_bytes(npy(shape, bytes(100)))
    for mmap in (False, True):
        refused(folder, r"features.npy must be a complete \.npy file", mmap)
    with zipfile.ZipFile(tmp_path / "bank.npz", "w") as archive:
        for name in ("features.npy", "labels.npy"):
            archive.write(folder / name, name)
    refused(tmp_path / "bank.npz", "must be a complete .npz file")


def test_a_small_archive_of_large_arrays(tmp_path: Path) -> None:
    path = tmp_path / "bank.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("features.npy", npy((2**25, 1), bytes(2**27)))
    refused(path, r"not expand to more than it holds, got an array 'features' of 1342\d+ bytes in")
    with pytest.raises(ValueError, match="must not expand to more than it holds"):
        image_arrays(path)


def test_compressed_features_are_read(tmp_path: Path) -> None:
    path, rows = tmp_path / "bank.npz", np.zeros((20_000, 64), np.float32)
    rows[::100, 5] = 1.0  # mostly zeros
    np.savez_compressed(path, features=rows, labels=np.zeros(20_000, int))
    assert path.stat().st_size < rows.nbytes / 50
    assert np.array_equal(FeatureBank.load(path).features.numpy(), rows)


# --- torch --------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("called",)


def nested(levels: int) -> list[object]:
    """A list of the same list twice, and so on: 2^levels numbers in some hundred bytes."""
    value: list[object] = [1.0, 2.0]
    for _ in range(levels):
        value = [value, value]
    return value


X, Y = torch.zeros(3, 3), torch.arange(3)
REPEATED = torch.zeros(1).expand(10**8, 512)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize(
    "contents",
    [
        (nested(60), Y),
        (X, ["a", nested(60), "b"]),
        {0: nested(60)},
        {"features": REPEATED, "labels": Y},
        {0: REPEATED},
        {"features": X.to_sparse(), "labels": Y},
        {"features": X, "labels": Y, "base_mean": torch.zeros(3, device="meta")},
        {"features": X.to(torch.complex64), "labels": Y},
        {"features": X, "labels": ["x" * 100_000, *map(str, range(2000))], "split": [1]},
        {0: X, 1: X[:, :2]},
        {0: X[0]},
        [1, 2, 3],
        {},
    ],
)
def test_odd_torch_files(tmp_path: Path, contents: Any, mmap: bool) -> None:
    path = tmp_path / "bank.pt"
    torch.save(contents, path)
    refused(path, "must ", mmap)


def test_torch_files_that_name_a_function(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "bank.pt"
    torch.save((X, Evil()), path)
    refused(path, "must hold only tensors, strings, numbers and containers of them, got .*print")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_torch_files_of_other_records(tmp_path: Path, kind: int) -> None:
    """What torch.load trusts: that a part is stored, with as many bytes as its tensor needs."""
    path, changed = tmp_path / "bank.pt", tmp_path / "changed.pt"
    torch.save((torch.zeros(123456, 2), torch.zeros(5).long()), path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(changed, "w", kind) as new:
        for name in old.namelist():
            short = kind == zipfile.ZIP_STORED and name.endswith("/data/0")
            new.writestr(name, old.read(name)[: 8 if short else None])
    refused(changed, "must be a complete file of torch.save")


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "[1]", '"a"'])
@pytest.mark.parametrize("name", ["class_names", "splits"])
def test_json_that_is_no_list_of_names(tmp_path: Path, name: str, text: str) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "bank.safetensors"
    tensors = {"features": torch.zeros(2, 2), "labels": torch.tensor([0, 0])}
    save_file(tensors | {"split_index": torch.zeros(2, dtype=torch.int32)}, path, {name: text})
    refused(path, "cannot be read: |must have strings as")


# --- labels -------------------------------------------------------------------------------------


def test_one_rule_for_no_label() -> None:
    for value in ("", "  ", "-1", -1, -1.0, None, float("nan"), "NaN", "nan", "NA", "None", b"-1"):
        assert label_text(value) == ""
    for value in ("n/a", "N/A", "#N/A", "?", " - ", "unknown", "Unknown"):
        assert label_text(value) == ""
    for value in ("none", "Na", "0", "no label", "-1.5", "unknown bird"):
        assert label_text(value) == value
    numbers = [label_text(value) for value in (0, 3.0, np.int8(4), 2.5, True)]
    assert numbers == ["0", "3", "4", "2.5", "True"]
    assert sorted_names(["b", "", "a", "b"]) == ["a", "b"]
    assert sorted_names(["10", "9", "", "10"]) == ["9", "10"]
    assert numbered(["b", ""], ["a", "b"]).tolist() == [1, -1]
    assert whole_numbers(torch.tensor([1.0, -1.0], dtype=torch.bfloat16)).tolist() == [1, -1]
