"""Pickles of other programs: plain data is read, and nothing in them is ever run."""

import collections
import contextlib
import io
import pickle
import pickletools
import random
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paddle_ext.research.data import FeatureBank, plain_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
TRACE: list[object] = []


def touched(*arguments: object) -> list[int]:
    """The function that a malicious pickle would call."""
    TRACE.append(arguments)
    return [1]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return touched, ("called",)


def load(data: bytes) -> Any:
    return plain_pickle.load(io.BytesIO(data))


def bank_file(folder: Path, value: object, protocol: int = 4) -> Path:
    path = folder / "output.plk"
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and a == b


# --- plain data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_containers(protocol: int) -> None:
    value = {"a": [1, 2.5, "ä", None, True], 3: {"b": b"\x00\xff"}, "c": 10**40}
    assert load(pickle.dumps(value, protocol)) == value
    assert load(pickle.dumps((1, [2]), protocol)) == [1, [2]]
    ordered = collections.OrderedDict([("x", 1), ("y", 2)])
    grouped = collections.defaultdict(list, {3: [1], 1: [2]})
    assert load(pickle.dumps([ordered, grouped], protocol)) == [{"x": 1, "y": 2}, {3: [1], 1: [2]}]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        np.arange(6, dtype=">f8").reshape(3, 2),
        np.arange(12, dtype=np.float16).reshape(2, 6)[:, ::2],
        np.array([True, False]),
        np.array(["ab", "c"]),
        np.array(3, dtype=np.uint8),
        np.zeros((0, 4), dtype=np.float32),
    ],
)
def test_arrays(protocol: int, array: Any) -> None:
    (got,) = load(pickle.dumps([array], protocol))
    assert got.dtype == array.dtype.newbyteorder("=")
    assert got.shape == array.shape
    assert np.array_equal(got, array)
    assert got.flags.writeable


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scalars_of_numpy(protocol: int) -> None:
    assert load(pickle.dumps({np.int64(3): np.float32(0.5)}, protocol)) == {3: 0.5}


def test_names_of_older_numpy() -> None:
    data = pickle.dumps(np.arange(4), 2).replace(b"numpy._core", b"numpy.core")
    assert b"numpy.core" in data
    assert load(data).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("protocol", PROTOCOLS[2:])
@pytest.mark.parametrize("dtype", plain_pickle.STORAGES.values(), ids=str)
def test_tensors(protocol: int, dtype: torch.dtype) -> None:
    base = torch.arange(24).to(dtype)
    views = [base, base.view(4, 6), base.view(4, 6).t(), base[5:9], base[::3], base[:0], base[3]]
    got = load(pickle.dumps(views, protocol))
    assert all(equal(a, b) for a, b in zip(views, got, strict=True))


def test_a_tensor_with_gradient_and_a_shared_storage() -> None:
    x = torch.randn(3, requires_grad=True)
    a, b, c = load(pickle.dumps([x, x, x.detach()[1:]]))
    assert equal(a, x.detach())
    assert equal(b, x.detach())
    assert equal(c, x.detach()[1:])


# --- banks of others ------------------------------------------------------------------------------


FEATURES = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 2, 1, 0])


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        {"concat_features": FEATURES, "concat_labels": LABELS},
        {"train_mean": FEATURES[0], "test": collections.defaultdict(list)}
        | {"concat_features": FEATURES, "concat_labels": LABELS.float()},
        [FEATURES, LABELS],
        (FEATURES.numpy(), LABELS.tolist()),
        {"features": FEATURES.numpy(), "labels": LABELS.numpy().astype(np.int32)},
    ],
    ids=["paddle", "tim", "pair", "arrays", "names"],
)
def test_features_and_labels(tmp_path: Path, value: Any, protocol: int) -> None:
    bank = FeatureBank.load(bank_file(tmp_path, value, protocol))
    assert torch.equal(bank.features, FEATURES)
    assert torch.equal(bank.labels, LABELS)
    has_mean = isinstance(value, dict) and "train_mean" in value
    assert (bank.base_mean is not None) == has_mean


@pytest.mark.parametrize("as_list", [False, True])
def test_classes_and_their_rows(tmp_path: Path, as_list: bool) -> None:
    """As saved by S2M2, PT-MAP and SimpleShot."""
    value: dict[int, Any] = collections.defaultdict(list)
    for k in (2, 0, 1):
        rows = FEATURES[k == LABELS].numpy()
        value[k] = list(rows) if as_list else rows
    bank = FeatureBank.load(bank_file(tmp_path, value))
    assert bank.labels.tolist() == [2, 2, 0, 0, 1, 1]
    assert torch.equal(bank.features, FEATURES[[2, 3, 0, 5, 1, 4]])


