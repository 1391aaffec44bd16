"""Features of images, with a cache indexed by everything they depend on."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ... import check
from ...arrays import read_npz
from ...files import ahead, replacing
from ...progress import Progress
from ..data.bank import FeatureBank
from ..data.images import ImageSet, in_batches, in_memory
from .augment import Transform
from .checkpoints import COUNTERS, Checkpoint
from .networks import Backbone

# Part of every cache key: increase it with each change in what is computed from the same weights,
# transform and data.
VERSION = 1
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHARE_OF_DEVICE = 0.25  # of its free memory, to keep all images there
SHARE_OF_HOST = 0.5  # of its memory, to keep decoded images


def extract(
    network: Checkpoint | Backbone,
    images: ImageSet,
    *,
    transform: Transform | None = None,
    base: ImageSet | None = None,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    precision: str = "float32",
    cache: str | Path | None = None,
    progress: bool = False,
) -> FeatureBank:
    """Compute the features of images.

    Parameters
    ----------
    network : Checkpoint or Backbone
    images : ImageSet
    transform : Transform or None
        The preprocessing; None: the checkpoint's. A bare backbone needs one.
    base : ImageSet or None
        Images of the base classes: their mean feature becomes the bank's `base_mean`.
    batch_size : int
    device : device or None
        None: a GPU if there is one.
    precision : {"float32", "bfloat16", "float16", "auto"}
        Of the products; the features are float32. ``"auto"``: half precision on CUDA. The CPU
        supports only float32.
    cache : path or None
        A folder for cached features. They are found by a digest of the weights, the transform, the
        precision and the bytes of the images, so that features of other weights or images are never
        reused by mistake.
    progress : bool
        Show progress on stderr.

    Returns
    -------
    FeatureBank
        features [N, D] float32 on the CPU, and the labels, class names and split of `images`.

    Examples
    --------
    >>> from paddle_ext.research.backbones import Transform, create
    >>> from paddle_ext.research.data.images import ImageArray
    >>> images = ImageArray(torch.zeros(4, 32, 32, dtype=torch.uint8), [0, 0, 1, 1], ["a", "b"])
    >>> extract(create("small"), images, transform=Transform(32, (0.5,), (0.5,))).features.shape
    torch.Size([4, 128])
    """
    if transform is None:
        if not isinstance(network, Checkpoint):
            raise ValueError("transform must be given with a bare backbone, got None")
        transform = network.transform
    backbone = network.backbone if isinstance(network, Checkpoint) else network
    for name, given in (("images", images), ("base", base)):
        if given is not None and given.shape[2] != backbone.channels:
            raise ValueError(
                f"{name} must have as many channels as the network, {backbone.channels}, "
                f"got {given.shape[2]}"
            )
    place = check.device(device)
    extractor = Extractor(
        backbone,
        transform,
        place,
        product_dtype(precision, place),
        check.integer("batch_size", batch_size),
        None if cache is None else Path(cache),
        progress,
    )
    features = extractor.features(images)
    base_mean = None if base is None else extractor.features(base).mean(0, dtype=torch.float64)
    return FeatureBank(
        features,
        images.labels,
        images.class_names,
        images.split or None,
        None if base_mean is None else base_mean.float(),
    )


@dataclass(frozen=True)
class Extractor:
    """A network in use; see `extract` for the arguments."""

    backbone: Backbone
    transform: Transform
    device: torch.device
    dtype: torch.dtype
    batch_size: int
    cache: Path | None
    progress: bool

    def features(self, images: ImageSet) -> Tensor:
        """[N, D] float32 from the cache, or computed and stored there."""
        if self.cache is None:
            return self.compute(images)
        path = self.cache / f"features-{self.key(images)}.npz"
        if path.is_file():
            return read_cached(path, (len(images), self.backbone.dimension))
        features = self.compute(images)
        self.cache.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new, new.open("wb") as file:
            np.savez(file, values=features.numpy())
        return features

    def compute(self, images: ImageSet) -> Tensor:
        """On the CPU; restores the mode of the network."""
        order = in_batches(len(images), self.batch_size)
        was_training, home = self.backbone.training, next(self.backbone.parameters()).device
        self.backbone.to(self.device).eval()
        features = []
        try:
            with Progress("features", len(images), show=self.progress) as shown:
                for batch in Feeder(images, self.device, keep=False).batches(order):
                    x = features_of(self.backbone, batch, self.transform, self.dtype)
                    features.append(x.cpu())
                    shown.advance(len(batch))
        finally:
            self.backbone.to(home).train(was_training)
        return torch.cat(features)

    def key(self, images: ImageSet) -> str:
        """A digest of everything the features of these images depend on."""
        about = (VERSION, self.backbone.architecture, astuple(self.transform), str(self.dtype))
        parts = [repr(about), digest_of_weights(self.backbone)]
        parts.append(digest_of_images(images, progress=self.progress))
        return hashlib.blake2b("".join(parts).encode(), digest_size=20).hexdigest()


def read_cached(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The archive has a checksum, so that a changed bit is found."""
    try:
        values = read_npz(path)["values"]
        if values.shape != shape or values.dtype != np.float32:
            raise ValueError(f"it has {values.dtype} of shape {list(values.shape)}")
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(f"{path} is a damaged cache file (delete it): {error}") from error
    return torch.from_numpy(values)


