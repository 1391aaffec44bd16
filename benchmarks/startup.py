"""Startup time of the package and the command: the median of several processes, in ms.

The time of Python itself, which every process needs, has its own row; the imports are timed inside
their processes, the help from outside.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

TIMED = "import time; begin = time.perf_counter(); import paddle_ext; "
TIMED += "print(time.perf_counter() - begin)"


def import_seconds(before: str) -> float:
    """Seconds of `import paddle_ext`, after other code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{TIMED}"], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def process_seconds(*arguments: str) -> float:
    """Seconds of a whole process."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return time.perf_counter() - begin


CASES: dict[str, Callable[[], float]] = {
    "python -c pass": lambda: process_seconds("-c", "pass"),
    "import paddle_ext": lambda: import_seconds(""),
    "import paddle_ext, torch imported": lambda: import_seconds("import torch"),
    "paddle-ext --help": lambda: process_seconds("-m", "paddle_ext", "--help"),
    "paddle-ext classify --help": lambda: process_seconds("-m", "paddle_ext", "classify", "--help"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="processes per row (default: 9)")
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(rounds + 1):  # in turns; the first round warms the disk caches
        for name, measure in CASES.items():
            seconds[name].append(measure())
    for name, found in seconds.items():
        kept = found[1:]
        print(f"{name:36}{1e3 * statistics.median(kept):7.0f} ms  (least {1e3 * min(kept):.0f})")


if __name__ == "__main__":
    main()
