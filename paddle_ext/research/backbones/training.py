"""Training on the base classes, evaluated by few-shot accuracy on the validation classes."""

import hashlib
import io
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ... import check
from ...arrays import read_torch, safetensors
from ...files import first_line, replacing
from ...progress import Progress
from ..data.images import ImageSet
from ..evaluate import digest
from . import extraction
from .checkpoints import Checkpoint, load_checkpoint
from .networks import Backbone, create, create_uninitialised
from .recipes import DRAWS, Recipe, Transform, pixels

STATE, BEST, LAST = "state.pt", "best.safetensors", "last.safetensors"
FORMAT = "paddle_ext.training.5"
NUM_CLASSES, SHOTS = 5, 5  # of the validation tasks
MEAN_IMAGES = 2000  # base images used for a mean
VALIDATION_BATCH = 256  # images
TURN_WEIGHT = 0.5  # of the rotation task in the loss


class Epoch(NamedTuple):
    """The results of one epoch."""

    number: int  # from 1
    loss: float
    accuracy: float  # on the augmented base images, in [0, 1]
    validation: float | None  # 5-way 5-shot accuracy on the validation classes, in [0, 1]
    seconds: float


class Trained(NamedTuple):
    """A finished run: the network of the best epoch, or of the last without validation."""

    checkpoint: Checkpoint
    history: list[Epoch]