class Feeder:
    """Yields batches of images, uint8 [n, H, W, C], on a device.

    `keep` is for images that are read many times: they are decoded once, and kept on the device if
    they fit.
    """

    def __init__(
        self, images: ImageSet, device: torch.device, *, keep: bool, progress: bool = False
    ) -> None:
        size = len(images) * math.prod(images.shape)
        self.images, self.device = images, device
        self.resident: Tensor | None = None
        if keep and size <= SHARE_OF_HOST * host_memory():
            self.images = array = in_memory(images, progress=progress)
            on_cpu = device.type == "cpu"
            if on_cpu or size <= SHARE_OF_DEVICE * torch.cuda.mem_get_info(device)[0]:
                self.resident = array.images.to(device)

    def batches(self, order: Iterable[Tensor]) -> Iterator[Tensor]:
        """The images of each index of `order`, [n] int64 on the CPU; a thread reads one ahead."""
        if self.resident is not None:
            for index in order:
                yield self.resident[index.to(self.device, non_blocking=True)]
            return
        indices = iter(order)

        def read() -> Tensor | None:
            index = next(indices, None)
            return None if index is None else self.images.read(index)

        with closing(ahead(read)) as batches:
            for batch in batches:
                yield batch.to(self.device)


def host_memory() -> int:
    """The memory of this machine, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# --- one batch ----------------------------------------------------------------------------------


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of products; ``"auto"``: half precision on CUDA, float32 elsewhere."""
    check.choice("precision", precision, ("auto", *DTYPES))
    if device.type == "cpu":
        # On a CPU without bfloat16, torch would disable its fast products for the whole process.
        if precision not in ("auto", "float32"):
            raise check.ArgumentValueError(
                "precision", f"must be 'auto' or 'float32' on the CPU, got {precision!r}"
            )
        return torch.float32
    if precision == "auto":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return DTYPES[precision]


def mixed_precision(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """The autocast context."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


@torch.no_grad()
def features_of(
    backbone: Backbone, images: Tensor, transform: Transform, dtype: torch.dtype
) -> Tensor:
    """uint8 [n, H, W, C] -> float32 [n, D]."""
    inputs = channels_last(transform(images))
    with mixed_precision(images.device, dtype):
        features = backbone(inputs).float()
        if transform.mirror:
            features = (features + backbone(inputs.flip(-1)).float()) / 2
    return features


def channels_last(inputs: Tensor) -> Tensor:
    """The inputs in the memory layout that is fastest for convolutions on CUDA."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.is_cuda else inputs


# --- digests ------------------------------------------------------------------------------------


def digest_of_weights(network: nn.Module) -> str:
    """A digest of all weights and statistics of a network, without counters."""
    digest = hashlib.blake2b(digest_size=20)
    for name, x in sorted(network.state_dict().items()):
        if isinstance(x, Tensor) and not name.endswith(COUNTERS):
            digest.update(f"{name} {x.dtype} {list(x.shape)} ".encode())
            digest.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def digest_of_images(images: ImageSet, *, progress: bool = False) -> str:
    """A digest of the bytes of all images, in order, without labels and names.

    Parameters
    ----------
    images : ImageSet
    progress : bool
        Show progress on stderr.
    """
    digest = hashlib.blake2b(repr(images.shape).encode(), digest_size=20)
    with Progress("hashing", len(images), show=progress) as shown:
        for piece in images.content():
            digest.update(len(piece).to_bytes(8, "big"))
            digest.update(piece)
            shown.advance()
    return digest.hexdigest()
