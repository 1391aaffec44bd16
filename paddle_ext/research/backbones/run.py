"""One training run: its data, state and epochs, and saving and loading them."""

from __future__ import annotations

import copy
import hashlib
import io
import math
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import check
from ...files import first_line, replacing
from ...progress import Progress
from ..data.images import ImageSet, in_batches
from .augment import DRAWS, IMAGENET_MEAN, IMAGENET_STD, Transform, pixels
from .checkpoints import Checkpoint, load_checkpoint
from .extraction import channels_last, digest_of_images, digest_of_weights, features_of
from .feeding import Feeder
from .learner import Classifier, Learner
from .networks import Backbone, create, create_uninitialised
from .recipes import Recipe
from .validation import nearest_mean_accuracy

STATE, BEST, LAST = "state.pt", "best.safetensors", "last.safetensors"
FORMAT = "paddle_ext.training.2"
NUM_CLASSES, SHOTS = 5, 5
MEAN_IMAGES = 2000  # base images used for a mean
VALIDATION_BATCH = 256  # images


class Epoch(NamedTuple):
    """The results of one epoch."""

    number: int  # from 1
    loss: float
    accuracy: float  # on the augmented base images, in [0, 1]
    validation: float | None  # 5-way 5-shot accuracy on the validation classes, in [0, 1]
    seconds: float


