"""Files that expand to more than they hold, or never end, are rejected in one sentence."""

import io
import os
import pickle
import re
import struct
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paddle_ext.research.data import FeatureBank, archives, image_arrays
from paddle_ext.research.data.labels import label_text, numbered, sorted_names, whole_numbers

FEATURES = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
LABELS = np.array([0, 1, 2, 2, 1, 0])


def refused(path: Path, message: str, **options: Any) -> None:
    """A one-sentence error, in time and memory proportional to the size of the file."""
    found: list[BaseException] = []

    def load() -> None:
        try:
            FeatureBank.load(path, **options)
        except BaseException as error:  # noqa: BLE001 - looked at below
            found.append(error)

    thread = threading.Thread(target=load, daemon=True)  # one that hangs fails the test
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert [isinstance(error, ValueError) for error in found] == [True]
    assert re.search(message, str(found[0])), str(found[0])
    assert str(path) in str(found[0])
    assert "\n" not in str(found[0])


def nested(levels: int) -> list[object]:
    """A list of the same list twice, and so on: 2^levels numbers in some hundred bytes."""
    value: list[object] = [1.0, 2.0]
    for _ in range(levels):
        value = [value, value]
    return value


# --- more than they hold ------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".plk", ".pt"])
@pytest.mark.parametrize(
    "contents",
    [
        (nested(60), [0, 1]),
        (FEATURES, nested(60)),
        {"features": FEATURES.tolist(), "labels": [0] * 6, "class_names": nested(60)},
        {0: nested(60), 1: nested(60)},
        {"features": FEATURES.tolist(), "labels": [0] * 6, "split": nested(60)},
    ],
    ids=["features", "labels", "names", "classes", "split"],
)
def test_nested_lists(tmp_path: Path, suffix: str, contents: Any) -> None:
    path = tmp_path / f"bank{suffix}"
    if suffix == ".pt":
        plain = tuple(x.tolist() if isinstance(x, np.ndarray) else x for x in contents)
        torch.save(plain if isinstance(contents, tuple) else contents, path)
    else:
        path.write_bytes(pickle.dumps(contents))
    refused(path, "must not expand to more than it holds, got contents of")


@pytest.mark.parametrize("suffix", [".plk", ".pt"])
@pytest.mark.parametrize("mmap", [False, True])
def test_zero_strides(tmp_path: Path, suffix: str, mmap: bool) -> None:
    path = tmp_path / f"bank{suffix}"
    contents = {"features": torch.zeros(1).expand(10**8, 512), "labels": torch.zeros(1).expand(10)}
    if suffix == ".pt":
        torch.save(contents, path)
        refused(path, "must not expand to more than it holds, got contents of 2048", mmap=mmap)
    elif not mmap:
        path.write_bytes(pickle.dumps(contents, 2))
        refused(path, "must not expand to more than it holds, got contents of 2048")


