"""Tiny random image-text models for tests, saved by their libraries."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

WORDS = ["[PAD]", "[EOS]", "cat", "dog", "a", "photo", "of", "polar", "bear", "."]
HALF, QUARTER = [0.5] * 3, [0.25] * 3


def usable(module: str, name: str) -> None:
    """Skip if a library is missing or broken."""
    try:
        getattr(importlib.import_module(module), name)
    except Exception as error:  # noqa: BLE001 - of whatever it needs
        pytest.skip(f"needs {module}: {str(error).splitlines()[0]}")


def stand_in_sentences(
    monkeypatch: pytest.MonkeyPatch, features: Callable[[str], list[float]]
) -> list[str]:
    """Replace sentence-transformers; returns the texts that it will have encoded."""
    seen: list[str] = []

    class SentenceTransformer:
        def __init__(self, name: str, device: str) -> None:
            assert device == "cpu"

        def encode(self, texts: list[str], **_: bool) -> torch.Tensor:
            seen.extend(texts)
            return torch.tensor([features(text) for text in texts]).float()

    library = SimpleNamespace(SentenceTransformer=SentenceTransformer)
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    monkeypatch.setitem(sys.modules, "torchvision", None)  # `classify` would hide a broken one
    return seen


# --- transformers -------------------------------------------------------------------------------


def tokenizer_of_words() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [EOS]", special_tokens=[("[EOS]", 1)]
    )
    return tokenizer


def save_transformers(folder: Path, kind: str) -> tuple[Any, Any]:
    """A CLIP or SigLIP of 16 features for images of 32 x 32."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2}
    text = {**sizes, "vocab_size": len(WORDS), "max_position_embeddings": 12}
    text |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    vision = {**sizes, "image_size": 32, "patch_size": 16}
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
        model = transformers.CLIPModel(config)
        prepared: dict[str, Any] = {"size": {"shortest_edge": 32}, "crop_size": 32}
    else:
        config = transformers.SiglipConfig(
            text_config={**text, "projection_size": 16}, vision_config=vision
        )
        model = transformers.SiglipModel(config)
        prepared = {"size": {"height": 32, "width": 32}, "resample": 2}
    for weight in model.parameters():  # small ones would make all texts alike
        weight.data += 0.3 * torch.randn_like(weight)
    model.eval().save_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of_words(), pad_token="[PAD]", eos_token="[EOS]"
    )
    tokenizer.save_pretrained(folder)
    prepared |= {"image_mean": HALF, "image_std": QUARTER}
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    return model, tokenizer


# --- open_clip ----------------------------------------------------------------------------------


def open_clip_folder(folder: Path) -> Any:
    import open_clip
    from safetensors.torch import save_file

    torch.manual_seed(0)
    vision = {"image_size": 32, "layers": 1, "width": 32, "patch_size": 16, "head_width": 16}
    text = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    model = open_clip.CLIP(**config).eval()
    folder.mkdir()
    prepared = {"size": 32, "mean": HALF, "std": QUARTER}
    written = {"model_cfg": config, "preprocess_cfg": prepared}
    (folder / "open_clip_config.json").write_text(json.dumps(written))
    weights = {name: x.contiguous() for name, x in model.state_dict().items()}
    save_file(weights, folder / "open_clip_model.safetensors")
    return model


# --- a stand-in ---------------------------------------------------------------------------------


COLOURS = {"red": 0, "green": 1, "blue": 2}


class StandInModel(torch.nn.Module):
    """Six features: the mean colours of the halves of an image, or the colours in a text."""

    SCALE = 50.0

    def __init__(self, text_width: int = 6) -> None:
        super().__init__()
        self.text_width = text_width
        self.logit_scale = torch.nn.Parameter(torch.tensor(self.SCALE).log())
        self.config = SimpleNamespace(
            text_config=SimpleNamespace(max_position_embeddings=8), model_type="clip"
        )

    def get_image_features(self, pixel_values: torch.Tensor) -> Any:
        means = torch.nn.functional.adaptive_avg_pool2d(pixel_values, (2, 1)).flatten(1)
        return SimpleNamespace(pooler_output=means - means.mean(1, keepdim=True))

    def get_text_features(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(len(input_ids), self.text_width)
        for k in COLOURS.values():
            has = (input_ids == k).any(1).float()
            rows[:, 2 * k : 2 * k + 2] += has.unsqueeze(1)
        return rows - rows.mean(1, keepdim=True)


def stand_in_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text_width: int = 6, text_tower: bool = True
) -> list[str]:
    """A folder that a stand-in for transformers opens; returns the texts that it will see."""
    seen: list[str] = []

    def tokenizer(texts: list[str], **_: object) -> dict[str, torch.Tensor]:
        seen.extend(texts)
        rows = [[COLOURS.get(word.strip("."), 9) for word in text.split()] for text in texts]
        longest = max(map(len, rows))
        return {"input_ids": torch.tensor([row + [9] * (longest - len(row)) for row in rows])}

    class ImagesOnly(StandInModel):
        get_text_features = property()

    def processor(images: Image.Image, **_: object) -> dict[str, torch.Tensor]:
        pixels = np.asarray(images.resize((32, 32)), np.float32) / 255
        return {"pixel_values": torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)}

    model = StandInModel if text_tower else ImagesOnly
    module = ModuleType("transformers")
    module.AutoModel = SimpleNamespace(from_pretrained=lambda *_, **__: model(text_width))
    for name, made in (("AutoTokenizer", tokenizer), ("AutoImageProcessor", processor)):
        setattr(module, name, SimpleNamespace(from_pretrained=lambda *_, made=made, **__: made))
    monkeypatch.setitem(sys.modules, "transformers", module)
    monkeypatch.setitem(sys.modules, "torchvision", None)  # as above
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return seen
