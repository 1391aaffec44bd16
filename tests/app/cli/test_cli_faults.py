"""Full disks and kills during `train`, `extract` and `evaluate`: a sentence, or the same result."""

import errno
import json
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import run_command
from safetensors.torch import load_file
from scripts import run_code
from toy_images import pattern_images, write_split

from paddle_ext import Evaluation, FeatureBank

pytest.importorskip("matplotlib", reason="needs matplotlib")

RESULTS = {
    "train": "run/best.safetensors",
    "extract": "bank.npz",
    "evaluate": "results/evaluation.json",
}


def commands(inputs: Path, output: Path) -> dict[str, list[str]]:
    """From images to results."""
    images = (inputs, "--layout", "npz", "--device", "cpu")
    tasks = ("--shots", 2, "--k_eff", 3, "--n_query", 12, "--tasks", 400)
    given: dict[str, tuple[object, ...]] = {
        "train": (*images, "--arch", "small", "--epochs", 2, "--no-validation",
                  "--output", output / "run"),
        "extract": (inputs / "run" / "best.safetensors", *images, "--output", output / "bank.npz"),
        "evaluate": (inputs / "bank.npz", "--methods", "simpleshot,paddle", "--device", "cpu",
                     *tasks, "--output", output / "results", "--figure", output / "bars.svg"),
    }  # fmt: skip
    return {name: [name, *map(str, words)] for name, words in given.items()}


def result(path: Path) -> object:
    """What a command computed, without the times it took."""
    if path.suffix == ".npz":
        return FeatureBank.load(path).features.tolist()
    if path.suffix == ".json":
        return [replace(one, seconds=0.0) for one in Evaluation.load(path)]
    return {name: x.tolist() for name, x in load_file(path).items()}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As in the children that are killed, so that the results are equal."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, and what the commands make of them."""
    folder = tmp_path_factory.mktemp("whole")
    for name in ("base", "test"):
        write_split(folder, name, pattern_images(5, 8, own=0.5))
    for words in commands(folder, folder).values():
        done = run_command(*words)
        assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("train", "run/state.pt"),
        ("train", "run/best.safetensors"),
        ("extract", "bank.npz"),
        ("evaluate", "results/evaluation.json"),
        ("evaluate", "bars.svg"),
    ],
)
def test_a_full_disk(whole: Path, tmp_path: Path, command: str, name: str) -> None:
    """With a limit on the size of files, which fails like a full disk; then without it."""
    words = commands(whole, tmp_path)[command]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = (whole / name).stat().st_size * 7 // 8  # times make a file longer or shorter
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        done = run_command(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.exit_code == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith(f"paddle-ext: error: {tmp_path / name}")
    assert os.strerror(errno.EFBIG) in error
    assert not list(tmp_path.rglob(".partial-*"))
    done = run_command(*words)
    assert done.exit_code == 0, done.output
    assert result(tmp_path / RESULTS[command]) == result(whole / RESULTS[command])


# Runs every command, then another again and again in children of this process: the first is killed
# at its first step on the disk, the second at its second, until one ends by itself.
KILLED = """
import json, os, signal, sys, torch
from paddle_ext.app.cli.app import run

torch.set_num_threads(1)
commands = json.loads(sys.argv[1])
for words in commands[:3]:  # so that no child has to load a library
    assert run(words) == 0
kills = []
for words in commands[3:]:
    for killed_at in range(1, 100):
        steps = 0
        def stop(event, arguments):
            global steps
            steps += event == "os.rename"
            if steps == killed_at and event != "os.kill":
                os.kill(os.getpid(), signal.SIGKILL)
        child = os.fork()
        if not child:
            sys.addaudithook(stop)
            os._exit(run(words))
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            break
    assert status == 0, (words, status)
    kills.append(killed_at - 1)
print(json.dumps(kills))
"""


@pytest.mark.slow
def test_kills(whole: Path, tmp_path: Path) -> None:
    """The same command continues, or starts over; a folder `.partial-*` may stay."""
    folders = tmp_path / "first", tmp_path / "again"
    words = [each for folder in folders for each in commands(whole, folder).values()]
    assert min(json.loads(run_code(KILLED, json.dumps(words), timeout=300)[-1])) > 0
    for name in RESULTS.values():
        assert result(tmp_path / "again" / name) == result(whole / name)
