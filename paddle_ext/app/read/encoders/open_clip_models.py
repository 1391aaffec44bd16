"""open_clip models: a folder with a configuration, or a known name and weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ....libraries import library
from ..cache import digest_of_files, files_of
from ..networks import SquareNetwork
from .towers import Encoder, of_open_clip

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")


def from_folder(name: str, folder: Path, device: torch.device) -> Encoder:
    if not any(list(folder.glob(pattern)) for pattern in WEIGHTS):
        raise FileNotFoundError(f"{folder} has no weights")
    return loaded(name, f"local-dir:{folder}", None, files_of(folder), device)


def from_weights(name: str, architecture: str, weights: Path, device: torch.device) -> Encoder:
    return loaded(name, architecture, str(weights), [weights], device)


def loaded(
    name: str, model_name: str, pretrained: str | None, files: list[Path], device: torch.device
) -> Encoder:
    module = library("open_clip", f"the encoder {name}", "'paddle_ext[open-clip]'")
    with offline():
        model = module.create_model(model_name, pretrained=pretrained, device=device).eval()
        tokenizer = module.get_tokenizer(model_name)
    key = f"open_clip {model_name.partition(':')[0]} {digest_of_files(files)}"

    def images(pixels: Tensor) -> Tensor:
        features: Tensor = model.encode_image(pixels)
        return features

    @torch.no_grad()
    def texts(given: list[str]) -> Tensor:
        features: Tensor = model.encode_text(tokenizer(given).to(device))
        return features.float().cpu()

    tower = SquareNetwork(images, of_open_clip(module.get_model_preprocess_cfg(model)), device, key)
    return Encoder(name, tower, texts, key, float(model.logit_scale.detach().exp()))


@contextmanager
def offline() -> Iterator[None]:
    """Some configurations refer to files on a hub; only its local cache is used."""
    name = "HF_HUB_OFFLINE"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
