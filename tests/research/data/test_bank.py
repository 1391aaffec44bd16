"""Feature banks: parts of them, their files, and errors for invalid ones."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paddle_ext.research.data import FeatureBank

N, D = 9, 5
LABELS = [0, 2, 1, 0, -1, 1, 2, 0, 1]
NAMES = ["cat", "dog", "Eichhörnchen"]
SPLIT = ["train", "test", "val", "train", "oos", "test", "train", "test", "test"]


def features(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(0)).to(dtype)


def make_bank(**changes: Any) -> FeatureBank:
    parts = {
        "features": features(),
        "labels": torch.tensor(LABELS),
        "class_names": NAMES,
        "split": SPLIT,
        "base_mean": torch.arange(D) / 3,
    }
    return FeatureBank(**parts | changes)


def assert_same(a: FeatureBank, b: FeatureBank) -> None:
    assert a.features.dtype == b.features.dtype
    assert torch.equal(a.features, b.features)
    assert torch.equal(a.labels, b.labels)
    assert a.class_names == b.class_names
    assert a.num_classes == b.num_classes
    assert (a.split is None) == (b.split is None)
    assert a.split is None or a.split.tolist() == b.split.tolist()
    assert (a.base_mean is None) == (b.base_mean is None)
    assert a.base_mean is None or torch.equal(a.base_mean, b.base_mean)


def refused(call: Callable[[], object], message: str, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert ", got " in str(caught.value)


# --- in memory ------------------------------------------------------------------------------------


def test_what_a_bank_says() -> None:
    bank = make_bank(labels=torch.tensor(LABELS, dtype=torch.int16))
    assert len(bank) == N
    assert bank.labels.dtype == torch.int64
    assert bank.num_classes == 3
    assert bank.class_names == tuple(NAMES)
    assert bank.counts().tolist() == [3, 3, 2]
    assert bank.splits == ("oos", "test", "train", "val")
    assert repr(bank) == (
        "FeatureBank(9 rows, 5 features float32, 3 classes, splits oos test train val)"
    )
    plain = FeatureBank(features(), torch.tensor(LABELS))
    assert (plain.class_names, plain.split, plain.base_mean, plain.splits) == (None, None, None, ())
    assert plain.num_classes == 3
    assert make_bank(split="test").splits == ("test",)


def test_take_classes() -> None:
    bank = make_bank()
    for classes in (["Eichhörnchen", "cat"], [2, 0], torch.tensor([2, 0]), ["Eichhörnchen", 0]):
        part = bank.take_classes(classes)
        assert part.labels.tolist() == [1, 0, 1, 0, 1]
        assert torch.equal(part.features, bank.features[[0, 1, 3, 6, 7]])
        assert part.class_names == ("Eichhörnchen", "cat")
        assert part.split.tolist() == ["train", "test", "train", "train", "test"]
        assert part.base_mean is bank.base_mean


def test_take_all_classes_that_have_rows() -> None:
    part = make_bank().subset(split="train").take_classes()
    assert part.labels.tolist() == [0, 0, 1]
    assert part.class_names == ("cat", "Eichhörnchen")
    assert make_bank().take_classes().labels.tolist() == [x for x in LABELS if x >= 0]


def test_subset() -> None:
    bank = make_bank()
    rows = torch.tensor([7, 1])
    mask = torch.zeros(N, dtype=torch.bool)
    mask[[1, 7]] = True
    for part, order in ((bank.subset(rows), [7, 1]), (bank.subset(mask), [1, 7])):
        assert torch.equal(part.features, bank.features[order])
        assert part.labels.tolist() == [LABELS[row] for row in order]
        assert part.class_names == bank.class_names
    assert bank.rows("test").tolist() == [1, 5, 7, 8]
    assert bank.rows(["oos", "val"]).tolist() == [2, 4]
    assert_same(bank.subset(split="test"), bank.subset(torch.tensor([1, 5, 7, 8])))


def test_to(device: str) -> None:
    bank = make_bank()
    half = bank.to(device, torch.float16)
    assert half.features.dtype == torch.float16
    assert half.base_mean.dtype == torch.float16
    assert half.features.device.type == half.labels.device.type == device
    assert_same(bank, bank.to(device).to("cpu"))
    part = bank.to(device).take_classes([1]).subset(torch.tensor([0, 2]))
    assert torch.equal(part.features.cpu(), bank.features[[2, 8]])


def test_not_finite() -> None:
    bank = make_bank()
    assert bank.check_finite() is bank
    bank.features[6, 2] = float("nan")
    refused(bank.check_finite, "features must be finite, got nan at [6, 2]")
    large = torch.zeros(2**16 + 3, 2)
    large[2**16 + 1, 1] = float("-inf")
    bank = FeatureBank(large, torch.zeros(len(large)).long())
    refused(bank.check_finite, "features must be finite, got -inf at [65537, 1]")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"features": [[1.0]]}, TypeError, "features must be a tensor or an array, got list"),
        ({"features": features().long()}, TypeError, "features must be float16, bfloat16"),
        ({"features": torch.zeros(N)}, ValueError, "features must have shape [N, D] with"),
        ({"labels": torch.zeros(N)}, TypeError, "labels must be a tensor of integers, got float32"),
        ({"labels": torch.zeros(4).long()}, ValueError, "labels must have one label for each row"),
        ({"labels": torch.full((N,), 3)}, ValueError, "labels must be in [0, 3), or -1"),
        (
            {"labels": torch.full((N,), 10**12)},
            ValueError,
            "labels must be below 16777216, the limit",
        ),
        ({"features": features().to_sparse()}, TypeError, "features must be a dense tensor, got a"),
        ({"features": features().to("meta")}, TypeError, "features must be a tensor with data"),
        ({"labels": torch.zeros(N).long().to("meta")}, TypeError, "labels must be a tensor with"),
        ({"class_names": "cat"}, TypeError, "class_names must be a sequence of strings, got str"),
        (
            {"class_names": {"a", "b"}},
            TypeError,
            "class_names must be a sequence of strings, got set",
        ),
        ({"class_names": ["a", "b", "a\0"]}, ValueError, "class_names must not have a NUL"),
        ({"class_names": [1, 2, 3]}, TypeError, "class_names must be strings, got int"),
        ({"split": ["a"]}, ValueError, "split must have one name for each row of features, "),
        ({"split": [1] * N}, TypeError, "split must be strings, got int"),
        ({"base_mean": torch.zeros(4)}, ValueError, "base_mean must have one number for each"),
        ({"base_mean": [0.0] * D}, TypeError, "base_mean must be a tensor or an array, got list"),
    ],
)
def test_bad_parts(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    refused(lambda: make_bank(**changes), message, error)


def test_bad_classes_and_rows() -> None:
    bank = make_bank()
    plain = FeatureBank(features(), torch.tensor(LABELS))
    refused(lambda: bank.take_classes(["cow"]), "labels or names of this bank, got 'cow'")
    refused(lambda: plain.take_classes(["cat"]), "labels or names of this bank, got 'cat'")
    refused(lambda: bank.take_classes([3]), "classes must be in [0, 3), got 3")
    refused(lambda: bank.take_classes([-1]), "classes must be in [0, 3), got -1")
    refused(lambda: bank.take_classes([]), "classes must have at least one class, got none")
    refused(lambda: bank.take_classes([0, "cat"]), "must not have a class twice, got 0 more")
    refused(lambda: bank.take_classes([0.5]), "labels or names, got float", TypeError)
    train = bank.subset(split="train")
    refused(lambda: train.take_classes([1]), "classes must have rows, got only empty classes")
    refused(lambda: bank.subset(), "rows or split must be given, got neither")
    refused(lambda: bank.subset(torch.tensor([0]), split="test"), "must be given, got both")
    refused(lambda: bank.subset(torch.tensor([N])), f"rows must be in [0, {N}), got {N}")
    refused(lambda: bank.subset(torch.ones(3).bool()), f"rows must be a mask of shape [{N}], got")
    refused(
        lambda: bank.subset(torch.zeros(N).bool()),
        "rows must have shape [n] with n at least 1, got [0]",
    )
    refused(lambda: bank.subset([0]), "rows must be a tensor or an array, got list", TypeError)
    refused(lambda: bank.rows("dev"), "split must be one of 'oos', 'test', 'train', 'val', got")
    refused(lambda: plain.rows("test"), "split must be one of none (the bank has no splits")
    refused(lambda: bank.rows([]), "split must have at least one name, got none")


def test_only_rows_without_a_class(tmp_path: Path) -> None:
    """A split, a part or the whole of a bank may hold only rows labelled -1."""
    bank = make_bank(labels=torch.tensor([0, 1, -1, -1] + [2] * (N - 4)))
    odd = bank.subset(torch.tensor([2, 3]))
    assert odd.labels.tolist() == [-1, -1]
    assert odd.counts().tolist() == [0, 0, 0]
    nothing = FeatureBank(features(), torch.full((N,), -1), split="oos")
    assert (nothing.num_classes, nothing.counts().tolist()) == (0, [])
    refused(nothing.take_classes, "classes must have at least one class, got none")
    for path in (tmp_path / "bank.npz", tmp_path / "bank.safetensors"):
        nothing.save(path)
        loaded = FeatureBank.load(path)
        assert (loaded.labels == -1).all()
        assert len(loaded.subset(split="oos")) == N


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "mmap"), [("bank.npz", False), ("bank.safetensors", False), ("bank.safetensors", True)]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_save_and_load(tmp_path: Path, file: str, mmap: bool, dtype: torch.dtype) -> None:
    plain = FeatureBank(features(dtype), torch.tensor(LABELS))
    for bank in (make_bank(features=features(dtype)), plain):
        bank.save(tmp_path / file)
        assert_same(bank, FeatureBank.load(str(tmp_path / file), mmap=mmap))
        assert [path.name for path in tmp_path.iterdir()] == [file]


def test_bfloat16(tmp_path: Path) -> None:
    bank = make_bank(features=features(torch.bfloat16))
    bank.save(tmp_path / "bank.safetensors")
    assert_same(bank, FeatureBank.load(tmp_path / "bank.safetensors"))
    refused(lambda: bank.save(tmp_path / "bank.npz"), "end in .safetensors for bfloat16 features")


def test_npz_is_plain_numpy(tmp_path: Path) -> None:
    """NumPy can read the saved file, and a file saved by NumPy can be read."""
    bank = make_bank()
    bank.save(tmp_path / "ours.npz")
    with np.load(tmp_path / "ours.npz") as arrays:
        assert sorted(arrays) == ["base_mean", "class_names", "features", "labels", "split"]
        assert arrays["class_names"].tolist() == NAMES
        assert np.array_equal(arrays["features"], bank.features.numpy())
        for save in (np.savez, np.savez_compressed):
            save(tmp_path / "theirs.npz", **arrays, filename=np.array(["x"] * N))
            assert_same(bank, FeatureBank.load(tmp_path / "theirs.npz"))


def test_other_names(tmp_path: Path) -> None:
    path = tmp_path / "bank.npz"
    labels = np.array([0, 2, 1, 0, 0, 1, 2, 0, 1], dtype=np.uint16)
    np.savez(
        path,
        concat_features=features().numpy().astype(">f4"),
        concat_labels=labels.astype(np.float64),
        wnids=np.array([b"n01", b"n02", b"n03"]),
        train_mean=np.zeros(D),
        class_split=np.array(["val", "test", "val"]),
    )
    bank = FeatureBank.load(path)
    assert torch.equal(bank.features, features())
    assert bank.labels.tolist() == labels.tolist()
    assert bank.class_names == ("n01", "n02", "n03")
    assert bank.splits == ("test", "val")
    assert bank.rows("test").tolist() == [2, 5, 8]
    assert bank.base_mean is not None
    np.savez(path, features=features().numpy(), labels=labels)
    assert FeatureBank.load(path).labels.tolist() == labels.tolist()
    split = np.array(["train", "test", "test"])
    np.savez(path, features=features().numpy(), labels=np.array(LABELS), class_split=split)
    assert FeatureBank.load(path).splits == ("no class", "test", "train")


@pytest.mark.parametrize("mmap", [False, True])
def test_folder_of_arrays(tmp_path: Path, mmap: bool) -> None:
    bank = make_bank()
    for name in ("features", "labels", "base_mean"):
        np.save(tmp_path / f"{name}.npy", getattr(bank, name).numpy())
    np.save(tmp_path / "class_names.npy", np.array(NAMES))
    np.save(tmp_path / "split.npy", np.array(SPLIT))
    assert_same(bank, FeatureBank.load(tmp_path, mmap=mmap))


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("form", ["names", "pair", "classes"])
def test_torch_files(tmp_path: Path, form: str, mmap: bool) -> None:
    x, path = features(), tmp_path / "bank.pt"
    labels = torch.tensor([0, 0, 0, 3, 3, 3, 3, 7, 7])
    torch.save(
        {
            "names": {"features": x, "labels": labels, "class_names": [*"abcdefgh"], "epoch": 3},
            "pair": (x, labels),
            "classes": {0: x[:3], 3: x[3:7], 7: x[7:]},
        }[form],
        path,
    )
    bank = FeatureBank.load(path, mmap=mmap)
    assert torch.equal(bank.features, x)
    assert torch.equal(bank.labels, labels)
    assert (bank.class_names is None) == (form != "names")


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["cat", "dog", "", "dog", "None", "cat"]),
        np.array([b"cat", b"dog", b"-1", b"dog", b"NA", b"cat"]),
        ["cat", "dog", None, "dog", float("nan"), "cat"],
        np.array([0.0, 1.0, np.nan, 1.0, -1.0, 0.0]),
    ],
    ids=["text", "bytes", "list", "gaps"],
)
def test_labels(tmp_path: Path, labels: Any) -> None:
    path = tmp_path / ("bank.pt" if isinstance(labels, list) else "bank.npz")
    if path.suffix == ".pt":
        torch.save({"features": features()[:6], "labels": labels}, path)
    else:
        np.savez(path, features=features()[:6].numpy(), labels=labels)
    bank = FeatureBank.load(path)
    assert bank.labels.tolist() == [0, 1, -1, 1, -1, 0]
    assert bank.class_names in (("cat", "dog"), None)


@pytest.mark.parametrize("file", ["bank.safetensors", "folder"])
def test_mapped(tmp_path: Path, file: str) -> None:
    """The features are in the file, and writing to them does not change it."""
    path = tmp_path / file
    bank = FeatureBank(torch.randn(5000, 64), torch.arange(5000) % 7)
    if path.suffix:
        bank.save(path)
        features_file = path
    else:
        path.mkdir()
        features_file = path / "features.npy"
        np.save(features_file, bank.features.numpy())
        np.save(path / "labels.npy", bank.labels.numpy())
    content = features_file.read_bytes()
    loaded, maps = FeatureBank.load(path, mmap=True), Path("/proc/self/maps")
    if maps.exists():
        assert str(features_file) in maps.read_text()
        del loaded
        copied = FeatureBank.load(path)
        assert str(features_file) not in maps.read_text()
        assert_same(bank, copied)
        loaded = FeatureBank.load(path, mmap=True)
    loaded.features.zero_()
    assert features_file.read_bytes() == content
    bank.save(tmp_path / "bank.npz")
    refused(lambda: FeatureBank.load(tmp_path / "bank.npz", mmap=True), "mmap must be False for .n")


# --- bad contents ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": [0], "labels": [0]}, "'features' or 'concat_features', got 'images', 'labels'"),
        ({"features": [[0.0]]}, "must have 'labels' or 'concat_labels', got 'features'"),
        ({}, "must have 'features' or 'concat_features', got nothing"),
        ({"features": [[0.0]], "labels": [0, 1]}, "labels must have one label for each row"),
        ({"features": [["a"]], "labels": [0]}, "must have numbers as 'features', got strings"),
        ({"features": [[0.0]], "labels": [0.5]}, "labels must be integers or names, got 0.5"),
        ({"features": [[0.0]], "labels": [1e300]}, "must be class numbers"),
        ({"features": [[0.0]], "labels": np.array([2**64 - 1], np.uint64)}, "numbers as 'labels'"),
        ({"features": [[0.0]], "labels": ["x"], "class_names": ["a"]}, "among the 1 class_names"),
        ({"features": [[0.0]], "labels": [1], "class_names": ["a"]}, "in [0, 1), or -1 for no"),
        ({"features": [[0.0]], "labels": [0], "class_names": [7]}, "strings as 'class_names', got"),
        ({"features": [[0.0]], "labels": [1], "class_split": ["a"]}, "class_split for every label"),
        (
            {"features": [[0.0]], "labels": np.array(["a"], dtype=object)},
            "must have numbers or texts as 'labels', got Python objects: save texts as array.asty",
        ),
    ],
)
def test_bad_contents(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "bank.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        FeatureBank.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths(tmp_path: Path) -> None:
    for file in ("none.npz", "none.safetensors", "none.pt"):
        with pytest.raises(FileNotFoundError, match=file):
            FeatureBank.load(tmp_path / file)
    for file in ("bank.plk", "bank.pkl", "bank.pickle"):
        with pytest.raises(ValueError, match=r"must not be a pickle, .* docs/data.md"):
            FeatureBank.load(tmp_path / file)
    refused(lambda: FeatureBank.load(tmp_path / "bank.h5"), "end in .npz, .safetensors, .pt, .pth")
    refused(lambda: FeatureBank.load(tmp_path), "must have 'features' or 'concat_features', got no")
    refused(lambda: make_bank().save(tmp_path / "bank.pt"), "path must end in .npz or .safetensors")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        make_bank().save(tmp_path / "nowhere" / "bank.npz")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_pipes(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"pipe{suffix}")
    with pytest.raises(ValueError, match="must be a regular file, got a pipe, a socket"):
        FeatureBank.load(tmp_path / f"pipe{suffix}")


def test_safetensors_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        make_bank().save(tmp_path / "bank.safetensors")
    with pytest.raises(ImportError, match="pip install safetensors"):
        FeatureBank.load(tmp_path / "bank.safetensors")
