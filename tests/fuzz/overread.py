"""Reads one row beyond the end of a torch tensor, and writes one, in native code.

Under `tests/fuzz/run.py` this must end in a report of AddressSanitizer, or on a GPU of memcheck:
else it does not see the tensors, and a fuzzer that finds nothing says nothing.
"""

import argparse

import torch

from paddle_ext.native import load as native
from paddle_ext.native.call import target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("read", "write"))
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = arguments.device
    Q, K = 8, 16
    rows = {"read": Q, "write": Q, arguments.what: Q - 1}
    cost, plan = torch.rand(rows["read"], K).to(device), torch.empty(rows["write"], K).to(device)
    masses = [torch.full((size,), 1 / size).to(device) for size in (Q, K)]
    iterations, residual = torch.zeros(1, dtype=torch.int32).to(device), torch.zeros(1).to(device)
    call = native.module.sinkhorn_call(
        target=target(cost),
        dtype=2,
        B=1,
        Q=Q,
        K=K,
        row_mass_shared=False,
        col_mass_shared=False,
        sharpness=1.0,
        max_iter=3,
        tol=0.0,
    )
    memory = torch.empty(call.workspace(), dtype=torch.uint8, device=device)
    call.run(
        cost=cost.data_ptr(),
        row_mass=masses[0].data_ptr(),
        col_mass=masses[1].data_ptr(),
        plan=plan.data_ptr(),
        iterations=iterations.data_ptr(),
        residual=residual.data_ptr(),
        workspace=memory.data_ptr(),
        workspace_bytes=memory.numel(),
    )
    residual.cpu()  # waits for a kernel


if __name__ == "__main__":
    main()
