"""Training on the base classes, judged by few-shot accuracy on the validation classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ... import check
from ..data.images import ImageSet
from ..progress import Progress
from .augment import Transform
from .checkpoints import Checkpoint, safetensors
from .precision import product_dtype
from .recipes import Recipe
from .run import Epoch, Run


@dataclass
class Trained:
    """A finished run."""

    checkpoint: Checkpoint
    """The network of the best epoch by validation, or of the last without validation."""

    history: list[Epoch]


def train(
    architecture: str,
    base: ImageSet,
    validation: ImageSet | None = None,
    *,
    recipe: Recipe | None = None,
    output: str | Path | None = None,
    resume: bool = True,
    transform: Transform | None = None,
    start: Checkpoint | None = None,
    teacher: Checkpoint | None = None,
    device: str | torch.device | None = None,
    precision: str = "auto",
    compiled: bool = False,
    deterministic: bool = True,
    validate_every: int = 1,
    seed: int = 0,
    progress: bool = True,
) -> Trained:
    """Train a network to tell the base classes apart.

    Parameters
    ----------
    architecture : {"resnet18", "wrn28_10", "small"}
    base : ImageSet
        What it learns from.
    validation : ImageSet or None
        Images of other classes: after each epoch, 5-way 5-shot accuracy by the nearest class mean
        on them decides which epoch is kept.
    recipe : Recipe or None
        None: the paper's.
    output : path or None
        A folder for ``best.safetensors``, ``last.safetensors`` and ``state.pt``, from which an
        interrupted run goes on; None: nothing is written.
    resume : bool
        Go on from `output`, if there is something; False: begin again. What is there must be of the
        same settings, labels and pictures.
    transform : Transform or None
        Size and normalisation of the inputs; None: the network's size, or the images' if smaller,
        ImageNet's mean and deviation for RGB, the images' own for grey.
    start : Checkpoint or None
        Weights to begin with; None: random ones.
    teacher : Checkpoint or None
        A network of the same classes whose predictions are matched too (`Recipe.distillation`).
    device : device or None
        None: a GPU if there is one.
    precision : {"auto", "float32", "bfloat16", "float16"}
        ``"auto"``: a half one on CUDA. On the CPU there is only float32.
    compiled : bool
        Compile the network with torch.compile.
    deterministic : bool
        On CUDA, use only algorithms that give the same result each time; on the CPU they all do.
    validate_every : int
        Epochs from one validation to the next; the first and the last are always validated.
    seed : int
        Of the weights, the order of the images and the augmentation.
    progress : bool
        A line for each epoch on stderr.

    Returns
    -------
    Trained

    Examples
    --------
    >>> from paddle_ext.research.backbones import recipe
    >>> from paddle_ext.research.data.glyphs import glyph_images
    >>> base, val = glyph_images("base", samples=40), glyph_images("val")  # doctest: +SKIP
    >>> trained = train("small", base, val, recipe=recipe("small"))  # doctest: +SKIP
    """
    place = check.device(device)
    folder = None if output is None else Path(output)
    if folder is not None:
        safetensors()  # if it is missing, better now than after the first epoch
    run = Run(
        architecture,
        base,
        validation,
        recipe=recipe or Recipe(),
        transform=transform,
        start=start,
        teacher=teacher,
        device=place,
        dtype=product_dtype(precision, place),
        compiled=compiled,
        validate_every=check.integer("validate_every", validate_every),
        seed=seed,
        progress=progress,
        resumable=folder is not None,
    )
    if folder is not None and resume:
        run.resume(folder)
    with (
        cudnn_algorithms(deterministic),
        Progress("training", run.total_steps, show=progress) as shown,
    ):
        shown.advance(len(run.history) * run.steps)
        while len(run.history) < run.recipe.epochs:
            shown.line(run.one_epoch(shown))
            if folder is not None:
                run.save(folder)
    return Trained(run.best, run.history)


@contextmanager
def cudnn_algorithms(deterministic: bool) -> Iterator[None]:
    """Let cuDNN choose among all algorithms, or only among those that always give the same."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = deterministic, not deterministic
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
