"""Tuning: the best of a grid, on the same tasks."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from banks import MINE, WRONG, method_of_file, small_bank
from torch import Tensor

from paddle_ext import Evaluation, evaluate, methods, tune
from paddle_ext.research.results import Result
from paddle_ext.research.tables import markdown_table
from paddle_ext.research.tune import Tuning, best_points, grid_points

SMALL = {"n_tasks": 20, "n_query": 25, "device": "cpu", "progress": False}

# The default of `tune`, for `evaluate`.
PROTOCOL = {"shots": 5, "num_classes": 5, "sampling": "dirichlet", "alpha": 2.0}


def run(*arguments: Any, **options: Any) -> Tuning:
    return tune(small_bank(), *arguments, **(SMALL | options))


@pytest.mark.parametrize("name", methods.available(named=False))
def test_grids(name: str) -> None:
    """Of moderate size, valid, and including the defaults and those of the presets."""
    grid = methods.create(name).tuning_grid
    points = grid_points(grid)
    assert len(points) == 1 if name in ("simpleshot", "paddle") else len(points) <= 10
    for preset in (None, "mini", "tiered", "inat"):
        default = methods.create(name, preset)
        assert {option: getattr(default, option) for option in grid} in points


def test_the_best_point() -> None:
    grid = {"lam": (0.0, 10.0, 25.0, 1e3), "scaling": ("auto", "minmax")}
    found = run("paddle", grids={"paddle": grid})
    points = [(lam, scaling) for lam in grid["lam"] for scaling in grid["scaling"]]
    assert [(r.options["lam"], r.options["scaling"]) for r in found.curves] == points
    assert found.curves.methods == ("paddle",)
    for result in found.curves:
        (alone,) = evaluate(
            small_bank(), methods.create("paddle", **result.options), **PROTOCOL, **SMALL
        )
        assert replace(alone, seconds=0.0) == replace(result, seconds=0.0)
    best = max(found.curves, key=lambda result: result.correct)
    assert found.best == {"paddle": best}
    assert found.options == {"paddle": {name: best.options[name] for name in grid}}
    assert found.methods() == {"paddle": methods.create("paddle", **best.options)}
    assert {(r.shots, r.k_eff, r.num_classes, r.n_tasks) for r in found.curves} == {(5, 5, 5, 20)}


def test_default_grids_and_untuned_methods() -> None:
    own = methods.create("bd_cspn", scaling="l2n")
    found = run(["simpleshot", own, "pt_map"], n_tasks=5)
    assert [len(found.curves.select(name)) for name in found.best] == [1, 8, 6]
    assert found.options["simpleshot"] == {}
    assert found.methods()["simpleshot"] == methods.create("simpleshot")
    assert {r.options["scaling"] for r in found.curves.select("bd_cspn")} == {"l2n"}
    assert found.methods()["bd_cspn"].scaling == "l2n"
    again = evaluate(small_bank(), found.methods(), **PROTOCOL, **(SMALL | {"n_tasks": 5}))
    assert [r.correct for r in again] == [r.correct for r in found.best.values()]


def test_presets() -> None:
    found = run("ici", preset="tiered", grids={"ici": {"step": (3,)}}, n_tasks=1)
    assert found.best["ici"].options["dimension"] == 5


def test_ties() -> None:
    """The point with most of the method's own options, then the first."""
    default = methods.create("laplacian_shot")  # lam 0.7, knn 3
    points = grid_points({"lam": (0.1, 0.7, 0.9), "knn": (6, 2)})
    results = [
        Result("laplacian_shot", options, 5, 5, 5, 75, 10, 500, 25_000, 1.0) for options in points
    ]

    def best(results: list[Result]) -> object:
        curves = Evaluation(tuple(results), "")
        tuning = best_points({"laplacian_shot": default}, {"laplacian_shot": points}, curves)
        return tuning.options["laplacian_shot"]

    assert best(results) == {"lam": 0.7, "knn": 6}
    results[0] = replace(results[0], correct=501)
    assert best(results) == {"lam": 0.1, "knn": 6}


