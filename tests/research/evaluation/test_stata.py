"""StatA's batches on banks of a few small classes whose names are near their rows."""

import pytest
import torch
from banks import assert_saved, gaussian_bank, right_answers
from torch import Tensor

from paddle_ext import FeatureBank, TaskSampler, methods
from paddle_ext.research.evaluation import Result
from paddle_ext.research.evaluation.experiments import EXPERIMENTS, stata
from paddle_ext.research.evaluation.experiments.stata import StatABatches

pytest.importorskip("matplotlib")

QUICK = ("zero_shot", "stata", "adaptive")
SMALL = {"n_tasks": 3, "methods": QUICK, "device": "cpu", "progress": False}


def named_bank(sizes: list[int]) -> tuple[FeatureBank, Tensor]:
    """A bank with so many rows of each class, and the embeddings of the class names."""
    bank, random = gaussian_bank(sizes), torch.Generator().manual_seed(4)
    means = torch.stack([rows.mean(0) for rows in bank.features.split(sizes)])
    return bank, means + torch.randn(means.shape, generator=random)


def run(sizes: list[int], **options: object) -> StatABatches:
    bank, text = named_bank(sizes)
    found = EXPERIMENTS["stata"].run(bank, **{"prototypes": text, **SMALL, **options})
    assert isinstance(found, StatABatches)
    return found


def test_each_number_of_classes(tmp_path) -> None:
    sizes = [30, 40, 50, 20, 30, 30]
    result = run(sizes, output=tmp_path)
    bank, text = named_bank(sizes)
    assert result.evaluation.methods == QUICK
    for one in result.evaluation:
        assert (one.shots, one.num_classes) == (0, 6)
        sampler = TaskSampler(bank.labels, shots=0, k_eff=one.k_eff, n_query=one.n_query)
        method = methods.create(one.method)
        assert one.correct == sum(right_answers(bank, method, sampler, one.n_tasks, text))
    # The smallest classes have 20, 50, 80, 110, 150 rows, and all of them 200.
    cells = {(r.k_eff, r.n_query): r.n_tasks for r in result.evaluation}
    few = {(1, 20): 3, (2, 50): 3, (3, 64): 3, (4, 64): 3, (5, 64): 3, (6, 64): 3}
    assert cells == {**few, (5, 150): 3, (6, 200): 1}
    assert_saved(result, tmp_path, "stata-64", "stata-1000")


def test_tables() -> None:
    result = run([30] * 6)
    ours, theirs = result.tables()
    titles = ["64: 1-4", "64: 2-10", "64: 5-25", "1000: 5-25", "all rows"]
    assert ours.header == ["method", *titles, "ms/batch"]
    assert [row[0] for row in ours.rows] == ["Zero-shot", "StatA", "Adaptive"]
    accuracy = {(r.k_eff, r.n_query): r.accuracy for r in result.evaluation.select("stata")}
    small = [accuracy[k, min(64, 30 * k)] for k in range(1, 7)]
    expected = [
        sum(small[:4]) / 4,
        (sum(small[1:]) + 4 * small[5]) / 9,  # 7 to 10 classes are all six
        (small[4] + 20 * small[5]) / 21,
        (accuracy[5, 150] + 20 * accuracy[6, 180]) / 21,
        accuracy[6, 180],
    ]
    shown = [float(cell.split()[0]) for cell in ours.rows[1][1:-1]]
    assert shown == pytest.approx(expected, abs=0.051)
    assert theirs.header == ["method", *titles]
    assert theirs.rows[3] == ["StatA", "70.4", "69.3", "67.4", "69.7", "69.9"]
    assert theirs.rows[1][-1] == "29.5"


def test_interval_of_a_mean() -> None:
    """Intervals of independent results add as squares, each with its weight."""
    one, other = (
        Result("stata", {}, 0, k, 6, 10, 4, c, c * c // 4 + 9, 0.0) for k, c in ((1, 20), (2, 32))
    )
    text = stata.mean_text([(one, 1), (other, 3)])
    half = (one.interval**2 + (3 * other.interval) ** 2) ** 0.5 / 4
    assert text == f"{(50 + 3 * 80) / 4:.1f} ± {half:.1f}"
    whole = Result("stata", {}, 0, 6, 6, 60, 1, 30, 900, 0.0)
    assert stata.mean_text([(whole, 2)]) == "50.0"
    assert stata.mean_text([(whole, 1), (one, 1)]) == f"50.0 ± {one.interval / 2:.1f}"


def test_scale_of_the_logits() -> None:
    options = {"methods": ("zero_shot", "stata"), "options": {"stata": {"logit_scale": 3.0}}}
    result = run([30] * 3, logit_scale=20.0, **options)
    used = {r.method: r.options["logit_scale"] for r in result.evaluation}
    assert used == {"zero_shot": 20.0, "stata": 3.0}


def test_classes_without_rows_are_no_candidates() -> None:
    bank, text = named_bank([30, 30, 30])
    spread = FeatureBank(bank.features, 2 * bank.labels)  # classes 1 and 3 have no rows
    wide = torch.full((6, 16), 7.0)
    wide[[0, 2, 4]] = text
    same = EXPERIMENTS["stata"].run(spread, prototypes=wide, **SMALL)
    plain = run([30, 30, 30])
    assert [r.correct for r in same.evaluation] == [r.correct for r in plain.evaluation]
    assert {r.num_classes for r in same.evaluation} == {3}


def test_resumes(tmp_path) -> None:
    first = run([30] * 3, output=tmp_path)
    assert run([30] * 3, output=tmp_path) == first  # the seconds too
    with pytest.raises(ValueError, match="another prototypes"):
        run([30] * 3, output=tmp_path, prototypes=torch.ones(3, 16))


def test_figure() -> None:
    (figure,) = (run([30] * 3).figures()).values()  # no batch of 1000: fewer than 5 classes
    (axes,) = figure.axes
    zero_shot, *others = axes.get_lines()
    assert zero_shot.get_linestyle() == "--"
    assert [list(line.get_xdata()) for line in others] == [[1, 2, 3]] * 2
    assert axes.get_title("left") == "no labelled row"


def test_methods() -> None:
    few = run([30] * 3, methods="all", n_tasks=1, options={"em_dirichlet": {"fit_iter": 5}})
    assert set(few.evaluation.methods) == set(stata.METHODS)
    with pytest.raises(
        ValueError, match=r"methods must be one of 'paper', 'all', 'adaptive'.*'tim'"
    ):
        run([30] * 3, methods="tim")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"prototypes": torch.ones(2, 16)},
            r"prototypes must have shape \[3, 16\], a row of each class",
        ),
        ({"prototypes": torch.ones(3, 8)}, r"prototypes must have shape .*got \[3, 8\]"),
        ({"prototypes": torch.full((3, 16), torch.nan)}, "prototypes must be finite"),
        ({"n_tasks": 0}, "n_tasks must be an integer in"),
    ],
)
def test_bad_arguments(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run([30] * 3, **options)
