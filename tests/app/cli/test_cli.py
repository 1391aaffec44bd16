"""The command as a whole: spellings, help, errors, exit codes, info."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from banks import gaussian_bank

pytest.importorskip("typer", reason="needs typer")

from typer import BadParameter
from typer.testing import CliRunner

import paddle_ext
from paddle_ext import methods
from paddle_ext.app.cli import app as app_module
from paddle_ext.app.cli import info as info_module
from paddle_ext.app.cli.app import app
from paddle_ext.app.cli.arguments import (
    class_count,
    comma_separated,
    method_options,
    normalised,
    numbers,
)

COMMANDS = ("classify", "demo", "train", "extract", "evaluate", "tune", "info")


def run(*arguments: object):
    return CliRunner().invoke(app, [str(item) for item in arguments])


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """12 classes of 30 rows; the last one has no class."""
    bank = gaussian_bank(
        class_names=[f"class {k}" for k in range(12)], split=["query", "support"] * 180
    )
    bank.labels[-1] = -1
    bank.save(tmp_path / "bank.npz")
    return tmp_path / "bank.npz"


# --- help and near misses ------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_flags_show_no_type(command: str) -> None:
    shown = run(*command.split(), "--help").stdout
    assert "--help" in shown
    assert "bool" not in shown


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["evalute", "bank.npz"], "evaluate"),
        (["evaluate", "bank.npz", "--shot", "5"], "--shots"),
        (["evaluate", "bank.npz", "--methods", "padle"], "paddle"),
        (["evaluate", "bank.npz", "--option", "padle.lam=3"], "paddle"),
        (["evaluate", "bank.npz", "--option", "paddle.max_itr=3"], "max_iter"),
        (["info", "--method", "simpleshott"], "simpleshot"),
    ],
)
def test_did_you_mean(arguments: list[str], meant: str) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    said = " ".join(result.output.split())
    assert "ou mean" in said or "ossible options" in said
    assert meant in said.partition("ou mean")[2] or f"options: {meant}" in said


def test_own_method(bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of a module in the current folder, with an option."""
    (tmp_path / "module_of_mine.py").write_text(
        "import torch\nfrom dataclasses import dataclass\n\n\n@dataclass(frozen=True)\n"
        "class MyMethod:\n    power: float = 1.0\n\n"
        "    def predict(self, support, support_labels, query):\n"
        "        return support_labels[torch.cdist(query, support).argmin(1)]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    tasks = ("--shots", 2, "--k-eff", 2, "--n-query", 8, "--n-tasks", 3, "--device", "cpu")
    chosen = ("--methods", "simpleshot,module_of_mine:MyMethod", "--option", "my_method.power=2")
    result = run("evaluate", bank, *chosen, *tasks)
    assert result.exit_code == 0, result.output
    assert "my_method" in result.stdout
    result = run("evaluate", bank, "--methods", "module_of_mine:YourMethod", *tasks)
    assert result.exit_code == 1
    assert "no YourMethod" in " ".join(result.output.split())


def test_warnings_of_libraries_are_one_line(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Without the source location, and each once."""

    def noisy() -> None:
        warnings.simplefilter("always")
        for _ in range(3):
            warnings.warn("a decompression\n  bomb", UserWarning, stacklevel=1)

    monkeypatch.setattr(info_module, "describe_installation", noisy)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    before = warnings.showwarning
    result = run("info")
    assert result.exit_code == 0
    assert result.output.splitlines() == ["paddle-ext: warning: a decompression bomb"]
    assert os.environ["TQDM_DISABLE"] == "1"  # "Loading weights" of transformers
    assert warnings.showwarning is before


# --- spellings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--k_eff", "5"], ["--k-eff", "5"]),
        (["--k_eff=5", "a_b.npz"], ["--k-eff=5", "a_b.npz"]),
        (["--shots", "5", "10", "20"], ["--shots", "5,10,20"]),
        (["--shots", "[5,", "10,", "20]", "a.npz"], ["--shots", "[5,10,20]", "a.npz"]),
        (["--shots", "5", "--seed", "3", "7"], ["--shots", "5", "--seed", "3", "7"]),
        (["--shots", "5,10", "--shots", "20"], ["--shots", "5,10", "--shots", "20"]),
        (
            ["--opts", "k_eff", "5", "shots", "[5,10,20]", "n_ways", "full", "--seed", "1"],
            ["--k-eff", "5", "--shots", "[5,10,20]", "--num-classes", "full", "--seed", "1"],
        ),
        (
            ["--opts", "shots", "[5,", "10]", "n_query", "75"],
            ["--shots", "[5,10]", "--n-query", "75"],
        ),
        (["--number_tasks", "7"], ["--n-tasks", "7"]),
        (["--tasks", "7", "--n_tasks=8"], ["--n-tasks", "7", "--n-tasks=8"]),
        (["--classes", "7", "--n-ways", "8"], ["--num-classes", "7", "--num-classes", "8"]),
        (["--option", "bd_cspn.empty_class=keep_all"], None),
        (["--opts"], []),
        (["--", "--k_eff"], ["--", "--k-eff"]),
    ],
)
def test_spellings(given: list[str], expected: list[str] | None) -> None:
    assert normalised(given) == (given if expected is None else expected)


def test_lists() -> None:
    assert comma_separated(["paddle,tim", " ici "]) == ["paddle", "tim", "ici"]
    assert numbers("--shots", ["[1,2]", "(3)"]) == [1, 2, 3]
    assert class_count("full") is None
    assert class_count("20") == 20
    for bad in (["5.0"], ["x"], [""], ["-1"]):
        with pytest.raises(BadParameter, match="--shots must be"):
            numbers("--shots", bad)
    with pytest.raises(BadParameter, match="--num-classes must be an integer or full, got 'all'"):
        class_count("all")


def test_method_options() -> None:
    found = method_options(
        [
            "paddle.lam=none",
            "paddle.scaling=auto",
            "tim.weights=1,0.5,1",
            "tim.normalize=false",
            "ici.dimension=5",
        ]
    )
    assert found == {
        "paddle": {"lam": None, "scaling": "auto"},
        "tim": {"weights": (1, 0.5, 1), "normalize": False},
        "ici": {"dimension": 5},
    }
    for name, options in found.items():
        methods.create(name, **options)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("paddle.lam", "METHOD.NAME=VALUE, got 'paddle.lam'"),
        ("padle.lam=1", "one of the methods .* got 'padle'"),
        ("paddle.lamb=1", r"an option of paddle \(lam, .* got 'lamb'"),
        ("paddle.lam=many", "a value such as None, got 'paddle.lam=many'"),
    ],
)
def test_bad_method_options(word: str, message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        method_options([word])


# --- help and information ------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    examples = result.output.partition("Examples:")[2]
    assert f"paddle-ext {command}" in examples
    assert "--help" in result.output.partition("Examples:")[0]


def test_help_lists_all_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(command in result.output for command in COMMANDS)
    assert all(command in run().output for command in COMMANDS)


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"{paddle_ext.__version__}\n")


def test_info() -> None:
    result = run("info")
    assert result.exit_code == 0
    assert paddle_ext.__version__ in result.output
    assert torch.__version__ in result.output
    for name in methods.available():
        assert name in result.output


def test_info_tells_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from paddle_ext.app.cli import info

    monkeypatch.setitem(info.LIBRARIES, "no_such_library", ("nothing", "data"))
    found = run("info").output
    assert "missing: pip install 'paddle_ext[data]' (nothing)" in found


def test_info_of_a_bank(bank: Path) -> None:
    result = run("info", bank)
    assert result.exit_code == 0
    shown = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "rows 360, 1 without a class" in shown
    assert "features 16, float32" in shown
    assert "classes 12 with rows, of 12" in shown
    assert "rows per class 29 to 30, median 30" in shown
    assert "split query 180 rows, 12 classes" in shown
    assert "base mean none" in shown


def test_info_of_rows_of_no_class(tmp_path: Path) -> None:
    """A split, or the whole bank, may have only rows labelled -1."""
    labels = torch.tensor([0, 1, 0, 1, -1, -1])
    split = ["train"] * 4 + ["oos"] * 2
    for name, given in (("some", labels), ("all", torch.full((6,), -1))):
        path = tmp_path / f"{name}.npz"
        paddle_ext.FeatureBank(torch.rand(6, 3), given, split=split).save(path)
        result = run("info", path)
        assert result.exit_code == 0, result.output
        shown = [" ".join(line.split()) for line in result.output.splitlines()]
        assert "split oos 2 rows, 0 classes" in shown


def test_info_of_a_method() -> None:
    result = run("info", "--method", "ici")
    assert result.exit_code == 0
    for option in methods.describe("ici"):
        assert option.name in result.output
        assert repr(option.default) in result.output
    assert "--preset tiered: dimension=5" in result.output
    unknown = run("info", "--method", "icy")
    assert unknown.exit_code == 1
    assert "got 'icy'" in unknown.output


# --- errors --------------------------------------------------------------------------------------


def test_usage_errors() -> None:
    assert run("no-such-command").exit_code == 2
    assert run("evaluate", "a.npz", "--bogus").exit_code == 2
    assert run("evaluate", "a.npz", "--shots", "five").exit_code == 2
    assert run("evaluate", "a.npz", "--option", "paddle").exit_code == 2
    assert run("evaluate", "a.npz", "--figure", "a.doc").exit_code == 2
    assert run("evaluate", "a.npz", "--methods", "tim", "--option", "ici.step=3").exit_code == 2


def test_an_error_is_one_sentence(tmp_path: Path) -> None:
    """In its own process, as a user runs it."""
    missing = subprocess.run(
        [sys.executable, "-m", "paddle_ext", "evaluate", str(tmp_path / "missing.npz")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert missing.returncode == 1
    assert missing.stdout == ""
    assert missing.stderr.splitlines() == [
        f"paddle-ext: error: {tmp_path / 'missing.npz'}: No such file or directory"
    ]


def test_traceback_may_appear_anywhere(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("evaluate", bank, "--shots", "70")
    assert plain.exit_code == 1
    assert "shots must be at most" in plain.output
    for arguments in (["--traceback", "evaluate", bank], ["evaluate", bank, "--traceback"]):
        result = run(*arguments, "--shots", "70")
        assert result.exit_code == 1
        assert isinstance(result.exception, ValueError)
    monkeypatch.setenv("PADDLE_EXT_TRACEBACK", "1")
    assert isinstance(run("evaluate", bank, "--shots", "70").exception, ValueError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a\n  b"), "error: a b"),
        (TypeError("x must be a y"), "error: x must be a y"),
        (RuntimeError("the loss must stay finite"), "error: the loss must stay finite"),
        (ImportError("pip install it"), "error: pip install it"),
        (MemoryError(), "error: not enough memory"),
        (torch.cuda.OutOfMemoryError("4 GiB"), "not enough memory (--memory"),
        (PermissionError(13, "Permission denied", "x.npz"), "error: x.npz: Permission denied"),
    ],
)
def test_errors(error: Exception, text: str, bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddle_ext.app.cli.info.describe_bank", Mock(side_effect=error))
    result = run("info", bank)
    assert result.exit_code == app_module.FAILED == 1
    assert text in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-tasks", 0], "--n-tasks must be an integer in [1,"),
        (["--tasks", 0], "--n-tasks must be an integer in [1,"),
        (["--n-query", 0], "--n-query must be an integer in [1,"),
        (["--shots", 70], "--shots must be at most the rows of every class"),
        (["--k-eff", 13], "--k-eff must be at most the number of candidate classes, 12"),
        (["--n-ways", 13], "--num-classes must be at most the number of classes, 12, got 13"),
        (["--sampling", "even"], "--sampling must be one of 'uniform', 'balanced', 'dirichlet'"),
        (["--alpha", 0], "--alpha must be finite and > 0, got 0.0"),
        (["--seed", -1], "--seed must be an integer in [0,"),
        (["--preset", "cub"], "--preset must be one of 'paper', 'mini', 'tiered', 'inat'"),
        (["--methods", "padle"], "--methods must be one of 'all', 'adaptive', 'alpha_tim'"),
        (["--support", "x"], "--support must be rows or a split of the bank ('query', 'support')"),
        (["--device", "tpu"], "--device must be the CPU or a CUDA device, got 'tpu'"),
        (["--memory", 0], "--memory must be finite and > 0, got 0.0"),
    ],
)
def test_errors_name_options(bank: Path, arguments: list[object], message: str) -> None:
    shown = run("evaluate", bank, *arguments)
    assert shown.exit_code == 1
    assert f"error: {message}" in shown.output
    assert len(shown.output.splitlines()) == 1


def test_fresh_means_not_to_resume(bank: Path, tmp_path: Path) -> None:
    arguments = ["evaluate", bank, "--methods", "simpleshot", "--shots", "2", "--tasks", "3"]
    arguments += ["--n-query", "20", "--output", tmp_path / "out", "--device", "cpu"]
    assert run(*arguments).exit_code == 0
    refused = run(*arguments, "--seed", "1")
    assert refused.exit_code == 1
    assert "error: --output must be a folder of the same evaluation to resume" in refused.output
    assert refused.output.rstrip().endswith("(or pass --fresh)")
    assert run(*arguments, "--seed", "1", "--fresh").exit_code == 0


def test_errors_of_other_commands_name_their_options(bank: Path) -> None:
    assert "error: --method must be one of" in run("info", "--method", "icy").output
    shown = run("tune", bank, "--shots", 70).output
    assert "error: --shots must be at most the rows of every class" in shown


def test_reproduce_has_moved() -> None:
    result = run("reproduce", "table1", "--bank", "bank.npz")
    assert result.exit_code == 2
    assert "benchmarks/reproduce" in result.output


def test_interruption(bank: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    interrupt = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("paddle_ext.research.evaluate.evaluate", interrupt)
    result = run("evaluate", bank)
    assert result.exit_code == 130
    assert "nothing was saved; with --output FOLDER the same command can resume" in result.output
    result = run("evaluate", bank, "--output", tmp_path / "out")
    assert result.exit_code == 130
    assert f"resumes from {tmp_path / 'out'}" in result.output
    monkeypatch.setattr("paddle_ext.app.cli.info.describe_bank", interrupt)
    result = run("info", bank)
    assert (result.exit_code, result.output) == (130, f"paddle-ext: {app_module.NOTHING_KEPT}\n")


@pytest.mark.usefixtures("ctrl_c")
def test_control_c(bank: Path, tmp_path: Path) -> None:
    """A real signal to a real process; the same command then resumes."""
    arguments = ["evaluate", str(bank), "--methods", "simpleshot", "--shots", "2"]
    arguments += ["--n_query", "20", "--output", str(tmp_path / "out"), "--device", "cpu"]
    command = [sys.executable, "-m", "paddle_ext", *arguments, "--n-tasks", "10000000"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "out" / "journal.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.is_file() and len(journal.read_text().splitlines()) > 1):
        assert time.monotonic() < deadline, "no block was finished"
        assert started.poll() is None, started.communicate()[1]
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, stderr = started.communicate(timeout=60)
    assert started.returncode == 130
    assert stderr.splitlines()[-1] == (
        f"paddle-ext: interrupted: the same command resumes from {tmp_path / 'out'}"
    )
    assert "Traceback" not in stderr


def test_without_typer() -> None:
    """The package needs neither it nor rich; the command says what is missing."""
    code = (
        "import sys, paddle_ext; assert not {'typer', 'rich'} & set(sys.modules); "
        "sys.modules['typer'] = None; from paddle_ext.app.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "the command needs typer, which is not installed: pip install 'paddle_ext[cli]'\n"
    )
