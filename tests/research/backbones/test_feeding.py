"""Images are read batch by batch, in the requested order, and only as many as needed."""

import pytest
import torch
from toy_images import LazyImages, pattern_images

from paddle_ext.research.backbones.feeding import Feeder

IMAGES = pattern_images(4, 8)
ORDER = [torch.tensor([3, 1]), torch.tensor([7]), torch.tensor([0, 0, 5]), torch.tensor([2])] * 3


@pytest.mark.parametrize("keep", [True, False])
def test_batches_in_order(keep: bool) -> None:
    feeder = Feeder(LazyImages(IMAGES), torch.device("cpu"), keep=keep)
    assert (feeder.resident is not None) == keep
    batches = list(feeder.batches(ORDER))
    assert len(batches) == 12
    for index, batch in zip(ORDER, batches, strict=True):
        assert torch.equal(batch, IMAGES.images[index])


def test_a_broken_image_ends_the_batches() -> None:
    lazy = LazyImages(IMAGES, broken=7)
    batches = Feeder(lazy, torch.device("cpu"), keep=False).batches(ORDER)
    assert len(next(batches)) == 2
    with pytest.raises(ValueError, match="image 7 must be an image"):
        next(batches)


def test_leaving_early_reads_little() -> None:
    lazy = LazyImages(IMAGES)
    batches = Feeder(lazy, torch.device("cpu"), keep=False).batches(ORDER)
    next(batches)
    batches.close()
    assert lazy.reads <= 3
