"""Accuracy from one class present to all, on banks of 12 small classes."""

import pytest
from banks import assert_saved, gaussian_bank, right_answers

from paddle_ext import FeatureBank, TaskSampler, methods
from paddle_ext.research.evaluation.experiments import EXPERIMENTS, any_batch
from paddle_ext.research.evaluation.experiments.any_batch import NEAREST, AnyBatch

pytest.importorskip("matplotlib")

SMALL = {"n_tasks": 6, "n_query": 20, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def bank() -> FeatureBank:
    """Class k has 2k rows fewer than 30."""
    sizes = [30 - 2 * k for k in range(12)]
    return gaussian_bank(sizes, split=["query", "repr"] * (sum(sizes) // 2))


def run(bank: FeatureBank, **options: object) -> AnyBatch:
    found = EXPERIMENTS["any-batch"].run(bank, **{**SMALL, **options})
    assert isinstance(found, AnyBatch)
    return found


def cells(result: AnyBatch, number: int = 0) -> dict[str, list[str]]:
    table = result.tables()[number]
    return {row[0]: row[1:] for row in (table.header, *table.rows)}


def test_all_numbers_of_classes(bank: FeatureBank, tmp_path) -> None:
    result = run(bank, methods=["paddle", "adaptive"], shots=(1, 5), output=tmp_path)
    assert result.evaluation.methods == (NEAREST, "paddle", "adaptive")
    assert [r.k_eff for r in result.evaluation.select("paddle", shots=1)] == [1, 2, 5, 6, 10, 12]
    made = {
        NEAREST: methods.create("simpleshot", scaling="l2n"),
        "paddle": methods.create("paddle"),
        "adaptive": methods.create("adaptive"),
    }
    for one in result.evaluation:
        sampler = TaskSampler(bank.labels, shots=one.shots, k_eff=one.k_eff, n_query=one.n_query)
        assert one.correct == sum(right_answers(bank, made[one.method], sampler, one.n_tasks))
    assert_saved(result, tmp_path, "any-batch-1-shot", "any-batch-5-shot")


def test_fewer_queries_of_small_classes(bank: FeatureBank) -> None:
    """The smallest classes have 8, 10, 12 ... rows, of which 5 are the support."""
    result = run(bank, methods="adaptive", k_eff=(1, 2, 4))
    queries = {r.k_eff: r.n_query for r in result.evaluation}
    assert queries == {1: 3, 2: 3 + 5, 4: 20}
    assert cells(result, 1)["queries"] == ["3", "8", "20"]
    assert "3 to 20 queries" in result.summary()


def test_tables(bank: FeatureBank) -> None:
    result = run(bank, methods=["pt_map", "adaptive"], k_eff=(2, 12), n_query=8)
    overview, table = cells(result), cells(result, 1)
    assert overview["method"][0] == "mean"
    assert table["K_eff"] == ["2", "12"]
    assert list(table)[1:] == list(overview)[1:] == [NEAREST, "PT-MAP", "Adaptive"]
    nearest = {r.k_eff: r.accuracy for r in result.evaluation.select(NEAREST)}
    for name, title in (("pt_map", "PT-MAP"), ("adaptive", "Adaptive")):
        own = {r.k_eff: r.accuracy for r in result.evaluation.select(name)}
        assert [float(text.split()[0]) for text in table[title]] == pytest.approx(
            list(own.values()), abs=0.051
        )
        mean, worst, where, _ = overview[title]
        differences = {own[k] - nearest[k]: k for k in own}
        assert mean == f"{sum(own.values()) / 2:.1f}"
        assert float(worst) == pytest.approx(min(differences), abs=0.051)
        assert where == str(differences[min(differences)])
    assert overview[NEAREST][1:3] == ["–", "–"]


def test_figure(bank: FeatureBank) -> None:
    result = run(bank, methods=["adaptive"])
    (figure,) = result.figures().values()
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    nearest, adaptive = axes.get_lines()
    assert nearest.get_linestyle() == "--"
    assert list(adaptive.get_xdata()) == [1, 2, 5, 6, 10, 12]
    expected = [r.accuracy for r in result.evaluation.select("adaptive")]
    assert list(adaptive.get_ydata()) == pytest.approx(expected)


def test_splits(bank: FeatureBank) -> None:
    """One support for all tasks: the queries come only from the query split."""
    result = run(bank, methods="paddle", shots=None, support="repr", query="query", k_eff=(1, 3))
    assert {r.k_eff: r.n_query for r in result.evaluation} == {1: 4, 3: 4 + 5 + 6}
    assert list(result.figures()) == ["any-batch"]
    rest = run(bank, methods="paddle", shots=2, support="repr", k_eff=(1, 3))
    assert {r.k_eff: r.n_query for r in rest.evaluation} == {1: 4, 3: 4 + 5 + 6}


def test_resumes(bank: FeatureBank, tmp_path) -> None:
    options = {"methods": ["paddle"], "k_eff": (1, 4), "output": tmp_path}
    first = run(bank, **options)
    assert run(bank, **options) == first  # the seconds too: nothing was computed a second time
    more = run(bank, **{**options, "methods": ["paddle", "bd_cspn"], "k_eff": (1, 4, 12)})
    again = [r for r in more.evaluation if r.method != "bd_cspn" and r.k_eff != 12]
    assert again == list(first.evaluation)


def test_defaults() -> None:
    assert set(any_batch.METHODS) <= set(methods.available(named=False))
    assert any_batch.METHODS[-1] == "adaptive"
    assert any_batch.default_k_eff(150) == [1, 2, 5, 10, 20, 75, 150]
    assert any_batch.default_k_eff(3) == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shots": 9},
            "shots must be at most the rows of every class for the support, 8 of class 11",
        ),
        ({"shots": 8}, "every class must have 1 or more samples for the queries"),
        ({"k_eff": 13}, "k_eff must be at most the number of candidate classes, 12, got 13"),
        ({"support": "train"}, "support must be rows or a split of the bank"),
        ({"shots": None}, "support or query must be given with shots=None"),
    ],
)
def test_banks_that_cannot_serve(bank: FeatureBank, tmp_path, options, message) -> None:
    context = "this bank cannot serve the experiment any-batch: "
    with pytest.raises(ValueError, match=context + message):
        run(bank, output=tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_bad_arguments(bank: FeatureBank) -> None:
    with pytest.raises(ValueError, match="n_query must be an integer in"):
        run(bank, n_query=0)
    with pytest.raises(ValueError, match="k_eff must not have a number twice"):
        run(bank, k_eff=(1, 1))
    with pytest.raises(ValueError, match="methods must be one of 'paper', 'all'"):
        run(bank, methods="padle")
    with pytest.raises(TypeError, match="bank must be a FeatureBank, got str"):
        run("bank.npz")
