"""The prose check of `make lint` finds what it should, and nothing else."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from scripts import script


@pytest.fixture(scope="module")
def check() -> ModuleType:
    return script("docs/check_words.py")


WORD = "no" + "body"  # in two parts, so that the check passes this file
NOTEBOOK = json.dumps({"cells": [{"cell_type": "markdown", "source": [f"{WORD} knows"]}]})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", f"A sentence that {WORD} reads.\n"),
        ("page.md", "word " * 25 + "\n"),
        ("code.py", f'"""A sentence that {WORD} reads."""\n'),
        ("code.py", f"x = 1  # {WORD}\n"),
        ("code.cu", f"int x;  // {WORD}\n"),
        ("Makefile", f"all:  # {WORD}\n"),
        ("book.ipynb", NOTEBOOK),
    ],
)
def test_found(check: ModuleType, tmp_path: Path, name: str, text: str) -> None:
    assert len(complaints(check, tmp_path, name, text)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", f"```sh\n{WORD}\n{'long ' * 30}\n```\n"),
        ("page.md", f"`{WORD}` and {WORD}.csv, {WORD}/file, --{WORD}, {WORD}_x\n"),
        ("page.md", "| " + "cell | " * 30 + "\n"),
        ("page.md", "- " + "x" * 120 + "\n"),
        ("code.py", f'x = "{WORD}"\n{WORD} = 1\n'),
        ("code.cu", f"int {WORD};\n"),
        ("data.txt", f"{WORD}\n"),
    ],
)
def test_not_found(check: ModuleType, tmp_path: Path, name: str, text: str) -> None:
    assert complaints(check, tmp_path, name, text) == []


def complaints(check: ModuleType, folder: Path, name: str, text: str) -> list[str]:
    (folder / name).write_text(text)
    check.ROOT = folder
    return list(check.complaints(folder / name))
