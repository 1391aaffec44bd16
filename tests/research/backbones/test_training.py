"""Base training: it learns, reproducibly, can be interrupted, and keeps the best epoch."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toy_images import LazyImages, pattern_images

from paddle_ext.research.backbones import (
    Augmentation,
    Checkpoint,
    Recipe,
    Trained,
    Transform,
    create,
    load_checkpoint,
    train,
)
from paddle_ext.research.backbones import training as module
from paddle_ext.research.backbones.training import Classifier, Learner
from paddle_ext.research.data.images import ImageArray

pytest.importorskip("safetensors", reason="needs safetensors")

QUICK = Recipe(
    epochs=3,
    batch_size=16,
    learning_rate=0.05,
    label_smoothing=0.0,
    nesterov=True,
    schedule="cosine",
    augmentation=Augmentation(area=(0.6, 1.0), mirror=False, jitter=0.0),
)
BASE = pattern_images(8, 16)
FEW = pattern_images(4, 8)  # where it does not matter what is learnt: two steps an epoch
VALIDATION = pattern_images(5, 10, own=0.4, seed=50)


def trained(settings: Recipe = QUICK, base: ImageArray = FEW, **options) -> Trained:
    options = {"device": "cpu", "progress": False} | options
    return train("small", base, recipe=settings, **options)


def assert_same_network(a: Checkpoint, b: Checkpoint) -> None:
    ours, theirs = a.backbone.state_dict(), b.backbone.state_dict()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.fixture(scope="module")
def quick() -> Trained:
    return trained(base=BASE, validation=VALIDATION)


# --- learning ------------------------------------------------------------------------------------


def test_it_learns(quick: Trained) -> None:
    losses = [epoch.loss for epoch in quick.history]
    assert [epoch.number for epoch in quick.history] == [1, 2, 3]
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < 0.7 * math.log(8)
    assert quick.history[-1].accuracy > 0.8  # chance is 1/8
    assert quick.history[-1].validation > 0.9  # on classes it has not seen; chance is 1/5
    assert quick.checkpoint.class_names == BASE.class_names
    assert not quick.checkpoint.backbone.training


def test_the_same_each_time() -> None:
    once = trained()
    torch.manual_seed(99)  # whatever the caller did
    expected = torch.rand(2)
    torch.manual_seed(99)
    again = trained()
    assert torch.equal(torch.rand(2), expected)
    assert_same_network(again.checkpoint, once.checkpoint)
    assert [e[:4] for e in again.history] == [e[:4] for e in once.history]
    other = trained(seed=1)
    nets = other.checkpoint.backbone, once.checkpoint.backbone
    assert not torch.equal(*(net.linear.weight for net in nets))


def test_default_transform(quick: Trained) -> None:
    """Grey images: their own size, mean and deviation."""
    transform = quick.checkpoint.transform
    pixels = BASE.images.float() / 255
    assert transform.size == 16
    assert transform.mean[0] == pytest.approx(pixels.mean().item(), abs=1e-4)
    assert transform.std[0] == pytest.approx(pixels.std().item(), abs=1e-4)
    colour = pattern_images(2, 8, size=40, channels=3)
    options = {"recipe": replace(QUICK, epochs=1, mirror_features=True), "progress": False}
    transform = train("small", colour, device="cpu", **options).checkpoint.transform
    assert transform == Transform(32, mirror=True)


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_on_cuda(precision: str) -> None:
    settings = replace(QUICK, average=0.5, augmentation=Augmentation(turned=0.5, mirror=False))
    runs = [trained(settings, BASE, device="cuda", precision=precision) for _ in range(2)]
    assert_same_network(runs[0].checkpoint, runs[1].checkpoint)
    assert runs[0].history[-1].loss < runs[0].history[0].loss
    assert next(runs[0].checkpoint.backbone.parameters()).device.type == "cpu"


# --- one step ------------------------------------------------------------------------------------


def classifier(turns: bool = False) -> Classifier:
    torch.manual_seed(0)
    return Classifier(create("small"), nn.Linear(128, 4), turns)


def test_loss_by_hand() -> None:
    settings = Recipe(label_smoothing=0.2, augmentation=Augmentation(turned=0.5))
    learner = Learner(classifier(turns=True).eval(), settings, torch.float32)
    inputs, labels, turns = torch.randn(6, 1, 32, 32), torch.arange(6) % 4, torch.arange(6) % 3
    logits, turn_logits = learner.classifier(inputs)
    log_p = logits.double().log_softmax(1)
    smooth = torch.full((6, 4), 0.2 / 4, dtype=torch.float64)
    smooth[torch.arange(6), labels] += 0.8
    plain = -(smooth * log_p).sum(1).mean()
    turned = -turn_logits.double().log_softmax(1)[torch.arange(6), turns].mean()
    got, _ = learner.step(inputs, turns, labels, 0.0)
    assert got.item() == pytest.approx((plain + 0.5 * turned).item(), rel=1e-5)


def test_average_by_hand() -> None:
    learner = Learner(classifier(), Recipe(average=0.15), torch.float32)
    names = ("head.weight", "backbone.norm.running_mean")
    expected = {}
    for decay in (0.0, 0.15, 0.15):  # the first step is the first average
        learner.classifier.train()
        inputs = torch.randn(8, 1, 32, 32)
        learner.step(inputs, torch.zeros(8).long(), torch.arange(8) % 4, 0.1)
        for name in names:
            now = learner.classifier.state_dict()[name]
            expected[name] = decay * expected.get(name, 0) + (1 - decay) * now
    assert learner.final is not learner.classifier
    for name in names:
        assert torch.allclose(learner.final.state_dict()[name], expected[name], atol=1e-6)


def test_step_is_sgd() -> None:
    learner = Learner(classifier(), Recipe(weight_decay=0.0, momentum=0.0), torch.float32)
    inputs, labels = torch.randn(8, 1, 32, 32), torch.arange(8) % 4
    learner.classifier.train()
    logits = learner.classifier(inputs)[0]
    loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
    (gradient,) = torch.autograd.grad(loss, learner.classifier.head.weight)
    before = learner.classifier.head.weight.detach().clone()
    got, right = learner.step(inputs, torch.zeros(8).long(), labels, 0.5)
    assert got.item() == pytest.approx(loss.item(), rel=1e-5)
    assert right.item() == (logits.argmax(1) == labels).sum()
    assert torch.allclose(learner.classifier.head.weight, before - 0.5 * gradient, atol=1e-6)


# --- the best, the disk, and going on -------------------------------------------------------------


def scripted(monkeypatch: pytest.MonkeyPatch, *accuracies: float) -> None:
    remaining = list(accuracies)
    monkeypatch.setattr(module.Run, "validation_accuracy", lambda *_: remaining.pop(0))


def test_the_best_epoch_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripted(monkeypatch, 0.5, 0.9, 0.7)
    run = trained(output=tmp_path, validation=VALIDATION)
    assert [epoch.validation for epoch in run.history] == [0.5, 0.9, 0.7]
    best, last = (load_checkpoint(tmp_path / f"{name}.safetensors") for name in ("best", "last"))
    assert (best.notes["epoch"], last.notes["epoch"]) == ("2", "3")
    assert best.notes["validation, 5-way 5-shot"] == "0.9000"
    assert_same_network(best, run.checkpoint)
    plain = trained()
    assert [epoch.validation for epoch in plain.history] == [None] * 3
    assert plain.checkpoint.notes["epoch"] == "3"
    assert_same_network(last, plain.checkpoint)


def test_validation_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, 0.6, 0.9, 0.8)
    run = trained(replace(QUICK, epochs=4), validation=VALIDATION, validate_every=3)
    assert [epoch.validation for epoch in run.history] == [0.6, None, 0.9, 0.8]
    assert run.checkpoint.notes["epoch"] == "3"


def test_an_interrupted_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything that has a state."""
    settings = replace(QUICK, epochs=2, average=0.8, augmentation=Augmentation(turned=0.5))
    whole = trained(settings, output=tmp_path / "whole")
    learn = module.Run.learn

    def interrupted(run: module.Run, epoch: int, shown: object) -> tuple[float, float]:
        result = learn(run, epoch, shown)
        if epoch == 1:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(module.Run, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(settings, output=tmp_path / "parts")
    monkeypatch.setattr(module.Run, "learn", learn)
    state = torch.load(tmp_path / "parts" / "state.pt", weights_only=True)
    assert len(state["history"]) == 1
    parts = trained(settings, output=tmp_path / "parts")
    assert [e[:4] for e in parts.history] == [e[:4] for e in whole.history]
    assert_same_network(parts.checkpoint, whole.checkpoint)
    names = {file.name for file in (tmp_path / "parts").iterdir()}
    assert names == {"state.pt", "best.safetensors", "last.safetensors"}
    for name in ("best", "last"):
        files = [tmp_path / place / f"{name}.safetensors" for place in ("whole", "parts")]
        assert_same_network(*map(load_checkpoint, files))


def test_a_finished_run_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(QUICK, epochs=1)
    first = trained(settings, output=tmp_path)
    monkeypatch.setattr(module.Run, "learn", lambda *_: pytest.fail("it is done"))
    again = trained(settings, output=tmp_path)
    assert again.history == first.history
    assert_same_network(again.checkpoint, first.checkpoint)
    other = replace(settings, momentum=0.8)
    for images, own, more in (
        (FEW, settings, {"seed": 5}),
        (FEW, other, {}),
        (VALIDATION, settings, {}),
        (FEW, settings, {"validation": VALIDATION}),
    ):
        with pytest.raises(ValueError, match=r"state.pt must belong .*, got another run \(or pass"):
            trained(own, images, output=tmp_path, **more)


def test_damaged_files(tmp_path: Path) -> None:
    """Of a run that resumes."""
    settings = replace(QUICK, epochs=1)
    trained(settings, output=tmp_path)
    for name in ("best.safetensors", "state.pt"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=f"{name} must be"):
            trained(settings, output=tmp_path)
        (tmp_path / name).write_bytes(whole)
    for odd in ({"settings": {}}, [1]):
        torch.save(odd, tmp_path / "state.pt")
        with pytest.raises(ValueError, match=r"state.pt must be"):
            trained(settings, output=tmp_path)


def test_starting_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a new run that is killed leaves no state of the one before."""
    settings = replace(QUICK, epochs=1)
    trained(settings, output=tmp_path)
    other = trained(settings, output=tmp_path, seed=5, resume=False)
    assert_same_network(load_checkpoint(tmp_path / "best.safetensors"), other.checkpoint)
    monkeypatch.setattr(module.Run, "save", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trained(settings, output=tmp_path, seed=6, resume=False)
    assert not (tmp_path / "state.pt").exists()


def test_images_too_large_for_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read batch by batch, with the same result."""
    expected = trained()
    monkeypatch.setattr("paddle_ext.research.backbones.extraction.host_memory", lambda: 1000)
    lazy = LazyImages(FEW)
    run = trained(base=lazy)
    assert lazy.reads >= 3 * 2
    assert_same_network(run.checkpoint, expected.checkpoint)


def test_a_diverging_run_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"the loss must stay finite, got .* in epoch 1"):
        trained(replace(QUICK, learning_rate=1e18))


