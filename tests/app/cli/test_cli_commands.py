"""Each command on small data, through the command line."""

from pathlib import Path

import pytest
import torch
from banks import gaussian_bank, right_answers
from commands import run_command
from toy_images import pattern_images, write_split

from paddle_ext import Evaluation, FeatureBank, TaskSampler, methods
from paddle_ext.research.backbones import extract, load_checkpoint, nearest_mean_accuracy
from paddle_ext.research.data import open_images
from paddle_ext.research.tune import Tuning

pytest.importorskip("safetensors", reason="needs safetensors")

CPU = ("--device", "cpu")


def run(*arguments: object) -> str:
    """Run a command that must succeed; returns what it printed, with single spaces."""
    result = run_command(*arguments)
    assert result.exit_code == 0, result.output
    return "\n".join(" ".join(line.split()) for line in result.output.splitlines())


def refusal(*arguments: object) -> str:
    """The error of a command that fails."""
    result = run_command(*arguments)
    assert result.exit_code == 1
    return result.stderr


def features() -> FeatureBank:
    return gaussian_bank(seed=0, split=["repr", "query"] * 180)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("banks") / "small.npz"
    features().save(path)
    return path


# --- train and extract ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the layout npz: 8 base, 5 validation, 6 test classes."""
    folder = tmp_path_factory.mktemp("pictures")
    for name, classes, seed in (("base", 8, 0), ("val", 5, 20), ("test", 6, 40)):
        write_split(folder, name, pattern_images(classes, 12, own=0.4, seed=seed))
    return folder


@pytest.fixture(scope="module")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("run")
    arguments = ["train", pictures, "--layout", "npz", "--arch", "small", "--epochs", 2]
    return folder, run(*arguments, "--batch_size", 32, "--output", folder, *CPU)


def test_train(trained: tuple[Path, str], pictures: Path) -> None:
    folder, shown = trained
    assert "96 images of 8 classes, 2 epochs" in shown
    best = load_checkpoint(folder / "best.safetensors")
    assert best.class_names == open_images("npz", pictures, "base").class_names
    assert f"best epoch {best.notes['epoch']} of 2" in shown
    accuracy = 100 * float(best.notes["validation, 5-way 5-shot"])
    assert f"validation, 5-way 5-shot {accuracy:.1f} %" in shown
    for name in ("best.safetensors", "last.safetensors", "state.pt"):
        assert f"file {folder / name} (" in shown


def test_train_resumes_or_starts_over(trained: tuple[Path, str], pictures: Path) -> None:
    folder, _ = trained
    arguments = ["train", pictures, "--layout", "npz", "--arch", "small", "--output", folder, *CPU]
    same = run(*arguments, "--epochs", 2, "--batch-size", 32)
    assert "best epoch" in same
    assert "(or pass --fresh)" in refusal(*arguments, "--epochs", 1, "--batch-size", 32)


def test_extract(trained: tuple[Path, str], pictures: Path, tmp_path: Path) -> None:
    """The same result as the library."""
    folder, _ = trained
    words = ("extract", folder / "best.safetensors", pictures, "--layout", "npz")
    words += ("--base-split", "base", "--output", folder / "test.npz")
    found = run(*words, "--cache", tmp_path / "cache", *CPU)
    bank = FeatureBank.load(folder / "test.npz")
    expected = extract(
        load_checkpoint(folder / "best.safetensors"),
        open_images("npz", pictures, "test"),
        base=open_images("npz", pictures, "base"),
        device="cpu",
    )
    assert torch.equal(bank.features, expected.features)
    assert torch.equal(bank.base_mean, expected.base_mean)
    assert torch.equal(bank.labels, expected.labels)
    assert bank.class_names == expected.class_names
    assert repr(expected) in found
    for shots in (1, 5):
        accuracy = nearest_mean_accuracy(
            expected.features, expected.labels, shots=shots, centre=expected.base_mean
        )
        assert f"5-way {shots}-shot by the nearest class mean: {100 * accuracy:.1f} %" in found
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_extract_several_splits(trained: tuple[Path, str], pictures: Path, tmp_path: Path) -> None:
    checkpoint = trained[0] / "best.safetensors"
    output = tmp_path / "new" / "both.safetensors"
    run("extract", checkpoint, pictures, "--layout", "npz", "--split", "val,test",
        "--output", output, *CPU)  # fmt: skip
    bank = FeatureBank.load(output)
    assert bank.splits == ("test", "val")
    assert bank.num_classes == 11
    network = load_checkpoint(checkpoint)
    for split in ("val", "test"):
        images = open_images("npz", pictures, split)
        own = bank.subset(split=split)
        expected = extract(network, images, device="cpu").features
        assert torch.allclose(own.features, expected, atol=1e-5)
        names = [bank.class_names[label] for label in own.labels]
        assert names == [images.class_names[label] for label in images.labels]


