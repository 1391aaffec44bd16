"""The command as a whole: spellings, help, errors, exit codes, info."""

import os
import re
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
from commands import Result
from commands import run_command as run
from scripts import ended

import paddle_ext
from paddle_ext import methods
from paddle_ext.app.cli import app as app_module
from paddle_ext.app.cli import info as info_module
from paddle_ext.app.cli.options import method_options

COMMANDS = [command.__name__ for command in app_module.COMMANDS]


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """12 classes of 30 rows; the last one has no class."""
    bank = gaussian_bank(
        class_names=[f"class {k}" for k in range(12)], split=["query", "support"] * 180
    )
    bank.labels[-1] = -1
    bank.save(tmp_path / "bank.npz")
    return tmp_path / "bank.npz"


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands in for the evaluation, which is interrupted at once."""
    mock = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("paddle_ext.research.evaluate.evaluate", mock)
    return mock


# --- help and information ------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    """Each option has a description, and flags have no type; examples are at the end."""
    result = run(command, "--help")
    assert result.exit_code == 0
    options, _, examples = result.stdout.partition("Examples:")
    assert f"paddle-ext {command}" in examples
    assert "bool" not in options.lower()
    for one in app_module.app[command].assemble_argument_collection(parse_docstring=True):
        if one.show:
            assert one.parameter.help, one.name
            assert one.name in options


def test_panels_of_the_help() -> None:
    shown = run("classify", "--help").stdout
    titles = ("Arguments", "Tables and arrays", "What is known of the classes", "Review", "Comput")
    places = [shown.index(f"╭─ {title}") for title in titles]
    assert places == sorted(places)
    assert "[default: efficientnet_lite0]" in " ".join(shown.replace("│", "").split())


def test_help_lists_all_commands() -> None:
    for words in ((), ("--help",), ("-h",)):
        result = run(*words)
        assert result.exit_code == 0
        assert all(command in result.output for command in COMMANDS)
    assert run("--version")[:2] == (0, f"{paddle_ext.__version__}\n")


def test_info(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(info_module.LIBRARIES, "no_such_library", ("nothing", "data"))
    result = run("info")
    assert result.exit_code == 0
    for name in (paddle_ext.__version__, torch.__version__, *methods.available()):
        assert name in result.output
    assert "missing: pip install 'paddle_ext[data]' (nothing)" in result.output


def test_info_of_a_bank(bank: Path) -> None:
    found = paddle_ext.FeatureBank.load(bank)
    shown = run("info", bank).words()
    assert f"{found!r}" in shown
    assert f"split query: {found.subset(split='query')!r}" in shown


def test_info_of_a_method() -> None:
    result = run("info", "--method", "ici")
    assert result.exit_code == 0
    for option in methods.describe("ici"):
        assert option.name in result.output
        assert repr(option.default) in result.output
    assert "--preset tiered: dimension=5" in result.output


# --- spellings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--k_eff", "7"], {"k_eff": (7,)}),
        (["--k-eff=7"], {"k_eff": (7,)}),
        (["--shots", "5", "10", "20"], {"shots": (5, 10, 20)}),
        (["--shots", "5,10", "--shots", "20"], {"shots": (5, 10, 20)}),
        (["--shots", "[5,10]"], {"shots": (5, 10)}),
        (["--shots", "all"], {"shots": None}),
        (["--tasks", "7"], {"n_tasks": 7}),
        (["--num-classes", "full"], {"num_classes": None}),
        (["--num_classes", "11"], {"num_classes": 11}),
        (["--fresh"], {"resume": False}),
    ],
)
def test_spellings(bank: Path, evaluated: Mock, words: list[str], expected: dict) -> None:
    assert run("evaluate", bank, *words).exit_code == 130
    given = evaluated.call_args.kwargs
    assert {name: given[name] for name in expected} == expected


def test_names_of_methods(bank: Path, evaluated: Mock) -> None:
    run("evaluate", bank, "--methods", "paddle, tim", "--methods", "ici")
    assert list(evaluated.call_args.args[1]) == ["paddle", "tim", "ici"]


def test_method_options() -> None:
    options = method_options(
        [
            "paddle.lam=none",
            "paddle.scaling=auto",
            "tim.weights=1,0.5,1",
            "tim.normalize=false",
            "ici.dimension=5",
        ],
        methods.available(),
    )
    assert options == {
        "paddle": {"lam": None, "scaling": "auto"},
        "tim": {"weights": (1, 0.5, 1), "normalize": False},
        "ici": {"dimension": 5},
    }
    for name, given in options.items():
        methods.create(name, **given)


def test_own_method(bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of a module in the current folder, with an option."""
    (tmp_path / "module_of_mine.py").write_text(
        "import torch\nfrom dataclasses import dataclass\n\n\n@dataclass(frozen=True)\n"
        "class MyMethod:\n    power: float = 1.0\n\n"
        "    def predict(self, support, support_labels, query):\n"
        "        return support_labels[torch.cdist(query, support).argmin(1)]\n\n\n"
        "class Paddle(MyMethod):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    tasks = ("--shots", 2, "--k-eff", 2, "--n-query", 8, "--n-tasks", 3, "--device", "cpu")
    chosen = ("--methods", "simpleshot,module_of_mine:MyMethod", "--option", "my_method.power=2")
    result = run("evaluate", bank, *chosen, *tasks)
    assert result.exit_code == 0, result.output
    assert "my_method" in result.stdout
    for name, message in (
        ("YourMethod", "has no attribute 'YourMethod'"),
        ("Paddle", "name must not be taken by another method, got 'paddle'"),
    ):
        result = run("evaluate", bank, "--methods", f"module_of_mine:{name}", *tasks)
        assert result.exit_code == 1
        assert message in result.words()


def test_an_edited_method_is_evaluated_again(
    bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same command, in a folder that has its earlier results."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    words = ["evaluate", bank, "--methods", "edited_method:Mine", "--output", tmp_path / "runs"]
    words += ["--shots", 2, "--k-eff", 2, "--n-query", 8, "--n-tasks", 20, "--device", "cpu"]
    source = "import torch\nclass Mine:\n    def predict(self, support, labels, query):\n"
    source += "        return labels[torch.cdist(query, support).{}(1)]\n"
    accuracies = []
    for choice in ("argmax", "argmin"):  # the farthest row, the nearest row
        path = tmp_path / "edited_method.py"
        path.write_text(source.format(choice))
        os.utime(path, (path.stat().st_mtime - 86_400,) * 2)
        sys.modules.pop("edited_method", None)
        result = run(*words)
        assert result.exit_code == 0, result.output
        assert "kept from" not in result.stderr
        (found,) = paddle_ext.Evaluation.load(tmp_path / "runs" / "evaluation.json")
        accuracies.append(found.accuracy)
    assert accuracies[1] > accuracies[0] + 50
    assert "kept from an earlier run with the same source: mine" in run(*words).stderr


def test_differences_and_tables(bank: Path, tmp_path: Path) -> None:
    """Two methods are compared task by task, more of them with the one that is named."""
    words = ["--shots", 2, "--k-eff", 2, "--n-query", 8, "--n-tasks", 20, "--device", "cpu"]
    shown = run("evaluate", bank, "--methods", "bd_cspn,paddle", *words).stdout
    line = re.search(r"BD-CSPN - PADDLE +([+-]\d+\.\d \(-?\d+\.\d to -?\d+\.\d\))", shown)
    assert line, shown
    three = ["--methods", "bd_cspn,paddle,simpleshot", *words]
    assert "BD-CSPN - " not in run("evaluate", bank, *three).stdout
    for name, text in (
        ("table.tex", r"BD-CSPN - PADDLE & "),
        ("table.md", "| BD-CSPN - PADDLE | "),
    ):
        result = run("evaluate", bank, *three, "--against", "paddle", "--table", tmp_path / name)
        assert "SimpleShot - PADDLE" in result.stdout
        assert f"{text}{line[1]} " in (tmp_path / name).read_text()
    for more, message in (
        (["--against", "padle"], "simpleshot, got 'padle' (did you mean 'paddle'?)"),
        (["--table", "table.csv"], "--table must end in .md or .tex, got table.csv"),
        (["--methods", "paddle", "--against", "paddle"], "two methods or more, got paddle"),
    ):
        result = run("evaluate", bank, *(words if "--methods" in more else three), *more)
        assert result.exit_code == 2
        assert message in result.words()


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evalute a.npz", 'Unknown command "evalute". Did you mean "evaluate"?'),
        ("evaluate", "BANK requires an argument"),
        ("evaluate a.npz b.npz", "Unused Tokens: ['b.npz']"),
        ("evaluate a.npz --shot 5", "Unknown option: --shot. Did you mean --shots?"),
        ("evaluate a.npz --shots 5,five", "--shots: must be integers such as 5,10,20, got 5,five"),
        ("evaluate a.npz --k-eff all", "--k-eff must be integers such as 2,5,10, got all"),
        (
            "evaluate a.npz --num-classes all",
            'Invalid value for --num-classes: unable to convert "',
        ),
        ("evaluate a.npz --seed one", 'Invalid value for --seed: unable to convert "one" into int'),
        ("evaluate a.npz --option paddle.lam", "METHOD.NAME=VALUE, got 'paddle.lam'"),
        ("evaluate a.npz --option paddle.lam=many", "such as None, got 'paddle.lam=many'"),
        ("evaluate a.npz --option padle.lam=3", "got 'padle' (did you mean 'paddle'?)"),
        ("evaluate a.npz --option paddle.max_itr=3", "got 'max_itr' (did you mean 'max_iter'?)"),
        ("evaluate a.npz --methods tim --option ici.step=3", "a chosen method, tim, got 'ici'"),
        ("evaluate a.npz --figure a.doc", "--figure must end in .png"),
        ("evaluate a.npz --opts k_eff 5", "--opts must be given as options of their own"),
        ("evaluate a.npz --n_ways 5", "--n-ways is now --num-classes"),
        ("classify a.npz b.npz --one-batch", "--one-batch is now --batch N"),
        ("classify a.npy b.npy --labels c.txt", "--labels must be in the file of features"),
        ("reproduce table1 --bank a.npz", "python benchmarks/reproduce"),
        ("train --layout npz", "ROOT, the images, must be given with --layout npz"),
        ("train . --layout glyphs", "ROOT must not be given with --layout glyphs"),
        ("extract no.safetensors . --output a.csv", "--output must end in"),
        ("extract no.safetensors . --split a,a", "--split must be one or several different ones"),
        ("classify a b --lable x", "Unknown option: --lable. Did you mean --label?"),
    ],
)
def test_usage_errors(words: str, message: str) -> None:
    result = run(*words.split())
    assert_one_sentence(result, message)
    assert result.exit_code == 2


