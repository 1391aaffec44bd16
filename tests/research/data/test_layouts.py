"""Datasets in their usual layouts, on a small scale."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from toy_images import random_pixels, write_image

from paddle_ext.research.data import layouts
from paddle_ext.research.data.images import ImageSet
from paddle_ext.research.data.layouts import read_list

LIST = "a/1.jpg,cat\nb/2.PNG,dog\n"


# --- lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        LIST,
        "filename,label\n" + LIST,
        "Filename, Label\n" + LIST.replace(",", " , "),
        "\ufefffilename,label\r\n" + LIST.replace("\n", "\r\n"),
        "\n" + LIST + "\n\n",
        "label,id,filename\ncat,7,a/1.jpg\ndog,8,b/2.PNG\n",
        LIST.replace("\n", ",more\n"),
    ],
    ids=["none", "header", "spaces", "windows", "blank lines", "other columns", "more columns"],
)
def test_list_with_or_without_header(tmp_path: Path, text: str) -> None:
    (tmp_path / "list.csv").write_text(text, encoding="utf-8", newline="")
    assert read_list(tmp_path / "list.csv") == [("a/1.jpg", "cat"), ("b/2.PNG", "dog")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must list at least one image, got none"),
        ("name,label\n" + LIST, "must begin with an image or with a header that has 'filename'"),
        ("filename,kind\n" + LIST, "a header that has 'filename' and 'label', got"),
        (LIST + "c/3.jpg\n", r"a file name and a label in each row, got \['c/3.jpg'\] in row 3"),
    ],
)
def test_bad_lists(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_list(tmp_path / "list.csv")


def test_no_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a CSV file"):
        read_list(tmp_path / "list.csv")
    (tmp_path / "list.csv").write_bytes(b"\xff\xfe\x00jpg")
    with pytest.raises(ValueError, match="must be a CSV file"):
        read_list(tmp_path / "list.csv")


# --- folders and lists of images -----------------------------------------------------------------


def make(root: Path, names: list[str]) -> None:
    """Images whose first pixel identifies one of `names`."""
    for number, name in enumerate(names):
        pixels = torch.full((9, 9, 3), 10 * number, dtype=torch.uint8)
        write_image(root / name, pixels)


def told(images: ImageSet) -> list[tuple[int, str]]:
    """Which image and which class, one after the other."""
    numbers = (images.read(range(len(images)))[:, 0, 0, 0].long() // 10).tolist()
    labels = images.labels.tolist()
    return [(n, images.class_names[label]) for n, label in zip(numbers, labels, strict=True)]


@pytest.mark.parametrize("header", ["filename,label\n", ""])
@pytest.mark.parametrize("folder", ["images", ""])
@pytest.mark.parametrize("lists", ["", "split"])
def test_mini_imagenet(tmp_path: Path, header: str, folder: str, lists: str) -> None:
    make(tmp_path / folder, ["n2_1.png", "n1_1.png", "n2_2.png", "n3_1.png"])
    (tmp_path / lists).mkdir(exist_ok=True)
    rows = "n2_1.png,n2\nn1_1.png,n1\nn2_2.png,n2\n"
    (tmp_path / lists / "train.csv").write_text(header + rows)
    (tmp_path / lists / "val.csv").write_text(header + "n3_1.png,n3\n")
    base = layouts.open_images("mini", tmp_path, "base", size=9)
    assert told(base) == [(0, "n2"), (1, "n1"), (2, "n2")]
    assert (base.split, base.class_names, base.shape) == ("base", ("n1", "n2"), (9, 9, 3))
    assert told(layouts.open_images("mini", tmp_path, "train", size=9)) == told(base)
    assert told(layouts.open_images("mini", tmp_path, "val", size=9)) == [(3, "n3")]
    with pytest.raises(ValueError, match=r"must have the list test.csv"):
        layouts.open_images("mini", tmp_path, "test")


def test_lists_elsewhere(tmp_path: Path) -> None:
    make(tmp_path / "pictures", ["1.png"])
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "val.csv").write_text("1.png,one\n")
    root = tmp_path / "pictures"
    assert told(layouts.open_images("mini", root, "val", lists=tmp_path / "lists")) == [(0, "one")]


def test_list_of_other_images(tmp_path: Path) -> None:
    make(tmp_path, ["1.png"])
    (tmp_path / "val.csv").write_text("2.png,one\n")
    with pytest.raises(ValueError, match=r"must have the images of .*val.csv, got no 2.png"):
        layouts.open_images("mini", tmp_path, "val")


def test_tiered_imagenet_by_folders(tmp_path: Path) -> None:
    names = ["train/n2/b.png", "train/n2/a.png", "train/n1/c.png", "val/n3/d.png", "test/n4/e.png"]
    make(tmp_path, names)
    (tmp_path / "train" / "n1" / "readme.txt").write_text("no image")
    (tmp_path / "train" / "n1" / "._c.png").write_text("what another system left")
    assert told(layouts.open_images("tiered", tmp_path, "base")) == [
        (2, "n1"),
        (1, "n2"),
        (0, "n2"),
    ]
    assert told(layouts.open_images("tiered", tmp_path, "test")) == [(4, "n4")]


def test_tiered_imagenet_by_lists(tmp_path: Path) -> None:
    make(tmp_path / "data", ["test_0_7_0.png", "test_0_3_1.png"])
    (tmp_path / "test.csv").write_text("test_0_7_0.png,7\ntest_0_3_1.png,3\n")
    assert told(layouts.open_images("tiered", tmp_path, "novel")) == [(0, "7"), (1, "3")]


def test_inaturalist_keeps_the_first_row_and_one_order_of_classes(tmp_path: Path) -> None:
    make(tmp_path, ["repr/12/a.png", "repr/7/b.png", "query/12/c.png", "query/9/d.png"])
    (tmp_path / "repr.csv").write_text("repr/12/a.png,12\nrepr/7/b.png,7\n")
    (tmp_path / "query.csv").write_text("query/12/c.png,12\nquery/9/d.png,9\n")
    support = layouts.open_images("inatural", tmp_path, "repr")
    query = layouts.open_images("inatural", tmp_path, "query")
    assert told(support) == [(0, "12"), (1, "7")]
    assert told(query) == [(2, "12"), (3, "9")]
    assert support.class_names == query.class_names == ("12", "7", "9")
    with pytest.raises(ValueError, match="split must be one of 'base', 'val', 'repr', 'query'"):
        layouts.open_images("inatural", tmp_path, "test")


def test_image_folder(tmp_path: Path) -> None:
    hidden = [".thumbnails/1.png", "cat/.cache/3.png", "cat/.4.png"]
    make(tmp_path, ["owl/1.png", "cat/deep/2.png", "cat/1.png", *hidden])
    images = layouts.image_folder(tmp_path, split="all", size=None, channels=1)
    assert told(images) == [(2, "cat"), (1, "cat"), (0, "owl")]
    assert (images.split, images.shape) == ("all", (9, 9, 1))
    (tmp_path / "bat").mkdir()
    with pytest.raises(ValueError, match="bat must have at least one image, got none"):
        layouts.image_folder(tmp_path)
    with pytest.raises(ValueError, match="must have one folder for each class"):
        layouts.image_folder(tmp_path / "bat")
    with pytest.raises(ValueError, match="root must be a folder"):
        layouts.image_folder(tmp_path / "none")


def test_folder_of_splits(tmp_path: Path) -> None:
    make(tmp_path, ["train/a/1.png", "novel/b/2.png"])
    assert told(layouts.open_images("folder", tmp_path, "base")) == [(0, "a")]
    assert told(layouts.open_images("folder", tmp_path, "test")) == [(1, "b")]
    with pytest.raises(ValueError, match="must have a folder val or validation, got none"):
        layouts.open_images("folder", tmp_path, "val")


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"layout must be one of 'mini', .* got 'cub'"):
        layouts.open_images("cub", tmp_path, "base")
    with pytest.raises(ValueError, match="split must be one of 'base', 'val', 'test', got 'x'"):
        layouts.open_images("mini", tmp_path, "x")


# --- arrays --------------------------------------------------------------------------------------


def packed(numbers: list[int]) -> dict[str, np.ndarray]:
    """Encoded images whose pixels tell their number."""
    contents = []
    for number in numbers:
        file = io.BytesIO()
        pixels = np.full((9, 9, 3), 10 * number, np.uint8)
        Image.fromarray(pixels).save(file, "WEBP", lossless=True)
        contents.append(np.frombuffer(file.getvalue(), np.uint8))
    offsets = np.cumsum([0] + [len(content) for content in contents])
    return {"webp": np.concatenate(contents), "offsets": offsets}


def test_encoded_arrays_of_several_files(tmp_path: Path) -> None:
    wnids = np.array(["n1", "n2"])
    for part, (numbers, labels) in enumerate([([0, 1, 2], [0, 0, 1]), ([3, 4], [1, 0])]):
        names = np.array([f"{number}.jpg" for number in numbers])
        arrays = {"labels": np.array(labels, np.int16), "wnids": wnids, "filenames": names}
        np.savez(tmp_path / f"base-{part}.npz", **packed(numbers), **arrays)
    images = layouts.open_images("npz", tmp_path, "base")
    assert told(images) == [(0, "n1"), (1, "n1"), (2, "n2"), (3, "n2"), (4, "n1")]
    assert (images.shape, images.split) == ((9, 9, 3), "base")
    assert layouts.open_images("npz", tmp_path, "base", size=6).shape == (6, 6, 3)
    with pytest.raises(ValueError, match=r"must have val.npz or val-0.npz, got neither"):
        layouts.open_images("npz", tmp_path, "val")


def test_a_damaged_image_in_an_array_is_named(tmp_path: Path) -> None:
    arrays = packed([0, 1, 2])
    arrays["webp"][arrays["offsets"][1] : arrays["offsets"][2]] = 0
    arrays |= {"labels": np.zeros(3, int), "wnids": np.array(["n1"])}
    np.savez(tmp_path / "a.npz", filenames=np.array(["x.jpg", "y.jpg", "z.jpg"]), **arrays)
    images = layouts.image_arrays(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"a.npz: y.jpg must be an image"):
        images.read([0, 1, 2])


def test_plain_arrays_and_their_splits(tmp_path: Path) -> None:
    pixels = random_pixels(6, 5, 5).numpy()
    np.savez(
        tmp_path / "all.npz",
        images=pixels,
        labels=np.array([0, 1, 2, 2, 1, 0], np.int16),
        class_names=np.array(["a", "b", "c"]),
        class_split=np.array(["base", "test", "base"]),
    )
    base = layouts.open_images("npz", tmp_path / "all.npz", "base")
    assert base.class_names == ("a", "c")
    assert base.labels.tolist() == [0, 1, 1, 0]
    assert torch.equal(base.read(range(4))[..., 0], torch.from_numpy(pixels[[0, 2, 3, 5]]))
    assert layouts.open_images("npz", tmp_path / "all.npz", "test").class_names == ("b",)
    with pytest.raises(ValueError, match="must have classes of the split 'val'"):
        layouts.open_images("npz", tmp_path / "all.npz", "val")
    with pytest.raises(ValueError, match="size must be None for images that are not encoded"):
        layouts.open_images("npz", tmp_path / "all.npz", "base", size=84)


def test_encoded_arrays_and_their_splits(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "all.npz",
        labels=np.array([0, 1, 0]),
        wnids=np.array(["a", "b"]),
        class_split=np.array(["test", "base"]),
        **packed([0, 1, 2]),
    )
    assert told(layouts.open_images("npz", tmp_path / "all.npz", "test")) == [(0, "a"), (2, "a")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, "must have 'labels', got"),
        ({"images": None}, "must have 'images' or 'encoded' or 'webp'"),
        ({"images": np.zeros((3, 4, 4))}, "must have images as uint8, got float64"),
        ({"labels": np.zeros(2, int)}, "one label for each image, 3, got 2"),
        ({"labels": np.zeros(3)}, "'labels' as integers of rank 1, got float64"),
        ({"labels": np.array([0, 0, 1])}, r"must have labels in \[0, 1\)"),
        ({"filenames": np.array(["x"])}, "must have 3 filenames, got 1"),
        ({"class_names": np.array([{}])}, "texts as 'class_names', got Python objects"),
    ],
)
def test_bad_arrays(tmp_path: Path, change: dict[str, np.ndarray | None], message: str) -> None:
    arrays = {
        "images": np.zeros((3, 4, 4), np.uint8),
        "labels": np.zeros(3, int),
        "class_names": np.array(["a"]),
    }
    np.savez(tmp_path / "a.npz", **{k: v for k, v in (arrays | change).items() if v is not None})
    with pytest.raises(ValueError, match=message):
        layouts.image_arrays(tmp_path / "a.npz")


def test_bad_offsets_and_files(tmp_path: Path) -> None:
    arrays = packed([0, 1]) | {"labels": np.zeros(2, int), "wnids": np.array(["a"])}
    for offsets in ([0, 9, 10**6], [0, 9, 3], [-1, 9, 12]):
        np.savez(tmp_path / "a.npz", **(arrays | {"offsets": np.array(offsets)}))
        with pytest.raises(ValueError, match="must have increasing offsets"):
            layouts.image_arrays(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", **arrays)
    whole = (tmp_path / "a.npz").read_bytes()
    for content in (whole[:-40], b"", b"no file"):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"a.npz must be a complete .npz file"):
            layouts.image_arrays(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="which does not exist"):
        layouts.image_arrays(tmp_path / "b.npz")
    with pytest.raises(ValueError, match="paths must have at least one file, got none"):
        layouts.image_arrays([])


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    for name in ("a", "b"):
        arrays = {"labels": np.zeros(2, int), "wnids": np.array([name])}
        np.savez(tmp_path / f"{name}.npz", images=np.zeros((2, 4, 4), np.uint8), **arrays)
    with pytest.raises(ValueError, match=r"b.npz must have the classes and arrays of .*a.npz"):
        layouts.image_arrays([tmp_path / "a.npz", tmp_path / "b.npz"])
