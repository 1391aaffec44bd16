"""Check the prose of the project: words we avoid, and Markdown wrapped at 100 columns.

Prose is Markdown outside code, also in notebooks, comments, and the strings of Python that hold a
sentence (docstrings, help texts, errors). Names in code and paths such as ``answers.csv`` are not
prose.

    python docs/check_words.py              every file that git tracks
    python docs/check_words.py README.md    only this one
"""

import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
EXEMPT = "docs/check_words.py"  # this list itself
# What begins a comment, by the end of a file's name.
COMMENTS = dict.fromkeys([".h", ".cpp", ".cu", ".cuh", ".inl", ".js"], "//")
COMMENTS |= dict.fromkeys([".toml", ".yml", ".yaml", ".cff", "Makefile", "CMakeLists.txt"], "#")

# What to avoid, as a regular expression of whole words, and what to write instead.
AVOID = {
    r"told": "reported, said",
    r"answers?": "prediction, result",
    r"answered": "predicted, classified",
    r"pictures?": "image, figure",
    r"beside": "alongside, next to, besides",
    r"nobody": "say it with a usual subject",
    r"bit by bit": "bitwise identical",
    r"in the main": "mostly",
    r"takes? a time": "before timing",
    r"in the midst": "during, within",
    r"anew|afresh|once more": "again",
    r"but for": "except",
    r"(?<=[,;:] )for (?:it|they|there|this|that) (?:is|are|was|were|has|have)": "because",
    r"bad input": "invalid input",
    r"go(?:es)? on": "continue",
    r"rivals?": "baseline, other method",
    r"utili[sz]es?|leverages?": "use",
    r"therewith|whereby|therein|hereby|thereof|hitherto": "a usual word",
}
# Not next to what makes a name of it: answers.csv, --beside, picture_files.
WORDS = [
    (re.compile(rf"(?<![\w./\\`\"'=\-])(?:{words})(?![\w/\\`\"'=(\-]|\.\w)", re.IGNORECASE), advice)
    for words, advice in AVOID.items()
]

# In docstrings: code, and the names and types of parameters and results.
NOT_PROSE = re.compile(r"\s*(?:>>>|\.\.\.|\w+(?:, \w+)* : |[A-Z]\w+$)")

Lines = Iterator[tuple[int, str]]  # line number, text


def prose_of_markdown(text: str) -> Lines:
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "``", line)


def too_long(text: str) -> Lines:
    """Lines that could be wrapped; tables and code cannot, and neither can one long word."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif len(line) > WIDTH and not fenced and not line.lstrip().startswith("|"):
            unbreakable = re.sub(r"`[^`]*`", lambda code: "x" * len(code[0]), line)
            if re.search(r"\S +\S", re.sub(r"^ *(?:[-*>#]+|\d+\.) ", "", unbreakable)[:WIDTH]):
                yield number, line


def prose_of_python(text: str) -> Lines:
    """Comments, and strings with at least three words."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]  # an f-string is FSTRING_MIDDLE from Python 3.12 on
        sentence = kind in {"STRING", "FSTRING_MIDDLE"} and len(token.string.split()) > 2
        if kind == "COMMENT" or sentence:
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                if not NOT_PROSE.match(line):
                    yield number, re.sub(r"`[^`]*`|\{[^{}]*\}", "``", line)


def prose_of_notebook(text: str) -> Lines:
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "markdown":
            yield from ((1, line) for _, line in prose_of_markdown("".join(cell["source"])))


def prose_of_comments(text: str, mark: str) -> Lines:
    for number, line in enumerate(text.splitlines(), 1):
        _, found, comment = line.partition(mark)
        if found:
            yield number, re.sub(r"`[^`]*`", "``", comment)


def prose(path: Path, text: str) -> Lines:
    readers = {
        ".md": prose_of_markdown,
        ".ipynb": prose_of_notebook,
        ".py": prose_of_python,
        ".pyi": prose_of_python,
    }
    if path.suffix in readers:
        return readers[path.suffix](text)
    mark = COMMENTS.get(path.name) or COMMENTS.get(path.suffix)
    return prose_of_comments(text, mark) if mark else iter(())


def complaints(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    name = path.relative_to(ROOT).as_posix()
    for number, line in prose(path, text):
        for pattern, advice in WORDS:
            for found in pattern.finditer(line):
                yield f"{name}:{number}: avoid {found[0]!r} (use: {advice})"
    if path.suffix == ".md":
        for number, line in too_long(text):
            yield f"{name}:{number}: {len(line)} columns, wrap at {WIDTH}"


def main(arguments: list[str]) -> int:
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *arguments]
    names = subprocess.run(tracked, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in names.splitlines() if name != EXEMPT]
    found = [line for path in paths if path.is_file() for line in complaints(path)]
    print("\n".join([*found, f"{len(found)} complaints in {len(paths)} files"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
