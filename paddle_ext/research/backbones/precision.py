"""Mixed precision by name."""

from __future__ import annotations

import torch

from ... import check

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of products; ``"auto"``: half precision on CUDA, float32 elsewhere."""
    check.choice("precision", precision, ("auto", *DTYPES))
    if device.type == "cpu":
        # On a CPU without bfloat16, torch would disable its fast products for the whole process.
        if precision not in ("auto", "float32"):
            raise check.ArgumentValueError(
                "precision", f"must be 'auto' or 'float32' on the CPU, got {precision!r}"
            )
        return torch.float32
    if precision == "auto":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return DTYPES[precision]


def mixed_precision(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """The autocast context."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