def assert_one_sentence(result: Result, message: str) -> None:
    (line,) = result.output.splitlines()
    assert line.startswith("paddle-ext: error: ")
    assert message in line
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--n-tasks 0", "--n-tasks must be an integer in [1,"),
        ("--shots 70", "--shots must be at most the rows of every class"),
        ("--num-classes 13", "--num-classes must be at most the number of classes, 12, got 13"),
        ("--methods padle", "--methods must be one of 'all', 'adaptive', 'alpha_tim'"),
        ("--support x", "--support must be rows or a split of the bank ('query', 'support')"),
        ("--split x", "--split must be one of 'query', 'support', got 'x'"),
        ("--device tpu", "--device must be the CPU or a CUDA device, got 'tpu'"),
    ],
)
def test_errors_name_options(bank: Path, words: str, message: str) -> None:
    result = run("evaluate", bank, *words.split())
    assert_one_sentence(result, f"error: {message}")
    assert result.exit_code == 1


def test_fresh_means_not_to_resume(bank: Path, tmp_path: Path) -> None:
    arguments = ["evaluate", bank, "--methods", "simpleshot", "--shots", "2", "--tasks", "3"]
    arguments += ["--n-query", "20", "--output", tmp_path / "out", "--device", "cpu"]
    assert run(*arguments).exit_code == 0
    refused = run(*arguments, "--seed", "1")
    assert_one_sentence(refused, "--output must be a folder of the same evaluation to resume")
    assert refused.output.rstrip().endswith("(or pass --fresh)")
    assert run(*arguments, "--seed", "1", "--fresh").exit_code == 0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a\n  b"), "error: a b"),
        (TypeError("x must be a y"), "error: x must be a y"),
        (ImportError("pip install it"), "error: pip install it"),
        (MemoryError(), "error: not enough memory"),
        (torch.cuda.OutOfMemoryError("4 GiB"), "not enough memory (--memory"),
        (PermissionError(13, "Permission denied", "x.npz"), "error: x.npz: Permission denied"),
    ],
)
def test_errors(error: Exception, text: str, bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info_module, "describe_bank", Mock(side_effect=error))
    result = run("info", bank)
    assert result.exit_code == 1
    assert_one_sentence(result, text)


