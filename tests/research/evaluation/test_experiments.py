"""The paper's experiments, on a bank of 12 small classes."""

import json
import sys

import pytest
from banks import assert_saved, gaussian_bank

from paddle_ext import FeatureBank, TaskSampler, methods, reference
from paddle_ext.research.evaluation import paper
from paddle_ext.research.evaluation.arguments import chosen_methods
from paddle_ext.research.evaluation.evaluate import evaluate
from paddle_ext.research.evaluation.experiments import EXPERIMENTS, ExperimentResult, load

pytest.importorskip("matplotlib")

SMALL = {"n_tasks": 6, "n_query": 20, "device": "cpu", "progress": False}
ONE_TASK = {"shots": 5, "n_query": 10, "device": "cpu", "progress": False}
QUICK_CONVERGENCE = {**ONE_TASK, "repeats": 1, "max_iter": 5, "pgd_max_iter": 5}


@pytest.fixture(scope="module")
def bank() -> FeatureBank:
    return gaussian_bank(split=(["repr"] * 6 + ["query"] * 24) * 12)


def run(experiment: str, *arguments: object, **options: object) -> ExperimentResult:
    return EXPERIMENTS[experiment].run(*arguments, **options)


def cells(result: ExperimentResult, number: int = 0) -> dict[str, list[str]]:
    """Rows of a table of the Markdown text, by their first cells."""
    blocks = [part for part in result.markdown().split("\n\n") if part.startswith("|")]
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in blocks[number].split("\n")
    ]
    return {line[0]: line[1:] for line in lines if line}


# --- tables -------------------------------------------------------------------------------------


def test_table1(bank: FeatureBank, tmp_path) -> None:
    chosen = ["bd_cspn", "paddle"]
    options = {**SMALL, "shots": (5, 10)}
    result = run("table1", bank, methods=chosen, output=tmp_path, **options)
    plain = evaluate(bank, chosen, preset="mini", **options)
    assert [r.correct for r in result.evaluation] == [r.correct for r in plain]
    assert result.evaluation.bank == "mini-ImageNet, ResNet-18"
    table = cells(result)
    assert table["method"][:-1] == [
        "5-shot",
        "paper",
        "difference",
        "10-shot",
        "paper",
        "difference",
    ]
    for name, title in zip(chosen, ("BD-CSPN", "PADDLE"), strict=True):
        for place, shots in ((0, 5), (3, 10)):
            (ours,) = plain.select(name, shots=shots)
            theirs = paper.accuracies("table1", "mini")[name][shots]
            assert table[title][place] == f"{ours.accuracy:.1f} ± {ours.interval:.1f}"
            assert table[title][place + 1] == f"{theirs:.1f}"
            assert float(table[title][place + 2]) == pytest.approx(
                ours.accuracy - theirs, abs=0.051
            )
    assert_saved(result, tmp_path, "table1")


def test_resumes(bank: FeatureBank, tmp_path) -> None:
    options = {**SMALL, "shots": 5, "methods": ["paddle"], "output": tmp_path}
    first = run("table1", bank, **options)
    again = run("table1", bank, **options)
    assert again == first  # the seconds too: nothing was computed a second time
    fresh = run("table1", bank, **options, resume=False)
    assert fresh.evaluation.results[0].seconds != first.evaluation.results[0].seconds


def test_without_a_data_set_there_is_nothing_of_the_paper(bank: FeatureBank) -> None:
    result = run("table1", bank, dataset=None, methods="paddle", shots=5, name="mine", **SMALL)
    assert cells(result)["method"] == ["5-shot", "ms/task"]
    assert "mine, 12 candidate classes, 5 present, 20 queries, 6 tasks" in result.summary()


def test_published_numbers_are_those_of_five_classes(bank: FeatureBank) -> None:
    result = run("table1", bank, methods="paddle", shots=5, k_eff=3, **SMALL)
    assert cells(result)["method"] == ["5-shot", "ms/task"]