def test_support_and_query_of_tim(tmp_path: Path) -> None:
    support = {0: FEATURES[:1], 1: FEATURES[1:2]}
    query = {0: FEATURES[2:4], 1: FEATURES[4:]}
    value = {"train_mean": FEATURES[0], "support": support, "query": query}
    bank = FeatureBank.load(bank_file(tmp_path, value))
    assert torch.equal(bank.features, FEATURES)
    assert bank.labels.tolist() == [0, 1, 0, 0, 1, 1]
    assert bank.rows("support").tolist() == [0, 1]
    assert bank.rows("query").tolist() == [2, 3, 4, 5]
    assert bank.base_mean is not None


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        {"features": FEATURES, "labels": LABELS, "class_names": ["a", "b", "c"]},
        (FEATURES, LABELS),
        {k: FEATURES[k == LABELS] for k in range(3)},
    ],
    ids=["names", "pair", "classes"],
)
def test_files_of_torch(tmp_path: Path, value: Any, mmap: bool) -> None:
    path = tmp_path / "bank.pt"
    torch.save(value, path)
    bank = FeatureBank.load(path, mmap=mmap)
    assert torch.equal(bank.features[bank.labels == 2], FEATURES[LABELS == 2])
    assert bank.class_names == (("a", "b", "c") if "class_names" in value else None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            [FEATURES],
            "names and arrays, or features and labels, or classes and their rows, got list",
        ),
        ({}, "or classes and their rows, got dict"),
        ({"x": FEATURES}, "must have 'features' or 'concat_features', got 'x'"),
        ({0: FEATURES, 1: FEATURES[:, :2]}, "must have rows of one shape, got"),
        ({0: []}, "must have rows of one shape, got"),
        ([FEATURES, "abc"], "must have numbers as 'labels', got"),
        ([FEATURES, LABELS[:3]], "labels must have one label for each row"),
    ],
)
def test_other_contents(tmp_path: Path, value: Any, message: str) -> None:
    path = bank_file(tmp_path, value)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        FeatureBank.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


# --- what is refused ------------------------------------------------------------------------------


def storage_of(payload: object) -> bytes:
    """A tensor whose storage, itself a file of several pickles, has another object in it."""
    file = io.BytesIO()
    for part in (plain_pickle.TORCH_MAGIC, 1001, {"little_endian": True}, payload, ["0"]):
        pickle.dump(part, file, 2)
    file.write(struct.pack("<q", 1) + bytes(4))
    return file.getvalue()


def call(module: str, name: str, *arguments: object) -> bytes:
    """A pickle that calls a function by its name."""
    inside = b"".join(pickle.dumps(argument, 2)[2:-1] for argument in arguments)
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"(" + inside + b"tR."


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("place", [lambda x: x, lambda x: [x], lambda x: {"a": (1, x)}])
def test_nothing_is_called(protocol: int, place: Any) -> None:
    TRACE.clear()
    with pytest.raises(ValueError, match=r"NumPy arrays and torch tensors, got '\S*\.touched'$"):
        load(pickle.dumps(place(Evil()), protocol))
    assert not TRACE


def test_nothing_is_called_inside_arrays_and_tensors() -> None:
    TRACE.clear()
    bad = [
        pickle.dumps(np.array([Evil()], dtype=object)),
        pickle.dumps(np.zeros(2, dtype=[("a", "f4")])),
        call("torch.storage", "_load_from_bytes", storage_of(Evil())),
        call("torch.storage", "_load_from_bytes", pickle.dumps(Evil(), 2)),
        call("numpy", "dtype", "O8", False, True),
        call("numpy", "load", "file.npy"),
    ]
    for data in bad:
        with pytest.raises(ValueError, match=r"^it "):
            load(data)
    assert not TRACE


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("builtins", "list.__init__"),
        ("collections", "OrderedDict.fromkeys"),
        ("numpy.core.multiarray", "__dict__"),
        ("torch", "load"),
        ("torch._utils", "_rebuild_parameter"),
        ("copyreg", "_reconstructor"),
        ("torch", "nn.Module"),
    ],
)
def test_names_are_refused(module: str, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"torch tensors, got '{module}.{name}'")):
        load(call(module, name, "echo"))
    stacked = b"\x80\x04" + b"".join(
        b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)
    )
    with pytest.raises(ValueError, match=re.escape(f"torch tensors, got '{module}.{name}'")):
        load(stacked + b"\x93.")