def test_files_and_resuming(tmp_path: Path) -> None:
    grids = {"tim": {"weights": ((1.0, 0.3, 1.0), (1.0, 1.0, 1.0)), "max_iter": (5,)}}
    found = run("tim", grids=grids, output=tmp_path)
    assert Tuning.load(tmp_path / "tuning.json") == found
    assert Tuning.load(tmp_path / "tuning.json").methods() == found.methods()
    assert run("tim", grids=grids, output=tmp_path) == found  # the seconds too: nothing is new
    found.save(tmp_path / "other.json")
    text = (tmp_path / "other.json").read_text()
    (tmp_path / "other.json").write_text(re.sub(r'"tim": [01]', '"tim": 7', text))
    with pytest.raises(ValueError, match=r"other\.json is not a tuning: "):
        Tuning.load(tmp_path / "other.json")


def test_an_edited_method_is_tuned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    options = {"grids": {"mine": {"power": (1.0, 2.0)}}, "output": tmp_path / "runs"}
    wrong = run(method_of_file(WRONG, tmp_path), **options)
    right = run(method_of_file(MINE, tmp_path), **options)
    assert right.best["mine"].accuracy > wrong.best["mine"].accuracy + 20
    assert run(method_of_file(MINE, tmp_path), **options) == right  # kept, with its seconds


@dataclass(frozen=True)
class Paddle:
    """Not the method of that name."""

    power: float = 1.0

    def predict(self, support: Tensor, support_labels: Tensor, query: Tensor) -> Tensor:
        return support_labels[torch.cdist(query, support).argmin(1)]


def test_a_method_that_is_not_registered() -> None:
    found = run(Paddle(), grids={"paddle": {"power": (2.0, 3.0)}})
    (made,) = found.methods().values()
    assert getattr(made, "power", None) == 2.0
    assert "Paddle(power=2.0)" in repr(made)


def test_markdown() -> None:
    found = run(["simpleshot", "bd_cspn"], grids={"bd_cspn": {"temperature": (0.01, 20.0)}})
    *head, simpleshot, bd_cspn = markdown_table(*found.rows()).splitlines()
    assert head == ["| method | options | accuracy | worst | points |", "|---|---|---|---|---|"]
    accuracy = found.best["simpleshot"].accuracy
    assert simpleshot.startswith(f"| SimpleShot | none tuned | {accuracy:.1f} ± ")
    assert simpleshot.endswith(f" | {accuracy:.1f} | 1 |")
    worst = min(result.accuracy for result in found.curves.select("bd_cspn"))
    temperature = found.options["bd_cspn"]["temperature"]
    assert bd_cspn.startswith(f"| BD-CSPN | temperature = {temperature} | ")
    assert bd_cspn.endswith(f" | {worst:.1f} | 2 |")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"methods": {"a": methods.create("tim")}}, TypeError, "methods must be names or methods"),
        ({"grids": [1]}, TypeError, "grids must be a mapping, got list"),
        ({"grids": {"paddle": 3}}, TypeError, "grids['paddle'] must be a mapping, got int"),
        ({"grids": {"tim": {"lam": (1,)}}}, ValueError, "grids must be one of 'paddle', got 'tim'"),
        ({"grids": {"paddle": {"lamda": (1,)}}}, ValueError, "an option of grids['paddle'] must"),
        ({"grids": {"paddle": {"lam": 1.0}}}, TypeError, "grids['paddle']['lam'] must be a seq"),
        ({"grids": {"paddle": {"lam": ()}}}, ValueError, "['lam'] must have values, each once"),
        ({"grids": {"paddle": {"lam": (1.0, -1.0)}}}, ValueError, "lam must be finite and >= 0"),
        ({"shots": (1, 5)}, TypeError, "shots must be an integer, got tuple"),
        ({"k_eff": 6}, ValueError, "k_eff must be at most the number of candidate classes, 5"),
    ],
)
def test_bad_arguments(
    changes: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods.Paddle, "solve", Mock(side_effect=AssertionError("work was done")))
    with pytest.raises(error, match=re.escape(message)):
        run(**({"methods": "paddle"} | changes))
