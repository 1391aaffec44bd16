"""All commands, and what they share: spelling, errors, exit codes."""

import inspect
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cyclopts import App, CycloptsError, Group

from ...native.load import version
from ...text import printable
from . import classify, info, research
from .options import DEFAULTS, UsageError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
NOTHING_SAVED = "interrupted: nothing was saved, the same command starts over"
# Environment of libraries, set before they are loaded unless the user has set it.
QUIET = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# Arguments of Python functions whose options have other names; the rest are the same.
OTHER_ARGUMENTS = {
    "fresh": ("resume", "resume=False"),
    "recipe": ("name",),
    "method": ("name",),
    "arch": ("architecture",),
    "export": ("label_studio",),
}
REMOVED = {
    "reproduce": "reproduce must be run from a checkout: python benchmarks/reproduce",
    "--opts": "--opts must be given as options of their own, such as --k-eff 5 --shots 5,10",
    "--labels": "--labels must be in the file of features: np.savez(FILE, features=.., labels=..)",
    "--one-batch": "--one-batch is now --batch N, with N the number of samples",
    "--n-ways": "--n-ways is now --num-classes",
    "--classes": "--classes is now --num-classes",
    "--number-tasks": "--number-tasks is now --n-tasks",
}

app = App(
    name="paddle-ext",
    help="Label the rest: from a few labelled samples, or from class names. And compare methods.",
    help_format="markdown",
    help_epilogue="Each command has examples: paddle-ext classify --help\n\n"
    "--traceback, anywhere, or PADDLE_EXT_TRACEBACK=1 shows the traceback of an error.",
    version=version,
    default_parameter=DEFAULTS,
    group_parameters=Group("Options", sort_key=0),  # above the panels of `Settings`
)
COMMANDS: tuple[Callable[..., None], ...] = (
    classify.classify,
    research.demo,
    info.info,
    research.train,
    research.extract,
    research.evaluate,
    research.tune,
)
for number, command in enumerate(COMMANDS):
    lines = (inspect.getdoc(command) or "").partition("Examples\n--------\n")[2].splitlines()
    app.command(command, sort_key=number, help_epilogue="\n\n".join(["Examples:", *lines]))


def run(words: Sequence[str]) -> int:
    """Run a command and return its exit code; errors are one sentence on stderr."""
    write_any_character()
    given = [word for word in words if word != "--traceback"]
    wanted = os.environ.get("PADDLE_EXT_TRACEBACK", "") not in ("", "0")
    traceback = wanted or len(given) < len(words)
    try:
        for word in given:
            name = word.partition("=")[0].replace("_", "-")
            if name in REMOVED and (name.startswith("--") or word == given[0]):
                raise UsageError(REMOVED[name])
        command, bound, _ = app.parse_args(given, exit_on_error=False, print_error=False)
        with quiet_libraries():
            command(*bound.args, **bound.kwargs)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt as error:
        complain(str(error) or NOTHING_SAVED)
        return INTERRUPTED
    except (CycloptsError, UsageError) as error:
        complain(f"error: {' '.join(str(error).split())}")
        return MISUSED
    except (TypeError, ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if traceback:
            raise
        complain(f"error: {error_sentence(error, option_names(given))}")
        return FAILED
    return 0


def write_any_character() -> None:
    """Names of files may have characters that the terminal has not, as with LANG=C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Warnings of libraries in one line, each once, and without their progress bars."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text not in shown:
            shown.add(text)
            complain(f"warning: {text}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def option_names(words: Sequence[str]) -> dict[str, str]:
    """Command-line names of the arguments of Python functions, if a command is given."""
    names: dict[str, str] = {}
    if not words or words[0].startswith("-"):
        return names
    for argument in app[words[0]].assemble_argument_collection():
        own = argument.field_info.name
        names |= dict.fromkeys((own, *OTHER_ARGUMENTS.get(own, ())), argument.name)
        names |= {f"{own}=False": negative for negative in argument.negatives}
    return names


def error_sentence(error: Exception, names: Mapping[str, str]) -> str:
    """The error in one line, with command-line names."""
    from ...check import ArgumentError

    message = error.sentence(names) if isinstance(error, ArgumentError) else str(error)
    text = " ".join(message.split()) or type(error).__name__
    if "OutOfMemory" in type(error).__name__ or isinstance(error, MemoryError):
        return f"not enough memory (--memory, --batch-size or --batch may help): {text}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return text


def complain(text: str) -> None:
    """A line on stderr, red in a terminal."""
    line = f"paddle-ext: {printable(text)}"
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    sys.stderr.write(f"\x1b[31m{line}\x1b[0m\n" if coloured else f"{line}\n")
