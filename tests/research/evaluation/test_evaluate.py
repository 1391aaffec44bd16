"""Evaluation: the same counts as task by task, in any batches; errors at once."""

import itertools
import re
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from banks import CLASSES, DIMENSION, SIZE, Spy, right_answers, small_bank

from paddle_ext import Evaluation, FeatureBank, TaskSampler, evaluate, methods, progress
from paddle_ext.research.evaluation import RunSettings, paper
from paddle_ext.research.evaluation.arguments import all_methods
from paddle_ext.research.evaluation.blocks import BLOCK, DeviceBank

NAMES = ["simpleshot", "bd_cspn", "paddle"]


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
    assert counts(found) == expected
    assert (found.bank, found.sampling, found.alpha, found.seed) == ("small", "dirichlet", 0.5, 9)
    assert {(r.num_classes, r.n_query) for r in found} == {(num_classes or CLASSES, 10)}
    assert all(0 < r.seconds < 10 for r in found)
    assert found.machine


def test_accuracy_and_interval() -> None:
    bank = small_bank()
    (found,) = run(bank, "simpleshot", n_tasks=40)
    sampler = TaskSampler(bank.labels, shots=3, k_eff=3, n_query=12)
    share = np.array(right_answers(bank, methods.create("simpleshot"), sampler, 40)) / 12
    assert 20 < found.accuracy < 95
    assert found.accuracy == pytest.approx(100 * share.mean())
    assert found.interval == pytest.approx(196 * share.std(ddof=1) / np.sqrt(40))


def test_several_blocks_in_small_batches() -> None:
    """More than two blocks of tasks, each in many batches."""
    bank = small_bank()
    found = run(bank, Spy(), n_tasks=1100, memory=1e-3)
    sizes = [len(task.query) for task in Spy.seen[1:]]  # the first is the warm-up
    assert len(Spy.seen[0].query) == 1
    assert sum(sizes) == 1100
    rows = (CLASSES * 3 + 12) * DIMENSION * 4  # bytes of a task
    assert 0.5 < max(sizes) * rows / (1e-3 * 2**30) < 1
    whole = run(bank, Spy(), n_tasks=1100, memory=1.0)
    assert counts(found) == counts(whole)
    sampler = TaskSampler(bank.labels, shots=3, k_eff=3, n_query=12)
    assert found.results[0].correct == sum(right_answers(bank, Spy(), sampler, 1100))


def test_blocks_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    original = TaskSampler.batch

    def batch(self: TaskSampler, start: int, count: int) -> Any:
        drawn.append((self.shots, start, count))
        return original(self, start, count)

    monkeypatch.setattr(TaskSampler, "batch", batch)
    run(small_bank(), {"a": Spy(), "b": Spy(sharpness=2.0)}, shots=(1, 2), n_tasks=600)
    blocks = [(shots, start, count) for shots in (1, 2) for start, count in ((0, 500), (500, 100))]
    assert drawn == [(1, 0, 1), *blocks]


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
    bank = small_bank()
    labels = bank.labels.clone()
    labels[labels == 4] = -1
    labels[labels > 6] += 3
    names = [f"class {k}" for k in range(20)]
    gaps = FeatureBank(bank.features, labels, names, base_mean=bank.base_mean)
    found = run(gaps, NAMES)
    assert counts(found) == counts(run(gaps.take_classes(), NAMES))
    assert found.results[0].num_classes == CLASSES - 1


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


def test_no_base_mean() -> None:
    run(small_bank(base_mean=None), Spy())
    assert Spy.seen[-1].base_mean is None


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    bank = small_bank()
    found, expected = run(bank, NAMES, device=None, n_tasks=600), run(bank, NAMES, n_tasks=600)
    for ours, theirs in zip(found, expected, strict=True):
        assert abs(ours.accuracy - theirs.accuracy) < 0.1
    assert torch.cuda.get_device_name() in found.machine
    assert counts(run(bank.to("cuda"), NAMES, device=None, n_tasks=600)) == counts(found)
    assert RunSettings().device_for(bank) == torch.device("cuda", 0)


