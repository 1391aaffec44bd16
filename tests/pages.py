"""Pages of ``paddle-ext classify`` to look at in a browser."""

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import torch

from paddle_ext.app.classify import Answers
from paddle_ext.app.corrections import DataNames, corrected_source
from paddle_ext.app.outcome import Outcome
from paddle_ext.app.read.opening import Source
from paddle_ext.app.read.samples import Batch
from paddle_ext.app.settings import Settings
from paddle_ext.app.write.page import digest_source, page
from paddle_ext.prevalence import from_sums

ODD = '<b onmouseover="x()">bold & "quoted"</b>'
CLASSES = ("plain", ODD, "a_very_long_name_without_any_space_" * 4, "absent")
# Reports what only a browser knows: a script fills `report`.
PROBE = """<script>window.addEventListener("load", async () => {{
const report = {{}};
const at = (id) => document.getElementById(id);
const type = (key) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", {{ key, bubbles: true, cancelable: true }}));
{0}
parent.postMessage(report, "*");
}});</script></body>"""
# Shows pages one after the other, each in a frame of its width until it posts something.
FRAMES = """<!doctype html><meta charset="utf-8"><body><script>
const posted = [];
let frame;
function next() {
  const [page, width] = VIEWS[posted.length] ?? [];
  if (!page) return;
  localStorage.clear();
  frame?.remove();
  frame = document.body.appendChild(document.createElement("iframe"));
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.src = page;
}
addEventListener("message", (e) => {
  if (e.source !== frame.contentWindow) return;
  posted.push(e.data);
  document.body.dataset.posted = JSON.stringify(posted);
  next();
});
next();
</script></body>"""


def made(kind: str, count: int = 90, classes: tuple[str, ...] = CLASSES, shots: int = 1) -> str:
    """A page with samples of all classes but the last; every tenth of them is doubtful."""
    K = len(classes)
    labels = torch.arange(count) % (K - 1)
    probability = torch.where(torch.arange(count) % 10 == 0, 0.4, 0.97)
    texts = [
        f"number {row} of the {kind} {'with a long tail ' * (row % 9)}" for row in range(count)
    ]
    counts = torch.bincount(labels, minlength=K).double()
    answers = Answers(
        class_names=classes,
        names=[f"number {row}" for row in range(count)],
        texts=texts,
        labels=labels,
        second=(labels + 1) % (K - 1),
        probability=probability,
        second_probability=(1 - probability) * 0.9,
        doubt=1 - probability,
        present=torch.arange(K) < K - 1,
        prevalence=from_sums(torch.stack([counts, counts, counts / 10, counts])),
        digests=[f"x{row}" for row in range(count)],
        likeliest=torch.stack([labels, (labels + 1) % (K - 1)], 1),
    )
    known = torch.arange(K).repeat(shots)
    names = [str(row) for row in range(len(known))]
    examples = torch.eye(K)[known], [f"example {row}" for row in names], [classes[k] for k in known]
    source = Source(Settings(), kind, "new", [], examples=Batch(names, *examples))
    corrected = corrected_source(source, [], DataNames("labelled", "new"))
    return page(Outcome(answers, corrected, None, None), "What is in <new>", 1.0, Path())


def with_probe(text: str, probe: str) -> str:
    """A page with more at its end, which its policy then allows."""
    for tag in ("script", "style"):
        for content in re.findall(f"<{tag}>(.*?)</{tag}>", probe, re.DOTALL):
            text = text.replace(f"{tag}-src ", f"{tag}-src {digest_source(content)} ", 1)
    return text.replace("</body>", probe)


def posted(
    browser: str, folder: Path, *views: tuple[str, int], real_time: bool = False
) -> list[Any]:
    """What pages post; in real time, of one of them, else a clock stands still while they work."""
    outside = folder / "frames.html"
    pages = [(f"inside-{number}.html", width) for number, (_, width) in enumerate(views)]
    for (name, _), (text, _) in zip(pages, views, strict=True):
        (folder / name).write_text(text, encoding="utf-8")
    outside.write_text(FRAMES.replace("VIEWS", json.dumps(pages)), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--hide-scrollbars", "--incognito", "--window-size=1500,950"]
    options += [] if real_time else ["--virtual-time-budget=10000"]
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [browser, *options, profile, "--dump-dom", outside.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r'<body[^>]* data-posted="([^"]*)"', done.stdout)
    return json.loads(unescape(found[1])) if found else []


def probed(
    browser: str, *views: tuple[Path, str], width: int = 1440, real_time: bool = False
) -> list[dict[str, Any]]:
    """What scripts fill into `report` on pages; files are found from the folder of the first."""
    texts = (
        with_probe(path.read_text(encoding="utf-8"), PROBE.format(script)) for path, script in views
    )
    folder = views[0][0].parent
    return posted(browser, folder, *((text, width) for text in texts), real_time=real_time)
