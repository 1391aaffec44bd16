"""Shared by all benchmarks: timing, the machine's peak rates, tables, CSV, PNG and options."""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

GIB = 2**30


# --- timing -------------------------------------------------------------------------------------


@dataclass
class Timing:
    milliseconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None  # extra CUDA memory of one call, including its outputs

    @property
    def minimum(self) -> float:
        return min(self.milliseconds)

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    def best(self, device: torch.device) -> float:
        """The value in tables: the minimum on a CPU, which is noisy; the median on a GPU."""
        return self.median if device.type == "cuda" else self.minimum

    @property
    def spread(self) -> float:
        """Half the range of the middle half, relative to the median."""
        if len(self.milliseconds) < 4:
            low, high = min(self.milliseconds), max(self.milliseconds)
        else:
            low, _, high = statistics.quantiles(self.milliseconds, n=4)
        return 0.5 * (high - low) / self.median


class Clock:
    """Times one call: events on the current stream on CUDA, `time.perf_counter` otherwise."""

    def __init__(self, device: torch.device, flush: bool = False) -> None:
        self.device = device
        self.scratch: torch.Tensor | None = None
        if device.type == "cuda":
            self.start = torch.cuda.Event(enable_timing=True)
            self.end = torch.cuda.Event(enable_timing=True)
            if flush:
                l2 = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 2**26)
                self.scratch = torch.empty(2 * l2, dtype=torch.uint8, device=device)

    def __call__(self, call: Callable[[], object]) -> float:
        """Milliseconds of one call; its result is released inside the timed part."""
        if self.device.type != "cuda":
            begin = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - begin)
        if self.scratch is not None:
            self.scratch.zero_()
        torch.cuda.synchronize(self.device)
        self.start.record()
        call()
        self.end.record()
        self.end.synchronize()
        return self.start.elapsed_time(self.end)


def peak_memory(call: Callable[[], object], device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def time_side_by_side(
    calls: Mapping[Any, Callable[[], object]],
    device: torch.device,
    *,
    rounds: int,
    budget: float,
    flush: bool = False,
) -> dict[Any, Timing]:
    """Time all calls in turns, so that a disturbance of the machine affects all of them alike.

    The callers have checked every call, so all have run once. On CUDA each runs again, for its
    peak memory. Then follow `rounds` rounds; a call that has used up `budget` seconds skips the
    remaining ones.
    """
    clock = Clock(device, flush)
    timings = {name: Timing() for name in calls}
    for name, call in calls.items():
        timings[name].peak_bytes = peak_memory(call, device)
    for turn in range(rounds):
        for name, call in calls.items():
            done = timings[name].milliseconds
            if turn and sum(done) > 1e3 * budget:
                continue
            progress(f"round {turn + 1} of {rounds}: {name}")
            done.append(clock(call))
    progress("")
    return timings


def copy_bandwidth(device: torch.device, bytes_moved: int | None = None) -> float:
    """Bytes per second, read plus written, of a plain copy much larger than the caches."""
    size = bytes_moved or (4 * GIB if device.type == "cuda" else GIB // 4)
    source = torch.ones(size // 8, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    clock = Clock(device)
    best = min(clock(lambda: target.copy_(source)) for _ in range(8))
    return 2 * source.numel() * 4 / (best * 1e-3)


def product_rate(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Operations per second of a large matrix product."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device).to(dtype)
    clock = Clock(device)
    return 2 * size**3 / (1e-3 * min(clock(lambda: a @ a) for _ in range(4)))


# --- reporting ----------------------------------------------------------------------------------


def progress(text: str) -> None:
    """One line that overwrites itself; silent unless stderr is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{text[:78]}")
        sys.stderr.flush()


def machine_line(device: torch.device) -> str:
    parts = [f"torch {torch.__version__}", f"{torch.get_num_threads()} CPU thread(s)"]
    if device.type == "cuda":
        parts.insert(0, f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}")
        precision = torch.backends.cuda.matmul.fp32_precision
        parts.append(f"float32 products: {precision}")
    else:
        parts.insert(0, f"{cpu_name()}, {os.cpu_count()} cores")
    return ", ".join(parts) + f"; {load_line()}"


def load_line() -> str:
    try:
        return "load average {:.2f} {:.2f} {:.2f}".format(*os.getloadavg())
    except (AttributeError, OSError):
        return "load average unknown"


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
        for line in subprocess.run(
            ["lscpu"], capture_output=True, text=True, check=True
        ).stdout.splitlines():  # Arm kernels name only the part number
            if line.startswith("Model name"):
                return f"{platform.machine()} {line.split(':', 1)[1].strip()}"
    except (OSError, subprocess.SubprocessError):
        pass
    return platform.processor() or platform.machine()


def native_line() -> str:
    import paddle_ext

    info = ", ".join(f"{key} {value}" for key, value in paddle_ext.build_info().items())
    return f"paddle_ext: {info}"


def print_table(title: str, rows: Sequence[dict[str, Any]], columns: Iterable[str] = ()) -> None:
    """Print rows as a table: with rich if it is installed, else in plain text."""
    if not rows:
        return
    names = list(columns) or list(dict.fromkeys(key for row in rows for key in row))
    cells = [[show(row.get(name)) for name in names] for row in rows]
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(len(c) for c in column) for column in zip(names, *cells, strict=True)]
        print(title)
        for line in [names, *cells]:
            print("  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)))
        return
    table = Table(title=title, title_justify="left")
    for name in names:
        number = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for line in cells:
        table.add_row(*line)
    console = Console()
    if not console.is_terminal:  # a log has no width: never truncate a number
        console = Console(width=240)
    console.print(table)


def show(value: object) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if value == 0 or 1e-2 <= abs(value) < 1e7:
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else None
        return f"{value:.3g}" if digits is None else f"{value:.{digits}f}"
    return f"{value:.1e}"


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {os.path.relpath(path)}")


# --- command line -------------------------------------------------------------------------------


def parser(description: str, examples: str) -> argparse.ArgumentParser:
    """The options of all benchmarks."""
    result = argparse.ArgumentParser(
        description=description,
        epilog="examples:\n" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add("--device", default="cpu", choices=["cpu", "cuda"], help="default: cpu")
    add("--threads", type=int, default=1, help="CPU threads of torch and paddle_ext (default: 1)")
    add("--rounds", type=int, help="timed calls of each competitor (default: 5, on CUDA 20)")
    add("--budget", type=float, default=10.0, help="time limit per competitor in seconds")
    add("--flush", action="store_true", help="CUDA: empty the L2 cache before every timed call")
    add("--seed", type=int, default=1, help="seed of the tasks (default: 1)")
    add(
        "--output",
        type=Path,
        default=Path(__file__).parent / "out",
        help="folder of the CSV and PNG files (default: benchmarks/out)",
    )
    return result


def chosen_device(options: argparse.Namespace) -> torch.device:
    """Check and apply the options of threads and device."""
    if options.threads < 1:
        raise SystemExit(f"--threads must be at least 1, got {options.threads}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no CUDA device here")
    torch.set_num_threads(options.threads)
    return torch.device(options.device)


def start(options: argparse.Namespace) -> torch.device:
    """Apply the common options and print the environment of this run."""
    device = chosen_device(options)
    options.rounds = options.rounds or (20 if options.device == "cuda" else 5)
    print(machine_line(device))
    print(native_line())
    return device