def test_tensors_larger_than_their_record(tmp_path: Path) -> None:
    """What torch.load trusts: how many numbers a part of the file has."""
    path, changed = tmp_path / "bank.pt", tmp_path / "changed.pt"
    torch.save((torch.zeros(123456), torch.zeros(5).long()), path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("/data/0"):
                content = content[:8]
            new.writestr(name, content)
    refused(changed, "must be a complete file of torch.save")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    refused(changed, "a complete file of torch.save, got .*compressed parts")


def test_a_torch_file_that_continues_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "bank.pt"
    torch.save((torch.zeros(5, 2), torch.zeros(5).long()), path)
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x06\x07")  # where a large archive says how many files it has
    content[place + 16] = 7
    path.write_bytes(content)
    refused(path, "must be a complete file of torch.save, got .*span multiple disks")


def test_a_small_archive_of_large_arrays(tmp_path: Path) -> None:
    path = tmp_path / "bank.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("features.npy", "w") as member:
            header = {"descr": "<f4", "fortran_order": False, "shape": (2**16, 512)}
            np.lib.format.write_array_header_1_0(member, header)
            for _ in range(128):
                member.write(bytes(2**20))
        labels = io.BytesIO()
        np.save(labels, np.zeros(2**16, np.int64))
        archive.writestr("labels.npy", labels.getvalue())
    assert path.stat().st_size < 400_000
    refused(path, r"^[^:]*, got an array 'features' of 134217\d\d\d bytes in \d+")
    refused(path, "an array 'features'|mmap must be False", mmap=True)
    with pytest.raises(ValueError, match="must not expand to more than it holds"):
        archives.read_npz(path)


def test_compressed_features_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bank.npz"
    rows = np.zeros((20_000, 64), np.float32)
    rows[::100, 5] = 1.0  # mostly zeros
    np.savez_compressed(path, features=rows, labels=np.zeros(20_000, int))
    assert path.stat().st_size < rows.nbytes / 50
    assert np.array_equal(FeatureBank.load(path).features.numpy(), rows)


def written_header(shape: tuple[int, ...], data: bytes, descr: str = "<f4") -> bytes:
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("shape", [(10**6, 512), (10**12, 10**6), (-1, 3)])
def test_unavailable_shapes(tmp_path: Path, shape: tuple[int, ...], mmap: bool) -> None:
    folder = tmp_path / "bank"
    folder.mkdir()
    (folder / "features.npy").write_bytes(written_header(shape, bytes(100)))
    np.save(folder / "labels.npy", LABELS)
    path = tmp_path / "bank.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("features", "labels"):
            archive.write(folder / f"{name}.npy", f"{name}.npy")
    with pytest.raises(ValueError, match=r"features.npy must be a complete \.npy file"):
        FeatureBank.load(folder, mmap=mmap)
    refused(path, "must be a complete .npz file|mmap must be False", mmap=mmap)


def test_two_arrays_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "bank.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", written_header((1, 1), bytes(4)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("features.npy", written_header((1, 1), bytes(4)))
    refused(path, "two arrays called 'features'")


def test_names_take_the_room_of_the_longest(tmp_path: Path) -> None:
    """An array of texts has the width of its longest one, so one long name makes all long."""
    rows = 50_000
    long = ["x" * 100_000, *map(str, range(rows))]
    contents = {"features": np.zeros((1, 1), np.float32), "labels": [0]}
    path = tmp_path / "bank.plk"
    for more in ({"class_names": long}, {"split": long}):
        path.write_bytes(pickle.dumps(contents | more))
        refused(path, "must not expand to more than it holds, got names")
    contents = {"features": np.zeros((rows, 1), np.float32), "labels": np.zeros(rows, int)}
    path.write_bytes(pickle.dumps(contents | {"class_split": np.array(["x" * 100_000])}))
    refused(path, "must not expand to more than it holds, got names of rows")


# --- files without an end, or cut -----------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt", ".plk"])
def test_pipes_and_devices(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"pipe{suffix}"
    os.mkfifo(path)
    refused(path, "^[^:]*must be a regular file, got a pipe, a socket or a device$")
    path = tmp_path / f"zero{suffix}"
    path.symlink_to("/dev/zero")
    refused(path, "^[^:]*must be a regular file, got a pipe, a socket or a device$")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_cut_files_that_are_mapped(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bank{suffix}"
    bank = FeatureBank(torch.zeros(4000, 8), torch.arange(4000) % 5)
    if suffix == ".pt":
        torch.save({"features": bank.features, "labels": bank.labels}, path)
    else:
        bank.save(path)
    whole = path.read_bytes()
    assert len(FeatureBank.load(path, mmap=True)) == 4000
    for share in (0, 0.01, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        for mmap in (False, True):
            refused(path, "must be a complete|mmap must be", mmap=mmap)


def test_a_folder_that_is_cut(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.zeros((1000, 8), np.float32))
    np.save(tmp_path / "labels.npy", np.zeros(1000, int))
    assert len(FeatureBank.load(tmp_path, mmap=True)) == 1000
    whole = (tmp_path / "features.npy").read_bytes()
    for length in (0, 3, 50, 128, 5000):
        (tmp_path / "features.npy").write_bytes(whole[:length])
        for mmap in (False, True):
            with pytest.raises(ValueError, match=r"features.npy must be a complete \.npy file"):
                FeatureBank.load(tmp_path, mmap=mmap)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, "{}", "[1]", '"a"'])
@pytest.mark.parametrize("name", ["class_names", "splits"])
def test_json_that_is_no_list_of_names(tmp_path: Path, name: str, text: str) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "bank.safetensors"
    tensors = {"features": torch.zeros(2, 2), "labels": torch.tensor([0, 0])}
    tensors["split_index"] = torch.zeros(2, dtype=torch.int32)
    save_file(tensors, path, {name: text})
    refused(path, "cannot be read: |must have strings as")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    "form",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.zeros(3, 3, device="meta"),
        lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
        lambda: torch.zeros(3, 3, dtype=torch.complex64),
    ],
    ids=["sparse", "csr", "meta", "nested", "complex"],
)
def test_other_forms_of_tensors(tmp_path: Path, form: Callable[[], torch.Tensor]) -> None:
    path = tmp_path / "bank.pt"
    for contents in (
        {"features": form(), "labels": torch.arange(3)},
        {"features": torch.zeros(3, 3), "labels": torch.arange(3), "base_mean": form()},
        {0: form()},
        (torch.zeros(3, 3), form()),
    ):
        torch.save(contents, path)
        for mmap in (False, True):
            refused(path, "must|cannot be read", mmap=mmap)


# --- labels: names, objects, numbers ------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["cat", "dog", "", "dog", "None", "cat"]),
        np.array(["cat", "dog", None, "dog", float("nan"), "cat"], dtype=object),
        np.array([b"cat", b"dog", b"-1", b"dog", b"NA", b"cat"]),
    ],
    ids=["text", "object", "bytes"],
)
def test_labels_that_are_names(tmp_path: Path, labels: Any) -> None:
    for path in (tmp_path / "bank.npz", tmp_path / "bank.plk", tmp_path / "folder"):
        if path.suffix == ".npz":
            np.savez(path, features=FEATURES, labels=labels)
        elif path.suffix:
            path.write_bytes(pickle.dumps({"features": FEATURES, "labels": labels}))
        else:
            path.mkdir()
            np.save(path / "features.npy", FEATURES)
            np.save(path / "labels.npy", labels)
        bank = FeatureBank.load(path)
        assert bank.class_names == ("cat", "dog")
        assert bank.labels.tolist() == [0, 1, -1, 1, -1, 0]


