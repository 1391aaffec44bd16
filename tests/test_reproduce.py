"""The experiments of benchmarks/reproduce, each once on a small bank; and the published numbers."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from banks import gaussian_bank
from torch import Tensor

from paddle_ext import FeatureBank, TaskSampler, evaluate, methods, reference
from paddle_ext.research.results import Result

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
experiments, paper, batches, convergence = (
    importlib.import_module(f"reproduce.{name}")
    for name in ("__main__", "paper", "batches", "convergence")
)
SMALL = {"device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def bank() -> FeatureBank:
    return gaussian_bank(split=(["repr"] * 6 + ["query"] * 24) * 12)


def run(name: str, bank: FeatureBank, output: Path, **options: Any) -> Any:
    _, function = experiments.EXPERIMENTS[name]
    return function(bank, output=output, **(SMALL | options))


def cells(report: Any, number: int = 0) -> dict[str, list[str]]:
    """The rows of a table, by their first cells."""
    table = report.tables[number]
    return {row[0]: row[1:] for row in (table.header, *table.rows)}


# --- accuracies ---------------------------------------------------------------------------------


def test_table1(bank: FeatureBank, tmp_path: Path) -> None:
    chosen = {"methods": ["bd_cspn", "paddle"], "shots": (5, 10)}
    tasks = {"n_tasks": 6, "n_query": 20}
    report = run("table1", bank, tmp_path, dataset="mini", **chosen, **tasks)
    plain = evaluate(bank, **chosen, preset="mini", **tasks, **SMALL)
    table = cells(report)
    columns = ["5-shot", "paper", "difference", "10-shot", "paper", "difference", "ms/task"]
    assert table["method"] == columns
    for name, title in (("bd_cspn", "BD-CSPN"), ("paddle", "PADDLE")):
        for place, shots in ((0, 5), (3, 10)):
            (ours,) = plain.select(name, shots=shots)
            theirs = paper.accuracies("table1", "mini")[name][shots]
            own, published, difference = table[title][place : place + 3]
            assert own == f"{ours.accuracy:.1f} ± {ours.interval:.1f}"
            assert published == f"{theirs:.1f}"
            assert float(difference) == pytest.approx(ours.accuracy - theirs, abs=0.051)
    # The same command resumes: not even the seconds are new.
    again = run("table1", bank, tmp_path, dataset="mini", **chosen, **tasks)
    assert again.markdown() == report.markdown()
    page, picture = tmp_path / "table1.md", tmp_path / "table1.png"
    assert report.save(tmp_path) == [tmp_path / "table1.json", page, picture]
    assert page.read_text() == report.markdown()
    assert picture.read_bytes().startswith(b"\x89PNG")
    fewer = chosen | {"shots": 5, "dataset": "mini", "k_eff": 3}  # not in the paper
    assert cells(run("table1", bank, tmp_path / "o", **fewer, **tasks))["method"] == [
        "5-shot",
        "ms/task",
    ]


@pytest.mark.parametrize("name", ["table1", "table2", "ablation", "keff", "dirichlet"])
def test_a_bank_of_no_data_set_has_no_published_numbers(
    name: str, bank: FeatureBank, tmp_path: Path
) -> None:
    """By default: the methods then have their default options, as in `evaluate`."""
    given = {"methods": "paddle", "n_tasks": 2, "n_query": 20, "k_eff": 5}
    given |= {"num_classes": 5} if name == "dirichlet" else {}
    report = run(name, bank, tmp_path, **(given | ({} if name == "table2" else {"shots": 5})))
    (table,) = report.tables
    assert not {"paper", "difference"} & {*table.header, *(row[0] for row in table.rows)}
    (result,) = report.data["evaluations"][0]["results"]
    assert result["options"]["scaling"] == methods.create("paddle").scaling == "auto"


@dataclass(frozen=True)
class NearestRow:
    """A method of one's own."""

    power: float = 1.0

    def predict(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        return support_labels[(torch.cdist(query, support) ** self.power).argmin(1)]


class Paddle(NearestRow):
    """Another method with the name of one."""


paddle_of_mine = Paddle()


def test_a_method_of_ones_own_next_to_the_published_ones(bank: FeatureBank, tmp_path: Path) -> None:
    chosen = ["paper", f"{__name__}:NearestRow"]
    options = {"nearest_row": {"power": 2.0}}
    given = {"dataset": "mini", "n_tasks": 2, "n_query": 20, "options": options}
    report = run("ablation", bank, tmp_path, methods=chosen, shots=5, **given)
    table = cells(report)
    published = [row[:2] for title, row in table.items() if title != "method"]
    assert [theirs for _, theirs in published] == ["49.6", "63.2", "–"]
    assert list(table)[-1] == "nearest_row"
    assert report.data["evaluations"][0]["results"][2]["options"] == {"power": 2.0}
    for name, message in (
        (f"{__name__}:Paddle", "name must not be taken by another method, got 'paddle'"),
        (f"{__name__}:paddle_of_mine", "methods must have names of their own, got "),
        (f"{__name__}:Nothing", "name must be MODULE:CLASS"),
    ):
        with pytest.raises(ValueError, match=message):
            run("ablation", bank, tmp_path, methods=name, shots=5, **given)


def test_table2_and_ablation(bank: FeatureBank, tmp_path: Path) -> None:
    """i-Nat has one support for all tasks."""
    tasks = {"n_tasks": 4, "n_query": 20}
    chosen = {"dataset": "inat", "methods": ["simpleshot", "paddle"]}
    table = cells(run("table2", bank, tmp_path, **chosen, **tasks))
    assert table["method"] == ["accuracy", "paper", "difference", "ms/task"]
    assert table["PADDLE"][1] == "84.3"
    assert table["SimpleShot"][1:3] == ["–", "–"]  # not in the paper
    table = cells(run("ablation", bank, tmp_path, dataset="inat", **tasks))
    assert [row[1] for row in table.values()] == ["paper", "57.5", "84.3"]


def test_keff(bank: FeatureBank, tmp_path: Path) -> None:
    options = {"methods": ["simpleshot", "paddle"], "shots": (5, 10), "k_eff": (2, 5)}
    report = run("keff", bank, tmp_path, dataset="mini", **options, n_tasks=4, n_query=20)
    table = cells(report, 1)  # 10 shots
    assert list(table) == ["K_eff", "SimpleShot", "PADDLE", "paper", "difference"]
    assert (table["K_eff"], table["paper"]) == (["2", "5"], ["85.1", "73.3"])


def test_dirichlet(bank: FeatureBank, tmp_path: Path) -> None:
    """A table for each of four numbers of shots; the published numbers are of five candidates."""
    chosen, tasks = ["bd_cspn", "adaptive"], {"n_tasks": 4, "n_query": 20}
    report = run("dirichlet", bank, tmp_path, dataset="mini", methods=chosen, **tasks)
    assert [one.title for one in report.tables] == ["1 shot", "5 shots", "10 shots", "20 shots"]
    draws = {"num_classes": 5, "k_eff": 5, "sampling": "dirichlet", "alpha": 2.0}
    plain = evaluate(bank, chosen, shots=(1, 5, 10, 20), **draws, **tasks, **SMALL)
    for number, published in enumerate((67.0, 80.2, 82.7, 84.6)):
        table, ours = cells(report, number), plain.select("bd_cspn")[number]
        assert table["BD-CSPN"][:2] == [
            f"{ours.accuracy:.1f} ± {ours.interval:.1f}",
            f"{published}",
        ]
        assert table["Adaptive"][1:3] == ["–", "–"]
    ten = {"dataset": "mini", "methods": "bd_cspn", "shots": 5, "num_classes": 10}
    more = run("dirichlet", bank, tmp_path / "10", **ten, **tasks)
    assert cells(more)["method"] == ["5-shot", "ms/task"]


def test_any_batch(tmp_path: Path) -> None:
    sizes = [30 - 2 * k for k in range(12)]
    bank = gaussian_bank(sizes, split=["query", "repr"] * (sum(sizes) // 2))
    options = {"methods": ["adaptive"], "n_tasks": 4, "n_query": 20}
    report = run("any-batch", bank, tmp_path, shots=5, **options)
    overview, table = cells(report), cells(report, 1)
    assert table["K_eff"] == ["1", "2", "5", "6", "10", "12"]
    # The smallest classes have 8, 10, 12 ... rows, of which 5 are the support.
    assert table["queries"] == ["3", "8", "20", "20", "20", "20"]
    ours, nearest = (
        np.array([float(text.split()[0]) for text in table[title]])
        for title in ("Adaptive", batches.NEAREST)
    )
    assert float(overview["Adaptive"][0]) == pytest.approx(ours.mean(), abs=0.11)
    assert float(overview["Adaptive"][1]) == pytest.approx((ours - nearest).min(), abs=0.11)
    assert list(report.figures) == ["any-batch-5-shot"]
    split = {"shots": None, "support": "repr", "query": "query", "k_eff": (1, 3)}
    assert cells(run("any-batch", bank, tmp_path, **options, **split), 1)["queries"] == ["4", "15"]
    assert batches.default_k_eff(150) == [1, 2, 5, 10, 20, 75, 150]


def test_stata(tmp_path: Path) -> None:
    sizes = [30, 40, 50, 20, 30, 30]
    bank = gaussian_bank(sizes)
    text = torch.stack([rows.mean(0) for rows in bank.features.split(sizes)]) + 0.5
    options = {"methods": ("zero_shot", "adaptive"), "logit_scale": 20.0, "prototypes": text}
    report = run("stata", bank, tmp_path, n_tasks=2, **options)
    (ours, theirs), results = report.tables, report.data["evaluations"][0]["results"]
    # The smallest classes have 20, 50, 80, 110, 150 rows, and all of them 200.
    few = {(1, 20): 2, (2, 50): 2, (3, 64): 2, (4, 64): 2, (5, 64): 2, (6, 64): 2}
    tasks = {(r["k_eff"], r["n_query"]): r["n_tasks"] for r in results}
    assert tasks == {**few, (5, 150): 2, (6, 200): 1}
    assert {r["options"]["logit_scale"] for r in results} == {20.0}
    titles = ["64: 1-4", "64: 2-10", "64: 5-25", "1000: 5-25", "all rows"]
    assert ours.header == ["method", *titles, "ms/batch"]
    zero = {
        (r["k_eff"], r["n_query"]): 100 * r["correct"] / r["n_query"] / r["n_tasks"]
        for r in results
        if r["method"] == "zero_shot"
    }
    shown = [float(cell.split()[0]) for cell in ours.rows[0][1:-1]]
    assert shown[2] == pytest.approx((zero[5, 64] + 20 * zero[6, 64]) / 21, abs=0.051)
    assert shown[4] == pytest.approx(zero[6, 200], abs=0.051)
    assert theirs.rows[3] == ["StatA", "70.4", "69.3", "67.4", "69.7", "69.9"]
    # Intervals of independent results add as squares; a single task has none.
    one, other = (
        Result("stata", {}, 0, k, 6, 10, 4, c, c * c // 4 + 9, 0.0) for k, c in ((1, 20), (2, 32))
    )
    half = (one.interval**2 + (3 * other.interval) ** 2) ** 0.5 / 4
    whole = Result("stata", {}, 0, 6, 6, 60, 1, 30, 900, 0.0)
    assert batches.mean_text([(one, 1), (other, 3)]) == f"72.5 ± {half:.1f}"
    assert batches.mean_text([(whole, 2)]) == "50.0"


# --- PADDLE -------------------------------------------------------------------------------------


def test_lambda(bank: FeatureBank, tmp_path: Path) -> None:
    options = {"shots": 5, "k_eff": (2, 5), "n_tasks": 4, "n_query": 20}
    grid = {"queries": (10, 20, 51), "factors": (0.0, 1.0, 2.5)}
    report = run("lambda", bank, tmp_path, **options, **grid)
    assert "too few rows for these numbers of queries: 51" in report.summary
    curves, best = cells(report), cells(report, 1)
    assert list(curves)[1:] == ["0", "20", "50"]
    plain = evaluate(bank, "paddle", **options, preset="paper", **SMALL)
    assert [text.split()[0] for text in curves["20"]] == [f"{r.accuracy:.1f}" for r in plain]
    assert list(best)[1:] == ["10", "20"]
    accuracies = {float(row[0]): float(row[1].split()[0]) for row in report.tables[0].rows}
    shown = float(best["20"][0].split()[0].rstrip("+"))
    assert accuracies[shown] == max(accuracies.values())
    assert list(report.figures) == ["lambda", "lambda-best"]


def test_convergence(bank: FeatureBank, tmp_path: Path) -> None:
    options = {"shots": 10, "n_query": 40, "repeats": 1, "pgd_max_iter": 10, "device": "cpu"}
    report = convergence.measure_convergence(bank, output=tmp_path, **options)
    native, in_torch, pgd = (convergence.Curve(**one) for one in report.data["curves"])
    # The same task by hand.
    batch = TaskSampler(bank.labels, shots=10, n_query=40, k_eff=5).batch(0, 1)
    support, query = bank.features[batch.support_index[0]], bank.features[batch.query_index[0]]
    inputs = support, batch.support_labels[0], query
    options = {"scaling": "minmax", "tol": 0.0}
    runs = [reference.solve(*inputs, max_iter=i, **options) for i in in_torch.iterations]
    assert in_torch.criterion == pytest.approx([float(run.criterion) for run in runs])
    assert native.accuracy == in_torch.accuracy
    assert native.criterion[-1] <= 1e-6
    assert native.reached == max(native.seconds)
    assert (pgd.iterations, pgd.reached) == (list(range(1, 11)), None)
    table = cells(report)
    assert table["method"][0] == "time to 1e-6"
    assert table["PGD, torch"][:2] == ["not reached", "610 ms"]
    assert table["α-TIM"][4] == "61.0"
    assert list(report.figures) == ["convergence"]


# --- the command --------------------------------------------------------------------------------


def test_command(bank: FeatureBank, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bank.save(tmp_path / "mine.npz")
    words = ["table1", str(tmp_path / "mine.npz"), "--methods", "paddle", "--shots", "5"]
    words += ["--n-tasks", "3", "--n-query", "20", "--output", str(tmp_path / "out")]
    assert experiments.main(words) == 0
    shown = capsys.readouterr().out
    assert "paper" not in shown
    assert experiments.main([*words, "--dataset", "mini", "--fresh"]) == 0
    shown = capsys.readouterr().out
    assert "mine, 12 candidate classes, 5 present, 20 queries, 3 tasks" in shown
    assert "63.2" in shown
    assert f"written: {tmp_path / 'out' / 'table1.png'}" in shown
    for more, message in (
        (["--scaling", "auto"], "--scaling is no option of this experiment"),
        (["--methods", "padle"], "methods must be one of 'paper', 'all', "),
        (["--dataset", "cub"], "dataset must be one of 'mini', 'tiered', got 'cub'"),
        (["--shots", "31"], "shots must be at most the rows of every class"),
    ):
        assert experiments.main([*words, *more]) == 1
        assert message in capsys.readouterr().err


# --- the paper's numbers ------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", ["mini", "tiered"])
@pytest.mark.parametrize("backbone", ["resnet18", "wrn28_10"])
def test_published_curves_pass_through_table1(dataset: str, backbone: str) -> None:
    compared = 0
    for method, row in paper.accuracies("table1", dataset, backbone).items():
        assert method in methods.available(named=False)
        for shots, accuracy in row.items():
            curve = paper.k_eff_curve(dataset, backbone, method, shots)
            assert curve.get(5, accuracy) == accuracy, (method, shots)
            compared += bool(curve)
    assert compared >= 18