def train(
    architecture: str,
    base: ImageSet,
    validation: ImageSet | None = None,
    *,
    recipe: Recipe | None = None,
    output: str | Path | None = None,
    resume: bool = True,
    device: str | torch.device | None = None,
    precision: str = "auto",
    compiled: bool = False,
    deterministic: bool = True,
    validate_every: int = 1,
    seed: int = 0,
    progress: bool = True,
) -> Trained:
    """Train a network to classify the base classes.

    Parameters
    ----------
    architecture : {"resnet18", "wrn28_10", "small"}
    base : ImageSet
        Training images. The inputs have the network's size, or the images' if smaller; they are
        normalised by ImageNet's mean and deviation for RGB, by the images' own for grey.
    validation : ImageSet or None
        Images of other classes: after each epoch, 5-way 5-shot accuracy by the nearest class mean
        on them selects the epoch to keep.
    recipe : Recipe or None
        None: the paper's.
    output : path or None
        A folder for ``best.safetensors``, ``last.safetensors`` and ``state.pt``, from which an
        interrupted run resumes after its last complete epoch; None: nothing is written. Two runs
        must not write to one folder at a time.
    resume : bool
        Resume from `output` if possible; False: start over. Its contents must have the same
        settings and labels.
    device, precision
        As in `extract`.
    compiled : bool
        Compile the network with torch.compile.
    deterministic : bool
        On CUDA, use only deterministic algorithms; on the CPU all are.
    validate_every : int
        Epochs between validations; the first and the last are always validated.
    seed : int
        Of the weights, the order of the images and the augmentation.
    progress : bool
        Print a line per epoch on stderr.

    Examples
    --------
    >>> from paddle_ext.research.backbones import recipe
    >>> from paddle_ext.research.data.glyphs import glyph_images
    >>> base, val = glyph_images("base", samples=40), glyph_images("val")  # doctest: +SKIP
    >>> trained = train("small", base, val, recipe=recipe("small"))  # doctest: +SKIP
    """
    place, recipe = check.device(device), recipe or Recipe()
    dtype = extraction.product_dtype(precision, place)
    validate_every = check.integer("validate_every", validate_every)
    folder = None if output is None else Path(output)
    if folder is not None:
        safetensors()  # fail before the first epoch if it is missing
    if len(base) < 2:
        raise ValueError(f"base must have at least 2 images, got {len(base)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = create(architecture, channels=base.shape[2])
        head = nn.Linear(backbone.dimension, len(base.class_names))
        classifier = Classifier(backbone, head, recipe.augmentation.turned > 0)
    if validation is not None:
        check_validation(base, validation)
    transform = default_transform(backbone, base, recipe.mirror_features)
    sets = [base] if validation is None else [base, validation]
    images = [(x.shape, x.class_names, digest(x.labels)) for x in sets]
    identity = digest(FORMAT, architecture, images, recipe, transform, seed)
    classifier.to(place)
    if place.type == "cuda":
        classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # untyped
    learner = Learner(classifier, recipe, dtype, compiled=compiled)
    run = Run(learner, transform, base, validation, seed, progress)
    with (
        cudnn_algorithms(deterministic),
        Progress("training", run.total_steps, show=progress) as shown,
    ):
        if folder is not None and resume:
            run.resume(folder, identity)
        elif folder is not None:  # no state of one run with networks of another
            (folder / STATE).unlink(missing_ok=True)
        shown.advance(len(run.history) * run.steps)
        while len(run.history) < recipe.epochs:
            run.one_epoch(shown, validate_every)
            if folder is not None:
                run.save(folder, identity)
    return Trained(run.best, run.history)


@contextmanager
def cudnn_algorithms(deterministic: bool) -> Iterator[None]:
    """Let cuDNN choose among all algorithms, or only deterministic ones."""
    cudnn = torch.backends.cudnn  # its context manager `flags` would change TF32, too
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = deterministic, not deterministic
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


class Classifier(nn.Module):
    """A backbone, the classifier of the base classes and, optionally, one of quarter turns."""

    def __init__(self, backbone: Backbone, head: nn.Linear, turns: bool) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.turn_head = nn.Linear(backbone.dimension, 4) if turns else None

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images [N, C, H, W] -> logits [N, classes] and [N, 4]."""
        features = self.backbone(images)
        return self.head(features), None if self.turn_head is None else self.turn_head(features)


class Learner:
    """A network on its device with its average and its optimiser; products are in `dtype`."""

    def __init__(
        self, classifier: Classifier, recipe: Recipe, dtype: torch.dtype, *, compiled: bool = False
    ) -> None:
        self.classifier, self.recipe, self.dtype = classifier, recipe, dtype
        self.device = next(classifier.parameters()).device
        self.forward = torch.compile(classifier) if compiled else classifier
        self.optimiser = torch.optim.SGD(
            classifier.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
        )
        # Everything whose state is needed to resume a run.
        self.parts: dict[str, Any] = {"classifier": classifier, "optimiser": self.optimiser}
        self.average = None
        self.final = classifier  # the network that is validated and saved
        if recipe.average:
            ema = get_ema_multi_avg_fn(recipe.average)  # type: ignore[no-untyped-call]
            self.average = AveragedModel(classifier, multi_avg_fn=ema, use_buffers=True)
            self.final = self.average.module  # type: ignore[assignment]  # a copy of ours
            self.parts["average"] = self.average

    def step(
        self, inputs: Tensor, turns: Tensor, labels: Tensor, rate: float
    ) -> tuple[Tensor, Tensor]:
        """One update; returns the loss and the correct predictions, both on the device."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        smoothing = self.recipe.label_smoothing
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits, turn_logits = self.forward(inputs)
            loss = F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
            if turn_logits is not None:
                loss = loss + TURN_WEIGHT * F.cross_entropy(turn_logits.float(), turns)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.optimiser.step()
        if self.average is not None:
            self.average.update_parameters(self.classifier)
        return loss.detach(), (logits.detach().argmax(1) == labels).sum()


class Run:
    """A training run; see `train` for the arguments."""

    def __init__(
        self,
        learner: Learner,
        transform: Transform,
        base: ImageSet,
        validation: ImageSet | None,
        seed: int,
        progress: bool,
    ) -> None:
        self.learner, self.transform, self.seed = learner, transform, seed
        self.base, self.validation = base, validation
        self.base_images = extraction.preloaded(base, learner.device, progress=progress)
        if validation is not None:
            self.validation_images = extraction.preloaded(
                validation, learner.device, progress=progress
            )
        self.batch = min(learner.recipe.batch_size, len(base))
        self.steps = len(base) // self.batch  # an incomplete batch is dropped
        self.total_steps = self.steps * learner.recipe.epochs
        self.history: list[Epoch] = []
        self.best, self.best_accuracy = self.checkpoint(), -1.0

    def one_epoch(self, shown: Progress, validate_every: int) -> None:
        """Train for one epoch, validate, remember the best, print a line about it."""
        began = time.perf_counter()
        number, epochs = len(self.history) + 1, self.learner.recipe.epochs
        loss, accuracy = self.learn(number - 1, shown)
        validation = None
        due = number in (1, epochs) or number % validate_every == 0
        if self.validation is not None and due:
            validation = self.validation_accuracy(self.validation.labels)
        seconds = time.perf_counter() - began
        self.history.append(Epoch(number, loss, accuracy, validation, seconds))
        few_shot = ""
        if self.validation is None:
            self.best = self.checkpoint()
        elif validation is not None:
            few_shot = f"  {NUM_CLASSES}-way {SHOTS}-shot {100 * validation:.1f} %"
            if validation > self.best_accuracy:
                self.best, self.best_accuracy = self.checkpoint(), validation
        shown.line(
            f"epoch {number}/{epochs}  loss {loss:.3f}  accuracy {100 * accuracy:.1f} %{few_shot}  "
            f"{seconds:.1f} s"
        )

    def learn(self, epoch: int, shown: Progress) -> tuple[float, float]:
        """One pass over the base images; returns mean loss and accuracy."""
        # All randomness depends on the seed and the epoch only, so a resumed run needs no generator
        # state, and the device does not matter.
        seed = hashlib.blake2b(f"{self.seed} {epoch}".encode(), digest_size=8).digest()
        random = torch.Generator().manual_seed(int.from_bytes(seed, "big") % 2**63)
        order = torch.randperm(len(self.base), generator=random)
        order = order[: self.steps * self.batch].view(self.steps, self.batch)
        device, recipe = self.learner.device, self.learner.recipe
        draws = torch.rand(self.steps, self.batch, DRAWS, generator=random).to(device)
        labels = self.base.labels[order].to(device)
        losses = torch.zeros((), device=device)
        right = torch.zeros((), dtype=torch.int64, device=device)
        self.learner.classifier.train()
        for step, images in enumerate(extraction.batches(self.base_images, order, device)):
            inputs, turns = recipe.augmentation(images, draws[step], self.transform)
            rate = recipe.rate(epoch * self.steps + step, self.total_steps)
            loss, correct = self.learner.step(
                extraction.channels_last(inputs), turns, labels[step], rate
            )
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

    def validation_accuracy(self, labels: Tensor) -> float:
        """Few-shot accuracy on the validation classes."""
        centre = self.features(self.base_images, sample_of(self.base)).mean(0)
        features = self.features(self.validation_images, torch.arange(len(labels)))
        num_classes = min(NUM_CLASSES, len(torch.unique(labels)))
        return extraction.nearest_mean_accuracy(
            features, labels, num_classes=num_classes, shots=SHOTS, centre=centre
        )

    def features(self, images: ImageSet | Tensor, index: Tensor) -> Tensor:
        backbone, dtype = self.learner.final.backbone.eval(), self.learner.dtype
        transform = replace(self.transform, mirror=False)
        read = extraction.batches(images, torch.split(index, VALIDATION_BATCH), self.learner.device)
        return torch.cat(
            [extraction.features_of(backbone, batch, transform, dtype) for batch in read]
        )

    def checkpoint(self) -> Checkpoint:
        """A copy of the current network on the CPU."""
        final = self.learner.final
        backbone = create_uninitialised(final.backbone.architecture, final.backbone.channels)
        backbone.load_state_dict(final.backbone.state_dict())
        notes = {"epoch": str(len(self.history))}
        if self.history and self.history[-1].validation is not None:
            accuracy = f"{self.history[-1].validation:.4f}"
            notes[f"validation, {NUM_CLASSES}-way {SHOTS}-shot"] = accuracy
        notes |= {"recipe": repr(self.learner.recipe), "seed": str(self.seed)}
        return Checkpoint(backbone.eval(), self.transform, self.base.class_names, notes)

    def save(self, folder: Path, identity: str) -> None:
        """Write the state of the run, the best network if this epoch is the best, and the last."""
        if self.best.notes["epoch"] == str(len(self.history)):
            self.best.save(folder / BEST)
        if len(self.history) == self.learner.recipe.epochs:
            self.checkpoint().save(folder / LAST)
        state = {
            "identity": identity,
            "history": [tuple(epoch) for epoch in self.history],
            "best_accuracy": self.best_accuracy,
            "learner": {name: part.state_dict() for name, part in self.learner.parts.items()},
        }
        content = io.BytesIO()  # writing to the disk, torch hides why it fails
        torch.save(state, content)
        with replacing(folder / STATE) as new:
            new.write_bytes(content.getbuffer())

    def resume(self, folder: Path, identity: str) -> None:
        """Resume a run of this identity, if there is one."""
        path = folder / STATE
        if not path.is_file():
            return
        try:
            state: Any = read_torch(path)
            same = state["identity"] == identity
            if same:
                for name, part in self.learner.parts.items():
                    part.load_state_dict(state["learner"][name])
                self.history = [Epoch(*epoch) for epoch in state["history"]]
                self.best_accuracy = float(state["best_accuracy"])
        except Exception as error:  # torch raises anything on a damaged file
            raise check.ArgumentValueError(
                str(path), f"must be the state of a run, got {first_line(error)}", "resume=False"
            ) from error
        if not same:
            expected = "must belong to a run with the same images, recipe and seed, got another run"
            raise check.ArgumentValueError(str(path), expected, "resume=False")
        self.best = load_checkpoint(folder / BEST)


def check_validation(base: ImageSet, validation: ImageSet) -> None:
    """Reject before the first epoch what could not be validated after it."""
    if validation.shape[2] != base.shape[2]:
        raise ValueError(
            f"validation must have as many channels as base, {base.shape[2]}, "
            f"got {validation.shape[2]}"
        )
    counts = torch.unique(validation.labels, return_counts=True)[1]
    if len(counts) < 2 or int(counts.min()) <= SHOTS:
        raise ValueError(
            f"validation must have at least 2 classes with more than {SHOTS} images each, "
            f"got {len(counts)}, the smallest with {int(counts.min())}"
        )


def default_transform(backbone: Backbone, base: ImageSet, mirror: bool) -> Transform:
    """Inputs of the network's size, or of the images' if smaller."""
    size = min(backbone.input_size, *base.shape[:2])
    if base.shape[2] == 3:
        return Transform(size, mirror=mirror)
    sample = pixels(base.read(sample_of(base)))
    # Rounded, because a resumed run is compared with it.
    mean, std = round(sample.mean().item(), 4), max(0.01, round(sample.std().item(), 4))
    return Transform(size, (mean,), (std,), mirror=mirror)


def sample_of(images: ImageSet) -> Tensor:
    """Numbers of at most `MEAN_IMAGES` images, evenly spaced."""
    return torch.arange(0, len(images), -(-len(images) // MEAN_IMAGES))
