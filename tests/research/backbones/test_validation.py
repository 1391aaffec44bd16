"""Few-shot accuracy by the nearest class mean."""

import pytest
import torch
from toy_images import generator, one_thread, pattern_images, random_pixels  # noqa: F401

from paddle_ext.research.backbones import nearest_mean_accuracy


def test_accuracy_by_hand() -> None:
    """Two classes on a line; a third of the second lies with the first."""
    features = torch.tensor([[1.0, 0.0]] * 12 + [[0.0, 1.0]] * 8 + [[1.0, 0.0]] * 4)
    labels = torch.tensor([0] * 12 + [1] * 12)
    options = {"num_classes": 2, "shots": 2, "queries_per_class": 10, "n_tasks": 400}
    # The mean of two shots of class 1 is nearest to its queries at (0, 1) unless both are strays:
    # (4/12)(3/11) = 1/11 of the tasks, in which everything ties and the first class of a task wins.
    expected = (10 / 11) * (10 + 10 - 10 / 3) / 20 + (1 / 11) * 10 / 20
    assert nearest_mean_accuracy(features, labels, **options) == pytest.approx(expected, abs=0.03)


def test_accuracy_of_noise_is_chance() -> None:
    features = torch.randn(400, 8, generator=generator(0))
    labels = torch.arange(20).repeat(20)
    assert nearest_mean_accuracy(features, labels, num_classes=4) == pytest.approx(0.25, abs=0.03)


def test_accuracy_depends_on_seed_and_centre() -> None:
    features = pattern_images(8, 20, size=8).images.flatten(1).float() + 300
    features += 120 * torch.randn(features.shape, generator=generator(0))
    labels = torch.arange(8).repeat_interleave(20)
    first = nearest_mean_accuracy(features, labels, n_tasks=50)
    assert first == nearest_mean_accuracy(features, labels, n_tasks=50)
    assert first != nearest_mean_accuracy(features, labels, n_tasks=50, seed=1)
    centred = nearest_mean_accuracy(features, labels, n_tasks=50, centre=features.mean(0))
    assert centred > first


def test_uneven_classes() -> None:
    counts = torch.tensor([7, 30, 8])
    labels = torch.arange(3).repeat_interleave(counts) * 5  # and labels that are not 0, 1, 2
    features = torch.eye(11)[labels]
    assert nearest_mean_accuracy(features, labels, num_classes=3, n_tasks=20) == 1.0


def test_too_few_for_a_task() -> None:
    features, labels = torch.randn(10, 4), torch.arange(2).repeat_interleave(5)
    with pytest.raises(ValueError, match="at least 3 classes, got 2"):
        nearest_mean_accuracy(features, labels, num_classes=3)
    with pytest.raises(ValueError, match="at least 6 samples of each class, got 5"):
        nearest_mean_accuracy(features, labels, num_classes=2)
