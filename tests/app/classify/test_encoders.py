"""Image-text encoders on disk: tiny random models, saved by their libraries."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from classify_data import pattern
from encoder_models import (
    StandInModel,
    open_clip_folder,
    save_onnx_texts,
    save_onnx_towers,
    save_transformers,
    stand_in_folder,
    usable,
)

from paddle_ext.app.read.encoders import check_widths, open_encoder
from paddle_ext.app.read.encoders.opening import EXPECTED
from paddle_ext.app.read.encoders.towers import of_open_clip, of_transformers
from paddle_ext.app.read.networks import Preparation

CPU = torch.device("cpu")
# Ignore warnings of other libraries during import.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("torchvision_operators"),
]


def pixels_of(encoder: Any, picture: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(encoder.images.square(picture)).copy()).unsqueeze(0)


def cosines(encoder: Any, picture: Any, texts: list[str]) -> torch.Tensor:
    images = encoder.image_tower()(pixels_of(encoder, picture))
    return (
        torch.nn.functional.normalize(images)
        @ torch.nn.functional.normalize(encoder.text_tower()(texts)).mT
    )


# --- the libraries themselves -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_transformers(tmp_path: Path, kind: str) -> None:
    """The logits equal those of the model with its own tokenizer and processor."""
    usable("transformers", "CLIPModel")
    model, tokenizer = save_transformers(tmp_path, kind)
    encoder = open_encoder(str(tmp_path), CPU)
    check_widths(encoder)
    texts = ["a photo of a cat.", "a photo of a very large polar bear."]
    picture = pattern(0, 0, (50, 40))
    size = encoder.images.preparation.size
    pixels = pixels_of(encoder, picture)
    normal = (pixels.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    fill = {"padding": "max_length", "max_length": 12} if kind == "siglip" else {"padding": True}
    tokens = tokenizer(texts, return_tensors="pt", **fill)
    wanted = ("input_ids",) if kind == "siglip" else ("input_ids", "attention_mask")
    with torch.no_grad():
        expected = model(pixel_values=normal, **{name: tokens[name] for name in wanted})
    bias = float(model.logit_bias) if kind == "siglip" else 0.0
    found = encoder.logit_scale * cosines(encoder, picture, texts) + bias
    assert pixels.shape == (1, size, size, 3)
    torch.testing.assert_close(found, expected.logits_per_image, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found[:, 0], found[:, 1], atol=1e-6)


def test_transformers_without_a_text_tower(tmp_path: Path) -> None:
    usable("transformers", "CLIPModel")
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = ViTConfig(**sizes, intermediate_size=16, image_size=32, patch_size=16)
    ViTModel(config).save_pretrained(tmp_path)
    encoder = open_encoder(str(tmp_path), CPU)
    with pytest.raises(
        ValueError, match=r"^encoder must have an image tower .* without one for texts"
    ):
        encoder.text_tower()


def test_open_clip(tmp_path: Path) -> None:
    """A folder, and a name with weights, are the same model, which agrees with the library."""
    usable("open_clip", "create_model")
    import open_clip

    model = open_clip_folder(tmp_path / "tiny")
    encoder = open_encoder(str(tmp_path / "tiny"), CPU)
    check_widths(encoder)
    picture, texts = pattern(1, 0, (50, 40)), ["a cat", "a dog on a hill"]
    normal = (pixels_of(encoder, picture).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    with torch.no_grad():
        images = model.encode_image(normal, normalize=True)
        tokens = open_clip.get_tokenizer("ViT-B-32", context_length=16)(texts)
        words = model.encode_text(tokens, normalize=True)
    torch.testing.assert_close(cosines(encoder, picture, texts), images @ words.mT)
    assert encoder.logit_scale == pytest.approx(float(model.logit_scale.exp()))
    (tmp_path / "tiny-CLIP.json").write_text(
        json.dumps(json.loads((tmp_path / "tiny/open_clip_config.json").read_text())["model_cfg"])
    )
    open_clip.add_model_config(tmp_path / "tiny-CLIP.json")
    weights = tmp_path / "tiny" / "open_clip_model.safetensors"
    again = open_encoder(f"open_clip:tiny-CLIP:{weights}", CPU)
    torch.testing.assert_close(again.text_tower()(texts), encoder.text_tower()(texts))


@pytest.mark.parametrize("batch", [None, 1])
def test_onnx(tmp_path: Path, batch: int | None) -> None:
    """A folder, and two files, with any batch or a fixed one."""
    usable("onnxruntime", "InferenceSession")
    usable("tokenizers", "Tokenizer")
    image_weights, words = save_onnx_towers(tmp_path, batch=batch)
    encoder = open_encoder(str(tmp_path), CPU)
    check_widths(encoder)
    picture = pattern(2, 0, (50, 40))
    normal = pixels_of(encoder, picture).permute(0, 3, 1, 2) / 255
    expected = normal.mean((2, 3)) @ torch.from_numpy(image_weights)
    torch.testing.assert_close(encoder.images(pixels_of(encoder, picture)), expected)
    # "cat" is word 2 of the tokenizer, "dog" word 3; padding is masked.
    rows = encoder.text_tower()(["cat", "cat dog", "dog"])
    torch.testing.assert_close(rows, torch.from_numpy(words[[2, 2, 3]] + words[[0, 3, 0]]))
    files = f"{tmp_path / 'onnx/vision_model.onnx'},{tmp_path / 'onnx/text_model.onnx'}"
    assert torch.equal(open_encoder(files, CPU).text_tower()(["dog"]), rows[2:])


def test_onnx_towers_that_do_not_fit(tmp_path: Path) -> None:
    usable("onnxruntime", "InferenceSession")
    usable("tokenizers", "Tokenizer")
    save_onnx_towers(tmp_path)
    save_onnx_texts(tmp_path / "onnx" / "text_model.onnx", np.eye(5, 7, dtype=np.float32), None)
    with pytest.raises(
        ValueError, match=r"towers of one width, .* 4 features per image and 7 per text"
    ):
        check_widths(open_encoder(str(tmp_path), CPU))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"^encoder must have a tokenizer.json next to its text"):
        open_encoder(str(tmp_path), CPU)
    (tmp_path / "onnx" / "text_model.onnx").unlink()
    with pytest.raises(ValueError, match=r"without one for texts"):
        open_encoder(str(tmp_path), CPU).text_tower()


# --- what needs no library ----------------------------------------------------------------------


def test_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opens a transformers model, with a stand-in for the library."""
    stand_in_folder(tmp_path, monkeypatch)
    encoder = open_encoder(str(tmp_path), CPU)
    assert encoder.logit_scale == pytest.approx(StandInModel.SCALE)
    check_widths(encoder)
    other = open_encoder(str(tmp_path), CPU)
    assert other.images.key == encoder.images.key
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert open_encoder(str(tmp_path), CPU).images.key != encoder.images.key


