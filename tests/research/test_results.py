"""Results: statistics from counts, files, tables."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paddle_ext import Evaluation
from paddle_ext.research.results import Result
from paddle_ext.research.tables import markdown, rows


def result(method: str = "paddle", shots: int | None = 5, k_eff: int = 5, **changes: int) -> Result:
    """100 tasks with 60 of 75 labels correct, give or take 10."""
    counts = {"n_tasks": 100, "correct": 6000, "squares": 100 * 60**2 + 100 * 10**2}
    options = {"weights": (1.0, 0.3, 1.0), "lam": None, "scaling": "minmax"}
    sizes = {"num_classes": 20, "n_query": 75, "seconds": 0.25}
    return Result(method, options, shots, k_eff, **sizes | counts | changes)


def test_accuracy_and_interval() -> None:
    right = np.random.default_rng(0).integers(0, 76, 200)
    found = replace(
        result(), n_tasks=200, correct=int(right.sum()), squares=int((right**2).sum()), seconds=3.0
    )
    share = 100 * right / 75
    assert found.accuracy == pytest.approx(share.mean())
    assert found.interval == pytest.approx(1.96 * share.std(ddof=1) / math.sqrt(200))
    assert found.seconds_per_task == 0.015


def test_interval_is_exact_for_many_tasks() -> None:
    """A spread that floating point would lose next to the sums."""
    n, right = 10**8, 10**9
    squares = n * right**2 + 50  # 25 tasks have one more right label, and 25 one less
    found = result(n_tasks=n, correct=n * right, squares=squares)
    assert found.interval == pytest.approx(196 / 75 * math.sqrt(50 / (n - 1) / n))
    assert result(squares=100 * 60**2).interval == 0
    single = result(n_tasks=1, correct=60, squares=3600)
    assert math.isnan(single.interval)
    assert rows(Evaluation((single,), "mini"))[1][0][1] == "80.0"


def test_select() -> None:
    found = Evaluation(
        (result("tim"), result("paddle"), result("tim", 10), result("tim", 10, 3)), "mini"
    )
    assert found.methods == ("tim", "paddle")
    assert len(found.select("tim")) == 3
    assert found.select("tim", shots=10, k_eff=3) == (found.results[3],)
    assert found.select(shots=5) == found.results[:2]
    assert list(found) == list(found.results)


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    found = Evaluation(
        (result(), result("tim", None)), "mini", "dirichlet", 0.5, 3, "here", {"a": 1}
    )
    found.save(path)
    loaded = Evaluation.load(path)
    assert loaded == found
    assert loaded.results[0].options["weights"] == (1.0, 0.3, 1.0)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-30],
        lambda text: '{"a":' * 100_000,
        lambda text: text.replace('"format": 2', '"format": 1'),
        lambda text: text.replace('"correct": 6000', '"correct": 6000.5'),
        lambda text: text.replace('"k_eff"', '"k"'),
        lambda text: re.sub(r'"notes": \{.*?\}', '"notes": null', text, flags=re.DOTALL),
        lambda text: text.replace('"method": "paddle"', '"method": []'),
        lambda text: re.sub(r'"results": \[.*?\n \]', '"results": 3', text, flags=re.DOTALL),
    ],
)
def test_damaged_file(tmp_path: Path, change: object) -> None:
    path = tmp_path / "evaluation.json"
    Evaluation((result(),), "mini").save(path)
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before
    with pytest.raises(ValueError, match=r"evaluation\.json is not an evaluation: ") as caught:
        Evaluation.load(path)
    assert "\n" not in str(caught.value)


# --- tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "titles"),
    [
        ([(5, 5), (10, 5)], ["5-shot", "10-shot"]),
        ([(5, 2), (5, 3)], ["K_eff 2", "K_eff 3"]),
        ([(5, 2), (10, 3)], ["5-shot, K_eff 2", "10-shot, K_eff 3"]),
        ([(None, 5)], ["accuracy"]),
        ([(None, 2), (None, 5)], ["K_eff 2", "K_eff 5"]),
    ],
)
def test_columns(settings: list[tuple[int | None, int]], titles: list[str]) -> None:
    found = Evaluation(tuple(result("paddle", *setting) for setting in settings), "mini")
    assert rows(found)[0] == ["method", *titles, "ms/task"]


def test_missing_cells() -> None:
    header, cells = rows(
        Evaluation((result("tim"), result("paddle"), result("paddle", 20)), "mini")
    )
    assert header == ["method", "5-shot", "20-shot", "ms/task"]
    assert cells == [
        ["TIM", "80.0 ± 2.6", "–", "2.5"],
        ["PADDLE", "80.0 ± 2.6", "80.0 ± 2.6", "2.5"],
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0012, "0.012"), (0.05, "0.5"), (0.25, "2.5"), (12.3, "123")]
)
def test_times(seconds: float, text: str) -> None:
    found = Evaluation((replace(result(), seconds=seconds),), "mini")
    assert rows(found)[1][0][-1] == text


def test_markdown() -> None:
    better = result("a|b", correct=6100, squares=100 * 61**2 + 100 * 10**2)
    results = (result("tim"), better, result("tim", 10), result("a|b", 10))
    assert markdown(Evaluation(results, "mini")).splitlines() == [
        "| method | 5-shot | 10-shot | ms/task |",
        "|---|---|---|---|",
        "| TIM | 80.0 ± 2.6 | **80.0 ± 2.6** | 2.5 |",
        r"| a\|b | **81.3 ± 2.6** | **80.0 ± 2.6** | 2.5 |",
    ]
