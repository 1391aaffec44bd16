"""Training on the base classes, evaluated by few-shot accuracy on the validation classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from ... import check
from ...files import sole_writer
from ...progress import Progress
from ..data.images import ImageSet
from .augment import Transform
from .checkpoints import Checkpoint, safetensors
from .extraction import product_dtype
from .recipes import Recipe
from .run import STATE, Epoch, Run


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
        Training images.
    validation : ImageSet or None
        Images of other classes: after each epoch, 5-way 5-shot accuracy by the nearest class mean
        on them selects the epoch to keep.
    recipe : Recipe or None
        None: the paper's.
    output : path or None
        A folder for ``best.safetensors``, ``last.safetensors`` and ``state.pt``, from which an
        interrupted run resumes; None: nothing is written.
    resume : bool
        Resume from `output` if possible; False: start over. Its contents must have the same
        settings, labels and images.
    transform : Transform or None
        Size and normalisation of the inputs; None: the network's size, or the images' if smaller,
        ImageNet's mean and deviation for RGB, the images' own for grey.
    start : Checkpoint or None
        Initial weights; None: random.
    device : device or None
        None: a GPU if there is one.
    precision : {"auto", "float32", "bfloat16", "float16"}
        ``"auto"``: half precision on CUDA. The CPU supports only float32.
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
    place = check.device(device)
    folder = None if output is None else Path(output)
    if folder is not None:
        safetensors()  # fail before the first epoch if it is missing
    run = Run(
        architecture,
        base,
        validation,
        recipe=recipe or Recipe(),
        transform=transform,
        start=start,
        device=place,
        dtype=product_dtype(precision, place),
        compiled=compiled,
        validate_every=check.integer("validate_every", validate_every),
        seed=seed,
        progress=progress,
        resumable=folder is not None,
    )
    with (
        nullcontext() if folder is None else sole_writer(folder),
        cudnn_algorithms(deterministic),
        Progress("training", run.total_steps, show=progress) as shown,
    ):
        if folder is not None and resume:
            run.resume(folder)
        elif folder is not None:  # no state of one run with networks of another
            (folder / STATE).unlink(missing_ok=True)
        shown.advance(len(run.history) * run.steps)
        while len(run.history) < run.recipe.epochs:
            shown.line(run.one_epoch(shown))
            if folder is not None:
                run.save(folder)
    return Trained(run.best, run.history)


@contextmanager
def cudnn_algorithms(deterministic: bool) -> Iterator[None]:
    """Let cuDNN choose among all algorithms, or only deterministic ones."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = deterministic, not deterministic
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
