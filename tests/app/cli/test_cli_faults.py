"""Full disks and kills during `train`, `extract` and `evaluate`: a sentence, or the same result."""

import errno
import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_images import one_thread, pattern_images  # noqa: F401

pytest.importorskip("cyclopts", reason="needs cyclopts")
pytest.importorskip("matplotlib", reason="needs matplotlib")
pytest.importorskip("safetensors", reason="needs safetensors")

from commands import run_command

from paddle_ext import Evaluation, FeatureBank
from paddle_ext.research.backbones import load_checkpoint

CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("base", "test"):
        images = pattern_images(5, 8, own=0.5)
        own = {"images": images.images.numpy(), "labels": images.labels.numpy()}
        np.savez(folder / f"{name}.npz", **own, class_names=np.array(images.class_names))
    return folder


def commands(pictures: Path, folder: Path, inputs: Path | None = None) -> dict[str, list[str]]:
    """From images to results in a folder, each with the output of the one before, or `inputs`."""
    inputs = inputs or folder
    images = (pictures, "--layout", "npz", *CPU)
    tasks = ("--shots", 2, "--k_eff", 3, "--n_query", 12, "--tasks", 400)
    given: dict[str, tuple[object, ...]] = {
        "train": (*images, "--arch", "small", "--epochs", 2, "--no-validation",
                  "--output", folder / "run"),
        "extract": (inputs / "run" / "best.safetensors", *images, "--output", folder / "bank.npz"),
        "evaluate": (inputs / "bank.npz", *CPU, "--methods", "simpleshot,paddle", *tasks,
                     "--output", folder / "results", "--figure", folder / "bars.svg"),
    }  # fmt: skip
    return {name: [name, *map(str, words)] for name, words in given.items()}


def assert_same_results(folder: Path, whole: Path) -> None:
    """Of the commands that were run, without the times it took."""
    if (folder / "run").exists():
        ours, theirs = (load_checkpoint(x / "run" / "best.safetensors") for x in (folder, whole))
        states = ours.backbone.state_dict(), theirs.backbone.state_dict()
        assert all(map(torch.equal, *(state.values() for state in states)))
    if (folder / "bank.npz").exists():
        banks = [FeatureBank.load(x / "bank.npz").features for x in (folder, whole)]
        assert torch.equal(*banks)
    if (folder / "results").exists():
        found = [Evaluation.load(x / "results" / "evaluation.json") for x in (folder, whole)]
        ours, theirs = ([replace(result, seconds=0.0) for result in x] for x in found)
        assert ours == theirs
        assert "<svg" in (folder / "bars.svg").read_text()


@pytest.fixture(scope="module")
def whole(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for words in commands(pictures, folder).values():
        done = run_command(*words)
        assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("train", "run/state.pt"),
        ("train", "run/best.safetensors"),
        ("extract", "bank.npz"),
        ("evaluate", "results/journal.jsonl"),
        ("evaluate", "results/evaluation.json"),
        ("evaluate", "bars.svg"),
    ],
)
def test_a_full_disk(pictures: Path, whole: Path, tmp_path: Path, command: str, name: str) -> None:
    """With a limit on the size of files, which fails like a full disk; then without it."""
    words = commands(pictures, tmp_path, whole)[command]
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
    assert_same_results(tmp_path, whole)


# Runs every command, then another again and again in children of this process: the first is killed
# at its first step on the disk, the second at its second, until one ends by itself.
KILLED = """
import json, os, signal, sys, torch
from paddle_ext.app.cli.app import run

torch.set_num_threads(1)
first, again = json.loads(sys.argv[1])
for words in first:  # so that no child has to load a library
    assert run(words) == 0
kills = []
for words in again:
    for killed_at in range(1, 100):
        steps = 0
        def stop(event, arguments):
            global steps
            written = event == "open" and str(arguments[0]).endswith(".jsonl")
            steps += event == "os.rename" or written
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


def test_kills(pictures: Path, tmp_path: Path) -> None:
    """The same command continues, or starts over; a folder `.partial-*` may stay."""
    folders = tmp_path / "first", tmp_path / "again"
    words = [list(commands(pictures, folder).values()) for folder in folders]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, json.dumps(words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    assert min(json.loads(done.stdout.splitlines()[-1])) > 0
    assert_same_results(*reversed(folders))
