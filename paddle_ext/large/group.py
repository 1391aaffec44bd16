"""Processes that share a task: each has some of its queries, and sums are over all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Group:
    """The processes of a `torch.distributed` group, or this process alone."""

    def __init__(self, group: ProcessGroup | None) -> None:
        self.group = group

    def sum(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the processes."""
        self.reduce("SUM", tensors)

    def count(self, own: int, device: torch.device) -> int:
        """The sum of a number over the processes."""
        if self.group is None:
            return own
        total = torch.tensor([float(own)], dtype=torch.float64, device=device)
        self.sum(total)
        return int(total)

    def min(self, x: Tensor) -> None:
        self.reduce("MIN", (x,))

    def max(self, x: Tensor) -> None:
        self.reduce("MAX", (x,))

    def reduce(self, how: str, tensors: tuple[Tensor, ...]) -> None:
        if self.group is None:
            return
        import torch.distributed as dist

        operation = getattr(dist.ReduceOp, how)
        try:
            for x in tensors:
                dist.all_reduce(x, op=operation, group=self.group)
                if x.is_cuda:
                    torch.cuda.current_stream(x.device).synchronize()
        except RuntimeError as error:
            raise RuntimeError(
                "a process of the group has ended or does not respond, so this one stops too: "
                f"{str(error).splitlines()[0]}"
            ) from error


ALONE = Group(None)


def check_group(group: object) -> ProcessGroup | None:
    """Check that `group` is a process group or None, and return it."""
    if group is None:
        return None
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            "group must be a process group made after torch.distributed.init_process_group(), "
            "got an earlier one"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"group must be a torch.distributed.ProcessGroup, got {type(group).__name__}"
        )
    return group
