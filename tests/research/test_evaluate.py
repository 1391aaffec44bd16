"""Evaluation: the same counts as task by task, in any batches; resumed; errors at once."""

import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from banks import (
    CLASSES,
    DIMENSION,
    MINE,
    SIZE,
    WRONG,
    Spy,
    method_of_file,
    right_answers,
    small_bank,
)

from paddle_ext import Evaluation, FeatureBank, TaskSampler, check, evaluate, methods, progress
from paddle_ext.research.evaluate import (
    BLOCK_TASKS,
    DeviceBank,
    all_methods,
    chosen_methods,
    computing_device,
)
from paddle_ext.research.results import Result

NAMES = ["simpleshot", "bd_cspn", "paddle"]
PUBLISHED = ("baseline", "ici", "bd_cspn", "pt_map", "laplacian_shot", "tim", "alpha_tim", "paddle")


@pytest.fixture(autouse=True)
def _forget() -> None:
    Spy.forget()


def run(bank: FeatureBank, *arguments: Any, **options: Any) -> Evaluation:
    defaults = {"shots": 3, "k_eff": 3, "n_query": 12, "n_tasks": 7}
    return evaluate(bank, *arguments, **(defaults | {"device": "cpu", "progress": False} | options))


def counts(evaluation: Evaluation) -> list[tuple[Any, ...]]:
    return [(r.method, r.shots, r.k_eff, r.n_tasks, r.correct, r.squares) for r in evaluation]


# --- what is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [None, 6])
def test_task_by_task(num_classes: int | None) -> None:
    bank = small_bank()
    options = {"n_query": 10, "num_classes": num_classes, "seed": 9}
    options |= {"sampling": "dirichlet", "alpha": 0.5}
    found = run(bank, NAMES, shots=(2, 4), k_eff=[2, 3], n_tasks=9, name="small", **options)
    expected = []
    for shots, k_eff, name in itertools.product((2, 4), (2, 3), NAMES):
        sampler = TaskSampler(bank.labels, shots=shots, k_eff=k_eff, **options)
        right = right_answers(bank, methods.create(name), sampler, 9)
        expected.append((name, shots, k_eff, 9, sum(right), sum(x * x for x in right)))
        (own,) = found.select(name, shots=shots, k_eff=k_eff)
        assert own.correct_by_task == tuple(right)
    assert counts(found) == expected
    assert (found.bank, found.sampling, found.alpha, found.seed) == ("small", "dirichlet", 0.5, 9)
    assert {(r.num_classes, r.n_query) for r in found} == {(num_classes or CLASSES, 10)}
    assert all(0 < r.seconds < 10 for r in found)
    assert found.machine


def test_several_blocks_in_small_batches() -> None:
    """More than two blocks of tasks, each in many batches."""
    bank = small_bank()
    found = run(bank, Spy(), n_tasks=1100, memory=1e-3)
    sizes = [len(task.query) for task in Spy.seen[1:]]  # the first is the warm-up
    assert len(Spy.seen[0].query) == 1
    assert sum(sizes) == 1100
    rows = (CLASSES * 3 + 12) * DIMENSION * 4  # bytes of a task
    assert 0.5 < max(sizes) * rows / (1e-3 * 2**30) < 1
    assert counts(found) == counts(run(bank, Spy(), n_tasks=1100, memory=1.0))


