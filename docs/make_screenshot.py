"""Take the image of the review page: ``python docs/make_screenshot.py``.

`paddle-ext classify` labels the tickets of examples/tickets.py, and Chromium shows the page that it
writes, once light and once dark.
"""

import csv
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from check_pages import BROWSERS, find_browser
from PIL import Image

from paddle_ext.research.style import reduce_colours

HERE = Path(__file__).resolve().parent
SIZE = 820, 900  # pixels of the window
SCALE = 1.4  # pixels of the image for one of the window


def write_table(path: Path) -> None:
    """Tickets in a table, some with a topic, and a column for each feature."""
    example = runpy.run_path(str(HERE.parent / "examples" / "tickets.py"))
    random = np.random.default_rng(0)
    rows = list(zip(*example["month"](random, dict.fromkeys(example["TOPICS"], 4)), strict=True))
    rows += [(text, "") for text in example["month"](random, example["THIS_MONTH"])[0]]
    features = example["hashed"]([text for text, _ in rows])
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ticket", "topic", *(f"f{i}" for i in range(features.shape[1]))])
        for (text, topic), values in zip(rows, features, strict=True):
            writer.writerow([text, topic, *values])


def classify(folder: Path) -> Path:
    """Run the command; returns the page."""
    write_table(folder / "tickets.csv")
    command = [sys.executable, "-m", "paddle_ext", "classify", "tickets.csv", "--label", "topic"]
    command += ["--id", "ticket", "--features", "f"]
    subprocess.run(command, check=True, cwd=folder, capture_output=True)
    return folder / "answers.html"


def photograph(page: Path, dark: bool, path: Path) -> None:
    """The top of the page, as a PNG file of few colours."""
    browser = find_browser()
    if browser is None:
        sys.exit(f"this needs a browser, none of {', '.join(BROWSERS)} is installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += [f"--force-device-scale-factor={SCALE}", f"--window-size={SIZE[0]},{SIZE[1]}"]
    if dark:
        options += ["--blink-settings=preferredColorScheme=0"]
    with tempfile.TemporaryDirectory() as profile:
        options += [f"--user-data-dir={profile}", f"--screenshot={path}"]
        subprocess.run([browser, *options, page.as_uri()], check=True, stderr=subprocess.DEVNULL)
    with Image.open(path) as image:
        image.convert("RGB").save(path)
    reduce_colours(path)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        page = classify(Path(temporary))
        for dark in (False, True):
            name = "review-dark.png" if dark else "review.png"
            photograph(page, dark, HERE / "figures" / name)


if __name__ == "__main__":
    main()
