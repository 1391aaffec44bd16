"""Run all fuzzers until the time is over, several at once: `make fuzz MINUTES=30`.

On the CPU they run under AddressSanitizer and UBSan, for which the native module is built again,
into `build/fuzz`. Their library comes first in every process (LD_PRELOAD), and `torch_memory.cpp`
after it, so that memory of torch's tensors is theirs too, with redzones around it: `overread.py`
must be caught, or nothing is run. Every round is a fuzzer in a process of its own, with another
seed, and each SIMD level of the machine in turn. With `--cuda N`, N processes alongside call the
package that Python finds on a GPU. With `--memcheck` compute-sanitizer watches the kernels of the
package there; as its start is slow, a round then lasts to the end, and every call counts at once::

    python tests/fuzz/run.py --jobs 0 --cuda 3 --memcheck --minutes 3

A round that fails is reported with its command and last output, and the others continue; the exit
status is 1. At the end there are counts of rounds, calls and tasks, and of labels that differ from
the reference.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import importlib.util
import itertools
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1"
# Calls of one round, less than a minute each; and those that run on a GPU too.
ROUNDS = {"functions.py": 1500, "bindings.py": 600, "tasks.py": 1000, "layouts.py": 150}
CUDA_ROUNDS = {"functions.py": 400, "tasks.py": 4000, "layouts.py": 300}
ENDLESS = dict.fromkeys(CUDA_ROUNDS, 10**6)
# Only our kernels are watched. A call that asks for too much memory is no error of theirs; and a
# call is found by its seed, without a backtrace of the host, which takes long for every launch.
MEMCHECK = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9")
MEMCHECK += ("--kernel-name", "kns=paddle_ext", "--report-api-errors", "no")
MEMCHECK += ("--show-backtrace", "no")
MEMORY = "torch_memory.so"
LIMIT = 600.0  # seconds of a round
GRACE = 60.0  # seconds for the last call of a round that lasts to the end


# --- the build ----------------------------------------------------------------------------------


def build(folder: Path) -> None:
    """The package, and what is loaded before it, in a folder. Needs CMake and pybind11."""
    made = folder / "build"
    settings = {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo",
        "CMAKE_CXX_FLAGS": FLAGS,
        "PADDLE_EXT_CUDA": "OFF",
        "Python_EXECUTABLE": sys.executable,
    }
    if importlib.util.find_spec("pybind11"):  # otherwise CMake finds it, by pybind11_DIR
        command = [sys.executable, "-m", "pybind11", "--cmakedir"]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        settings["pybind11_DIR"] = found.stdout.strip()
    command = ["cmake", "-S", str(ROOT), "-B", str(made), "-Wno-dev"]
    command += [f"-D{name}={value}" for name, value in settings.items()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    jobs = str(os.cpu_count() or 1)
    subprocess.run(
        ["cmake", "--build", str(made), "-j", os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", jobs)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    package = folder / "package" / "paddle_ext"
    shutil.rmtree(package, ignore_errors=True)
    own = shutil.ignore_patterns("_native.*.so", "__pycache__")
    shutil.copytree(ROOT / "paddle_ext", package, ignore=own)
    (module,) = made.glob("_native.*.so")
    shutil.copy(module, package)
    shared = ["-O1", "-shared", "-fPIC", "-o", str(folder / MEMORY)]
    subprocess.run([compiler(), *shared, str(HERE / "torch_memory.cpp")], check=True)


def compiler() -> str:
    return os.environ.get("CXX", "g++")


def library(name: str) -> str:
    """Where the compiler has a library."""
    found = subprocess.run(
        [compiler(), f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        raise SystemExit(f"{compiler()} must have {name}, got {found}: install it, or set CXX")
    return found


def site_packages() -> list[str]:
    specs = [importlib.util.find_spec(name) for name in ("torch", "numpy")]
    return [str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin]


def environment(folder: Path) -> dict[str, str]:
    # Alongside this build: torch and its dependencies; not the development install, which comes by
    # site-packages' own files (-S). With the C++ library alongside, AddressSanitizer finds what
    # exceptions are thrown by. Python keeps memory to its end, which is no leak; sizes beyond the
    # memory are torch's error.
    return os.environ | {
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')} {folder / MEMORY}",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(folder / "package"), *site_packages()]),
    }


# --- rounds -------------------------------------------------------------------------------------


class Where(NamedTuple):
    """How rounds of one kind are run."""

    name: str
    before: tuple[str, ...]  # of the command
    rounds: dict[str, int]
    options: tuple[tuple[str, ...], ...]  # one after the other
    env: dict[str, str]
    to_the_end: bool = False  # a round lasts as long as there is time


def run(
    script: str,
    *options: str,
    env: dict[str, str],
    before: tuple[str, ...] = (),
    limit: float = LIMIT,
) -> subprocess.CompletedProcess[str]:
    alone = ["-S"] if "LD_PRELOAD" in env else []
    command = [*before, sys.executable, *alone, "-W", "ignore", str(HERE / script), *options]
    return finished(command, limit, env)


def finished(
    command: list[str], limit: float, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What a command wrote, even if it is killed at its limit of seconds, with all it started."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True
    )
    try:
        out, told = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, told = process.communicate()
        told += f"took more than {limit:.0f} seconds\n"
    return subprocess.CompletedProcess(command, process.returncode, out, told)


def on_cpu(folder: Path) -> Where:
    env = environment(folder)
    for what in ("read", "write"):
        told = run("overread.py", what, env=env).stderr
        if "heap-buffer-overflow" not in told:
            raise SystemExit(f"a {what} beyond a tensor must be caught, got {told[-2000:]!r}")
    levels = run("levels.py", env=env).stdout.split()
    sys.stdout.write(f"on {platform.machine()}, {', '.join(levels)}; beyond a tensor is caught\n")
    return Where("cpu", (), ROUNDS, tuple(("--simd", level) for level in levels), env)


def on_cuda(memcheck: bool) -> Where:
    options = (("--device", "cuda"),)
    if not memcheck:
        return Where("cuda", (), CUDA_ROUNDS, options, dict(os.environ))
    # Memory of tensors that were freed stays mapped, if torch keeps it.
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    start = time.monotonic()
    told = run("overread.py", "read", "--device", "cuda", env=env, before=MEMCHECK)
    if "Invalid __global__ read" not in told.stdout:
        raise SystemExit(f"a read beyond a tensor must be caught, got {told.stdout}{told.stderr}")
    took = time.monotonic() - start
    sys.stdout.write(f"under memcheck, {took:.0f} s for one call; beyond a tensor is caught\n")
    sys.stdout.flush()
    return Where("cuda", MEMCHECK, ENDLESS, options, env, to_the_end=True)


class Results:
    """Outcomes of all rounds, counted by several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.rounds = self.failed = 0

    def add(self, where: Where, command: str, done: subprocess.CompletedProcess[str]) -> None:
        script = command.split()[0]
        with self.lock:
            self.rounds += 1
            for line in done.stdout.splitlines():
                count, _, outcome = line.strip().partition(" ")
                if count.isdigit():  # not what compute-sanitizer says
                    self.outcomes[f"{where.name} {script} {outcome}"] += int(count)
                elif count == "first":
                    sys.stdout.write(f"{where.name} {script}: {line}\n")
            if done.returncode:
                self.failed += 1
                report = [line for line in done.stdout.splitlines() if line.startswith("=====")]
                told = "\n".join([*report[:40], done.stderr[-3000:]])
                sys.stdout.write(f"FAILED {done.returncode}: {command}\n{told}\n")
            elif done.stderr:  # calls that differ from the reference
                sys.stdout.write(f"{where.name} {command}:\n{done.stderr[-1000:]}")
            sys.stdout.flush()

    def write(self) -> None:
        for outcome, count in sorted(self.outcomes.items()):
            sys.stdout.write(f"{count:9} {outcome}\n")
        for name in ("cpu", "cuda"):
            total = sum(
                count
                for outcome, count in self.outcomes.items()
                if outcome.startswith(f"{name} ") and " of them" not in outcome
            )
            sys.stdout.write(f"{total} calls and tasks on {name}\n")
        sys.stdout.write(f"{self.rounds} rounds, {self.failed} failed\n")