def test_progress_lines(capsys: pytest.CaptureFixture[str]) -> None:
    trained(replace(QUICK, epochs=2), validation=VALIDATION, progress=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert len(lines) == 2
    assert lines[1].startswith("epoch 2/2  loss ")
    assert "accuracy" in lines[1]
    assert "5-way 5-shot" in lines[1]


# --- bad arguments -------------------------------------------------------------------------------

COLOUR = pattern_images(3, 8, channels=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"architecture": "vgg"}, "architecture must be one of"),
        ({"validation": COLOUR}, "validation must have as many channels as base, 1"),
        ({"validation": pattern_images(3, 5)}, "with more than 5 images each, got 3"),
        ({"validation": pattern_images(1, 9)}, "at least 2 classes"),
        ({"base": pattern_images(1, 1)}, "base must have at least 2 images, got 1"),
        ({"device": "meta"}, "device must be the CPU or a CUDA device, got 'meta'"),
        ({"validate_every": 0}, r"validate_every must be .* in \[1, \d+\], got 0"),
    ],
)  # fmt: skip
def test_bad_arguments(arguments: dict, message: str) -> None:
    defaults = {"architecture": "small", "base": BASE, "recipe": QUICK, "device": "cpu"}
    with pytest.raises(ValueError, match=message):
        train(**(defaults | {"progress": False} | arguments))


def test_without_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error before the first epoch."""
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setattr(module.Run, "learn", lambda *_: pytest.fail("it began"))
    with pytest.raises(ImportError, match="pip install safetensors"):
        trained(output=tmp_path)
