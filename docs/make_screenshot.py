"""Take the images of the review page: ``python docs/make_screenshot.py``.

`paddle-ext classify` labels the tickets of examples/tickets.py and the images of
examples/images.py, and Chromium shows the pages that it writes, once light and once dark.
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
EXAMPLES = HERE.parent / "examples"
SIZE = 640, 860  # pixels of the window: narrow, so that a phone shows words that can be read
SCALE = 1.4  # pixels of the image for one of the window
# The page, scrolled to one of its parts, which is below the bar that stays at the top.
FRAME = """<body style="margin: 0"><iframe src="{}" style="border: 0; width: 100vw; height: 100vh"
onload="const top = this.contentDocument.querySelector('{}').offsetTop - 175;
this.contentWindow.scrollTo({{ top, behavior: 'instant' }});">"""


def write_table(path: Path) -> None:
    """Tickets in a table, some with a topic, and a column for each feature."""
    example = runpy.run_path(str(EXAMPLES / "tickets.py"))
    random = np.random.default_rng(0)
    rows = list(zip(*example["month"](random, dict.fromkeys(example["TOPICS"], 4)), strict=True))
    rows += [(text, "") for text in example["month"](random, example["THIS_MONTH"])[0]]
    features = example["hashed"]([text for text, _ in rows])
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ticket", "topic", *(f"f{i}" for i in range(features.shape[1]))])
        for (text, topic), values in zip(rows, features, strict=True):
            writer.writerow([text, topic, *values])


def classify_tickets(folder: Path) -> Path:
    """Run the command; returns the page."""
    write_table(folder / "tickets.csv")
    command = [sys.executable, "-m", "paddle_ext", "classify", "tickets.csv", "--label", "topic"]
    command += ["--id", "ticket", "--features", "f"]
    subprocess.run(command, check=True, cwd=folder, capture_output=True)
    return folder / "answers.html"


def classify_images(folder: Path) -> Path:
    """Run the example, which trains a network first; returns the page."""
    command = [sys.executable, str(EXAMPLES / "images.py"), "--output", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "answers.html"


def photograph(page: Path, place: str, dark: bool, path: Path) -> None:
    """The page from `place`, a selector, downwards, as a PNG file of few colours."""
    browser = find_browser()
    if browser is None:
        sys.exit(f"this needs a browser, none of {', '.join(BROWSERS)} is installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += ["--allow-file-access-from-files"]
    options += [f"--force-device-scale-factor={SCALE}", f"--window-size={SIZE[0]},{SIZE[1]}"]
    if dark:
        options += ["--blink-settings=preferredColorScheme=0"]
    with tempfile.TemporaryDirectory() as profile:
        frame = Path(profile) / "frame.html"
        frame.write_text(FRAME.format(page.as_uri(), place))
        options += [f"--user-data-dir={profile}", f"--screenshot={path}"]
        subprocess.run([browser, *options, frame.as_uri()], check=True, stderr=subprocess.DEVNULL)
    with Image.open(path) as image:
        image.convert("RGB").save(path)
    reduce_colours(path)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        page = classify_tickets(Path(temporary))
        for dark in (False, True):
            name = "review-dark.png" if dark else "review.png"
            photograph(page, "body", dark, HERE / "figures" / name)
    with tempfile.TemporaryDirectory() as temporary:
        page = classify_images(Path(temporary))
        photograph(page, "#review", False, HERE / "figures" / "review-images.png")


if __name__ == "__main__":
    main()