def test_methods_and_their_options() -> None:
    published = paper.methods("table1")
    assert tuple(chosen_methods("paper", "mini", None, published)) == published
    assert len(published) == 8
    assert "adaptive" not in published
    everything = chosen_methods("all", "paper", None, published)
    assert set(everything) == set(methods.available(named=False))
    assert chosen_methods("paper", "tiered", None, published)["bd_cspn"].temperature == 30
    assert chosen_methods("paddle", "mini")["paddle"].scaling == "minmax"
    tuned = {"bd_cspn": {"temperature": 7.0}, "tim": {"max_iter": 3}}
    assert chosen_methods(["bd_cspn"], "tiered", tuned) == {
        "bd_cspn": methods.create("bd_cspn", temperature=7.0)
    }
    with pytest.raises(ValueError, match=r"methods must be one of 'paper', 'all', .*got 'padle'"):
        chosen_methods("padle", "paper", None, published)
    with pytest.raises(ValueError, match=r"methods must be one of 'all', .*got 'paper'"):
        chosen_methods("paper")
    with pytest.raises(TypeError, match="an option of 'paddle' must be one of"):
        chosen_methods("paddle", "paper", {"paddle": {"lambda": 1.0}})


def test_table2(bank: FeatureBank, tmp_path) -> None:
    result = run("table2", bank, methods=["simpleshot", "paddle"], output=tmp_path, **SMALL)
    plain = evaluate(
        bank,
        ["simpleshot", "paddle"],
        shots=None,
        support="repr",
        query="query",
        preset="paper",
        **SMALL,
    )
    assert [r.correct for r in result.evaluation] == [r.correct for r in plain]
    table = cells(result)
    assert table["method"] == ["accuracy", "paper", "difference", "ms/task"]
    assert table["PADDLE"][1] == "84.3"
    assert table["SimpleShot"][1:3] == ["–", "–"]  # not in the paper
    assert_saved(result, tmp_path, "table2")


def test_ablation(bank: FeatureBank, tmp_path) -> None:
    result = run("ablation", bank, shots=(5, 10), output=tmp_path, **SMALL)
    for shots in (5, 10):
        (without,) = result.evaluation.select("soft_kmeans", shots=shots)
        (zero,) = evaluate(
            bank, methods.create("paddle", "paper", lam=0.0), shots=shots, **SMALL
        )  # what soft K-means is
        assert without.correct == zero.correct
    assert [row[1] for row in list(cells(result).values())[2:]] == ["49.6", "63.2"]
    assert_saved(result, tmp_path, "ablation")
    inat = run("ablation", bank, dataset="inat", **SMALL)
    assert [r.shots for r in inat.evaluation] == [None, None]
    assert cells(inat)["Soft K-means"][1] == "57.5"


def test_dirichlet(bank: FeatureBank, tmp_path) -> None:
    chosen = ["alpha_tim", "adaptive"]
    result = run("dirichlet", bank, methods=chosen, output=tmp_path, **SMALL)
    tasks = {"num_classes": 5, "k_eff": 5, "sampling": "dirichlet", "alpha": 2.0}
    plain = evaluate(bank, chosen, shots=(1, 5, 10, 20), **tasks, **SMALL)
    assert [r.correct for r in result.evaluation] == [r.correct for r in plain]
    assert [table.title for table in result.tables()] == [
        "1 shot",
        "5 shots",
        "10 shots",
        "20 shots",
    ]
    for number, published in enumerate((67.4, 82.5, 85.9, 87.9)):
        table = cells(result, number)
        ours = plain.select("alpha_tim")[number].accuracy
        assert table["α-TIM"][1] == f"{published:.1f}"
        assert float(table["α-TIM"][2]) == pytest.approx(ours - published, abs=0.051)
        assert table["Adaptive"][1:3] == ["–", "–"]
    assert_saved(result, tmp_path, "dirichlet")


