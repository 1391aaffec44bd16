"""Run the commands and the Python code of every page with only what the page says to install.

    python tools/install/pages.py                       all pages
    python tools/install/pages.py README.md docs/large.md
    python tools/install/pages.py --wheel dist/*.whl    this wheel, instead of one built here

Each set of extras gets an environment of its own under ``build/pages``, which is kept for the next
run. What a page says is its last ``pip install`` before a command; a page that has none may need
torch and NumPy alone.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "pages"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INSTALL = re.compile(r"pip install '(?:\.|paddle_ext)\[([\w,]+)\]'")

# Commands that are not run here, and why.
NOT_RUN = {
    r"^pip install": "it is how the environment is made",
    r"^make ": "the workflows run it",
    r"^python benchmarks/": "measures on data that are not in the repository",
    r"--encoder models/": "needs a model of the user: tests/app/classify/test_encoders.py",
    r"^paddle-ext \w+ .*\bimages --layout npz": "trains for hours on mini-ImageNet",
    r"^compute-sanitizer|^\.venv/|^\.ci/|^PADDLE_EXT_": "for contributors",
}
# The same in less time: options to add, or to put in the place of those that the command has.
SMALLER = {
    r"^paddle-ext train ": "--epochs 1 --no-validation --arch small --size 28",
    r"^paddle-ext extract ": "--size 28",
    r"^paddle-ext tune ": "--n-tasks 2 --methods simpleshot,paddle",
    r"^paddle-ext demo": "--quick",
    r"^paddle-ext evaluate (?!.*--n-tasks)": "--n-tasks 2",
}
# What a reader has from an earlier command.
BEFORE = {
    "--model kinds.npz": "paddle-ext classify known.npz new.npz --save kinds.npz --output saved",
}
# Python code that takes minutes, or needs files of the user: tests/test_docs.py runs it smaller.
CODE_NOT_RUN = {"docs/training.md"}


@dataclass
class Part:
    """What one environment of a page runs."""

    extras: str
    commands: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)


def parts(page: Path) -> list[Part]:
    """Split a page by what it says to install."""
    text = page.read_text()
    found = [Part("")]
    at = 0
    for fence in FENCE.finditer(text):
        prose, at = text[at : fence.start()], fence.end()
        # In prose only what the page says before its first code; later ones are for special cases.
        if at_first(found):
            found += [Part(extras) for extras in INSTALL.findall(prose)[:1]]
        # Who has a DataFrame has pandas; tests/test_docs.py runs this code.
        if fence[1] == "python" and "import pandas" not in fence[2]:
            found[-1].code.append(fence[2])
        if fence[1] != "sh":
            continue
        for line in fence[2].replace("\\\n", " ").splitlines():
            found += [Part(extras) for extras in INSTALL.findall(line)]
            command = re.sub(r"\s#.*", "", line).strip()
            if command and reason_not_to_run(command) is None:
                found[-1].commands.append(command)
    return [part for part in found if part.commands or part.code]


def at_first(found: list[Part]) -> bool:
    return len(found) == 1 and not found[0].code and not found[0].commands


def reason_not_to_run(command: str) -> str | None:
    """Say why a command is not run, if so."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), None)


def runnable(command: str) -> str:
    """Add the options that make a command short, and what comes before it."""
    for pattern, options in SMALLER.items():
        if re.search(pattern, command):
            for option in re.findall(r"--[\w-]+", options):
                command = re.sub(rf" {option} [^-\s]\S*", "", command)
            command = f"{command} {options}"
    before = [earlier for text, earlier in BEFORE.items() if text in command]
    return " && ".join([*before, command])


def pages() -> list[Path]:
    """List every page with something to run."""
    candidates = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in candidates if parts(page)]


# --- environments ---------------------------------------------------------------------------------


def built_wheel() -> Path:
    """Build the wheel that all environments get."""
    folder = WORK / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    call([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)])
    return next(folder.glob("*.whl"))


def environment(extras: str, wheel: Path) -> Path:
    """Return the Python of an environment that has the wheel with these extras and no more."""
    venv = WORK / "venvs" / (extras.replace(",", "+") or "plain")
    python = venv / "bin" / "python"
    mark = venv / "installed"
    if not mark.exists() or mark.stat().st_mtime < wheel.stat().st_mtime:
        call([sys.executable, "-m", "venv", "--clear", str(venv)])
        what = f"{wheel}[{extras}]" if extras else str(wheel)
        pins = str(ROOT / "constraints.txt")
        call([str(python), "-m", "pip", "install", "-q", "--no-compile", "-c", pins, what])
        mark.touch()
    return python


def call(command: list[str]) -> None:
    subprocess.run(command, check=True)


# --- running --------------------------------------------------------------------------------------


def run_page(page: Path, wheel: Path) -> list[str]:
    """Run one page in an empty folder; return what failed."""
    folder = WORK / "folders" / page.relative_to(ROOT).with_suffix("").as_posix().replace("/", "_")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    failures = []
    for number, part in enumerate(parts(page)):
        python = environment(part.extras, wheel)
        tasks = [(command, ["bash", "-c", runnable(command)]) for command in part.commands]
        if part.code and page.relative_to(ROOT).as_posix() not in CODE_NOT_RUN:
            script = folder / f"code_{number}.py"
            script.write_text("\n".join(part.code))
            tasks.insert(0, (script.name, ["python", script.name]))
        tasks.insert(0, ("inputs", ["python", str(ROOT / "tools" / "install" / "inputs.py")]))
        for title, command in tasks:
            failures += run_one(page, part.extras, title, command, python, folder)
    return failures


def run_one(
    page: Path, extras: str, title: str, command: list[str], python: Path, folder: Path
) -> list[str]:
    """Run one thing with the environment first on PATH; return what failed."""
    variables = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "MPLBACKEND": "agg",
        "HF_HUB_OFFLINE": "1",
    }
    kept = {name: os.environ[name] for name in ("LANG", "OMP_NUM_THREADS") if name in os.environ}
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    seconds = time.perf_counter() - start
    where = f"{page.relative_to(ROOT)} [{extras}] {title}"
    sys.stdout.write(f"{'ok' if done.returncode == 0 else 'FAILED'} {seconds:6.1f} s  {where}\n")
    sys.stdout.flush()
    if done.returncode == 0:
        return []
    return [f"{where}\n{(done.stdout + done.stderr)[-3000:]}"]


def main() -> int:
    """Run the pages named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="such as README.md; default: all")
    parser.add_argument("--wheel", type=Path, help="the wheel to install; default: build one")
    arguments = parser.parse_args()
    chosen = [path.resolve() for path in arguments.pages] or pages()
    wheel = arguments.wheel.resolve() if arguments.wheel else built_wheel()
    failures = [failure for page in chosen for failure in run_page(page, wheel)]
    sys.stdout.write("".join(f"\n== {failure}\n" for failure in failures))
    sys.stdout.write(f"{len(failures)} failures in {len(chosen)} pages\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
