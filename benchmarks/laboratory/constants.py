"""How many numbers a statement of the rule has: literals other than 0, 1, 2 and 3.

python benchmarks/laboratory/constants.py FILE ..
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ORDINARY = (0, 1, 2, 3)


def numbers(source: str) -> list[float]:
    """The numbers in code, in order; strings, docstrings and True have none."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            value = abs(node.value)
            if value not in ORDINARY:
                found.append(value)
    return found


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]]
    if not paths:
        raise SystemExit(__doc__)
    counts = {path: numbers(path.read_text()) for path in paths}
    for path, found in counts.items():
        print(f"{len(found):4d} numbers, {len(set(found)):3d} different: {path}")
    print(f"{sum(map(len, counts.values())):4d} in all")


if __name__ == "__main__":
    main()