def test_paddle_never_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    """PADDLE takes rows of the bank, half precision is converted once, and nothing is checked."""
    never = Mock(side_effect=AssertionError("rows were gathered, or checked a second time"))
    monkeypatch.setattr("paddle_ext.task.IndexedTask.gathered", never)
    monkeypatch.setattr("paddle_ext.check.labelled_values", never)
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


def test_batches_of_methods_that_do_not_gather() -> None:
    sampler = TaskSampler(small_bank().labels, shots=3, k_eff=3, n_query=12)
    bank = DeviceBank(small_bank(), torch.device("cpu"), 1e-3)
    few = bank.batch_size(sampler, methods.create("simpleshot"))
    assert few < bank.batch_size(sampler, methods.create("paddle")) <= BLOCK


# --- which methods ------------------------------------------------------------------------------


def test_all_methods_in_the_order_of_the_paper() -> None:
    order = all_methods()
    assert set(order) == set(methods.available(named=False))
    published = paper.methods("table1")
    assert tuple(name for name in order if name in published) == published
    assert order[-1] == "adaptive"
    found = run(small_bank(), shots=1, k_eff=2, num_classes=3, n_query=4, n_tasks=2)
    assert found.methods == order


def test_labels_and_options() -> None:
    sharp = methods.create("simpleshot", temperature=20.0, scaling="l2n")
    found = run(small_bank(), {"sharp": sharp, "plain": methods.create("simpleshot")})
    assert found.methods == ("sharp", "plain")
    assert found.results[0].options == {"scaling": "l2n", "temperature": 20.0}
    assert found.results[1].options == {"scaling": "cl2n", "temperature": 15.0}


def test_presets() -> None:
    own = methods.create("ici", dimension=3)
    found = run(small_bank(), ["bd_cspn", own], preset="tiered", n_tasks=1)
    assert found.results[0].options["temperature"] == 30
    assert found.results[1].options["dimension"] == 3


def test_one_method_of_each_kind() -> None:
    for given in ("paddle", ["paddle"], methods.create("paddle"), (methods.create("paddle"),)):
        assert run(small_bank(), given, n_tasks=1).methods == ("paddle",)


