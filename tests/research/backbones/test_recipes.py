"""Recipes: the inputs of a network, the paper's numbers, the learning rate of each step."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from toy_images import generator, random_pixels

from paddle_ext.research.backbones import Augmentation, Recipe, Transform, recipe
from paddle_ext.research.backbones.recipes import DRAWS, jittered, quarter_turns

PLAIN = Transform(12, (0.0,) * 3, (1.0,) * 3)


# --- transform -----------------------------------------------------------------------------------


def test_transform_without_scaling() -> None:
    images = random_pixels(2, 12, 12, 3)
    got = Transform(12, (0.1, 0.2, 0.3), (0.5, 1.0, 2.0))(images)
    expected = images.permute(0, 3, 1, 2).double() / 255
    for channel, (mean, std) in enumerate([(0.1, 0.5), (0.2, 1.0), (0.3, 2.0)]):
        assert torch.allclose(
            got[:, channel].double(), (expected[:, channel] - mean) / std, atol=1e-6
        )


def test_transform_takes_the_middle() -> None:
    images = random_pixels(2, 20, 16, 3)
    assert torch.equal(
        Transform(10, PLAIN.mean, PLAIN.std, resize=16)(images),
        images.permute(0, 3, 1, 2)[..., 5:15, 3:13].float() / 255,
    )
    long = torch.linspace(0, 255, 60).to(torch.uint8).view(1, 1, 60, 1).expand(1, 30, 60, 3)
    result = PLAIN(long)
    assert result.shape == (1, 3, 12, 12)
    assert abs(result.mean() - 0.5) < 0.01
    assert abs(result.min() - 0.25) < 0.03


# --- augmentation --------------------------------------------------------------------------------

WHOLE = {"area": (1.0, 1.0), "mirror": False, "jitter": 0.0}


def augmented(images: torch.Tensor, seed: int = 0, size: int = 12, **options) -> tuple:
    draws = torch.rand(len(images), DRAWS, generator=generator(seed))
    transform = Transform(size, PLAIN.mean, PLAIN.std)
    return Augmentation(**options)(images, draws, transform)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_whole_image(interpolation: str) -> None:
    images = random_pixels(5, 12, 12, 3)
    got, turns = augmented(images, interpolation=interpolation, **WHOLE)
    assert torch.allclose(got, PLAIN(images), atol=1e-5)
    assert (turns == 0).all()


def test_mirror_and_turns() -> None:
    images = random_pixels(64, 12, 12, 3)
    got, turns = augmented(images, turned=0.75, **(WHOLE | {"mirror": True}))
    plain, mirrored = PLAIN(images), 0
    for x, y, turn in zip(got, plain, turns.tolist(), strict=True):
        # Turned the same way round by a quarter for each number, mirrored before.
        found = [
            torch.allclose(x, torch.rot90(z, turn, (1, 2)), atol=1e-5) for z in (y, y.flip(-1))
        ]
        assert sum(found) == 1
        mirrored += found[1]
    assert 16 < mirrored < 48
    assert turns.bincount(minlength=4).min() >= 8


def test_share_of_turns() -> None:
    draws = torch.linspace(0, 1, 1001)[:-1]
    assert quarter_turns(draws, 0.0).sum() == 0
    counts = quarter_turns(draws, 0.6).bincount(minlength=4)
    assert (counts - torch.tensor([400, 200, 200, 200])).abs().max() <= 1


@pytest.mark.parametrize(("height", "width"), [(40, 40), (40, 60), (90, 30), (20, 100)])
def test_crops_lie_inside_and_have_their_area_and_ratio(height: int, width: int) -> None:
    """Pixels contain their own coordinates, so a crop shows where it is."""
    x = torch.linspace(0, 255, width).expand(height, width)
    y = torch.linspace(0, 255, height)[:, None].expand(height, width)
    images = torch.stack([x, y, y], -1).round().to(torch.uint8).expand(400, -1, -1, -1)
    got, _ = augmented(images, size=16, area=(0.2, 0.8), mirror=False, jitter=0.0)
    # The corner pixels of the result are half a sixteenth inside the crop.
    span_x = (got[:, 0, :, -1] - got[:, 0, :, 0]).mean(1) * 16 / 15
    span_y = (got[:, 1, -1] - got[:, 1, 0]).mean(1) * 16 / 15
    area, ratio = span_x * span_y, span_x * width / (span_y * height)
    slack = 0.06
    most = min(0.8, 4 / 3 * height / width, 4 / 3 * width / height)
    assert area.min() > min(0.2, most) - slack
    assert area.max() < most + slack
    assert ratio.min() > 3 / 4 - 2 * slack
    assert ratio.max() < 4 / 3 + 3 * slack
    if height == width:
        assert abs(area.mean() - 0.5) < 0.04  # uniform
        assert abs(got[:, 0].mean() - 0.5) < 0.04  # as often left as right


def test_jitter() -> None:
    x = torch.rand(3, 3, 5, 5, generator=generator(0)) * 0.5
    assert torch.allclose(jittered(x, torch.ones(3, 3)), x, atol=1e-6)
    brighter = jittered(x, torch.tensor([[1.3, 1.0, 1.0]] * 3))
    assert torch.allclose(brighter, 1.3 * x, atol=1e-6)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    grey = (x * weights).sum(1, keepdim=True)
    flat = jittered(x, torch.tensor([[1.0, 0.0, 1.0]] * 3))
    assert torch.allclose(flat, grey.mean((2, 3), keepdim=True).expand_as(x), atol=1e-6)
    assert torch.allclose(
        jittered(x, torch.tensor([[1.0, 1.0, 0.0]] * 3)), grey.expand_as(x), atol=1e-6
    )
    assert jittered(x[:, :1], torch.full((3, 3), 1.4)).shape == (3, 1, 5, 5)
    images = random_pixels(50, 12, 12, 3)
    got, _ = augmented(images, **(WHOLE | {"jitter": 0.4}))
    assert got.min() >= 0
    assert got.max() <= 1
    assert 0.02 < (got - PLAIN(images)).abs().mean() < 0.25


def test_augmentation_is_float32_under_autocast() -> None:
    images = random_pixels(4, 12, 12, 3)
    with torch.autocast("cpu", torch.bfloat16):
        got, _ = augmented(images)
    assert got.dtype == torch.float32
    assert torch.equal(got, augmented(images)[0])


def test_other_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="as many channels as mean, 3, got 1"):
        PLAIN(random_pixels(2, 12, 12, 1))


# --- recipes -------------------------------------------------------------------------------------


def test_the_paper() -> None:
    paper, steps = recipe("paper"), 150 * 90
    rates = [paper.rate(epoch * 150 + 149, steps) for epoch in range(90)]
    assert rates == pytest.approx([0.1] * 45 + [0.01] * 21 + [0.001] * 24)
    assert (paper.label_smoothing, paper.momentum, paper.weight_decay) == (0.1, 0.9, 1e-4)
    assert (paper.batch_size, recipe("paper", "wrn28_10").batch_size) == (256, 128)
    short = replace(paper, epochs=10)
    assert [short.rate(epoch, 10) for epoch in (4, 5, 7, 8)] == pytest.approx(
        [0.1, 0.01, 0.01, 0.001]
    )


def test_warmup_and_cosine() -> None:
    settings = Recipe(schedule="cosine", warmup=0.1, learning_rate=0.2)
    rates = [settings.rate(step, 1000) for step in range(1000)]
    assert rates[0] < 0.003
    assert max(rates) == rates[100] == pytest.approx(0.2)
    assert rates[550] == pytest.approx(0.1)
    assert rates[-1] < 1e-5
    assert rates[:101] == sorted(rates[:101])
    assert rates[100:] == sorted(rates[100:], reverse=True)


@pytest.mark.parametrize(
    ("make", "arguments", "error", "message"),
    [
        (Transform, {"size": 0}, ValueError, r"size must be an integer in \[1, \d+\], got 0"),
        (Transform, {"std": (1.0,)}, ValueError, "must have 1 number or 3 each, got 3 and 1"),
        (Transform, {"std": (1.0, 0.0, 1.0)}, ValueError, "std > 0"),
        (Augmentation, {"area": (0.0, 1.0)}, ValueError, r"area must be increasing within \(0, 1"),
        (Augmentation, {"ratio": (2.0, 1.0)}, ValueError, "ratio must be increasing"),
        (Augmentation, {"jitter": 1.5}, ValueError, r"jitter must be in \[0, 1\], got 1.5"),
        (Augmentation, {"interpolation": "nearest"}, ValueError, "must be one of 'bilinear', 'bic"),
        (Recipe, {"epochs": 0}, ValueError, r"epochs must be an integer in \[1, \d+\], got 0"),
        (Recipe, {"batch_size": 2.5}, TypeError, "batch_size must be an integer, got float"),
        (Recipe, {"learning_rate": 0.0}, ValueError, "learning_rate must be finite and > 0, got 0"),
        (Recipe, {"momentum": 1.0}, ValueError, r"momentum must be in \[0, 1\)"),
        (Recipe, {"schedule": "linear"}, ValueError, "schedule must be one of 'steps', 'cosine'"),
        (Recipe, {"momentum": 0.0, "nesterov": True}, ValueError, "momentum must be > 0 with nest"),
        (recipe, {"name": "x"}, ValueError, "name must be one of 'paper', 'strong', 'small', got"),
    ],
)
def test_refused(make: Any, arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(**arguments)
