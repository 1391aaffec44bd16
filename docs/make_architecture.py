"""Draw the figure of docs/architecture.md: ``python docs/make_architecture.py``.

The tests check the imports against the same table of layers.
"""

from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIGURE = HERE / "figures" / "architecture.svg"

# From top to bottom. Imports go down, or to the right within a layer.
LAYERS = (
    (
        ("app/cli", "the command paddle-ext"),
        ("app/classify", "files, folders, tables → predictions, a page"),
    ),
    (
        ("research/demo.py", "every step, on drawn characters"),
        ("research/evaluation", "evaluate, tune, tables, figures, experiments"),
        ("research/backbones", "networks and their features"),
        ("research/tasks", "numbered tasks"),
        ("research/data", "banks, images"),
    ),
    (
        ("research/style.py", "style of figures"),
        ("research/progress.py", "progress bars"),
        ("research/ranks.py", "processes"),
        ("research/files.py", "atomic writes"),
        ("research/printable.py", "safe to show"),
    ),
    (
        ("integrations", "for scikit-learn and easyfsl"),
        ("presence", "strangers, wrong labels"),
        ("methods", "every method, one protocol"),
        ("rule", "the rule adaptive: likelihoods, two engines, names"),
        ("task.py", "a batch of tasks"),
    ),
    (("ops", "① check   ② operator: torch allocates results and workspace"),),
    (
        ("reference", "the methods in plain torch: the specification"),
        ("solution.py", "results"),
        ("prevalence.py", "shares of classes"),
        ("scaling.py", "coordinates"),
        ("rows.py", "arithmetic of rows"),
        ("check.py", "arguments"),
        ("check_values.py", "their values"),
        ("version.py", "version number"),
    ),
    (("csrc/bindings.cpp", "③ bindings: named parameters and a stream in, exceptions out"),),
)
NATIVE = (
    ("csrc/cpu", "④ launcher  ⑤ kernel: one task per thread, for each SIMD level"),
    ("csrc/cuda", "④ launcher  ⑤ kernel: one task per block, or tiles"),
    ("csrc/common", "sizes, mathematics, random numbers"),
)
TITLES = ("app", "research", "", "core", "", "", "native")
FILLS = ("#fde9c9", "#fdf3d6", "#fdf3d6", "#dff1ea", "#dff1ea", "#dff1ea", "#e9e6f4")

WIDTH, MARGIN, LEFT, GAP = 1000, 14, 92, 10
HEIGHT, STEP = 74, 92  # of a box, and between layers


def box(x: float, y: float, width: float, height: float, fill: str, name: str, text: str) -> str:
    """A box with a name and a description below it."""
    lines = wrapped(text, int((width - 16) / 6.7))
    middle = x + width / 2
    first = y + height / 2 - 8.5 * len(lines) + 4
    parts = [
        (
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" fill="{fill}" '
            'stroke="#8f8f8f"/>'
        ),
        f'<text x="{middle:g}" y="{first:g}" class="name">{escape(name)}</text>',
    ]
    for number, line in enumerate(lines):
        below = first + 18 + 16 * number
        parts.append(f'<text x="{middle:g}" y="{below:g}" class="about">{escape(line)}</text>')
    return "\n".join(parts)


def wrapped(text: str, letters: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and len(longer) > letters:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def row(
    boxes: tuple[tuple[str, str], ...], x: float, y: float, fill: str, shares: tuple[float, ...]
) -> list[str]:
    """Boxes side by side, from x to the right margin."""
    room = WIDTH - MARGIN - x - GAP * (len(boxes) - 1)
    found = []
    for (name, text), share in zip(boxes, shares, strict=True):
        width = room * share / sum(shares)
        found.append(box(x, y, width, HEIGHT, fill, name, text))
        x += width + GAP
    return found


def figure() -> str:
    """The whole figure, as SVG."""
    last = MARGIN + STEP * len(LAYERS)
    height = last + HEIGHT + MARGIN
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="DejaVu Sans, Verdana, sans-serif" text-anchor="middle" role="img">'
        ),
        "<title>The layers of paddle_ext, from the command to the kernels</title>",
        (
            "<style>.name{font-size:15px;font-weight:bold;fill:#222}.about{font-size:12.5px;fill:#333}"
            ".layer{font-size:14px;fill:#6b6b6b;text-anchor:start}</style>"
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, (layer, title, fill) in enumerate(zip(LAYERS, TITLES, FILLS, strict=True)):
        y = MARGIN + STEP * number
        parts.append(f'<text x="{MARGIN}" y="{y + HEIGHT / 2 + 5:g}" class="layer">{title}</text>')
        shares = tuple(8.0 + len(name) for name, _ in layer)
        parts += row(layer, LEFT, y, fill, shares)
    parts += row(NATIVE, LEFT, last, FILLS[-1], (1.0, 1.0, 0.8))
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    FIGURE.write_text(figure())
