"""Use the installed package where there is nothing but it, torch and NumPy; no compiler, no GPU.

Run by ``tools/install/wheel.sh`` and by the workflows, not by pytest.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import paddle_ext


def main() -> None:
    """Fail with an assertion unless the package is complete and its ten lines work."""
    installed = Path(paddle_ext.__file__).parent
    assert installed.is_relative_to(sysconfig.get_path("platlib")), installed
    assert "torch" not in sys.modules, "import paddle_ext must not load torch"
    if os.environ.get("NO_COMPILER"):
        compilers = [name for name in ("c++", "g++", "clang++", "nvcc") if shutil.which(name)]
        assert not compilers, f"there must be no compiler here, got {compilers}"
    info = paddle_ext.build_info()
    expected = os.environ.get("EXPECT_CUDA")
    assert not expected or info["cuda"] == (expected == "1"), info
    found = ten_lines()
    assert found == [3, 14, 15] * 25, found
    # The batch, not each row, decides: the reference agrees with the native code.
    assert found == ten_lines(paddle_ext.reference)
    sys.stdout.write(f"{installed.name} {info}\n")


def ten_lines(code: ModuleType = paddle_ext) -> list[int]:
    """Return the labels of a batch from three of sixty classes."""
    import torch

    torch.manual_seed(0)
    centres = torch.randn(60, 128)
    support = (centres[:, None] + 0.5 * torch.randn(60, 5, 128)).flatten(0, 1)
    labels = torch.arange(60).repeat_interleave(5)
    query = centres[[3, 14, 15] * 25] + 0.5 * torch.randn(75, 128)
    by_default = paddle_ext.adaptive(support, labels, query).labels.tolist()
    by_paddle = code.solve(support, labels, query).labels.tolist()
    assert by_default == by_paddle
    return by_paddle


if __name__ == "__main__":
    main()
