"""The figures of evaluations and their style, checked through their artists."""

import itertools
import sys

import pytest

from paddle_ext import Evaluation, methods
from paddle_ext.methods.base import Display
from paddle_ext.methods.registry import lookup
from paddle_ext.research import figures, style
from paddle_ext.research.results import Result
from paddle_ext.research.tables import base_name, display_of, title_of

pytest.importorskip("matplotlib")

N_QUERY, TASKS = 75, 400
NAMES = methods.available(named=False)


def result(method, accuracy, shots=5, k_eff=5, n_query=N_QUERY, **options) -> Result:
    """An accuracy whose 95 % interval is about 1 point."""
    correct = round(accuracy / 100 * n_query * TASKS)
    squares = round(TASKS * ((correct / TASKS) ** 2 + (0.1 * n_query) ** 2))
    return Result(method, options, shots, k_eff, 20, n_query, TASKS, correct, squares, 1.0)


def evaluation(*results: Result) -> Evaluation:
    return Evaluation(tuple(results), "toy features")


def texts(figure) -> str:
    """All text of a figure."""
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def lines(axes) -> dict[str, list[tuple[float, float]]]:
    """Points of the lines, by colour and style."""
    return {
        f"{line.get_color()} {line.get_linestyle()}": [
            (float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)
        ]
        for line in axes.get_lines()
    }


def labels(axes) -> list[str]:
    """The names at the ends of the curves, from the top."""
    found = sorted(axes.texts, key=lambda text: -text.xy[1])
    return [text.get_text() for text in found]


def test_every_method_has_its_own_style() -> None:
    shown = [display_of(name) for name in NAMES]
    for values in zip(*shown, strict=True):
        assert len(set(values)) == len(NAMES)
    assert Display() not in shown


@pytest.mark.parametrize(
    ("label", "name", "title"),
    [
        ("paddle", "paddle", "PADDLE"),
        ("paddle, auto", "paddle", "PADDLE, auto"),
        ("paddle_pgd", "paddle_pgd", "PADDLE-PGD"),
        ("tim_adm (tuned)", "tim_adm", "TIM-ADM (tuned)"),
        ("mine", "", "mine"),
        ("timm features", "", "timm features"),
    ],
)
def test_labels(label: str, name: str, title: str) -> None:
    assert base_name(label) == name
    assert title_of(label) == title
    assert display_of(label) == (lookup(name).display if name else Display())


def test_accuracy_against_k_eff() -> None:
    accuracies = {2: 80.0, 5: 70.0, 10: 60.0}
    results = [result("paddle", y, shots, k) for shots in (5, 20) for k, y in accuracies.items()]
    results += [result("tim", y - 8, 20, k) for k, y in accuracies.items()]
    public = {5: {2: 81.0, 3: 78.0}}
    figure = figures.accuracy_against_k_eff(evaluation(*results), public)
    left, right = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["5 shots", "20 shots"]
    red, blue = display_of("paddle").colour, display_of("tim").colour
    assert lines(left) == {f"{red} -": list(accuracies.items()), f"{red} --": [(2, 81), (3, 78)]}
    assert lines(right) == {
        f"{red} -": list(accuracies.items()),
        f"{blue} -": [(k, y - 8) for k, y in accuracies.items()],
    }
    # The band is the confidence interval.
    heights = left.collections[0].get_paths()[0].vertices[:, 1]
    half = results[0].interval
    assert heights.max() == pytest.approx(80 + half)
    assert heights.min() == pytest.approx(60 - results[2].interval)
    assert labels(left) == ["published", "PADDLE"]
    assert labels(right) == ["PADDLE", "TIM"]
    assert "toy features, 20 candidate classes, 75 queries, 400 tasks" in texts(figure)


def test_from_one_class_to_all() -> None:
    """A log scale, the reference dashed, and the method for any batch on top."""
    accuracies = {1: 80.0, 2: 70.0, 75: 60.0, 150: 50.0}
    names = ("nearest", "tim", "paddle", "adaptive")
    results = [result(name, y, 5, k) for name in names for k, y in accuracies.items()]
    figure = figures.accuracy_against_k_eff(evaluation(*results), reference="nearest")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "75", "150"]
    assert len(axes.get_xticks(minor=True)) == 0
    nearest, tim, paddle, adaptive = axes.get_lines()
    assert (nearest.get_linestyle(), nearest.get_marker()) == ("--", "None")
    assert {line.get_linestyle() for line in (tim, paddle, adaptive)} == {"-"}
    assert adaptive.get_linewidth() > paddle.get_linewidth() > tim.get_linewidth()
    assert adaptive.get_zorder() > paddle.get_zorder() > nearest.get_zorder() > tim.get_zorder()
    assert sorted(labels(axes)) == ["Adaptive", "PADDLE", "TIM", "nearest"]
    many = [result("paddle", 70.0, k_eff=k) for k in range(1, 101)]
    (axes,) = figures.accuracy_against_k_eff(evaluation(*many)).axes
    assert list(axes.get_xticks()) == [1, 2, 5, 10, 20, 50, 100]


