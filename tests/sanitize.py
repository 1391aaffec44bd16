"""Every CUDA kernel on small tasks, to be run under a checker of memory and of races:

compute-sanitizer --tool memcheck python tests/sanitize.py
compute-sanitizer --tool racecheck python tests/sanitize.py
"""

import sys

import torch

import paddle_ext

# Q, K, D, shots: one tile of classes; several; a row that ends between two loads; the whole grid.
SHAPES = ((20, 5, 16, 2), (75, 40, 33, 2), (40, 20, 12, 3), (600, 30, 16, 2))


def run(device: str) -> None:
    torch.manual_seed(0)
    for Q, K, D, shots in SHAPES:
        labels = torch.arange(K, device=device).repeat(shots)
        centres = 2 * torch.randn(K, D, device=device)
        present = torch.randint(0, 3, (2, Q), device=device)
        support = centres[labels] + torch.randn(K * shots, D, device=device)
        query = centres[present] + torch.randn(2, Q, D, device=device)
        own = support.repeat(2, 1, 1), labels.repeat(2, 1)
        for scaling in ("none", "minmax", "auto"):
            options = {"num_classes": K, "scaling": scaling, "max_iter": 12}
            paddle_ext.solve(*own, query, tol=0.0, return_prototypes=True, **options)
            paddle_ext.solve(support, labels, query, validate=False, **options)
        bank = torch.cat([support, query[0]]).half()
        rows = torch.arange(len(bank), device=device)
        paddle_ext.solve_indexed(
            bank, rows[: len(labels)], labels, rows[None, len(labels) :], return_prototypes=True
        )


if __name__ == "__main__":
    run(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    sys.stdout.write("all kernels have run\n")
