"""Native steps of the rounds of a batch; the equations are in csrc/common/rounds.h.

Rows are independent, so those of a task may come in chunks. Letters: B tasks, N rows of each in a
chunk, K classes. All tensors are packed, and of one dtype, float32 or float64, unless said
otherwise.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..large.steps import assign_call
from ..native.call import DTYPES, Inputs, alike, call_native, packed, prepare
from ..native.devices import on_cpu_without_gpu_code
from ..native.load import module as native


@on_cpu_without_gpu_code
def density_terms(
    squares: Tensor,
    mass: Tensor,
    labelled_mass: Tensor,
    bias: Tensor,
    variance: Tensor,
    sharpness: Tensor,
) -> list[Tensor]:
    """(5) The steepness and the constant of each class in the logits, [B, K] each.

    A row of a class is ``steepness (2 x.m - x.x) + constant``. Prototypes m have `squares`, and are
    the means of `mass` rows, of which `labelled_mass` were there before a batch, [B, K]; variance
    and sharpness are [B]. Some of them may be [1, ..], shared by all tasks.
    """
    B, K, real = max(map(len, (squares, mass, bias, sharpness))), bias.shape[-1], bias.dtype
    rows = {"squares": squares, "mass": mass, "labelled_mass": labelled_mass, "bias": bias}
    tasks = {"variance": variance, "sharpness": sharpness}
    inputs: Inputs = {
        **alike(real, B, K, **{name: packed(x.expand(B, K)) for name, x in rows.items()}),
        **alike(real, B, **{name: packed(x.expand(B)) for name, x in tasks.items()}),
    }
    outputs = dict.fromkeys(("steepness", "constant"), (real, (B, K)))
    return call_native(native.density_call, {"B": B, "K": K}, bias, inputs, outputs)


def weigh_call(
    probabilities: Tensor,
    most: float,
    held: Tensor,
    weights: Tensor,
    *,
    rest: Tensor | None = None,
    worth: Tensor | None = None,
) -> Callable[[], None]:
    """A call for the weights of rows [B, N, K] in prototypes; `held` [B, K] float64 adds them up.

    `most` is what a row weighs whose class is certain, and `worth` [B, N] a factor on it.
    `weights` [B, N, K] may be float16 on CUDA, with their rounding errors in `rest`.
    """
    (B, N, K), real, written = probabilities.shape, probabilities.dtype, weights.dtype
    inputs: Inputs = {
        "probabilities": (probabilities, real, (B, N, K)),
        "worth": (worth, real, (B, N)),
        "held": (held, torch.float64, (B, K)),
        **alike(written, B, N, K, weights=weights, rest=rest),
    }
    options = {"written": DTYPES[written], "B": B, "N": N, "K": K, "most": most}
    return prepare(native.weigh_call, options, probabilities, inputs)[0]


def gathered(
    gram: Tensor, weights: Tensor, cross: Tensor, squares: Tensor, before: Tensor, mass: Tensor
) -> list[Tensor]:
    """Products [B, N, K] with the prototypes that absorbed the rows, and their squares [B, K].

    `gram` [B, N, N] are products of the rows with one another, `weights` and `cross` [B, N, K]
    their weights and their products with the prototypes before; these have `squares`, and are the
    means of `before` rows, and then of `mass`, [B, K].
    """
    (B, N, K), real = cross.shape, cross.dtype
    inputs: Inputs = {
        "gram": (gram, real, (B, N, N)),
        **alike(real, B, N, K, weights=weights, cross=cross),
        **alike(real, B, K, squares=squares, before=before, mass=mass),
    }
    outputs = {"products": (real, (B, N, K)), "square": (real, (B, K))}
    return call_native(native.gather_call, {"B": B, "Q": N, "K": K}, cross, inputs, outputs)


def claimed_call(probabilities: Tensor, shots: Tensor, confidence: Tensor) -> Callable[[], None]:
    """A call that turns probabilities [B, N, K] into logs; ``confidence logs`` are (16) logits.

    `shots` [B, K] are the labelled rows of each class, `confidence` [B, N] is an output.
    """
    (B, N, K), real = probabilities.shape, probabilities.dtype
    inputs: Inputs = {
        **alike(real, B, N, K, probabilities=probabilities, logs=probabilities),
        "shots": (shots, real, (B, K)),
        "confidence": (confidence, real, (B, N)),
    }
    options = {"B": B, "N": N, "K": K}
    return prepare(native.claim_call, options, probabilities, inputs)[0]


@on_cpu_without_gpu_code
def claimed(probabilities: Tensor, shots: Tensor) -> Tensor:
    """(16) What is claimed of rows [B, N, K], whose classes have `shots` [B, K] labelled rows."""
    u, (B, N, K) = packed(probabilities).clone(), probabilities.shape
    confidence, none = u.new_empty(B, N), u.new_zeros(B, K)
    claimed_call(u, packed(shots.expand(B, K).to(u)), confidence)()
    assign_call(u, u.new_ones(B), none, length=confidence, probabilities=u)()
    return u
