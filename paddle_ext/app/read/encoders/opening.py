"""Find out which kind of encoder a path is."""

from __future__ import annotations

from pathlib import Path

import torch

from .... import check
from ....files import first_line
from . import hugging_face, onnx_files, open_clip_models
from .towers import Encoder

EXPECTED = (
    "an image-text model on disk: a transformers, open_clip or ONNX folder, "
    "open_clip:NAME:WEIGHTS, or IMAGES.onnx,TEXTS.onnx"
)
OPEN_CLIP = "open_clip:"


def open_encoder(name: str, device: torch.device) -> Encoder:
    """Open an image-text encoder, as `EXPECTED` describes it."""
    try:
        return encoder_of_its_kind(name, device)
    except (check.ArgumentError, ImportError):
        raise
    except Exception as error:  # damaged files, other versions: libraries raise anything
        raise check.ArgumentValueError(
            "encoder",
            f"must be {EXPECTED}, got {name!r}, which cannot be loaded: {first_line(error)}",
        ) from error


def encoder_of_its_kind(name: str, device: torch.device) -> Encoder:
    if name.startswith(OPEN_CLIP):
        architecture, _, weights = name.removeprefix(OPEN_CLIP).partition(":")
        existing(weights, name)
        return open_clip_models.from_weights(name, architecture, Path(weights), device)
    files = [Path(part) for part in name.split(",")]
    if all(path.suffix == ".onnx" for path in files):
        for path in files:
            existing(str(path), name)
        if len(files) > 2:
            raise unknown(name, f"{len(files)} files")
        return onnx_files.from_files(name, files[0], files[1] if len(files) == 2 else None)
    folder = existing(name, name)
    if (folder / "open_clip_config.json").is_file():
        return open_clip_models.from_folder(name, folder, device)
    if hugging_face.has_weights(folder):
        return hugging_face.from_folder(name, folder, device)
    images, texts = onnx_files.find(folder)
    if images is None and texts is None:
        raise unknown(name, "no model inside")
    return onnx_files.from_files(name, images, texts)


def existing(path: str, name: str) -> Path:
    if not path or not Path(path).exists():
        raise unknown(name, f"no {path!r}")
    return Path(path)


def unknown(name: str, found: str) -> check.ArgumentValueError:
    return check.ArgumentValueError("encoder", f"must be {EXPECTED}, got {name!r} with {found}")
