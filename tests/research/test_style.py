"""The style of figures: one colour for a method, names that do not overlap, sizes for a phone."""

import itertools
import json
import re
from pathlib import Path

import pytest

from paddle_ext import methods
from paddle_ext.research import style

ROOT = Path(__file__).resolve().parents[2]
PHONE = 360  # pixels of a figure on a screen of 390


def test_colours() -> None:
    assert style.colour("paddle") == methods.Paddle.display.colour
    assert style.colour("EMQ") == style.PEERS["EMQ"]
    with pytest.raises(ValueError, match="name must be one of"):
        style.colour("no such method")


def test_text_is_readable_on_a_phone() -> None:
    assert style.SMALL / 72 / style.WIDTH * PHONE >= 9  # pixels high


@pytest.mark.parametrize("values", [[0.1, 0.11, 0.12, 0.9], [0.5] * 4, [0.0, 1.0], []])
def test_moved_apart(values: list[float]) -> None:
    """In their order, apart, and with the same mean."""
    found = style.moved_apart(values, 0.2)
    assert all(b - a > 0.2 - 1e-9 for a, b in itertools.pairwise(found))
    assert sum(found) == pytest.approx(sum(values))


def test_names_at_the_ends_of_curves_do_not_overlap() -> None:
    pytest.importorskip("matplotlib")
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


def test_figures_choose_no_colours_of_their_own() -> None:
    """Colours are written in the style, in the methods and in drawings that are not plots."""
    allowed = {"paddle_ext/research/style.py", "docs/make_architecture.py", "docs/make_idea.py"}
    for path in [*ROOT.glob("paddle_ext/**/*.py"), *ROOT.glob("[bde]*/*.py")]:
        name = path.relative_to(ROOT).as_posix()
        if name not in allowed and not name.startswith("paddle_ext/methods/"):
            assert not re.search(r"['\"]#[0-9a-f]{6}['\"]", path.read_text()), name
    for path in ROOT.glob("examples/*.ipynb"):
        code = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
        assert not re.search(r"#[0-9a-f]{6}\b|\.legend\(", "\n".join(code)), path.name