def work(where: Where, job: int, seeds: itertools.count[int], end: float, results: Results) -> None:
    """Rounds one after the other; every job starts with another fuzzer and another level."""
    turn = job
    while time.monotonic() < end:
        script, calls = list(where.rounds.items())[turn % len(where.rounds)]
        more = where.options[turn // len(where.rounds) % len(where.options)]
        options = ("--calls", str(calls), "--seed", str(next(seeds)), *more)
        limit = LIMIT
        if where.to_the_end:
            left = max(0.0, end - time.monotonic())
            options, limit = (*options, "--seconds", f"{left:.0f}"), left + GRACE
        done = run(script, *options, env=where.env, before=where.before, limit=limit)
        results.add(where, f"{script} {' '.join(options)}", done)
        turn += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--jobs", type=int, default=1, help="processes on the CPU")
    parser.add_argument("--cuda", type=int, default=0, help="processes on a GPU")
    parser.add_argument("--memcheck", action="store_true", help="those under compute-sanitizer")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/fuzz")
    parser.add_argument("--built", action="store_true", help="the folder has it already")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6 * 1000)
    arguments = parser.parse_args()
    if arguments.jobs and not arguments.built:
        build(arguments.folder)
    places = [on_cpu(arguments.folder)] * arguments.jobs if arguments.jobs else []
    places += [on_cuda(arguments.memcheck)] * arguments.cuda
    end = time.monotonic() + 60 * arguments.minutes
    seeds, results = itertools.count(arguments.seed), Results()
    with concurrent.futures.ThreadPoolExecutor(max(1, len(places))) as pool:
        started = [
            pool.submit(work, where, job, seeds, end, results) for job, where in enumerate(places)
        ]
    for one in started:
        one.result()
    results.write()
    raise SystemExit(bool(results.failed))


if __name__ == "__main__":
    main()
