"""How an evaluation runs: the same keywords everywhere, and errors that name their argument."""

import inspect
import pickle
from dataclasses import fields
from pathlib import Path

import pytest
from banks import small_bank

from paddle_ext import check, evaluate
from paddle_ext.research.evaluation import RunSettings, tune
from paddle_ext.research.evaluation.experiments import EXPERIMENTS


def test_evaluate_has_the_same_keywords_and_defaults() -> None:
    parameters = inspect.signature(evaluate).parameters
    for field in fields(RunSettings):
        assert parameters[field.name].default == field.default, field.name


@pytest.mark.parametrize("run", [tune, *(one.run for one in EXPERIMENTS.values())])
def test_all_take_them(run: object) -> None:
    assert inspect.signature(run).parameters["run"].kind is inspect.Parameter.VAR_KEYWORD


def test_subfolder(tmp_path: Path) -> None:
    assert RunSettings().in_subfolder("tasks") == RunSettings()
    inside = RunSettings(output=str(tmp_path), seed=3).in_subfolder("tasks")
    assert (inside.folder, inside.seed) == (tmp_path / "tasks", 3)


def test_misspelled_keywords() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sede'"):
        EXPERIMENTS["table1"].run(small_bank(), sede=3)


def test_an_error_knows_its_argument() -> None:
    with pytest.raises(ValueError, match=r"^memory must be finite and > 0, got 0.0$") as caught:
        RunSettings(memory=0.0)
    error = caught.value
    assert isinstance(error, check.ArgumentError)
    assert error.argument == "memory"
    assert error.sentence({"memory": "--memory"}) == "--memory must be finite and > 0, got 0.0"


def test_an_error_reaches_other_ranks_whole() -> None:
    error = check.ArgumentValueError("output", "must be x, got y", "resume=False", "there: ")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is check.ArgumentValueError
    assert str(again) == "there: output must be x, got y (or pass resume=False)"
    names = {"output": "--output", "resume=False": "--fresh"}
    assert again.sentence(names) == "there: --output must be x, got y (or pass --fresh)"