def test_dirichlet_of_other_ways(bank: FeatureBank) -> None:
    """Every candidate is present unless k_eff is given; the published numbers are of five."""
    ten = run("dirichlet", bank, methods="tim", shots=5, num_classes=10, **SMALL)
    assert {(r.num_classes, r.k_eff) for r in ten.evaluation} == {(10, 10)}
    five = run("dirichlet", bank, methods="tim", shots=5, num_classes=10, k_eff=5, **SMALL)
    assert {(r.num_classes, r.k_eff) for r in five.evaluation} == {(10, 5)}
    for result in (ten, five):
        assert cells(result)["method"] == ["5-shot", "ms/task"]


# --- curves -------------------------------------------------------------------------------------


def test_keff(bank: FeatureBank, tmp_path) -> None:
    result = run(
        "keff",
        bank,
        methods=["simpleshot", "paddle"],
        shots=(5, 10),
        k_eff=(2, 5),
        output=tmp_path,
        **SMALL,
    )
    assert len(result.tables()) == 2
    table = cells(result, 1)  # 10 shots
    assert table["K_eff"] == ["2", "5"]
    assert table["paper"] == ["85.1", "73.3"]
    (ours,) = result.evaluation.select("paddle", shots=10, k_eff=2)
    assert table["PADDLE"][0].startswith(f"{ours.accuracy:.1f} ")
    assert float(table["difference"][0]) == pytest.approx(ours.accuracy - 85.1, abs=0.051)
    assert list(table)[2:] == ["SimpleShot", "PADDLE", "paper", "difference"]
    assert_saved(result, tmp_path, "keff")


def test_lambda(bank: FeatureBank, tmp_path) -> None:
    options = {"shots": 5, "k_eff": (2, 5), "n_tasks": 6, "device": "cpu", "progress": False}
    result = run(
        "lambda",
        bank,
        n_query=20,
        queries=(10, 20, 51),
        factors=(0.0, 1.0, 2.5),
        output=tmp_path,
        **options,
    )
    assert result.left_out == (51,)  # two classes have 50 rows besides the support
    assert "too few rows for these numbers of queries: 51" in result.summary()
    plain = evaluate(bank, "paddle", n_query=20, preset="paper", **options)
    for k_eff in (2, 5):
        (default,) = plain.select(k_eff=k_eff)
        (one,) = (r for r in result.results(20) if r.k_eff == k_eff and r.options["lam"] == 20)
        assert one.correct == default.correct
    assert list(cells(result, 0))[2:] == ["0", "20", "50"]
    assert list(cells(result, 1))[2:] == ["10", "20"]
    best = max((r for r in result.results(10) if r.k_eff == 5), key=lambda r: r.correct)
    shown = float(cells(result, 1)["10"][1].split()[0].rstrip("+"))
    (same,) = (r for r in result.results(10) if r.k_eff == 5 and r.options["lam"] == shown)
    assert same.correct == best.correct
    assert_saved(result, tmp_path, "lambda", "lambda-best")


def test_convergence(bank: FeatureBank, tmp_path) -> None:
    options = {"shots": 10, "n_query": 40, "device": "cpu", "progress": False, "repeats": 1}
    result = run("convergence", bank, pgd_max_iter=30, task=3, output=tmp_path, **options)
    native, torch_, pgd = result.curves
    # The same task by hand.
    batch = TaskSampler(bank.labels, shots=10, n_query=40, k_eff=5).batch(3, 1)
    support, query = bank.features[batch.support_index[0]], bank.features[batch.query_index[0]]
    solution = reference.solve(
        support, batch.support_labels[0], query, scaling="minmax", max_iter=1000, trace=True
    )
    accuracy = 100 * (solution.labels == batch.query_labels[0]).double().mean().item()
    assert native.accuracy == torch_.accuracy == pytest.approx(accuracy)
    expected = solution.trace.criterion.tolist()
    assert torch_.criterion == pytest.approx([expected[i - 1] for i in torch_.iterations])
    assert torch_.iterations[-1] == len(expected)
    for count, criterion in zip(native.iterations, native.criterion, strict=True):
        if expected[min(count, len(expected)) - 1] > 1e-4:  # below, float32 is coarser
            assert criterion == pytest.approx(expected[count - 1], rel=1e-2)
    assert native.criterion[-1] <= 1e-6
    assert list(native.seconds) == sorted(native.seconds)
    assert native.reached == native.seconds[-1]
    assert torch_.reached == torch_.seconds[-1]  # it stops there
    assert (pgd.iterations, pgd.reached) == (tuple(range(1, 31)), None)
    assert list(pgd.seconds) == sorted(pgd.seconds)
    table = cells(result)
    assert table["method"][0] == "time to 1e-6"
    assert table["PGD, torch"][:2] == ["not reached", "610 ms"]
    assert table["α-TIM"][3:] == [f"{result.alpha_tim:.1f}", "61.0"]
    assert_saved(result, tmp_path, "convergence")