def test_bars_are_sorted() -> None:
    found = evaluation(
        result("paddle", 70.0), result("tim", 75.0), result("pt_map", 20.0), result("tim", 1.0, 10)
    )
    figure = figures.accuracy_bars(found, {"paddle": {5: 72.5}})
    axes, _ = figure.axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([75, 70, 20], abs=0.01)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["TIM", "PADDLE", "PT-MAP"]
    assert axes.yaxis_inverted()  # the best is at the top
    ticks = [line for line in axes.get_lines() if line.get_linewidth() == 2.4]
    assert [list(line.get_xdata()) for line in ticks] == [[72.5, 72.5]]
    assert "70.0" in texts(figure)


def test_files(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # its import would be an error
    bars = evaluation(result("paddle", 50.0))
    figures.accuracy_bars(bars, path=tmp_path / "new" / "bars.png")
    png = (tmp_path / "new" / "bars.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(png[16:20], "big") >= 1000  # pixels wide
    figures.accuracy_bars(bars, path=tmp_path / "bars.svg")
    assert "<svg" in (tmp_path / "bars.svg").read_text()
    with pytest.raises(ValueError, match=r"one of .png, .webp, .svg, .pdf, got 'a.gif'"):
        figures.accuracy_bars(bars, path="a.gif")
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["bars.png", "bars.svg"]


def test_nothing_is_cut_off() -> None:
    """The longest texts stay inside the figure."""
    results = [result(name, 60.0 + i, s) for i, name in enumerate(NAMES) for s in (5, 20)]
    figure = figures.accuracy_bars(evaluation(*results), published={"paddle": {5: 63.2, 20: 80.0}})
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    for text in figure.texts + [label for axes in figure.axes for label in axes.get_yticklabels()]:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height


def test_errors() -> None:
    with pytest.raises(ValueError, match="at least one result, got none"):
        figures.accuracy_against_k_eff(evaluation())
    (axes,) = figures.accuracy_bars(evaluation(result("tim", 50.0))).axes
    with pytest.raises(ValueError, match="one number of shots for axes"):
        figures.accuracy_bars(evaluation(result("tim", 5.0), result("tim", 5.0, 10)), axes=axes)
    with pytest.raises(ValueError, match="one k_eff for bars"):
        figures.accuracy_bars(evaluation(result("tim", 5.0), result("tim", 5.0, k_eff=2)))


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install 'paddle_ext"):
        figures.accuracy_bars(evaluation(result("paddle", 50.0)))


# --- style --------------------------------------------------------------------------------------


def test_colours() -> None:
    assert style.colour("paddle") == methods.Paddle.display.colour
    assert style.colour("EMQ") == style.PEERS["EMQ"]
    with pytest.raises(ValueError, match="name must be one of"):
        style.colour("no such method")
    # On a phone, where a figure is 360 pixels wide, text is at least 9 high.
    assert style.SMALL / 72 / style.WIDTH * 360 >= 9


@pytest.mark.parametrize("values", [[0.1, 0.11, 0.12, 0.9], [0.5] * 4, [0.0, 1.0], []])
def test_moved_apart(values: list[float]) -> None:
    """In their order, apart, and with the same mean."""
    moved = style.moved_apart(values, 0.2)
    assert all(b - a > 0.2 - 1e-9 for a, b in itertools.pairwise(moved))
    assert sum(moved) == pytest.approx(sum(values))


def test_names_at_the_ends_of_curves_do_not_overlap() -> None:
    from matplotlib.text import Text  # the box of an annotation has its line in it

    figure, (axes,) = style.make_panels(1, height=3.0)
    axes.set(xlim=(0, 1), ylim=(0, 100))
    names = [style.Label(1, 50 + i, f"method {i}", style.INK) for i in range(8)]
    style.label_ends(axes, names)
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in axes.texts), key=lambda box: box.y0)
    assert len(boxes) == 8
    assert all(a.y1 <= b.y0 + 1 for a, b in itertools.pairwise(boxes))
    assert max(box.x1 for box in boxes) <= figure.get_size_inches()[0] * figure.dpi
