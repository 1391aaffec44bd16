"""Features of images, with a cache indexed by everything they depend on, and their accuracy."""

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import check
from ...feature_cache import FeatureCache
from ...feature_cache import digest as digest_of_bytes
from ...files import ahead
from ...methods import SimpleShot
from ...progress import Progress
from ..data.bank import FeatureBank
from ..data.images import ImageSet, in_memory
from ..evaluate import digest, evaluate
from .checkpoints import COUNTERS, Checkpoint
from .networks import Backbone
from .recipes import Transform

# Part of every cache key: increase it with each change in what is computed from the same weights,
# transform and data.
VERSION = 1
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHARE_OF_DEVICE = 0.25  # of its free memory, to keep all images there
SHARE_OF_HOST = 0.5  # of its memory, to keep decoded images
QUERIES_PER_CLASS = 15  # at most, in a task of `nearest_mean_accuracy`


def extract(
    network: Checkpoint,
    images: ImageSet,
    *,
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
    base : ImageSet or None
        Images of the base classes: their mean feature becomes the bank's `base_mean`.
    device : device or None
        None: a GPU if there is one.
    precision : {"float32", "bfloat16", "auto"}
        Of the products; the features are float32. ``"auto"``: bfloat16 on CUDA. The CPU supports
        only float32.
    cache : path or None
        A folder for cached features. They are found by a digest of the weights, the transform and
        the precision, and one of the bytes of each image, so that features of other weights or
        images are never reused by mistake.

    Returns
    -------
    FeatureBank
        features [N, D] float32 on the CPU, and the labels, class names and split of `images`.

    Examples
    --------
    >>> from paddle_ext.research.backbones import Transform, create
    >>> from paddle_ext.research.data.images import ImageArray
    >>> images = ImageArray(torch.zeros(4, 32, 32, dtype=torch.uint8), [0, 0, 1, 1], ["a", "b"])
    >>> network = Checkpoint(create("small"), Transform(32, (0.5,), (0.5,)))
    >>> extract(network, images).features.shape
    torch.Size([4, 128])
    """
    backbone, transform = network.backbone, network.transform
    for name, given in (("images", images), ("base", base)):
        if given is not None and given.shape[2] != backbone.channels:
            raise ValueError(
                f"{name} must have as many channels as the network, {backbone.channels}, "
                f"got {given.shape[2]}"
            )
    place = check.device(device)
    dtype = product_dtype(precision, place)
    batch_size = check.integer("batch_size", batch_size)

    def features_of_set(some: ImageSet) -> Tensor:
        def compute(numbers: list[int]) -> Iterator[Tensor]:
            order = torch.split(torch.tensor(numbers), batch_size)
            with Progress("features", len(numbers), show=progress) as shown:
                for batch in batches(some, order, place):
                    yield features_of(backbone, batch, transform, dtype).cpu()
                    shown.advance(len(batch))

        if cache is None:
            return torch.cat([*compute([*range(len(some))])])
        stored = FeatureCache(Path(cache), cache_key(network, some, dtype))
        return stored.complete([digest_of_bytes(one) for one in some.content()], compute)

    was_training, home = backbone.training, next(backbone.parameters()).device
    backbone.to(place).eval()
    try:
        features = features_of_set(images)
        base_mean = None if base is None else features_of_set(base).double().mean(0).float()
    finally:
        backbone.to(home).train(was_training)
    return FeatureBank(features, images.labels, images.class_names, images.split or None, base_mean)


def cache_key(network: Checkpoint, images: ImageSet, dtype: torch.dtype) -> str:
    """A digest of everything the features depend on, apart from the bytes of the images."""
    backbone = network.backbone
    about: Any = VERSION, backbone.architecture, astuple(network.transform), str(dtype)
    return digest(about, digest_of_weights(backbone), images.shape)


def preloaded(images: ImageSet, device: torch.device, *, progress: bool) -> ImageSet | Tensor:
    """Images that are read many times: decoded once, and on the device, as far as they fit."""
    size = len(images) * math.prod(images.shape)
    if size > SHARE_OF_HOST * host_memory():
        return images
    array = in_memory(images, progress=progress)
    if device.type == "cuda" and size > SHARE_OF_DEVICE * torch.cuda.mem_get_info(device)[0]:
        return array
    return array.images.to(device)


def batches(
    images: ImageSet | Tensor, order: Iterable[Tensor], device: torch.device
) -> Iterator[Tensor]:
    """The images of each index of `order`, uint8 [n, H, W, C]; a thread reads one batch ahead."""
    if isinstance(images, Tensor):
        for index in order:
            yield images[index.to(device, non_blocking=True)]
        return
    remaining = iter(order)

    def read() -> Tensor | None:
        index = next(remaining, None)
        return None if index is None else images.read(index)

    with closing(ahead(read)) as ready:
        for batch in ready:
            yield batch.to(device)


def host_memory() -> int:
    """The memory of this machine, in bytes; 8 GiB where it is unknown, on Windows."""
    if not hasattr(os, "sysconf"):
        return 2**33
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of products; ``"auto"``: bfloat16 on CUDA, float32 elsewhere."""
    check.choice("precision", precision, ("auto", *DTYPES))
    if device.type == "cpu":
        # On a CPU without bfloat16, torch would disable its fast products for the whole process.
        if precision not in ("auto", "float32"):
            raise check.ArgumentValueError(
                "precision", f"must be 'auto' or 'float32' on the CPU, got {precision!r}"
            )
        return torch.float32
    return DTYPES["bfloat16" if precision == "auto" else precision]


@torch.no_grad()
def features_of(
    backbone: Backbone, images: Tensor, transform: Transform, dtype: torch.dtype
) -> Tensor:
    """uint8 [n, H, W, C] -> float32 [n, D]."""
    inputs = channels_last(transform(images))
    with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
        features = backbone(inputs).float()
        if transform.mirror:
            features = (features + backbone(inputs.flip(-1)).float()) / 2
    return features


def channels_last(inputs: Tensor) -> Tensor:
    """The inputs in the memory layout that is fastest for convolutions on CUDA."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.is_cuda else inputs


def digest_of_weights(network: nn.Module) -> str:
    """A digest of all weights and statistics of a network, without counters."""
    state = sorted(network.state_dict().items())
    return digest(*(part for one in state if not one[0].endswith(COUNTERS) for part in one))


def nearest_mean_accuracy(
    features: Tensor,
    labels: Tensor,
    *,
    num_classes: int = 5,
    shots: int = 5,
    n_tasks: int = 500,
    centre: Tensor | None = None,
) -> float:
    """Mean accuracy over random tasks, of unit-norm features and the nearest mean of the support.

    Features are [N, D] with labels [N], -1 for no class; the tasks depend only on the labels. A
    task has `num_classes` classes, `shots` labelled samples of each, and at most 15 others of each
    to classify. `centre` [D], the mean feature of the base classes, is subtracted. The result is in
    [0, 1].

    Examples
    --------
    >>> features = torch.eye(4).repeat_interleave(10, 0)
    >>> nearest_mean_accuracy(features, torch.arange(4).repeat_interleave(10), num_classes=3)
    1.0
    """
    fewest = int(torch.unique(labels[labels >= 0], return_counts=True)[1].min())
    if fewest <= shots:
        raise ValueError(
            f"labels must have at least {shots + 1} samples of each class, got {fewest}"
        )
    (result,) = evaluate(
        FeatureBank(features, labels, base_mean=None if centre is None else centre.to(features)),
        SimpleShot(scaling="l2n" if centre is None else "cl2n"),
        shots=shots,
        k_eff=num_classes,
        num_classes=num_classes,
        n_query=num_classes * min(QUERIES_PER_CLASS, fewest - shots),
        n_tasks=n_tasks,
        sampling="balanced",
        device=features.device,
        progress=False,
    )
    return result.correct / (n_tasks * result.n_query)
