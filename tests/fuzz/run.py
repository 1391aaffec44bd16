"""Run all fuzzers under AddressSanitizer and UBSan until the time is over: `make fuzz MINUTES=30`.

The native module is built again, with the sanitizers, into `build/fuzz`. Their library comes
first in every process (LD_PRELOAD), and `torch_memory.cpp` after it, so that memory of torch's
tensors is theirs too, with redzones around it: `overread.py` must be caught, or nothing is run.
Every fuzzer runs in a process of its own, one round after the other, each with another seed. A
round that fails is reported with its command and last output, and the others continue; the exit
status is 1.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1"
# Calls of one round, less than a minute each.
ROUNDS = {"operators.py": 1500, "bindings.py": 600, "tasks.py": 1000}
MEMORY = "torch_memory.so"
LIMIT = 600  # seconds of a round


def build(folder: Path) -> None:
    settings = {
        "build-dir": folder / "build",
        "cmake.build-type": "RelWithDebInfo",
        "cmake.define.CMAKE_CXX_FLAGS": FLAGS,
        "install.strip": "false",
    }
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation"]
    command += ["--no-deps", "--upgrade", "--target", str(folder / "package")]
    command += [f"--config-settings={name}={value}" for name, value in settings.items()]
    subprocess.run([*command, str(ROOT)], check=True, env=os.environ | {"PADDLE_EXT_CUDA": "OFF"})
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


def site_packages() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


def environment(folder: Path) -> dict[str, str]:
    # Alongside this build: torch and its dependencies; not the development install, which comes by
    # site-packages' own files (-S). With the C++ library alongside, AddressSanitizer finds what
    # exceptions are thrown by. Python keeps memory to its end, which is no leak; sizes beyond the
    # memory are torch's error.
    return os.environ | {
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')} {folder / MEMORY}",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": f"{folder / 'package'}{os.pathsep}{site_packages()}",
    }


def run(script: str, *options: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-P", "-W", "ignore", str(HERE / script), *options]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env=env, timeout=LIMIT
    )


def sees_tensors(env: dict[str, str]) -> None:
    for what in ("read", "write"):
        told = run("overread.py", what, env=env).stderr
        if "heap-buffer-overflow" not in told:
            raise SystemExit(f"a {what} beyond a tensor must be caught, got {told[-2000:]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/fuzz")
    parser.add_argument("--built", action="store_true", help="the folder has it already")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6 * 1000)
    arguments = parser.parse_args()
    if not arguments.built:
        build(arguments.folder)
    env = environment(arguments.folder)
    sees_tensors(env)
    sys.stdout.write(f"on {platform.machine()}; beyond a tensor is caught; {FLAGS}\n")
    end = time.monotonic() + 60 * arguments.minutes
    seed, failed = arguments.seed, 0
    outcomes: collections.Counter[str] = collections.Counter()
    while time.monotonic() < end:
        for script, calls in ROUNDS.items():
            seed += 1
            options = ("--calls", str(calls), "--seed", str(seed))
            done = run(script, *options, env=env)
            for line in done.stdout.splitlines():
                count, _, outcome = line.strip().partition(" ")
                outcomes[f"{script} {outcome}"] += int(count)
            if done.returncode:
                failed += 1
                command = f"{script} {' '.join(options)}"
                sys.stdout.write(f"FAILED {done.returncode}: {command}\n{done.stderr[-3000:]}\n")
            sys.stdout.flush()
    for outcome, count in sorted(outcomes.items()):
        sys.stdout.write(f"{count:9} {outcome}\n")
    total = sum(count for outcome, count in outcomes.items() if " of them" not in outcome)
    rounds = seed - arguments.seed
    sys.stdout.write(f"{total} calls in {rounds} rounds, {failed} failed\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
