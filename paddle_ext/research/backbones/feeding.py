"""Batches of images on the device that needs them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ..data.images import ImageSet, in_memory

AHEAD = 2  # batches read while one is used
SHARE_OF_DEVICE = 0.25  # of its free memory, to keep all images there
SHARE_OF_HOST = 0.5  # of its memory, to keep decoded images


class Feeder:
    """Yields batches of images, uint8 [n, H, W, C], on a device.

    `keep` is for images that are read many times: they are decoded once, and kept on the device if
    they fit.
    """

    def __init__(
        self, images: ImageSet, device: torch.device, *, keep: bool, progress: bool = False
    ) -> None:
        size = len(images) * images.shape[0] * images.shape[1] * images.shape[2]
        self.device = device
        self.resident: Tensor | None = None
        if keep and size <= SHARE_OF_HOST * host_memory():
            images = array = in_memory(images, progress=progress)
            if device.type == "cpu":
                self.resident = array.images
            elif size <= SHARE_OF_DEVICE * torch.cuda.mem_get_info(device)[0]:
                self.resident = array.images.to(device)
        self.images = images

    def batches(self, order: Iterable[Tensor]) -> Iterator[Tensor]:
        """The images of each index of `order`, [n] int64 on the CPU, batch by batch."""
        if self.resident is not None:
            for index in order:
                yield self.resident[index.to(self.device, non_blocking=True)]
            return
        waiting: deque[Future[Tensor]] = deque()
        with ThreadPoolExecutor(1) as reader:
            try:
                for index in order:
                    waiting.append(reader.submit(self.images.read, index))
                    if len(waiting) > AHEAD:
                        yield waiting.popleft().result().to(self.device)
                while waiting:
                    yield waiting.popleft().result().to(self.device)
            finally:  # an error or an early end must not wait for pending reads
                for batch in waiting:
                    batch.cancel()


def host_memory() -> int:
    """The memory of this machine, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