def test_towers_of_two_widths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_folder(tmp_path, monkeypatch, text_width=5)
    with pytest.raises(ValueError, match=r"^encoder must have towers of one width, got .* with 6"):
        check_widths(open_encoder(str(tmp_path), CPU))


def test_missing_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "weights.pt").write_bytes(b"")
    (tmp_path / "image.onnx").write_bytes(b"")
    kinds = {
        "transformers": (str(tmp_path), "clip"),
        "open_clip": (f"open_clip:ViT-B-32:{tmp_path / 'weights.pt'}", "open-clip"),
        "onnxruntime": (str(tmp_path / "image.onnx"), "onnx"),
    }
    for module, (name, extra) in kinds.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"needs {module}, which is not .*_ext\[{extra}\]"):
            open_encoder(name, CPU)


def test_paths_that_are_not_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nowhere", str(tmp_path), "open_clip:ViT-B-32:nowhere.pt", "open_clip:ViT-B-32"):
        with pytest.raises(ValueError, match=r"^encoder must be an image-text model on disk") as no:
            open_encoder(name, CPU)
        assert EXPECTED in str(no.value)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    broken = ModuleType("transformers")

    def load(*_: object, **__: object) -> None:
        raise OSError("damaged\nlong story")

    broken.AutoModel = SimpleNamespace(from_pretrained=load)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", broken)
    with pytest.raises(ValueError, match=r"which cannot be loaded: damaged$"):
        open_encoder(str(tmp_path), CPU)


def test_preparations() -> None:
    """Crops in configurations: the central square, a share of it, or the whole image squashed."""
    clip = {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}
    assert of_transformers(clip, 99) == Preparation()
    assert of_transformers({"size": 256, "crop_size": 224, "resample": 2}, 99) == Preparation(
        share=224 / 256, resampling=2
    )
    siglip = {
        "size": {"height": 384, "width": 384},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    half = (0.5, 0.5, 0.5)
    assert of_transformers(siglip, 99) == Preparation(384, squash=True, mean=half, std=half)
    assert of_transformers({"image_processor": siglip}, 99).size == 384
    assert of_transformers({}, 99).size == 99
    assert of_open_clip({"size": [64, 64], "resize_mode": "squash"}) == Preparation(64, squash=True)
