"""Where and how an evaluation runs: seed, device, memory limit, output and progress."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ... import check
from ...native import devices
from ..data.bank import FeatureBank
from ..tasks.sampler import LAST_SEED


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How `evaluate`, `tune` and the experiments run; each takes these as keywords.

    Parameters
    ----------
    seed : int
        Of the tasks, in [0, 2**64).
    name : str
        The name of the features in results and figures.
    device : device, optional
        Default: the bank's GPU, else a GPU if available. Under torchrun each rank uses the GPU of
        its local number.
    memory : float, optional
        Memory limit of a batch of tasks, in GiB.
    output : path, optional
        A folder for the journal and, at the end, for the result.
    resume : bool
        Resume from the journal in `output`; False starts over.
    progress : bool
        Show progress on stderr.
    """

    seed: int = 0
    name: str = ""
    device: str | torch.device | None = None
    memory: float | None = None
    output: str | Path | None = None
    resume: bool = True
    progress: bool = True

    def __post_init__(self) -> None:
        check.integer("seed", self.seed, least=0, most=LAST_SEED)
        if not isinstance(self.name, str):
            raise check.ArgumentTypeError("name", f"must be a string, got {check.kind(self.name)}")
        check.device(self.device)
        if self.memory is not None:
            check.real("memory", self.memory, positive=True)
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise check.ArgumentValueError(
                "output", f"must be a folder, got the file {str(self.output)!r}"
            )
        check.flag("resume", self.resume)
        check.flag("progress", self.progress)

    @property
    def folder(self) -> Path | None:
        """`output` as a path."""
        return None if self.output is None else Path(self.output)

    def in_subfolder(self, name: str) -> RunSettings:
        """These settings with a folder inside `output`."""
        return self if self.folder is None else replace(self, output=self.folder / name)

    def device_for(self, bank: FeatureBank, local_rank: int = 0) -> torch.device:
        """The device; a GPU without a number is that of the rank."""
        if self.device is not None:
            found = check.device(self.device)
        elif bank.features.is_cuda:
            found = bank.features.device
        else:
            found = torch.device("cuda" if devices.usable_gpu() else "cpu")
        if found == torch.device("cuda"):  # without a number
            found = torch.device("cuda", local_rank % torch.cuda.device_count())
        return found