def test_objects_in_files_are_plain(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("called",)

    path = tmp_path / "bank.npz"
    for bad in (Evil(), [1, 2], {"a": 1}, np.arange(3)):
        labels = np.empty(6, object)
        labels[:] = [bad] * 6
        np.savez(path, features=FEATURES, labels=labels)
        refused(path, "must be a complete .npz file of plain arrays")


def test_labels_with_given_names(tmp_path: Path) -> None:
    path = tmp_path / "bank.npz"
    names = np.array(["owl", "cat", "dog"])
    np.savez(path, features=FEATURES, labels=names[LABELS], class_names=names)
    assert FeatureBank.load(path).labels.tolist() == LABELS.tolist()
    np.savez(path, features=FEATURES, labels=np.array([0.0, np.nan, 2.0, 2.0, -1.0, 0.0]))
    assert FeatureBank.load(path).labels.tolist() == [0, -1, 2, 2, -1, 0]
    split = np.array(["train", "test", "test"])
    np.savez(path, features=FEATURES, labels=np.array([0, -1, 2, 2, -1, 0]), class_split=split)
    assert FeatureBank.load(path).splits == ("no class", "test", "train")


def test_one_rule_for_no_label() -> None:
    for value in ("", "  ", "-1", -1, -1.0, None, float("nan"), "NaN", "nan", "NA", "None", b"-1"):
        assert label_text(value) == ""
    for value in ("n/a", "N/A", "#N/A", "?", " - ", "unknown", "Unknown"):
        assert label_text(value) == ""
    for value in ("none", "Na", "0", "no label", "-1.5", "unknown bird"):
        assert label_text(value) == value
    assert [label_text(value) for value in (0, 3.0, np.int8(4), 2.5, True)] == [
        "0",
        "3",
        "4",
        "2.5",
        "True",
    ]
    assert sorted_names(["b", "", "a", "b"]) == ["a", "b"]
    assert numbered(["b", ""], ["a", "b"]).tolist() == [1, -1]
    assert whole_numbers(torch.tensor([1.0, -1.0], dtype=torch.bfloat16)).tolist() == [1, -1]


# --- images ---------------------------------------------------------------------------------------


def test_images_in_archives(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        shape = (2**11, 256, 256)
        archive.writestr("images.npy", written_header(shape, bytes(2**27), "|u1"))
        archive.writestr("labels.npy", written_header((2**11,), bytes(2**14), "<i8"))
        archive.writestr("class_names.npy", written_header((1,), struct.pack("<I", 97), "<U1"))
    with pytest.raises(
        ValueError, match="must not expand to more than it holds, got an array 'images'"
    ):
        image_arrays(path)
