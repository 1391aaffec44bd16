"""Look at every page of the site in Chromium: ``python docs/check_pages.py [PAGE ...]``.

On a phone and on a wide screen, light and dark: nothing may be wider than the screen, every image
must be there, and large enough to read what is written in it. `make docs` builds the site first.
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SITE = Path(__file__).resolve().parents[1] / "build" / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (390, 1440)  # pixels
NARROWEST = 250  # pixels of a figure on a phone, except on the cards of the gallery

# Shows each page in a frame of each width, and writes what is wrong into the body.
PROBE = """<!doctype html><meta charset="utf-8"><body><script>
const wrong = [];
async function look(page, frame) {
  frame.src = page;
  await new Promise((loaded) => { frame.onload = loaded; });
  const inside = frame.contentDocument;
  // The theme moves its search field slowly when the width changes.
  inside.head.insertAdjacentHTML("beforeend", "<style>* { transition: none !important }</style>");
  for (const width of WIDTHS) for (const scheme of ["default", "slate"]) {
    frame.style.width = width + "px";
    inside.body.setAttribute("data-md-color-scheme", scheme);
    const say = (text) => wrong.push(`${page}, ${width} pixels, ${scheme}: ${text}`);
    const wide = [...inside.querySelectorAll("article *")]
      .filter((e) => e.getBoundingClientRect().right > width + 1)
      .map((e) => `${e.tagName} ${e.textContent.trim().slice(0, 40)}`);
    const needed = inside.documentElement.scrollWidth;
    if (needed > width) say(`is ${needed} wide: ${wide.slice(0, 3).join("; ")}`);
    for (const image of inside.querySelectorAll("article img")) {
      const shown = image.getBoundingClientRect().width;
      if (image.complete && !image.naturalWidth) say(`no image ${image.src}`);
      else if (shown && shown < NARROWEST && !image.closest(".cards, .twemoji"))
        say(`${image.src} is only ${shown} wide`);
    }
  }
}
(async () => {
  const frame = document.body.appendChild(document.createElement("iframe"));
  frame.style = "border: 0; height: 900px";
  for (const page of PAGES) await look(page, frame);
  document.body.dataset.wrong = JSON.stringify(wrong);
})();
</script></body>"""


def look(browser: str, pages: list[Path]) -> list[str]:
    """What is wrong with the pages, one line each."""
    names = {"WIDTHS": WIDTHS, "NARROWEST": NARROWEST, "PAGES": [page.as_uri() for page in pages]}
    constants = "".join(f"const {name} = {json.dumps(value)};" for name, value in names.items())
    with tempfile.TemporaryDirectory() as temporary:
        probe = Path(temporary) / "probe.html"
        probe.write_text(PROBE.replace("<script>", f"<script>{constants}"))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--hide-scrollbars", "--allow-file-access-from-files"]
        options += ["--window-size=1500,1000", "--virtual-time-budget=600000"]
        options += [f"--user-data-dir={temporary}/profile"]
        command = [browser, *options, "--dump-dom", probe.as_uri()]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    found = re.search(r'<body[^>]* data-wrong="([^"]*)"', done.stdout)
    if found is None:
        raise RuntimeError(f"the browser did not finish: {done.stderr[-500:]}")
    return [line.replace(SITE.as_uri(), "") for line in json.loads(html.unescape(found[1]))]


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def main(arguments: list[str]) -> int:
    browser = find_browser()
    if browser is None:
        print(f"== pages not looked at: none of {', '.join(BROWSERS)} is installed")
        return 0
    pages = sorted(SITE.rglob("index.html"))
    if arguments:
        pages = [SITE / name / "index.html" for name in arguments]
    wrong = look(browser, pages)
    print("\n".join([*wrong, f"== {len(pages)} pages looked at, {len(wrong)} complaints"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
