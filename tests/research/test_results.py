"""Results: statistics from counts, files, tables."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paddle_ext import Evaluation
from paddle_ext.research.results import Result
from paddle_ext.research.tables import differences, latex, latex_table, markdown, rows


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


def counted(method: str, right: list[int], **changes: int) -> Result:
    """A result with so many correct labels of 75 in each task."""
    sums = {"correct": sum(right), "squares": sum(count * count for count in right)}
    made = result(method, n_tasks=len(right), **sums, **changes)
    return replace(made, correct_by_task=tuple(right))


def test_difference_of_two_methods_on_the_same_tasks() -> None:
    """Its interval is that of the differences, far narrower than those of the accuracies."""
    random = np.random.default_rng(0)
    theirs = random.integers(20, 70, 200)
    ours = theirs + random.integers(-1, 4, 200)
    found = Evaluation((counted("mine", ours.tolist()), counted("tim", theirs.tolist())), "mini")
    difference = found.difference("mine", "tim")
    points = 100 * (ours - theirs) / 75
    half = 1.96 * points.std(ddof=1) / math.sqrt(200)
    assert difference.points == pytest.approx(points.mean())
    assert (difference.low, difference.high) == pytest.approx(
        (points.mean() - half, points.mean() + half)
    )
    assert difference.interval < found.results[0].interval / 5
    low, high = points.mean() - half, points.mean() + half
    text = f"{points.mean():+.1f} ({low:.1f} to {high:.1f})"
    assert differences(found, "tim") == (["difference", "5-shot"], [["mine - TIM", text]])
    assert found.difference("tim", "mine").points == pytest.approx(-points.mean())


def test_differences_that_are_not_known() -> None:
    """Of methods without counts by task, on other tasks, and of a single task."""
    old = Evaluation((counted("mine", [3, 4]), result("tim", n_tasks=2)), "mini")
    assert differences(old, "tim")[1] == [["mine - TIM", "–"]]
    with pytest.raises(ValueError, match="'mine' and 'tim' must have counts of the same tasks"):
        old.difference("mine", "tim")
    others = Evaluation((counted("mine", [3, 4]), counted("tim", [3, 4, 5])), "mini")
    assert differences(others, "tim")[1] == [["mine - TIM", "–"]]
    single = Evaluation((counted("mine", [30]), counted("tim", [45])), "mini")
    assert differences(single, "tim")[1] == [["mine - TIM", "-20.0"]]
    for given, message in (
        (("mum", "tim"), "first must be one of 'mine', 'tim', got 'mum'"),
        (("mine", "tim"), r"must choose one setting of 'mine', got shots=5 k_eff=5, shots=9"),
    ):
        both = (*single, counted("mine", [1], shots=9), counted("tim", [1], shots=9))
        with pytest.raises(ValueError, match=message):
            Evaluation(both, "mini").difference(*given)
    with pytest.raises(ValueError, match="against must be one of 'mine', 'tim', got 'paddle'"):
        differences(single, "paddle")


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
    results = result(), result("tim", None), counted("paddle", [3, 75, 0])
    found = Evaluation(results, "mini", "dirichlet", 0.5, 3, "here", {"a": 1})
    found.save(path)
    loaded = Evaluation.load(path)
    assert loaded == found
    assert loaded.results[0].options["weights"] == (1.0, 0.3, 1.0)
    assert loaded.results[2].correct_by_task == (3, 75, 0)
    assert '"correct_by_task": "3 75 0"' in path.read_text()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-30],
        lambda text: '{"a":' * 100_000,
        lambda text: text.replace('"format": 2', '"format": 1'),
        lambda text: text.replace('"correct": 6000', '"correct": 6000.5'),
        lambda text: text.replace('"k_eff"', '"k"'),
        lambda text: text.replace('"correct_by_task": ""', '"correct_by_task": "60 61"'),
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


def test_latex() -> None:
    r"""No character keeps a meaning: not ``_`` in a name, and no ``[`` after a line break."""
    better = result("[my]_rule & 5 % of #1 $x^2$ {~}\n*", correct=6100, squares=100 * 61**2)
    found = Evaluation((result("alpha_tim"), better, result("alpha_tim", 10)), "mini")
    mine = r"{[}my{]}\_rule \& 5 \% of \#1 \$x\textasciicircum{}2\$ \{\textasciitilde{}\} {*}"
    assert latex(found).splitlines() == [
        r"\begin{tabular}{lrrr}",
        r"\hline",
        r"method & 5-shot & 10-shot & ms/task \\",
        r"\hline",
        r"$\alpha$-TIM & 80.0 $\pm$ 2.6 & \textbf{80.0 $\pm$ 2.6} & 2.5 \\",
        rf"{mine} & \textbf{{81.3 $\pm$ 0.0}} & -- & 2.5 \\",
        r"\hline",
        r"\end{tabular}",
    ]
    header = latex_table(["K_eff", "a\\b"], []).splitlines()[2]
    assert header == r"K\_eff & a\textbackslash{}b \\"