def test_traceback_may_appear_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_one_sentence(run("info", "no.npz"), "error: no.npz: No such file or directory")
    for words in (["--traceback", "info", "no.npz"], ["info", "no.npz", "--traceback"]):
        with pytest.raises(FileNotFoundError):
            run(*words)
    monkeypatch.setenv("PADDLE_EXT_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        run("info", "no.npz")


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


# --- interruptions, and what a process of its own does ------------------------------------------


@pytest.mark.usefixtures("evaluated")
def test_interruption(bank: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run("evaluate", bank)
    assert result.exit_code == 130
    assert "nothing was saved; with --output FOLDER the same command can resume" in result.output
    result = run("evaluate", bank, "--output", tmp_path / "out")
    assert result.exit_code == 130
    assert f"resumes from {tmp_path / 'out'}" in result.output
    monkeypatch.setattr(info_module, "describe_bank", Mock(side_effect=KeyboardInterrupt))
    result = run("info", bank)
    assert (result.exit_code, result.output) == (130, f"paddle-ext: {app_module.NOTHING_SAVED}\n")


@pytest.mark.usefixtures("ctrl_c")
def test_control_c(bank: Path, tmp_path: Path) -> None:
    """A real signal to a real process."""
    arguments = ["evaluate", str(bank), "--methods", "simpleshot", "--shots", "2"]
    arguments += ["--n_query", "20", "--output", str(tmp_path / "out"), "--device", "cpu"]
    command = [sys.executable, "-m", "paddle_ext", *arguments, "--n-tasks", "10000000"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "out").exists():
        assert time.monotonic() < deadline, "it did not begin"
        assert started.poll() is None, started.communicate()[1]
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, stderr = started.communicate(timeout=60)
    assert started.returncode == 130
    assert stderr.splitlines()[-1] == (
        f"paddle-ext: interrupted: the same command resumes from {tmp_path / 'out'}"
    )
    assert "Traceback" not in stderr


def test_without_cyclopts() -> None:
    """The package needs neither it nor rich; the command says what is missing."""
    code = (
        "import sys, paddle_ext; assert not {'cyclopts', 'rich'} & set(sys.modules); "
        "sys.modules['cyclopts'] = None; from paddle_ext.app.cli import main; main()"
    )
    done = ended(code)
    assert done.returncode == 1
    assert done.stderr == (
        "the command needs cyclopts, which is not installed: pip install 'paddle_ext[cli]'\n"
    )
