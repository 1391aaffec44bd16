"""All commands, and what they share: spelling, errors, exit codes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ...text import printable
from . import classify, demo, evaluating, info, pictures
from .arguments import normalised

FAILED, INTERRUPTED = 1, 130
NOTHING_KEPT = "interrupted: nothing was saved, the same command starts over"
# Environment of libraries, set before they are loaded unless the user has set it.
QUIET = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# Command-line options whose Python arguments have other names; the rest are the same.
OTHER_ARGUMENTS = {
    "fresh": ("resume", "resume=False"),
    "recipe": ("name",),
    "method": ("name",),
    "arch": ("architecture",),
    "embedding": ("features",),
    "row_names": ("name",),
    "template": ("templates",),
    "sep": ("separator",),
    "export": ("label_studio",),
}


class Commands(TyperGroup):
    """Accepts other spellings; reports errors in one sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # The flag belongs to all commands, so it may appear anywhere.
        anywhere = "--traceback"
        rest = [item for item in args if item != anywhere]
        return super().parse_args(ctx, [anywhere] * (len(rest) < len(args)) + normalised(rest))

    def make_context(self, *args: Any, **options: Any) -> Any:
        try:
            return super().make_context(*args, **options)
        except KeyboardInterrupt:
            complain(NOTHING_KEPT)
            raise typer.Exit(INTERRUPTED) from None

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name == "reproduce":
            raise typer.BadParameter(
                "reproduce must be run from a checkout: python benchmarks/reproduce EXPERIMENT BANK"
            )
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            own = command.get_params
            command.get_params = lambda context: without_types(own(context))
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            with quiet_libraries():
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as error:
            complain(str(error) or NOTHING_KEPT)
            raise typer.Exit(INTERRUPTED) from None
        except (TypeError, ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
            if ctx.params["traceback"]:
                raise
            names = option_names(self.commands[ctx.invoked_subcommand])
            complain(f"error: {error_sentence(error, names)}")
            raise typer.Exit(FAILED) from None


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


def without_types(params: list[Any]) -> list[Any]:
    """Flags take no value, so the help shows no type."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


def option_names(command: Any) -> dict[str, str]:
    """Command-line names of the arguments of Python functions."""
    found: dict[str, str] = {}
    for param in command.params:
        shown = param.opts[0] if param.param_type_name == "option" else param.name.upper()
        found |= dict.fromkeys((param.name, *OTHER_ARGUMENTS.get(param.name, ())), shown)
    return found


def error_sentence(error: Exception, names: Mapping[str, str]) -> str:
    """The error in one line, with command-line names."""
    from ...check import ArgumentError

    message = error.sentence(names) if isinstance(error, ArgumentError) else str(error)
    text = " ".join(message.split()) or type(error).__name__
    if "OutOfMemory" in type(error).__name__ or isinstance(error, MemoryError):
        return f"not enough memory (--memory or --batch-size may help): {text}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return text


def complain(text: str) -> None:
    """A line on stderr."""
    typer.secho(f"paddle-ext: {printable(text)}", fg=typer.colors.RED, err=True)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    if wanted:
        from ...version import version

        typer.echo(version())
        raise typer.Exit


@app.callback(epilog="Each command has examples: paddle-ext classify --help")
def common(
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback",
            envvar="PADDLE_EXT_TRACEBACK",
            help="Show the traceback of an error; may appear anywhere.",
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Show the version."),
    ] = False,
) -> None:
    """Label the rest: from a few labelled samples, or from class names. And compare methods."""


for module in (classify, demo, info, pictures, evaluating):
    module.register(app)
