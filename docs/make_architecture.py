"""Draw the figure of docs/architecture.md: ``python docs/make_architecture.py``.

The tests check the imports against the same table of layers.
"""

from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIGURE = HERE / "figures" / "architecture.svg"

# Each layer with its colour and its parts, from top to bottom: imports go down.
LAYERS = {
    ("app", "#fde9c9"): {
        "app/cli": "the command paddle-ext",
        "app/classify.py": "its public names",
        "app/stream.py": "files to predictions in one file",
        "app/run.py": "files to predictions and a page",
        "app/write": "tables, the page, sorted images",
        "app/outcome.py": "what a run found, what to check",
        "app/corrections.py": "labels by the user",
        "app/label_studio.py": "tasks and exports",
        "app/answering.py": "features to predictions",
        "app/answers.py": "the predictions",
        "app/read": "opens, checks, encodes data",
        "app/settings.py": "options, each written once",
    },
    ("research", "#fdf3d6"): {
        "research/demo.py": "every step, on drawn characters",
        "research/tune.py": "the best options",
        "research/backbones": "networks and their features",
        "research/evaluate.py": "methods on many tasks",
        "research/figures.py": "bars and curves",
        "research/tables.py": "results as text",
        "research/results.py": "results and their files",
        "research/sampler.py": "numbered tasks",
        "research/data": "banks, images",
        "research/style.py": "style of figures",
    },
    ("core", "#dff1ea"): {
        "integrations": "for scikit-learn and easyfsl",
        "presence": "strangers, wrong labels",
        "methods": "every method, one protocol",
        "adaptive_rule": "adaptive: likelihood, engines",
        "solvers": "① check, one call each",
        "reference": "the specification, in torch",
        "large": "tasks of any size, files",
        "task.py": "a batch of tasks",
        "solution.py": "results",
        "prevalence.py": "shares of classes",
        "prior.py": "what is known of shares",
        "groups.py": "rows that belong together",
        "rows.py": "arithmetic of rows",
        "arrays.py": "arrays in files of any program",
        "parquet.py": "columns of Parquet files",
        "decoding.py": "image files",
        "labels.py": "what a label in a file means",
        "check.py": "errors about arguments",
        "native": "② the call of native code",
        "limits.py": "what is too much",
        "progress.py": "progress bars",
        "feature_cache.py": "features by content",
        "files.py": "opened safely, written whole",
        "libraries.py": "optional libraries",
        "text.py": "text that is safe to print",
    },
    ("native", "#e9e6f4"): {
        "csrc/bindings.cpp": "③ bindings, of pybind11",
        "csrc/cpu": "④ launcher, ⑤ SIMD kernel",
        "csrc/cuda": "④ launcher, ⑤ CUDA kernel",
        "csrc/common": "mathematics of both",
    },
}

WIDTH, MARGIN = 640, 12  # narrow enough for a phone
LEFT, MIDDLE = 120, 340  # where names and descriptions begin
LINE, GAP = 31, 10  # the height of a line, and the space between layers


def layer(title: str, fill: str, parts: dict[str, str], y: int) -> list[str]:
    """A box with a line for each part: its name and what it is for."""
    width, height = WIDTH - 2 * MARGIN, LINE * len(parts)
    box = f'<rect x="{MARGIN}" y="{y}" width="{width}" height="{height}" rx="7" fill="{fill}"/>'
    found = [box, f'<text x="{2 * MARGIN}" y="{y + 21}" class="layer">{title}</text>']
    for name, text in parts.items():
        found.append(f'<text x="{LEFT}" y="{y + 21}" class="name">{escape(name)}</text>')
        found.append(f'<text x="{MIDDLE}" y="{y + 21}">{escape(text)}</text>')
        y += LINE
    return found


def figure() -> str:
    """The whole figure, as SVG."""
    y, drawn = MARGIN, []
    for (title, fill), parts in LAYERS.items():
        drawn += layer(title, fill, parts, y)
        y += LINE * len(parts) + GAP
    height = y - GAP + MARGIN
    return "\n".join([
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="DejaVu Sans, Verdana, sans-serif" font-size="16" fill="#333" role="img">'
        ),
        "<title>The layers of paddle_ext, from the command to the kernels</title>",
        "<style>.name{font-weight:bold;fill:#222}.layer{fill:#6b6b6b}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *drawn,
        "</svg>\n",
    ])  # fmt: skip


if __name__ == "__main__":
    FIGURE.write_text(figure())
