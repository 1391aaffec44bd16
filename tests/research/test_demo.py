"""The demo at its smallest: every step runs, and its output matches its results."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from commands import run_command

from paddle_ext import TaskSampler, methods
from paddle_ext.research import demo
from paddle_ext.research.data.images import ImageArray
from paddle_ext.research.demo import Batch, Demo, group_sheet, task_count
from paddle_ext.research.evaluate import all_methods
from paddle_ext.research.tables import title_of

pytest.importorskip("safetensors", reason="needs safetensors")
pytest.importorskip("matplotlib", reason="needs matplotlib")
pytest.importorskip("PIL", reason="needs Pillow")

FEW = ("simpleshot", "tim_adm", "paddle", "adaptive")
SMALL = {"n_tasks": 4, "num_classes": 12, "k_eff": 3, "quick": True, "device": "cpu"}


def toy_characters(split: str, *, samples: int, seed: int) -> ImageArray:
    """24 patterns with noise, which are quicker to make than drawings."""
    random = torch.Generator().manual_seed(seed + len(split))
    labels = torch.arange(24).repeat_interleave(samples)
    patterns = torch.randint(70, (24, 32, 32), generator=random)
    noise = torch.randint(180, (len(labels), 32, 32), generator=random)
    images = (patterns[labels] + noise).to(torch.uint8)
    return ImageArray(images, labels, [f"{split} {k}" for k in range(24)], split)


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """No drawings, and few methods; tests/methods has all of them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo, "glyph_images", toy_characters)
        patched.setattr(demo, "all_methods", lambda: FEW)
        yield


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def found(cache: Path) -> Demo:
    return demo.run_demo(**SMALL, cache=cache, progress=False)


def test_methods_on_the_same_tasks(found: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = found.evaluation
    assert evaluation.methods == ("simpleshot", "tim_adm", "paddle", "paddle (auto)", "adaptive")
    scalings = [result.options["scaling"] for result in evaluation.results[-3:-1]]
    assert scalings == ["minmax", "auto"]
    monkeypatch.setattr(demo, "all_methods", all_methods)
    assert demo.contenders().keys() == {*methods.available(named=False), demo.AUTO}
    for result in evaluation:
        assert (result.num_classes, result.k_eff, result.shots, result.n_query) == (12, 3, 5, 75)
        assert result.n_tasks == task_count(result.method, 4)
    (nearest,) = found.evaluation.select("simpleshot")  # the network has learnt something
    assert nearest.accuracy > 3 * 100 / 12


def test_the_batch_is_the_first_task(found: Demo) -> None:
    batch = found.batch
    assert batch.support.shape == (12, 32, 32)
    assert batch.query.shape == (75, 32, 32)
    assert len(torch.unique(batch.truth)) == 3
    sampler = TaskSampler(found.bank.labels, shots=5, n_query=75, k_eff=3, num_classes=12)
    support, labels, query, truth = (x.squeeze(0) for x in sampler.batch(0, 1))
    assert torch.equal(batch.truth, truth)
    features = found.bank.features
    expected = methods.create("adaptive").predict(features[support], labels, features[query])
    assert torch.equal(batch.found["75 images by Adaptive"], expected.labels)


def test_places(found: Demo) -> None:
    """The same images with and without groups; a group is the images of a place."""
    places = found.places
    of_a_place = places.truth.view(demo.PLACES, demo.OF_A_PLACE)
    assert {len(torch.unique(truth)) for truth in of_a_place} == {1, 2}
    one_batch, groups = ((labels == places.truth).sum() for labels in places.found.values())
    assert one_batch < groups
    support, _, query, _ = demo.draw_places(found.bank.labels, 12, 5, 0)
    assert not set(support.tolist()) & set(query.flatten().tolist())


def test_the_command_and_its_cache(found: Demo, cache: Path, tmp_path: Path) -> None:
    """A second run finds the network, and the same accuracies."""
    (network,) = cache.glob("network-*")
    before = (network / "best.safetensors").stat().st_mtime_ns
    kept = sorted(path.name for path in (cache / "features").iterdir())
    picture = tmp_path / "new" / "demo.png"
    arguments = ["demo", "--quick", "--n-tasks", "4", "--num-classes", "12", "--k_eff", "3"]
    arguments += ["--cache", str(cache), "--output", str(picture), "--device", "cpu"]
    result = run_command(*arguments)
    assert result.exit_code == 0, result.output
    assert str(network) in result.output
    assert (network / "best.safetensors").stat().st_mtime_ns == before
    assert sorted(path.name for path in (cache / "features").iterdir()) == kept
    rows = [" ".join(line.split()) for line in result.output.splitlines()]
    for each in found.evaluation:
        cells = f"{title_of(each.method)} {each.accuracy:.1f} ± {each.interval:.1f} "
        (row,) = [row for row in rows if row.startswith(cells)]
        assert row.endswith(f" {each.n_tasks}")
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width >= 1000
    assert height >= 1000
    assert re.search(r"^with groups: \d+ classes, \d+ % correct$", result.output, re.MULTILINE)
    assert re.search(r"^\d+ seconds$", result.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--num-classes", "25"], 1, "--num-classes must be at most the number of classes, 24"),
        (["--shots", "60"], 1, "samples for the queries"),
        (["--output", "demo.txt"], 2, "--output must end in"),
    ],
)
def test_refused_before_the_training(
    arguments: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "train", Mock(side_effect=AssertionError))
    few = () if "--num-classes" in arguments else ("--num-classes", 12)
    result = run_command("demo", *few, *arguments)
    assert result.exit_code == code
    assert message in result.output


# --- the figure ----------------------------------------------------------------------------------


def small_batch() -> Batch:
    """Three candidate classes, classes 0 and 2 present; one of class 2 goes to class 1."""
    shades = torch.tensor([10, 20, 30], dtype=torch.uint8)
    truth = torch.tensor([0, 0, 2, 2])
    labels = torch.tensor([0, 0, 2, 1])
    support = shades.view(3, 1, 1).expand(3, 8, 8)
    query = (100 + shades[truth]).view(4, 1, 1).expand(4, 8, 8)
    return Batch(support, query, truth, {"by hand": labels})


def test_groups() -> None:
    batch = small_batch()
    step = 8 + 2 * demo.GAP
    paper = group_sheet(batch, batch.found["by hand"])
    assert paper.shape == (3 * step, demo.COLUMNS * step, 3)

    def cell(row: int, column: int) -> torch.Tensor:
        return paper[row * step : (row + 1) * step, column * step : (column + 1) * step]

    def frame(row: int, column: int) -> tuple[float, ...]:
        return tuple(round(float(x), 2) for x in cell(row, column)[1, 1])

    def shade(row: int, column: int) -> int:
        return round(255 * (1 - float(cell(row, column)[step // 2, step // 2, 0])))

    # The largest group first, then by class: a labelled image, then the queries.
    assert [shade(row, 0) for row in range(3)] == [10, 20, 30]
    assert [frame(row, 0) for row in range(3)] == [demo.GREEN, demo.GREY, demo.GREEN]
    assert [shade(0, 1), shade(0, 2), shade(1, 1), shade(2, 1)] == [110, 110, 130, 130]
    assert frame(0, 1) == frame(2, 1) == (1.0, 1.0, 1.0)
    assert frame(1, 1) == demo.RED
    assert torch.equal(cell(0, 3), torch.ones(step, step, 3))