def test_stand_ins_cannot_be_changed_nor_returned() -> None:
    change = b"\x80\x02cnumpy\ndtype\n(dX\x05\x00\x00\x00_makeX\x01\x00\x00\x00xsb."
    with pytest.raises(ValueError, match="got changes of a function"):
        load(change)
    slots = b"\x80\x02cnumpy\ndtype\n(N}X\x05\x00\x00\x00_makeX\x01\x00\x00\x00xstb."
    with pytest.raises(ValueError, match="got changes of a function"):
        load(slots)
    with pytest.raises(ValueError, match="it must hold only plain data, got StandIn"):
        load(b"\x80\x02cnumpy\ndtype\n.")
    for made in (np.arange(3), torch.arange(3), np.float64(2)):
        with pytest.raises(ValueError, match="got changes of an array"):
            load(pickle.dumps(made, 5)[:-1] + b"}b.")
    with pytest.raises(ValueError, match="objects outside"):
        load(b"\x80\x02X\x01\x00\x00\x00aQ.")
    assert load(pickle.dumps(np.arange(3))).tolist() == [0, 1, 2]


def test_unavailable_sizes() -> None:
    tensor = pickle.dumps(torch.arange(4.0), 2)
    assert tensor.count(b"K\x04\x85") == 1  # its size
    with pytest.raises(ValueError, match="must be an intact pickle, got"):
        load(tensor.replace(b"K\x04\x85", b"K\x7f\x85"))
    array = pickle.dumps(np.arange(4.0), 2)
    assert array.count(b"K\x04\x85") == 1
    with pytest.raises(ValueError, match=r"1016 bytes for an array of shape \[127\], got 32"):
        load(array.replace(b"K\x04\x85", b"K\x7f\x85"))
    with pytest.raises(ValueError, match="must be an intact pickle, got"):
        load(b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".")  # a bytearray of 4 EiB
    endless = b"\x80\x02]q\x00h\x00a."  # a list of itself
    with pytest.raises(ValueError, match="must be an intact pickle, got"):
        load(endless)
    with pytest.raises(
        ValueError, match="it must number its parts one by one, got number 2147483647"
    ):
        load(b"\x80\x02]r\xff\xff\xff\x7f.")  # would be 32 GiB of numbers


def test_a_small_pickle_stays_small() -> None:
    """A list of the same list twice, and so on: 2^60 lists if each were copied."""
    value: list[object] = []
    for _ in range(60):
        value = [value, value]
    got = load(pickle.dumps(value))
    for _ in range(60):
        assert got[0] is got[1]
        got = got[0]


@pytest.mark.parametrize("value", [[FEATURES, LABELS], [FEATURES.numpy(), {"a": [1, "b"]}]])
def test_damaged_pickles(tmp_path: Path, value: Any) -> None:
    """Truncated or changed anywhere, a pickle is read or rejected; it raises nothing else."""
    whole = pickle.dumps(value, 2)
    for length in range(0, len(whole), 3):
        with pytest.raises(ValueError, match=r"^it "):
            load(whole[:length])
    numbers = random.Random(0)
    ops = [position for _, _, position in pickletools.genops(whole) if position is not None]
    for _ in range(1000):
        changed = bytearray(whole)
        changed[numbers.choice(ops)] = numbers.randrange(256)
        changed[numbers.randrange(len(whole))] = numbers.randrange(256)
        with contextlib.suppress(ValueError):
            load(bytes(changed))
    path = bank_file(tmp_path, value)
    path.write_bytes(whole[:50])
    with pytest.raises(
        ValueError, match=re.escape(f"{path} is not a pickle of plain data: it must")
    ):
        FeatureBank.load(path)


def test_files_of_torch_are_plain_too(tmp_path: Path) -> None:
    TRACE.clear()
    path = tmp_path / "bank.pt"
    torch.save({"features": FEATURES, "labels": LABELS, "other": Evil()}, path)
    with pytest.raises(ValueError, match=r"must hold only tensors.*, got \S*\.touched$") as caught:
        FeatureBank.load(path)
    assert "\n" not in str(caught.value)
    assert not TRACE
    torch.save({"features": FEATURES, "labels": LABELS}, path)
    whole = path.read_bytes()
    for content in (b"", whole[:100], whole[: len(whole) // 2], b"\x00\xff" * 300):
        path.write_bytes(content)
        for mmap in (False, True):
            with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
                FeatureBank.load(path, mmap=mmap)
            assert "\n" not in str(caught.value)
