"""Two towers as ONNX files, run by onnxruntime; ``tokenizer.json`` is next to or above them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .... import check
from ....libraries import library
from ..cache import digest_of_files
from ..networks import Preparation, SquareNetwork
from .hugging_face import PREPARATIONS, read_json
from .towers import TEXTS_AT_ONCE, Encoder, of_open_clip, of_transformers

TYPES = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}
CLIP_LENGTH = 77  # tokens
OPEN_CLIP_PREPARATION = "preprocess_cfg.json"


def find(folder: Path) -> tuple[Path | None, Path | None]:
    """The files of the image tower and of the text tower in a folder or its subfolders.

    Of several variants, such as ``vision_model_fp16.onnx``, the one with the shortest name.
    """
    images: list[Path] = []
    texts: list[Path] = []
    for path in sorted(folder.rglob("*.onnx")):
        inside = path.relative_to(folder).as_posix().lower()
        if "text" in inside:
            texts.append(path)
        elif "vis" in inside or "image" in inside:
            images.append(path)
    shortest = [
        min(paths, key=lambda path: len(str(path)), default=None) for paths in (images, texts)
    ]
    return shortest[0], shortest[1]


def from_files(name: str, images: Path | None, texts: Path | None) -> Encoder:
    """Open both towers, on the CPU."""
    module = library("onnxruntime", f"the encoder {name}", "'paddle_ext[onnx]'")
    tower = None if images is None else image_tower(module, images)
    encode, key = None, ""
    if texts is not None:
        encode = text_tower(module, texts, name)
        beside = [near(texts, name) for name in ("tokenizer.json", "config.json")]
        others = [path for path in beside if path is not None]
        key = f"onnx {digest_of_files([*parts_of(texts), *others])}"
    return Encoder(name, tower, encode, key)


def parts_of(path: Path) -> list[Path]:
    """A file and its separate weight files, if any."""
    return sorted(path.parent.glob(f"{path.name}*"))


class Session:
    """An ONNX file that computes features, run by `module`, onnxruntime."""

    def __init__(self, module: Any, path: Path) -> None:
        self.session = module.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.inputs = self.session.get_inputs()
        outputs = self.session.get_outputs()
        named = [one.name for one in outputs if one.name.endswith("embeds")]
        flat = [one.name for one in outputs if len(one.shape) == 2]
        self.output = (named or flat or [outputs[0].name])[0]

    def fixed(self, axis: int) -> int | None:
        """The size of the first input along an axis, if it is fixed."""
        shape = self.inputs[0].shape
        size = shape[axis] if len(shape) > axis else None
        return size if isinstance(size, int) else None

    def __call__(self, *given: npt.NDArray[Any]) -> Tensor:
        """Rows [n, ...] to features [n, D], in batches as large as the file allows."""
        step = self.fixed(0) or TEXTS_AT_ONCE
        found = []
        for start in range(0, len(given[0]), step):
            rows = [x[start : start + step] for x in given]
            count = len(rows[0])
            if self.fixed(0):
                rows = [x[np.minimum(np.arange(step), count - 1)] for x in rows]
            named = {
                one.name: x.astype(TYPES.get(one.type, x.dtype))
                for one, x in zip(self.inputs, rows, strict=False)
            }
            found.append(self.session.run([self.output], named)[0][:count])
        return torch.from_numpy(np.concatenate(found).astype(np.float32))


def image_tower(module: Any, path: Path) -> SquareNetwork:
    session = Session(module, path)

    def compute(pixels: Tensor) -> Tensor:
        return session(pixels.numpy())

    key = f"onnx {digest_of_files(parts_of(path))}"
    return SquareNetwork(
        compute, preparation(path, session.fixed(2) or 224), torch.device("cpu"), key
    )


def near(path: Path, name: str) -> Path | None:
    """A file next to another one, or in the folder above."""
    places = (path.parent / name, path.parent.parent / name)
    return next((place for place in places if place.is_file()), None)


def preparation(path: Path, size: int) -> Preparation:
    other = near(path, OPEN_CLIP_PREPARATION)
    if other is not None:
        return of_open_clip(read_json(other))
    for name in PREPARATIONS:
        file = near(path, name)
        if file is not None:
            return of_transformers(read_json(file), size)
    return Preparation(size)


def text_tower(module: Any, path: Path, name: str) -> Callable[[list[str]], Tensor]:
    session = Session(module, path)
    file = near(path, "tokenizer.json")
    if file is None:
        raise check.ArgumentValueError(
            "encoder", f"must have a tokenizer.json next to its text tower, got none near {path}"
        )
    tokenizers = library("tokenizers", f"the encoder {name}", "'paddle_ext[onnx]'")
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    length, filled = tokens_of(session, path)
    tokenizer.enable_truncation(length)
    padding = tokenizer.padding or {}
    chosen = {key: padding[key] for key in ("pad_id", "pad_token") if key in padding}
    tokenizer.enable_padding(length=length if filled else None, **chosen)

    def texts(given: list[str]) -> Tensor:
        found = tokenizer.encode_batch(given)
        masks = np.array([one.attention_mask for one in found])
        ids = np.array([one.ids for one in found])
        rows = {"attention_mask": masks}
        return session(*(rows.get(one.name, ids) for one in session.inputs))

    return texts


def tokens_of(session: Session, path: Path) -> tuple[int, bool]:
    """Maximum number of tokens of a text, and whether every text is padded to it."""
    fixed = session.fixed(1)
    if fixed is not None:
        return fixed, True
    file = near(path, "config.json")
    config = {} if file is None else read_json(file)
    about = config.get("text_config", config.get("text_cfg", {}))
    length = about.get("max_position_embeddings", about.get("context_length", CLIP_LENGTH))
    return int(length), str(config.get("model_type", "")).startswith("siglip")