class Run:
    """A training run; see `train` for the arguments."""

    def __init__(
        self,
        architecture: str,
        base: ImageSet,
        validation: ImageSet | None,
        *,
        recipe: Recipe,
        transform: Transform | None,
        start: Checkpoint | None,
        device: torch.device,
        dtype: torch.dtype,
        compiled: bool,
        validate_every: int,
        seed: int,
        progress: bool,
        resumable: bool,
    ) -> None:
        self.recipe, self.device, self.seed = recipe, device, seed
        self.validate_every, self.class_names = validate_every, base.class_names
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = create(architecture, channels=base.shape[2])
            head = nn.Linear(backbone.dimension, len(base.class_names))
            classifier = Classifier(backbone, head, recipe.augmentation.turned > 0)
        check_arguments(backbone, base, validation, start)
        self.transform = transform or default_transform(backbone, base, recipe.mirror_features)
        if start is not None:
            backbone.load_state_dict(start.backbone.state_dict())
            if start.head is not None and start.class_names == base.class_names:
                head.load_state_dict(start.head.state_dict())
        self.settings = {
            "format": FORMAT,
            "architecture": backbone.architecture,
            "base": digest_of_data(base, resumable, progress),
            "validation": digest_of_data(validation, resumable, progress),
            "recipe": repr(recipe),
            "transform": repr(self.transform),
            "seed": str(seed),
            "start": "" if start is None else digest_of_weights(start.backbone),
        }
        self.learner = Learner(on_device(classifier, device), recipe, dtype, compiled=compiled)
        self.base = Feeder(base, device, keep=True, progress=progress)
        self.labels = base.labels
        self.validation = None
        if validation is not None:
            self.validation = Feeder(validation, device, keep=True, progress=progress)
            self.validation_labels = validation.labels
        self.batch = min(recipe.batch_size, len(base))
        self.steps = len(base) // self.batch  # an incomplete batch is dropped
        self.total_steps = self.steps * recipe.epochs
        self.history: list[Epoch] = []
        self.best, self.best_accuracy = self.checkpoint(), -1.0

    def one_epoch(self, shown: Progress) -> str:
        """Train for one epoch, validate, remember the best; returns a line about it."""
        began = time.perf_counter()
        number = len(self.history)
        loss, accuracy = self.learn(number, shown)
        validation = None
        due = number in (0, self.recipe.epochs - 1) or (number + 1) % self.validate_every == 0
        if self.validation is not None and due:
            validation = self.validation_accuracy(self.validation)
        seconds = time.perf_counter() - began
        self.history.append(Epoch(number + 1, loss, accuracy, validation, seconds))
        if self.validation is None:
            self.best = self.checkpoint()
        elif validation is not None and validation > self.best_accuracy:
            self.best, self.best_accuracy = self.checkpoint(), validation
        few_shot = ""
        if validation is not None:
            few_shot = f"  {NUM_CLASSES}-way {SHOTS}-shot {100 * validation:.1f} %"
        return (
            f"epoch {number + 1}/{self.recipe.epochs}  loss {loss:.3f}  "
            f"accuracy {100 * accuracy:.1f} %{few_shot}  {seconds:.1f} s"
        )

    def learn(self, epoch: int, shown: Progress) -> tuple[float, float]:
        """One pass over the base images; returns mean loss and accuracy."""
        # All randomness depends on the seed and the epoch only, so a resumed run needs no generator
        # state, and the device does not matter.
        random = torch.Generator().manual_seed(seed_from(f"{self.seed} {epoch}"))
        order = torch.randperm(len(self.labels), generator=random)
        order = order[: self.steps * self.batch].view(self.steps, self.batch)
        draws = torch.rand(self.steps, self.batch, DRAWS, generator=random).to(self.device)
        labels = self.labels[order].to(self.device)
        losses = torch.zeros((), device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        self.learner.classifier.train()
        for step, images in enumerate(self.base.batches(order)):
            inputs, turns = self.recipe.augmentation(images, draws[step], self.transform)
            rate = self.recipe.rate(epoch * self.steps + step, self.total_steps)
            loss, correct = self.learner.step(channels_last(inputs), turns, labels[step], rate)
            losses += loss
            right += correct
            shown.advance()
        mean = losses.item() / self.steps
        if not math.isfinite(mean):
            raise RuntimeError(
                f"the loss must stay finite, got {mean} in epoch {epoch + 1} "
                "(a lower learning_rate may help)"
            )
        return mean, right.item() / order.numel()

    def validation_accuracy(self, validation: Feeder) -> float:
        """Few-shot accuracy on the validation classes."""
        step = -(-len(self.labels) // MEAN_IMAGES)
        centre = self.features(self.base, torch.arange(0, len(self.labels), step)).mean(0)
        features = self.features(validation, torch.arange(len(self.validation_labels)))
        num_classes = min(NUM_CLASSES, int((self.validation_labels.bincount() > 0).sum()))
        return nearest_mean_accuracy(
            features, self.validation_labels, num_classes=num_classes, shots=SHOTS, centre=centre
        )

    def features(self, feeder: Feeder, index: Tensor) -> Tensor:
        backbone = self.learner.kept.backbone.eval()
        transform = replace(self.transform, mirror=False)
        order = (index[some] for some in in_batches(len(index), VALIDATION_BATCH))
        return torch.cat(
            [
                features_of(backbone, images, transform, self.learner.dtype)
                for images in feeder.batches(order)
            ]
        )

    def checkpoint(self) -> Checkpoint:
        """A copy of the current network on the CPU."""
        kept = self.learner.kept
        backbone = create_uninitialised(kept.backbone.architecture, kept.backbone.channels)
        backbone.load_state_dict(kept.backbone.state_dict())
        notes = {"epoch": "0"}
        if self.history:
            number, _, _, validation, _ = self.history[-1]
            notes = {"epoch": str(number)}
            if validation is not None:
                notes[f"validation, {NUM_CLASSES}-way {SHOTS}-shot"] = f"{validation:.4f}"
        notes |= {"recipe": self.settings["recipe"], "seed": self.settings["seed"]}
        return Checkpoint(
            backbone.eval(), self.transform, self.class_names, copy.deepcopy(kept.head).cpu(), notes
        )

    # --- files ------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the state of the run, the best network if this epoch is the best, and the last."""
        if self.best.notes["epoch"] == str(len(self.history)):
            self.best.save(folder / BEST)
        if len(self.history) == self.recipe.epochs:
            self.checkpoint().save(folder / LAST)
        state = {
            "settings": self.settings,
            "history": [tuple(epoch) for epoch in self.history],
            "best_accuracy": self.best_accuracy,
            "learner": self.learner.state(),
        }
        folder.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()  # writing to the disk, torch hides why it fails
        torch.save(state, content)
        with replacing(folder / STATE) as new:
            new.write_bytes(content.getbuffer())

    def resume(self, folder: Path) -> None:
        """Resume a run with the same settings, if there is one."""
        path = folder / STATE
        if not path.is_file():
            return
        with state_of_a_run(path):
            state = read_state(path)
            settings = dict(state["settings"])
        for name, value in self.settings.items():
            if settings.get(name) != value:
                got = f"expected {value}, got {settings.get(name)}"
                if name in ("base", "validation"):
                    got = "images, labels and classes, got others"
                raise check.ArgumentValueError(
                    str(path), f"must belong to a run with the same {name}, {got}", "resume=False"
                )
        with state_of_a_run(path):
            self.learner.load(state["learner"])
            self.history = [Epoch(*epoch) for epoch in state["history"]]
            self.best_accuracy = float(state["best_accuracy"])
        self.best = load_checkpoint(folder / BEST)


def read_state(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        if archive.testzip() is not None:  # torch itself does not look at the checksums
            raise ValueError("a wrong checksum")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


@contextmanager
def state_of_a_run(path: Path) -> Iterator[None]:
    """One-sentence error for a damaged state."""
    try:
        yield
    except Exception as error:  # torch raises anything on a damaged file
        raise check.ArgumentValueError(
            str(path),
            f"must be the state of a run, got {first_line(error)}",
            or_pass="resume=False",
        ) from error


def check_arguments(
    backbone: Backbone,
    base: ImageSet,
    validation: ImageSet | None,
    start: Checkpoint | None,
) -> None:
    if len(base) < 2:
        raise ValueError(f"base must have at least 2 images, got {len(base)}")
    if validation is not None:
        if validation.shape[2] != base.shape[2]:
            raise ValueError(
                f"validation must have as many channels as base, {base.shape[2]}, "
                f"got {validation.shape[2]}"
            )
        counts = validation.labels.bincount()
        counts = counts[counts > 0]
        if len(counts) < 2 or int(counts.min()) <= SHOTS:
            raise ValueError(
                f"validation must have at least 2 classes with more than {SHOTS} images each, "
                f"got {len(counts)}, the smallest with {int(counts.min())}"
            )
    if start is not None and start.backbone.channels != base.shape[2]:
        raise check.ArgumentValueError(
            "start",
            f"must have as many channels as base, {base.shape[2]}, got {start.backbone.channels}",
        )
    if start is not None and start.backbone.architecture != backbone.architecture:
        raise check.ArgumentValueError(
            "start",
            f"must be a network {backbone.architecture!r}, got {start.backbone.architecture!r}",
        )


def default_transform(backbone: Backbone, base: ImageSet, mirror: bool) -> Transform:
    """The default transform: inputs of the network's size, or of the images' if smaller."""
    size = min(backbone.input_size, *base.shape[:2])
    if base.shape[2] == 3:
        return Transform(size, IMAGENET_MEAN, IMAGENET_STD, mirror=mirror)
    step = -(-len(base) // MEAN_IMAGES)
    sample = pixels(base.read(torch.arange(0, len(base), step)))
    # Rounded, because a resumed run is compared with it.
    mean, std = round(sample.mean().item(), 4), max(0.01, round(sample.std().item(), 4))
    return Transform(size, (mean,), (std,), mirror=mirror)


def on_device(classifier: Classifier, device: torch.device) -> Classifier:
    """Move a classifier to the device, in the fastest memory layout."""
    classifier = classifier.to(device)
    if device.type == "cuda":
        classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # untyped
    return classifier


def seed_from(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 2**63


def digest_of_data(images: ImageSet | None, resumable: bool, progress: bool) -> str:
    """A digest of labels and, only if the run can be resumed, of images."""
    if images is None:
        return ""
    about = repr((images.shape, images.class_names)).encode() + images.labels.numpy().tobytes()
    labels = hashlib.blake2b(about, digest_size=20).hexdigest()
    return f"{labels} {digest_of_images(images, progress=progress)}" if resumable else labels
