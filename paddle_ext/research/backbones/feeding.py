"""Images of a set, batch after batch, on the device that wants them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ..data.images import ImageSet, in_memory

AHEAD = 2  # batches that are read while one is used
SHARE_OF_DEVICE = 0.25  # of its free memory, for keeping all images there
SHARE_OF_HOST = 0.5  # of its memory, for keeping them decoded


class Feeder:
    """Gives batches of images, uint8 [n, H, W, C].

    Parameters
    ----------
    images : ImageSet
    device : torch.device
    keep : bool
        The images will be read many times: decode them once, and keep them on the device if they
        fit.
    progress : bool
        Say how far the decoding is.
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
        """The images of each index of `order`, [n] int64 on the CPU, one batch after the other."""
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
            finally:  # an error or an early end must not wait for what nobody wants any more
                for batch in waiting:
                    batch.cancel()


def host_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