def test_shared_support() -> None:
    split = np.where(np.arange(CLASSES * SIZE) % 3 == 0, "repr", "query")
    bank = small_bank(split=split)
    found = run(bank, [*NAMES, Spy()], shots=None, support="repr", query="query", n_tasks=20)
    sampler = TaskSampler(bank.labels, shots=None, k_eff=3, n_query=12, support=bank.rows("repr"))
    for result in found:
        method = Spy() if result.method == "spy" else methods.create(result.method)
        assert result.correct == sum(right_answers(bank, method, sampler, 20))
        assert result.shots is None
    assert Spy.seen[1].support.shape == (1, CLASSES * SIZE // 3, DIMENSION)


def test_splits() -> None:
    """Support and queries from splits; classes in neither do not count."""
    split = np.array(["train", "test", "test"] * (CLASSES * SIZE // 3))
    split[: 2 * SIZE] = "other"
    bank = small_bank(split=split)
    found = run(bank, "simpleshot", support="train", query="test", n_tasks=20)
    rest = bank.subset(torch.arange(2 * SIZE, len(bank))).take_classes()
    same = run(rest, "simpleshot", support=rest.rows("train"), n_tasks=20)
    assert counts(found) == counts(same)
    assert found.results[0].num_classes == CLASSES - 2


def test_missing_labels_and_rows_without_a_class() -> None:
    """Their prototypes are not used either."""
    bank = small_bank()
    labels = bank.labels.clone()
    labels[labels == 4] = -1
    labels[labels > 6] += 3
    gaps = FeatureBank(bank.features, labels, [f"class {k}" for k in range(20)])
    found = run(gaps, NAMES)
    assert counts(found) == counts(run(gaps.take_classes(), NAMES))
    assert found.results[0].num_classes == CLASSES - 1
    text = torch.full((20, DIMENSION), 7.0)
    there = labels.unique()[1:]
    text[there] = torch.stack([bank.features[labels == k].mean(0) for k in there])
    named = run(gaps, "zero_shot", shots=0, prototypes=text)
    same = run(gaps.take_classes(), "zero_shot", shots=0, prototypes=text[there])
    assert counts(named) == counts(same)


def test_class_names_and_no_labelled_row(tmp_path: Path) -> None:
    bank = small_bank()
    text = torch.stack([bank.features[bank.labels == k].mean(0) for k in range(CLASSES)]) + 0.3
    given = {"shots": (0, 2), "output": tmp_path}
    found = run(bank, ["zero_shot", "adaptive"], prototypes=text, **given)
    expected = []
    for shots, name in itertools.product((0, 2), ("zero_shot", "adaptive")):
        sampler = TaskSampler(bank.labels, shots=shots, k_eff=3, n_query=12)
        expected.append(sum(right_answers(bank, methods.create(name), sampler, 7, text)))
    assert [result.correct for result in found] == expected
    with pytest.raises(ValueError, match=r"with another prototypes \("):
        run(bank, "zero_shot", prototypes=text + 1, **given)
    with pytest.raises(ValueError, match="'spy' cannot run these tasks: prototypes must be None"):
        run(bank, Spy(), prototypes=text)


@pytest.mark.parametrize("features", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("mean", [torch.float16, torch.float64])
def test_precisions(features: torch.dtype, mean: torch.dtype) -> None:
    bank = small_bank()
    bank = FeatureBank(
        bank.features.half().to(features), bank.labels, base_mean=torch.full((DIMENSION,), 0.125)
    )
    bank.base_mean = bank.base_mean.to(mean)
    found = run(bank, Spy(), n_tasks=20)
    task = Spy.seen[-1]
    computed = torch.float64 if features is torch.float64 else torch.float32
    assert (task.query.dtype, task.base_mean.dtype) == (computed, computed)
    assert task.base_mean.tolist() == [0.125] * DIMENSION
    assert 20 < found.results[0].accuracy < 95
    assert bank.features.dtype is features


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    bank = small_bank()
    found, expected = run(bank, NAMES, device=None, n_tasks=600), run(bank, NAMES, n_tasks=600)
    for ours, theirs in zip(found, expected, strict=True):
        assert abs(ours.accuracy - theirs.accuracy) < 0.1
    assert torch.cuda.get_device_name() in found.machine
    assert counts(run(bank.to("cuda"), NAMES, device=None, n_tasks=600)) == counts(found)
    assert computing_device(None, bank) == torch.device("cuda", 0)


def test_paddle_never_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    """PADDLE takes rows of the bank, half precision is converted once, and nothing is checked."""
    never = Mock(side_effect=AssertionError("rows were gathered, or checked a second time"))
    monkeypatch.setattr("paddle_ext.task.IndexedTask.gathered", never)
    monkeypatch.setattr("paddle_ext.check.values", never)
    bank = small_bank()
    half = FeatureBank(bank.features.half(), bank.labels)
    seen = []
    original = methods.Paddle.predict_indexed

    def predict_indexed(self: methods.Paddle, features: torch.Tensor, *rest: Any, **more: Any):
        seen.append(features.data_ptr())
        assert features.dtype is torch.float32
        return original(self, features, *rest, **more)

    monkeypatch.setattr(methods.Paddle, "predict_indexed", predict_indexed)
    run(half, ["paddle", "soft_kmeans"], n_tasks=1100)
    assert len(seen) == 1 + 3
    assert len(set(seen)) == 1
    sampler = TaskSampler(bank.labels, shots=3, k_eff=3, n_query=12)
    on_cpu = DeviceBank(bank, torch.device("cpu"), 1e-3)
    few = on_cpu.batch_size(sampler, methods.create("simpleshot"))  # which gathers
    assert few < on_cpu.batch_size(sampler, methods.create("paddle")) <= BLOCK_TASKS


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A method is named from its start, not when its first tasks are done."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    (found,) = run(small_bank(), {"mine": Spy()}, n_tasks=501, progress=True)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert re.match(r"evaluating 0/501 mine, 3 shots, 3 effective classes$", first)
    shown = re.match(r"evaluating 501/501 mine, .*: (\d+\.\d) %$", last)
    assert shown
    assert abs(float(shown[1]) - found.accuracy) < 1  # of the first block
    run(small_bank(), Spy(), progress=False)
    assert capsys.readouterr().err == ""


# --- which methods ------------------------------------------------------------------------------


def test_all_methods_in_the_order_of_the_paper() -> None:
    order = all_methods()
    assert set(order) == set(methods.available(named=False))
    assert tuple(name for name in order if name in PUBLISHED) == PUBLISHED
    assert order[-1] == "adaptive"
    assert tuple(chosen_methods("all")) == order


def test_labels_and_options() -> None:
    sharp = methods.create("simpleshot", temperature=20.0, scaling="l2n")
    found = run(small_bank(), {"sharp": sharp, "plain": methods.create("simpleshot")})
    assert found.methods == ("sharp", "plain")
    assert found.results[0].options == {"scaling": "l2n", "temperature": 20.0}
    assert found.results[1].options == {"scaling": "cl2n", "temperature": 15.0}
    for given in ("paddle", (methods.create("paddle"),), methods.create("paddle")):
        assert run(small_bank(), given, n_tasks=1).methods == ("paddle",)
    preset = run(small_bank(), ["bd_cspn", sharp], preset="tiered", n_tasks=1)  # for names only
    assert [result.options["temperature"] for result in preset] == [30, 20]


# --- bad arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"methods": "padle"}, ValueError, "methods must be one of 'all', 'adaptive', "),
        ({"methods": []}, ValueError, "methods must be at least one, got none"),
        ({"methods": 3}, TypeError, "methods must be names or methods, got int"),
        ({"methods": {1: Spy()}}, TypeError, "methods must have strings as labels, got int"),
        ({"methods": [Spy(), Spy(sharpness=2.0)]}, ValueError, "got 'spy' twice"),
        ({"shots": "5"}, TypeError, "shots must be an integer, got str"),
        ({"shots": ()}, ValueError, "shots must be one number or several different ones, got ()"),
        (
            {"shots": (2, 2)},
            ValueError,
            "shots must be one number or several different ones, got (2",
        ),
        ({"k_eff": (2, 13)}, ValueError, "k_eff must be at most the number of candidate classes"),
        ({"n_tasks": 0}, ValueError, "n_tasks must be an integer in [1,"),
        ({"support": "train"}, ValueError, "support must be rows or a split of the bank (none)"),
        ({"query": torch.tensor([400])}, ValueError, "query must be in [0, 360), got 400"),
        ({"prototypes": torch.ones(3, 16)}, ValueError, "prototypes must have shape [12, 16]"),
        ({"prototypes": torch.full((12, 16), torch.nan)}, ValueError, "prototypes must be finite"),
        ({"name": 3}, TypeError, "name must be a string, got int"),
        ({"device": "tpu"}, ValueError, "device must be the CPU or a CUDA device, got 'tpu'"),
        ({"memory": 0.0}, ValueError, "memory must be > 0 and at most 1e+09, got 0.0"),
        ({"resume": 1}, TypeError, "resume must be True or False, got int"),
        ({"output": __file__}, ValueError, "output must be a folder, got the file"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        run(small_bank(), **({"methods": Spy()} | changes))
    assert "\n" not in str(caught.value)
    assert not Spy.seen  # nothing was computed


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("features", torch.nan, "features must be finite, got nan at [7, 3]"),
        ("features", 1e35, "features must be at most 1e+30 in magnitude"),
        ("base_mean", torch.inf, "base_mean must be finite, got inf at [0]"),
    ],
)
def test_bad_banks(part: str, value: float, message: str) -> None:
    bank = small_bank()
    getattr(bank, part)[(7, 3) if part == "features" else 0] = value
    with pytest.raises(ValueError, match=re.escape(message)):
        run(bank, Spy())
    with pytest.raises(TypeError, match="bank must be a FeatureBank, got Tensor"):
        run(bank.features, Spy())
    assert not Spy.seen


def test_an_error_of_a_method_names_it() -> None:
    bank = small_bank()
    negative = FeatureBank(bank.features - 3, bank.labels)
    asked = [Spy(), methods.create("pt_map", power=0.5)]
    message = r"'pt_map' cannot run these tasks: features must be at .*pass power=1\.0\)$"
    with pytest.raises(ValueError, match=message):
        run(negative, asked)
    assert len(Spy.seen) == 1  # the warm-up: no block was computed


# --- interrupted and resumed --------------------------------------------------------------------


def resumable(
    output: Path | None = None, bank: FeatureBank | None = None, **more: Any
) -> Evaluation:
    """Three blocks in each of two settings."""
    options = {"methods": Spy(), "shots": (1, 2), "n_tasks": 1100, "output": output}
    return run(bank or small_bank(), **(options | more))


def timeless(evaluation: Evaluation) -> list[Result]:
    return [replace(result, seconds=0.0) for result in evaluation]


def computed() -> list[int]:
    """The sizes of the batches since the last call."""
    sizes = [len(task.query) for task in Spy.seen]
    Spy.forget()
    return sizes


def test_interrupted(tmp_path: Path) -> None:
    """What was finished is not computed again, and nothing else is kept."""
    folder = tmp_path / "runs" / "first"
    Spy.interrupt_at = 5  # after the warm-up, the first setting, and a block of the second
    with pytest.raises(KeyboardInterrupt):
        resumable(folder)
    (first,) = Evaluation.load(folder / "evaluation.json")
    assert (first.shots, first.n_tasks) == (1, 1100)
    Spy.forget()
    found = resumable(folder)
    assert computed() == [1, 500, 500, 100]  # the second setting
    assert timeless(found) == timeless(resumable())
    assert found.results[0] == first  # the seconds too
    assert Evaluation.load(folder / "evaluation.json") == found
    computed()
    assert resumable(folder) == found
    assert not Spy.seen


class Namesake(Spy):
    """Another method with the options of the first."""


def test_more_methods_and_tasks(tmp_path: Path) -> None:
    options = {"shots": 2, "n_tasks": 3, "output": tmp_path}
    run(small_bank(), {"a": Spy()}, **options)
    both = {"a": Spy(), "b": Spy(sharpness=0.5)}
    for methods_, again in ((both, [1, 3]), (both, []), ({"a": Namesake()}, [1, 3])):
        computed()
        found = run(small_bank(), methods_, **options)
        assert computed() == again
        assert timeless(found) == timeless(run(small_bank(), methods_, **options))
    computed()
    assert (
        run(small_bank(), {"a": Namesake()}, **(options | {"n_tasks": 4})).results[0].n_tasks == 4
    )
    assert computed() == [1, 4]


def test_results_of_other_methods_are_kept(tmp_path: Path) -> None:
    options: dict[str, Any] = {"shots": 2, "n_tasks": np.int64(3), "output": tmp_path}
    first = run(small_bank(), {"a": Spy()}, **options)
    second = run(small_bank(), {"b": Spy(sharpness=0.5)}, **options)
    saved = Evaluation.load(tmp_path / "evaluation.json")
    assert [one.method for one in second] == ["b"]
    assert [one.method for one in saved] == ["b", "a"]
    assert saved.results[1] == first.results[0]
    computed()
    assert run(small_bank(), {"a": Spy()}, **options) == replace(first, notes=saved.notes)
    assert computed() == []


def test_results_of_an_edited_method_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the same source are, which a line says."""
    monkeypatch.syspath_prepend(tmp_path)
    options: dict[str, Any] = {"output": tmp_path / "runs", "progress": True}
    wrong = run(small_bank(), ["simpleshot", method_of_file(WRONG, tmp_path)], **options)
    right = run(small_bank(), ["simpleshot", method_of_file(MINE, tmp_path)], **options)
    assert right.results[1].accuracy > wrong.results[1].accuracy + 20
    assert (
        right.results[1].correct
        == run(small_bank(), method_of_file(MINE, tmp_path)).results[0].correct
    )
    assert right.results[0] == wrong.results[0]  # the built-in method, with its seconds
    assert "kept from" not in capsys.readouterr().err
    assert run(small_bank(), ["simpleshot", method_of_file(MINE, tmp_path)], **options) == right
    line = "kept from an earlier run with the same source: mine\n"
    assert line in capsys.readouterr().err


def test_a_method_without_a_source_file_is_evaluated_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here a class of a function: nothing says what it depends on."""

    @dataclass(frozen=True)
    class Local(Spy):
        name = "local"

    options: dict[str, Any] = {"shots": 2, "n_tasks": 3, "output": tmp_path, "progress": True}
    for _ in range(2):
        computed()
        run(small_bank(), [Spy(), Local()], **options)
    assert computed() == [1, 3]  # one of the two
    line = "computed again, because the source may have changed: local\n"
    assert line in capsys.readouterr().err
    run(small_bank(), "simpleshot", **options)
    saved = Evaluation.load(tmp_path / "evaluation.json")
    assert saved.methods == ("simpleshot", "spy", "local")


def turned_bank() -> FeatureBank:
    """The same rows with the labels of others."""
    bank = small_bank()
    return FeatureBank(bank.features, bank.labels.flip(0), base_mean=bank.base_mean)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"with another seed \(there 0, here 1\) \(or pass"),
        ({"n_query": 9}, r"with another n_query \(there 12, here 9\) \(or pass"),
        ({"sampling": "balanced", "alpha": 2.0}, r"another sampling \(.*\), another alpha \(there"),
        ({"support": torch.arange(0, 360, 2)}, r"with another rows \("),
        ({"bank": small_bank(noise=1.1)}, r"with another features \("),
        ({"bank": small_bank(base_mean=None)}, r"another base_mean \(.*, another features \("),
        ({"bank": turned_bank()}, r"with another rows \("),
    ],
)
def test_another_evaluation(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    resumable(tmp_path, n_tasks=3)
    before = (tmp_path / "evaluation.json").read_bytes()
    Spy.forget()
    with pytest.raises(ValueError, match=message) as caught:
        resumable(tmp_path, n_tasks=3, **changes)
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, check.ArgumentError)
    assert "--fresh" in caught.value.sentence({"resume=False": "--fresh"})
    assert not Spy.seen
    assert (tmp_path / "evaluation.json").read_bytes() == before
    found = resumable(tmp_path, n_tasks=3, resume=False, **changes)
    assert timeless(found) == timeless(resumable(n_tasks=3, **changes))


def test_damaged_results(tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text("{}")
    with pytest.raises(ValueError, match=r"evaluation\.json is not an evaluation"):
        run(small_bank(), Spy(), output=tmp_path)
    run(small_bank(), Spy(), output=tmp_path, resume=False)
