"""One process of a group, by `python group_worker.py RANK SIZE PORT FOLDER MODE`."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import paddle_ext


def main() -> None:
    """Solve the queries of this rank, and save the result."""
    rank, size, port, folder, mode = sys.argv[1:]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    backend = "nccl" if mode.startswith("nccl") else "gloo"
    timeout = timedelta(seconds=60)
    dist.init_process_group(backend, rank=int(rank), world_size=int(size), timeout=timeout)
    if mode == "dies" and rank == "1":
        os._exit(1)
    place = "cuda" if backend == "nccl" else "cpu"
    data = torch.load(Path(folder) / "task.pt", weights_only=True)
    support, labels, query = (data[name].to(place) for name in ("support", "labels", "query"))
    own = query.tensor_split(int(size))[int(rank)]
    group = dist.group.WORLD
    solved = paddle_ext.solve(support, labels, own, group=group, return_prototypes=True)
    any_batch = paddle_ext.adaptive(support, labels, own, group=group)
    found = {
        "labels": solved.labels,
        "probabilities": solved.probabilities,
        "prototypes": solved.prototypes,
        "iterations": solved.iterations,
        "adaptive": any_batch.labels,
        "adaptive_probabilities": any_batch.probabilities,
    }
    found = {name: x.cpu() for name, x in found.items() if x is not None}
    torch.save(found, Path(folder) / f"found{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
