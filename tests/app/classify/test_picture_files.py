"""Real-world folders: any names, any files, images that change, no place for a cache."""

import os
import sqlite3
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from classify_data import classified, labels_of_files, pattern, picture_folders, said, small_network
from PIL import Image

from paddle_ext import decoding
from paddle_ext.app.classify import Report, Settings
from paddle_ext.app.read import pictures as pictures_module
from paddle_ext.app.read.encoders import digest_of_files, open_text_model
from paddle_ext.app.read.pictures import PictureReader, images_of
from paddle_ext.decoding import UnreadableError, open_picture, read_picture_file
from paddle_ext.feature_cache import FeatureCache, digest
from paddle_ext.files import cache_or_temporary, user_cache

pytestmark = pytest.mark.usefixtures("quick_network")


@pytest.fixture
def formats() -> Iterator[None]:
    """Formats are detected once per process."""
    decoding.known_formats.cache_clear()
    yield
    Image.OPEN.pop("HEIF", None)
    decoding.known_formats.cache_clear()


def reasons(report: Report) -> dict[str, str]:
    return {Path(path).name: why for path, why in report.unreadable.items()}


# --- any names ------------------------------------------------------------------------------------


def test_photos_of_a_phone(tmp_path: Path, formats: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are recognised by content; every file of a folder is listed."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    labelled, new = picture_folders(tmp_path)
    picture = pattern(0, 50)
    picture.save(new / "a.jfif", "JPEG")
    picture.save(new / "without", "PNG")
    picture.save(new / "B.WEBP", "WEBP")
    picture.save(new / "wrong.txt", "PNG")
    picture.save(new / "c.avif", "AVIF")
    (new / "IMG_0001.HEIC").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200))
    (new / "clip.MOV").write_bytes(b"\0\0\0\x14ftypqt  \0\0\0\0qt  " + bytes(200))
    (new / "letter.pdf").write_bytes(b"%PDF-1.4\n" + bytes(200))
    (new / "drawing.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    report = classified(labelled, new, tmp_path)
    answered = labels_of_files(tmp_path)
    assert {"a.jfif", "without", "B.WEBP", "wrong.txt", "c.avif"} <= set(answered)
    assert all(answered[name] == "stripes" for name in ("a.jfif", "without", "c.avif"))
    assert reasons(report) == {
        "IMG_0001.HEIC": "a HEIC photo, which needs pillow-heif: pip install 'paddle_ext[heic]'",
        "clip.MOV": "not an image",
        "letter.pdf": "not an image",
        "drawing.eps": "not an image",
    }
    everything = [path for path in new.rglob("*") if path.is_file()]
    assert len(answered) + len(report.unreadable) == len(everything)
    for name in reasons(report):
        assert name in report.page.read_text()


def test_heic_where_its_library_is_there(
    tmp_path: Path, formats: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pillow-heif registers a format with Pillow; here one that is really a PNG."""
    from PIL.PngImagePlugin import PngImageFile

    heif = ModuleType("pillow_heif")

    def register() -> None:
        Image.register_open("HEIF", PngImageFile, lambda first: first.startswith(b"\x89PNG"))

    heif.register_heif_opener = register
    monkeypatch.setitem(sys.modules, "pillow_heif", heif)
    assert "HEIF" in decoding.known_formats()
    pattern(0, 0).save(tmp_path / "a.png")
    with open_picture((tmp_path / "a.png").read_bytes()) as picture:
        assert picture.size == (64, 48)


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    """One such name must not end a run; it is shown with its bytes as numbers."""
    labelled, new = picture_folders(tmp_path)
    (labelled / "stripes").rename(labelled / os.fsdecode(b"ray\xe9"))
    content = (new / "deep" / "stripes" / "0.jpg").read_bytes()
    for name, what in ((b"caf\xe9.jpg", content), (b"bad\xff.jpg", b"hello")):
        Path(os.fsdecode(os.fsencode(new) + b"/" + name)).write_bytes(what)
    report = classified(labelled, new, tmp_path)
    assert labels_of_files(tmp_path)["caf\\xe9.jpg"] == "ray\\xe9"
    assert reasons(report) == {"bad\\xff.jpg": "not an image"}
    assert "caf\\xe9.jpg" in report.page.read_text(encoding="utf-8")
    assert "bad\\xff.jpg: not an image" in said(labelled, new, "--output", tmp_path)


# --- any files ------------------------------------------------------------------------------------


def bomb(width: int, height: int) -> bytes:
    """A PNG of zeros, thousands of times smaller than its pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + check

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x06\x00\x00\x00"
    rows = zlib.compress(bytes(1000))  # the header is enough to refuse it
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("warns", ["ignore", "error"])
def test_files_without_an_end_and_too_large_ones(
    tmp_path: Path, warns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import warnings

    labelled, new = picture_folders(tmp_path)
    os.mkfifo(new / "pipe.png")
    (new / "zero.png").symlink_to("/dev/zero")
    (new / "gone.png").symlink_to(tmp_path / "nothing")
    (new / "folder.png").symlink_to(labelled)
    for name, side in (("large", 12_000), ("huge", 60_000)):
        (new / f"{name}.png").write_bytes(bomb(side, side))
    monkeypatch.setattr(decoding, "MOST_BYTES", 100_000)
    (new / "long.jpg").write_bytes((new / "deep/chess/0.jpg").read_bytes() + bytes(200_000))
    with warnings.catch_warnings():
        warnings.simplefilter(warns, Image.DecompressionBombWarning)
        report = classified(labelled, new, tmp_path)
    assert len(report.answers) == 6
    found = reasons(report)
    assert found.pop("huge.png") == "3600000000 pixels, more than 89 million"
    assert found.pop("large.png") in (
        "12000 x 12000 pixels, more than 89 million",
        "144000000 pixels, more than 89 million",
    )
    assert found == {
        "pipe.png": "a pipe, a socket or a device",
        "zero.png": "a pipe, a socket or a device",
        "gone.png": "No such file or directory",
        "folder.png": "a link to a folder, which is not followed",
        "long.jpg": "larger than 0 MiB",
    }


def test_only_one_large_image_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(decoding, "LARGE", 100)
    pattern(0, 0).save(tmp_path / "a.png")
    content = read_picture_file(tmp_path / "a.png")
    with open_picture(content):
        assert decoding.one_large_picture.locked()
    assert not decoding.one_large_picture.locked()
    monkeypatch.setattr(decoding, "MOST_PIXELS", 100)
    with pytest.raises(UnreadableError, match=r"^64 x 48 pixels, more than"), open_picture(content):
        pass
    assert not decoding.one_large_picture.locked()


def test_an_error_of_the_network_is_no_damaged_image(tmp_path: Path) -> None:
    pattern(0, 0).save(tmp_path / "whole.png")

    def broken(picture: Image.Image) -> torch.Tensor:
        raise RuntimeError("invalid thread pool")

    reader = PictureReader(replace(small_network(1.0), prepare=broken), None, {})
    with pytest.raises(RuntimeError, match="thread pool"):
        reader(images_of(tmp_path, [tmp_path / "whole.png"], None))


# --- the cache ------------------------------------------------------------------------------------


def features_of(path: Path, cache: Path | None = None, weight: float = 1.0) -> torch.Tensor:
    reader = PictureReader(small_network(weight), cache, {})
    return reader(images_of(path.parent, [path], None)).features


def test_an_image_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features are stored under the digest of the decoded bytes, and of no others."""
    old, new = tmp_path / "old.png", tmp_path / "new.png"
    pattern(0, 0).save(old)
    pattern(2, 0).save(new)
    path = tmp_path / "picture.png"
    path.write_bytes(old.read_bytes())
    digests = pictures_module.file_digest

    def replaced(given: str) -> bytes | str:
        found = digests(given)
        path.write_bytes(new.read_bytes())  # between its digest and its decoding
        return found

    cache = tmp_path / "cache"
    monkeypatch.setattr(pictures_module, "file_digest", replaced)
    features = features_of(path, cache)
    monkeypatch.undo()
    expected = {name: features_of(name) for name in (old, new)}
    assert torch.equal(features, expected[new])
    for name in (old, new):
        assert torch.equal(features_of(name, cache), expected[name])


def test_a_network_that_was_trained_further(tmp_path: Path) -> None:
    """The cache depends on weights, not on names."""
    pattern(0, 0).save(tmp_path / "a.png")
    cache = tmp_path / "cache"
    first, second = (features_of(tmp_path / "a.png", cache, weight) for weight in (1.0, 2.0))
    assert torch.allclose(second, 2 * first)


class Sentences(torch.nn.Module):
    """The used part of a sentence-transformers model."""

    def __init__(self, name: str, device: str) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(float((Path(name) / "scale").read_text())))

    def encode(self, texts: list[str], **_: object) -> torch.Tensor:
        return self.scale.detach() * torch.tensor([[float(len(text)), 1.0] for text in texts])


def test_a_text_model_that_was_trained_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(SentenceTransformer=Sentences)
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    monkeypatch.setitem(sys.modules, "torchvision", None)  # `classify` would hide a broken one
    model = tmp_path / "model"
    model.mkdir()
    place = torch.device("cpu")
    for scale in (1.0, 3.0):
        (model / "scale").write_text(str(scale))
        encode = open_text_model(str(model), place, tmp_path / "cache")
        assert encode(["abc"]).tolist() == [[3 * scale, scale]]
    (model / "tokenizer.json").write_text("{}")
    open_text_model(str(model), place, tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_digests_of_files_know_where_one_ends(tmp_path: Path) -> None:
    def made(**contents: str) -> str:
        folder = tmp_path / "_".join(contents)
        folder.mkdir(exist_ok=True)
        for name, text in contents.items():
            (folder / name).write_text(text)
        return digest_of_files(folder)

    assert made(a="12", b="3") != made(a="1", b="23")
    assert made(a="12", b="3") == made(a="12", b="3")
    assert made(a="12") != made(c="12")


@pytest.mark.parametrize("place", ["/proc/nobody/cache", "/dev/null/cache"])
def test_a_home_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    labelled, new = picture_folders(tmp_path)
    report = classified(labelled, new, tmp_path, cache=Path(place))
    assert len(report.answers) == 6
    (note,) = (note for note in report.notes if "not cached" in note)
    assert note.startswith(f"features are not cached: {place}: ")


def test_a_cache_that_becomes_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached features are used; new ones are computed, and not stored."""
    rows = {digest(b"a"): torch.ones(2)}
    FeatureCache(tmp_path, "key").put(rows)
    notes: list[str] = []
    cache = FeatureCache(tmp_path, "key", notes)
    assert cache.path is not None
    read_only, connect = f"file:{cache.path}?mode=ro", sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: connect(read_only, uri=True))
    assert torch.equal(cache.get([digest(b"a")])[digest(b"a")], torch.ones(2))
    for _ in range(2):
        cache.put({digest(b"b"): torch.zeros(2)})
    assert len(notes) == 1
    assert "attempt to write a readonly database" in notes[0]
    assert np.array_equal(list(cache.get([digest(b"a"), digest(b"b")])), [digest(b"a")])


def test_damaged_rows_of_a_cache_count_as_missing(tmp_path: Path) -> None:
    """A bit that changed, the row of another image, cells of other types."""
    one, other, third = (digest(letter) for letter in (b"a", b"b", b"c"))
    cache, rows = FeatureCache(tmp_path, "key"), {one: torch.ones(2), other: torch.zeros(2)}
    cache.put(rows)
    with closing(sqlite3.connect(str(cache.path))) as database, database:
        (kept,) = database.execute("SELECT row FROM features WHERE digest = ?", (one,)).fetchone()
        for cell in (bytes([kept[0] ^ 1]) + kept[1:], kept[:-1], b"", "text", 5, None):
            database.execute("UPDATE features SET row = ? WHERE digest = ?", (cell, one))
            database.commit()
            assert list(cache.get([one, other])) == [other], cell
        database.execute("INSERT INTO features VALUES (?, ?)", (third, kept))
    assert list(cache.get([one, other, third])) == [other]
    cache.put(rows)
    assert torch.equal(cache.get([one])[one], torch.ones(2))


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("no home directory")))
    assert user_cache("classify") is None
    assert Settings().cache is None
    assert cache_or_temporary("demo").is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert cache_or_temporary("demo").is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_or_temporary("demo") == tmp_path / "paddle_ext" / "demo"
