"""Recipes of training: all numbers of a run, and how images become the inputs of a network.

`Transform` is used for inference, `Augmentation` for training: from uint8 images to inputs, in
batches, on the device of the images. Everything is in float32, even in mixed precision: sampling
positions in half precision reduce accuracy.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import check
from .networks import ARCHITECTURES

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

DRAWS = 9  # random numbers per image: crop area, ratio, x, y; mirror; 3 for jitter; rotation
INTERPOLATIONS = ("bilinear", "bicubic")
SCHEDULES = ("steps", "cosine")
GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Transform:
    """Scale, centre crop, normalise.

    Examples
    --------
    >>> transform = Transform(84, resize=96)
    >>> transform(torch.zeros(2, 100, 120, 3, dtype=torch.uint8)).shape
    torch.Size([2, 3, 84, 84])
    """

    size: int = 84  # height and width of the result
    mean: tuple[float, ...] = IMAGENET_MEAN  # of each channel, for pixels in [0, 1]
    std: tuple[float, ...] = IMAGENET_STD
    # The shorter side is scaled to this before the central `size` is cropped; None: to `size`.
    resize: int | None = None
    mirror: bool = False  # average the features of an image and its mirror image

    def __post_init__(self) -> None:
        check.integer("size", self.size)
        if self.resize is not None:
            check.integer("resize", self.resize, least=self.size)
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean):
            raise ValueError(
                "mean and std must have 1 number or 3 each, "
                f"got {len(self.mean)} and {len(self.std)}"
            )
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise ValueError(
                f"mean and std must be finite and std > 0, got {self.mean}, {self.std}"
            )

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [N, H, W, C] -> float32 [N, C, size, size]."""
        x = pixels(images)
        height, width = x.shape[-2:]
        scale = (self.resize or self.size) / min(height, width)
        if scale != 1:
            target = [max(self.size, round(side * scale)) for side in (height, width)]
            x = F.interpolate(x, target, mode="bilinear", align_corners=False, antialias=True)
        top, left = ((side - self.size) // 2 for side in x.shape[-2:])
        return self.normalise(x[..., top : top + self.size, left : left + self.size])

    def normalise(self, x: Tensor) -> Tensor:
        """[N, C, H, W] in [0, 1] -> the same with mean 0 and standard deviation 1 per channel."""
        if x.shape[1] != len(self.mean):
            raise ValueError(
                f"images must have as many channels as mean, {len(self.mean)}, got {x.shape[1]}"
            )
        return (x - per_channel(self.mean, x.device)) / per_channel(self.std, x.device)


@dataclass(frozen=True)
class Augmentation:
    """Random resized crop, mirror image, colour jitter, and rotations by 90, 180 or 270 degrees."""

    area: tuple[float, float] = (0.08, 1.0)  # share of the image in a crop, uniform in this range
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width to height of a crop, as far as it fits
    mirror: bool = True  # mirror half of the images
    # Brightness, contrast and saturation are multiplied by a factor in [1 - jitter, 1 + jitter].
    jitter: float = 0.4
    turned: float = 0.0  # share of the images that are rotated
    interpolation: str = "bilinear"  # or "bicubic"

    def __post_init__(self) -> None:
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ValueError(f"area must be increasing within (0, 1], got {self.area}")
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ValueError(f"ratio must be increasing and > 0, got {self.ratio}")
        for name in ("jitter", "turned"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        check.choice("interpolation", self.interpolation, INTERPOLATIONS)

    def __call__(
        self, images: Tensor, draws: Tensor, transform: Transform
    ) -> tuple[Tensor, Tensor]:
        """The inputs of a step [N, C, size, size] and quarter turns [N]; draws [N, 9] in [0, 1)."""
        x = pixels(images)
        height, width = x.shape[-2:]
        turns = quarter_turns(draws[:, 8], self.turned)
        matrix = self.matrices(draws, turns, width / height)
        shape = [len(x), x.shape[1], transform.size, transform.size]
        with torch.autocast(x.device.type, enabled=False):
            grid = F.affine_grid(matrix, shape, align_corners=False)
        x = F.grid_sample(
            x, grid, mode=self.interpolation, padding_mode="border", align_corners=False
        )
        if self.jitter:
            x = jittered(x.clamp(0, 1), 1 + self.jitter * (2 * draws[:, 5:8] - 1))
        return transform.normalise(x.clamp(0, 1)), turns

    def matrices(self, draws: Tensor, turns: Tensor, shape_ratio: float) -> Tensor:
        """Where the corners of the result lie in the image, for `affine_grid`: [N, 2, 3]."""
        low, high = self.ratio
        area = self.area[0] + (self.area[1] - self.area[0]) * draws[:, 0]
        # Nothing larger fits in a long image at an allowed ratio.
        area = area.clamp(max=min(1.0, high / shape_ratio, shape_ratio / low))
        least = (area * shape_ratio).log().clamp(min=math.log(low))
        most = (shape_ratio / area).log().clamp(max=math.log(high))
        ratio = (least + (most - least) * draws[:, 1]).exp() / shape_ratio
        width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        x, y = (1 - width) * (2 * draws[:, 2] - 1), (1 - height) * (2 * draws[:, 3] - 1)
        if self.mirror:
            width = torch.where(draws[:, 4] < 0.5, -width, width)
        odd = turns % 2
        cosine, sine = (1 - turns) * (1 - odd), (2 - turns) * odd
        rows = [[width * cosine, -width * sine, x], [height * sine, height * cosine, y]]
        return torch.stack([torch.stack(row, 1) for row in rows], 1)


def pixels(images: Tensor) -> Tensor:
    """uint8 [N, H, W, C] -> float32 [N, C, H, W] in [0, 1]."""
    return images.permute(0, 3, 1, 2).float() / 255


def quarter_turns(draws: Tensor, share: float) -> Tensor:
    """0 for most images, 1, 2 or 3 for a `share` of them; int64."""
    if share == 0:
        return torch.zeros_like(draws, dtype=torch.int64)
    turned = 1 + (3 * draws / share).long().clamp(max=2)
    return torch.where(draws < share, turned, 0)


def jittered(x: Tensor, factors: Tensor) -> Tensor:
    """Change brightness, then contrast, then saturation; x in [0, 1], factors [N, 3]."""
    brightness, contrast, saturation = (factor.view(-1, 1, 1, 1) for factor in factors.unbind(1))
    x = (x * brightness).clamp(0, 1)
    mean = grey(x).mean((1, 2, 3), keepdim=True)
    x = (mean + (x - mean) * contrast).clamp(0, 1)
    if x.shape[1] == 1:
        return x
    plain = grey(x)
    return plain + (x - plain) * saturation


def grey(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, 1, H, W]."""
    if x.shape[1] == 1:
        return x
    return (x * per_channel(GREY, x.device)).sum(1, keepdim=True)


@cache
def per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Constants [1, C, 1, 1], cached: a copy to the device in every step would wait for it."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run. The defaults are the paper's for ResNet-18.

    Examples
    --------
    >>> from dataclasses import replace
    >>> replace(recipe("paper", "wrn28_10"), epochs=30).batch_size
    128
    """

    epochs: int = 90
    batch_size: int = 256
    learning_rate: float = 0.1  # the maximum
    momentum: float = 0.9
    weight_decay: float = 1e-4
    nesterov: bool = False
    schedule: str = "steps"  # divided by 10 at each milestone, or "cosine", down to 0
    milestones: tuple[float, ...] = (45 / 90, 66 / 90)  # shares of the epochs
    warmup: float = 0.0  # share of the steps in which the learning rate increases from 0
    label_smoothing: float = 0.1
    # Decay per step of a running average of the weights, which is validated and saved; 0: none.
    average: float = 0.0
    mirror_features: bool = False  # those of the saved network: the mean with the mirror image's
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            check.integer(name, getattr(self, name))
        check.real("learning_rate", self.learning_rate, positive=True)
        check.real("weight_decay", self.weight_decay)
        for name in ("momentum", "warmup", "label_smoothing", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        check.choice("schedule", self.schedule, SCHEDULES)
        if self.nesterov and self.momentum == 0:
            raise ValueError("momentum must be > 0 with nesterov, got 0")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of one of `steps` steps."""
        warm = self.warmup * steps
        if step < warm:
            return self.learning_rate * (step + 1) / (warm + 1)
        if self.schedule == "cosine":
            done = (step - warm) / max(1.0, steps - warm)
            return self.learning_rate * (1 + math.cos(math.pi * done)) / 2
        epoch = step * self.epochs // steps
        # Rounding of a product must not shift a milestone.
        passed = sum(epoch >= round(share * self.epochs, 6) for share in self.milestones)
        return self.learning_rate / 10.0**passed


STRONG = Recipe(
    epochs=165,
    learning_rate=0.2,
    weight_decay=5e-4,
    nesterov=True,
    schedule="cosine",
    warmup=0.03,
    label_smoothing=0.0,
    average=0.999,
    mirror_features=True,
    augmentation=Augmentation(area=(0.3, 1.0), turned=0.5, interpolation="bicubic"),
)
SMALL = replace(
    STRONG,
    epochs=4,
    batch_size=128,
    learning_rate=0.1,
    warmup=0.1,
    average=0.0,
    mirror_features=False,
    augmentation=Augmentation(area=(0.8, 1.0), ratio=(0.9, 1.1), mirror=False, jitter=0.0),
)
RECIPES = {"paper": Recipe(), "strong": STRONG, "small": SMALL}


def recipe(name: str, architecture: str = "resnet18") -> Recipe:
    """Return a recipe by name.

    ``"paper"``: cross-entropy with label smoothing, 90 epochs, steps. ``"strong"``: 165 epochs,
    cosine, averaged weights, quarter turns, for images that are already 84x84. ``"small"``: for
    ``"small"`` on a CPU and images that must not be mirrored. The architecture WRN-28-10 has
    batches of 128 instead of 256.

    Examples
    --------
    >>> recipe("paper").epochs
    90
    """
    settings = RECIPES[check.choice("name", name, tuple(RECIPES))]
    if check.choice("architecture", architecture, tuple(ARCHITECTURES)) == "wrn28_10":
        return replace(settings, batch_size=min(settings.batch_size, 128))
    return settings