def test_extract_replaces_nothing_that_it_reads(
    trained: tuple[Path, str], pictures: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "net.safetensors"
    checkpoint.write_bytes((trained[0] / "best.safetensors").read_bytes())
    words = ("extract", checkpoint, pictures, "--layout", "npz", *CPU)
    assert "--output must not replace an input file" in refusal(*words, "--output", checkpoint)
    assert checkpoint.read_bytes() == (trained[0] / "best.safetensors").read_bytes()


def test_extract_says_when_there_is_too_little(trained: tuple[Path, str], tmp_path: Path) -> None:
    write_split(tmp_path, "test", pattern_images(4, 3))
    output = tmp_path / "bank.npz"
    shown = run("extract", trained[0] / "best.safetensors", tmp_path / "test.npz", "--layout",
                "npz", "--output", output, *CPU)  # fmt: skip
    assert shown.count("not enough classes or images per class") == 2


# --- evaluate ------------------------------------------------------------------------------------


def test_evaluate(bank: Path, tmp_path: Path) -> None:
    shown = run(
        "evaluate", bank, "--methods", "simpleshot,paddle", "--k_eff", 3, "--shots", "2,4",
        "--n_query", 20, "--tasks", 12, "--seed", 3,
        "--option", "paddle.scaling=auto", "--output", tmp_path,
        "--figure", tmp_path / "bars.svg", *CPU,
    )  # fmt: skip
    evaluation = Evaluation.load(tmp_path / "evaluation.json")
    assert evaluation.methods == ("simpleshot", "paddle")
    assert evaluation.bank == "small"
    assert [(r.shots, r.k_eff, r.num_classes) for r in evaluation.select("paddle")] == [
        (2, 3, 12),
        (4, 3, 12),
    ]
    chosen = {"paddle": {"scaling": "auto"}, "simpleshot": {}}
    for result in evaluation:
        method = methods.create(result.method, **chosen[result.method])
        sampler = TaskSampler(features().labels, shots=result.shots, n_query=20, k_eff=3, seed=3)
        assert result.correct == sum(right_answers(features(), method, sampler, 12))
        assert f"{result.accuracy:.1f} ± {result.interval:.1f}" in shown
    assert "<svg" in (tmp_path / "bars.svg").read_text()
    assert f"written: {tmp_path / 'evaluation.json'}" in shown


def test_evaluate_curves_and_splits(bank: Path, tmp_path: Path) -> None:
    shown = run(
        "evaluate", bank, "--methods", "simpleshot", "--shots", "all", "--support", "repr",
        "--query", "query", "--k_eff", "2", "4", "--tasks", 5, "--n_query", "10",
        "--figure", tmp_path / "curve.png", *CPU,
    )  # fmt: skip
    assert "K_eff 2 K_eff 4" in shown
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_a_split(bank: Path) -> None:
    message = refusal("evaluate", bank, "--split", "repr", "--shots", "15", *CPU)
    assert "got 0 of class 0" in message  # the split has 15 rows per class


# --- tune ----------------------------------------------------------------------------------------


def test_tune(bank: Path, tmp_path: Path) -> None:
    shown = run("tune", bank, "--methods", "bd_cspn,simpleshot", "--tasks", 10, "--n-query", 20,
                "--output", tmp_path, *CPU)  # fmt: skip
    tuning = Tuning.load(tmp_path / "tuning.json")
    temperature = tuning.options["bd_cspn"]["temperature"]
    assert f"BD-CSPN temperature = {temperature:g}" in shown
    assert f"written: {tmp_path / 'tuning.json'}" in shown
    best = max(tuning.curves.select("bd_cspn"), key=lambda result: result.correct)
    assert f"{best.accuracy:.1f} ± {best.interval:.1f}" in shown
    evaluate = ["evaluate", bank, "--methods", "bd_cspn", "--shots", 5, "--tasks", 3, *CPU]
    run(*evaluate, "--tuned", tmp_path / "tuning.json", "--output", tmp_path / "tuned")
    (result,) = Evaluation.load(tmp_path / "tuned" / "evaluation.json")
    assert result.options["temperature"] == temperature
    run(*evaluate, "--tuned", tmp_path / "tuning.json", "--option", "bd_cspn.temperature=7",
        "--output", tmp_path / "both")  # fmt: skip
    (result,) = Evaluation.load(tmp_path / "both" / "evaluation.json")
    assert result.options["temperature"] == 7
