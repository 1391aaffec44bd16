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
    save_transformers,
    stand_in_folder,
    usable,
)

from paddle_ext.app.read.encoders import EXPECTED, open_encoder, open_text_model

CPU = torch.device("cpu")
# Ignore warnings of other libraries during import.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("torchvision_operators"),
]


def cosines(encoder: Any, picture: Any, texts: list[str]) -> torch.Tensor:
    images = encoder.images(encoder.images.prepare(picture).unsqueeze(0))
    return (
        torch.nn.functional.normalize(images)
        @ torch.nn.functional.normalize(encoder.text_tower(texts)).mT
    )


# --- the libraries themselves -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_transformers(tmp_path: Path, kind: str) -> None:
    """The logits equal those of the model with its own tokenizer, and with pixels by hand."""
    usable("transformers", "CLIPModel")
    model, tokenizer = save_transformers(tmp_path, kind)
    encoder = open_encoder(str(tmp_path), CPU)
    texts = ["a photo of a cat.", "a photo of a very large polar bear."]
    picture = pattern(0, 0, (32, 32))  # needs no scaling
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).unsqueeze(0)
    normal = (pixels / 255 - 0.5) / 0.25
    fill = {"padding": "max_length", "max_length": 12} if kind == "siglip" else {"padding": True}
    tokens = tokenizer(texts, return_tensors="pt", **fill)
    wanted = ("input_ids",) if kind == "siglip" else ("input_ids", "attention_mask")
    with torch.no_grad():
        expected = model(pixel_values=normal, **{name: tokens[name] for name in wanted})
    bias = float(model.logit_bias) if kind == "siglip" else 0.0
    found = encoder.logit_scale * cosines(encoder, picture, texts) + bias
    torch.testing.assert_close(found, expected.logits_per_image, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found[:, 0], found[:, 1], atol=1e-6)
    assert encoder.images.prepare(pattern(0, 0, (90, 41))).shape == (3, 32, 32)


def test_transformers_without_a_text_tower(tmp_path: Path) -> None:
    usable("transformers", "CLIPModel")
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = ViTConfig(**sizes, intermediate_size=16, image_size=32, patch_size=16)
    ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"^encoder must be an image-text .* one tower alone"):
        open_encoder(str(tmp_path), CPU)


def test_open_clip(tmp_path: Path) -> None:
    """A folder, and a name with weights, are the same model, which agrees with the library."""
    usable("open_clip", "create_model")
    import open_clip

    model = open_clip_folder(tmp_path / "tiny")
    encoder = open_encoder(str(tmp_path / "tiny"), CPU)
    picture, texts = pattern(1, 0, (32, 32)), ["a cat", "a dog on a hill"]
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).unsqueeze(0)
    with torch.no_grad():
        images = model.encode_image((pixels / 255 - 0.5) / 0.25, normalize=True)
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
    torch.testing.assert_close(again.text_tower(texts), encoder.text_tower(texts))


# --- what needs no library ----------------------------------------------------------------------


def test_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opens a transformers model, with a stand-in for the library."""
    stand_in_folder(tmp_path, monkeypatch)
    encoder = open_encoder(str(tmp_path), CPU)
    assert encoder.logit_scale == pytest.approx(StandInModel.SCALE)
    other = open_encoder(str(tmp_path), CPU)
    assert other.images.key == encoder.images.key
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert open_encoder(str(tmp_path), CPU).images.key != encoder.images.key


def test_missing_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "weights.pt").write_bytes(b"")
    kinds = {
        "transformers": (str(tmp_path), "clip"),
        "open_clip": (f"open_clip:ViT-B-32:{tmp_path / 'weights.pt'}", "open-clip"),
    }
    for module, (name, extra) in kinds.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"needs {module}, which is not .*_ext\[{extra}\]"):
            open_encoder(name, CPU)


def test_a_broken_torchvision_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers imports it wherever it is installed, and works without it."""
    seen: list[object] = []

    class SentenceTransformer:
        def __init__(self, *_: object, **__: object) -> None:
            seen.append(sys.modules["torchvision"])

    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "torchvision":
                raise RuntimeError("operator torchvision::nms does not exist")

    library = SimpleNamespace(SentenceTransformer=SentenceTransformer)
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.delitem(sys.modules, "torchvision")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    open_text_model("model", CPU, None)
    assert seen == [None]


def test_paths_that_are_not_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.onnx").write_bytes(b"")
    onnx = str(tmp_path / "text.onnx")
    names = ("nowhere", str(tmp_path), "open_clip:ViT-B-32:nowhere.pt", "open_clip:ViT-B-32")
    for name in (*names, onnx, f"{onnx},{onnx}"):
        with pytest.raises(ValueError, match=r"^encoder must be an image-text model on disk") as no:
            open_encoder(name, CPU)
        assert EXPECTED in str(no.value)
    assert "ONNX files are not read" in str(no.value)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    broken = ModuleType("transformers")

    def load(*_: object, **__: object) -> None:
        raise OSError("damaged\nlong story")

    broken.AutoModel = SimpleNamespace(from_pretrained=load)
    monkeypatch.setitem(sys.modules, "transformers", broken)
    with pytest.raises(ValueError, match=r"files that cannot be loaded: damaged$"):
        open_encoder(str(tmp_path), CPU)
