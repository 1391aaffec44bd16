"""The native module: pointers, sizes and options in, nothing out. Used by `paddle_ext.ops` alone.

Pointers are `Tensor.data_ptr()`, 0 where absent; all arrays are contiguous. dtype: 0 float16,
1 bfloat16, 2 float32, 3 float64. scaling: 0 none, 1 minmax, 2 auto.
"""

from typing import Any

def build_info() -> dict[str, Any]: ...
def set_simd_level(name: str, /) -> None: ...
def paddle_workspace(
    on_cuda: bool,
    device: int,
    threads: int,
    dtype: int,
    B: int,
    Q: int,
    S: int,
    K: int,
    D: int,
    support_shared: bool,
    indexed: bool,
    scaling: int,
    prototypes: bool,
    /,
) -> int: ...
def paddle_solve(
    on_cuda: bool,
    device: int,
    stream: int,
    threads: int,
    dtype: int,
    B: int,
    Q: int,
    S: int,
    K: int,
    D: int,
    N: int,
    support_shared: bool,
    support: int,
    support_labels: int,
    query: int,
    support_index: int,
    query_index: int,
    lam: float,
    scaling: int,
    temperature: float,
    epsilon: float,
    max_iter: int,
    tol: float,
    labels: int,
    assignments: int,
    proportions: int,
    dual: int,
    iterations: int,
    criterion: int,
    prototypes: int,
    workspace: int,
    workspace_bytes: int,
    /,
) -> None: ...