# --- all of them --------------------------------------------------------------------------------


def test_registry() -> None:
    names = "table1 table2 ablation keff dirichlet stata any-batch convergence lambda"
    assert list(EXPERIMENTS) == names.split()
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert experiment.description
        assert {"bank", "output", "progress"} <= set(experiment.parameters)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("table1", {"shots": 31}, "shots must be at most the rows of every class .*30 of class 0"),
        ("table1", {"n_query": 200}, "n_query must be at most"),
        ("ablation", {"k_eff": 13}, "k_eff must be at most the number of candidate classes, 12"),
        ("keff", {"k_eff": (5, 13)}, "k_eff must be at most the number of candidate classes, 12"),
        ("lambda", {"n_query": 200}, "n_query must be at most"),
        ("convergence", {"shots": 31}, "shots must be at most the rows of every class"),
        ("table2", {"support": "train"}, r"support must be rows or a split of the bank .*'repr'"),
    ],
)
def test_banks_that_cannot_serve(bank: FeatureBank, tmp_path, name, options, message) -> None:
    with pytest.raises(
        ValueError, match=f"this bank cannot serve the experiment {name}: {message}"
    ):
        run(name, bank, output=tmp_path / "new", progress=False, **options)
    assert not (tmp_path / "new").exists()


def test_bad_arguments(bank: FeatureBank) -> None:
    with pytest.raises(ValueError, match="dataset must be one of 'mini', 'tiered', got 'cub'"):
        run("table1", bank, dataset="cub")
    with pytest.raises(ValueError, match="backbone must be one of"):
        run("keff", bank, backbone="vit")
    with pytest.raises(TypeError, match="bank must be a FeatureBank, got str"):
        run("table1", "bank.npz")
    with pytest.raises(ValueError, match="factors must have at least two different values"):
        run("lambda", bank, factors=(1.0, 1.0))
    with pytest.raises(ValueError, match="tol must be"):
        run("convergence", bank, tol=0.0)


def test_only_the_first_rank_writes(bank, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    run("convergence", bank, **QUICK_CONVERGENCE, output=tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_numbers_are_there(bank, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="figures need matplotlib"):
        run("convergence", bank, **QUICK_CONVERGENCE, output=tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["convergence.json", "convergence.md"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 2, "experiment": "x"}', '{"format": 1}']
)
def test_damaged_files(tmp_path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a.json is not the result of an experiment"):
        load(tmp_path / "a.json")


def test_json_is_plain(bank: FeatureBank, tmp_path) -> None:
    options = {"tim": {"max_iter": 2}}
    run("table1", bank, methods="tim", shots=5, options=options, output=tmp_path, **SMALL)
    contents = json.loads((tmp_path / "table1.json").read_text())
    assert contents["evaluation"]["results"][0]["options"]["max_iter"] == 2
    again = load(tmp_path / "table1.json").evaluation.results[0]
    assert again.options["weights"] == (1.0, 0.3, 1.0)  # a list in the file
