"""CLIP, SigLIP and similar models from folders written by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....files import open_regular
from ....libraries import library
from ..cache import digest_of_files, files_of
from ..networks import Preparation, SquareNetwork
from ..samples import LOGIT_SCALE
from .towers import Encoder, of_transformers

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
PREPARATIONS = ("preprocessor_config.json", "processor_config.json")


def has_weights(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(
        list(folder.glob(pattern)) for pattern in WEIGHTS
    )


def from_folder(name: str, folder: Path, device: torch.device) -> Encoder:
    module = library("transformers", f"the encoder {name}", "'paddle_ext[clip]'")
    model = module.AutoModel.from_pretrained(folder, local_files_only=True)
    model = model.float().to(device).eval()
    key = f"transformers {type(model).__name__} {digest_of_files(files_of(folder))}"

    def images(pixels: Tensor) -> Tensor:
        return pooled(model.get_image_features(pixel_values=pixels))

    texts = None
    if hasattr(model, "get_text_features"):
        texts = text_tower(module, model, folder, device)
    scale = getattr(model, "logit_scale", None)
    return Encoder(
        name,
        SquareNetwork(images, preparation(folder), device, key)
        if hasattr(model, "get_image_features")
        else None,
        texts,
        key,
        LOGIT_SCALE if scale is None else float(scale.detach().exp()),
    )


def text_tower(module: Any, model: Any, folder: Path, device: torch.device) -> Any:
    tokenizer = module.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    longest = getattr(model.config.text_config, "max_position_embeddings", 77)
    # SigLIP was trained on texts padded to one length, without a mask.
    filled = str(model.config.model_type).startswith("siglip")
    wanted = ("input_ids",) if filled else ("input_ids", "attention_mask")

    @torch.no_grad()
    def texts(given: list[str]) -> Tensor:
        tokens = tokenizer(
            given,
            padding="max_length" if filled else True,
            max_length=longest,
            truncation=True,
            return_tensors="pt",
        )
        tokens = {key: tokens[key].to(device) for key in wanted if key in tokens}
        return pooled(model.get_text_features(**tokens)).float().cpu()

    return texts


def pooled(found: Any) -> Tensor:
    """The features, which some releases wrap."""
    features: Tensor = getattr(found, "pooler_output", found)
    return features


def preparation(folder: Path) -> Preparation:
    config = read_json(folder / "config.json")
    size = int(config.get("vision_config", {}).get("image_size", 224))
    for name in PREPARATIONS:
        if (folder / name).is_file():
            return of_transformers(read_json(folder / name), size)
    return Preparation(size)


def read_json(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        found = json.loads(file.read())
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a JSON object, got {type(found).__name__}")  # noqa: TRY004 - about a file
    return found