# --- bad arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"methods": "padle"},
            ValueError,
            "methods must be one of 'all', 'adaptive', 'alpha_tim', ",
        ),
        ({"methods": []}, ValueError, "methods must be at least one, got none"),
        ({"methods": 3}, TypeError, "methods must be names or methods, got int"),
        ({"methods": [3]}, TypeError, "methods must be names or methods, got int"),
        ({"methods": {1: Spy()}}, TypeError, "methods must have strings as labels, got int"),
        ({"methods": [Spy(), Spy(sharpness=2.0)]}, ValueError, "got 'spy' twice"),
        ({"methods": ["paddle", "paddle"]}, ValueError, "methods must have unique labels"),
        (
            {"preset": "imagenet"},
            ValueError,
            "preset must be one of 'paper', 'mini', 'tiered', 'inat'",
        ),
        ({"shots": "5"}, TypeError, "shots must be an integer, got str"),
        ({"shots": ()}, ValueError, "shots must be at least one number, got none"),
        ({"shots": (2, 2)}, ValueError, "shots must not have a number twice, got 2"),
        ({"shots": (2, 0)}, ValueError, "shots must be an integer in [1,"),
        ({"shots": (2, 30)}, ValueError, "every class must have 1 or more samples"),
        ({"shots": (2, 31)}, ValueError, "shots must be at most the rows of every class"),
        ({"shots": None}, ValueError, "support or query must be given with shots=None"),
        ({"k_eff": (2, 13)}, ValueError, "k_eff must be at most the number of candidate classes"),
        ({"k_eff": None}, TypeError, "k_eff must be an integer, got None"),
        ({"n_tasks": 0}, ValueError, "n_tasks must be an integer in [1,"),
        ({"n_tasks": 2.0}, TypeError, "n_tasks must be an integer, got float"),
        ({"n_query": 0}, ValueError, "n_query must be an integer in [1,"),
        ({"num_classes": "all"}, TypeError, "num_classes must be an integer, got str"),
        (
            {"num_classes": 13},
            ValueError,
            "num_classes must be at most the number of classes, 12, got 13",
        ),
        ({"sampling": "even"}, ValueError, "sampling must be one of"),
        ({"alpha": 0.0}, ValueError, "alpha must be finite and > 0"),
        ({"seed": -1}, ValueError, "seed must be an integer in [0,"),
        ({"support": "train"}, ValueError, "support must be rows or a split of the bank (none)"),
        ({"query": [1]}, TypeError, "query must be a torch.Tensor, got list"),
        ({"query": torch.tensor([400])}, ValueError, "query must be in [0, 360), got 400"),
        ({"name": 3}, TypeError, "name must be a string, got int"),
        ({"device": 0}, TypeError, "device must be a string or a torch.device, got int"),
        ({"device": "tpu"}, ValueError, "device must be the CPU or a CUDA device, got 'tpu'"),
        ({"device": "meta"}, ValueError, "device must be the CPU or a CUDA device, got 'meta'"),
        ({"memory": 0.0}, ValueError, "memory must be finite and > 0, got 0.0"),
        ({"resume": 1}, TypeError, "resume must be True or False, got int"),
        ({"progress": None}, TypeError, "progress must be True or False, got None"),
        ({"output": __file__}, ValueError, "output must be a folder, got the file"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        run(small_bank(), **({"methods": Spy()} | changes))
    assert "\n" not in str(caught.value)
    assert not Spy.seen  # nothing was computed


def test_bad_banks() -> None:
    with pytest.raises(TypeError, match="bank must be a FeatureBank, got Tensor"):
        run(torch.zeros(3, 4), Spy())
    bank = small_bank()
    bank.features[7, 3] = torch.nan
    with pytest.raises(ValueError, match=r"features must be finite, got nan at \[7, 3\]"):
        run(bank, Spy())
    bank.features[7, 3] = 1e35
    with pytest.raises(ValueError, match=r"features must be at most 1e\+30 in magnitude"):
        run(bank, Spy())
    bank = small_bank(base_mean=torch.full((DIMENSION,), torch.inf))
    with pytest.raises(ValueError, match=r"base_mean must be finite, got inf at \[0\]"):
        run(bank, Spy())
    assert not Spy.seen


def test_an_error_of_a_method_names_it() -> None:
    bank = small_bank()
    negative = FeatureBank(bank.features - 3, bank.labels)
    asked = [Spy(), methods.create("pt_map", power=0.5)]
    with pytest.raises(
        ValueError,
        match=r"'pt_map' cannot run these tasks: features must be at .*pass power=1\.0\)$",
    ):
        run(negative, asked)
    assert len(Spy.seen) == 1  # the warm-up: no block was computed


def test_all_methods_on_features_of_both_signs() -> None:
    bank = small_bank()
    found = run(FeatureBank(bank.features - 1, bank.labels), "all", n_tasks=1, n_query=5)
    assert len(found.methods) >= 13


def test_device_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for given, found in (("cuda", "cuda:2"), ("cuda:1", "cuda:1"), ("cpu", "cpu")):
        assert RunSettings(device=given).device_for(small_bank(), 6) == torch.device(found)


# --- progress, examples -------------------------------------------------------------------------


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    (found,) = run(small_bank(), {"mine": Spy()}, n_tasks=501, progress=True)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert re.match(r"evaluating \d+/501 mine, 3 shots, 3 effective classes$", first)
    shown = re.match(r"evaluating 501/501 mine, .*: (\d+\.\d) %$", last)
    assert shown
    assert abs(float(shown[1]) - found.accuracy) < 1  # of the first block
    run(small_bank(), Spy(), progress=False)
    assert capsys.readouterr().err == ""
