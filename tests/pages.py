"""Pages of ``paddle-ext classify`` to look at in a browser."""

from __future__ import annotations

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

ODD = '<b onmouseover="x()">bold & "quoted"</b>'
CLASSES = ("plain", ODD, "a_very_long_name_without_any_space_" * 4, "absent")
# Reports what only a browser knows: the page calls `report` with a JSON object.
PROBE = """<script>window.addEventListener("load", async () => {{
const report = {{}};
const at = (id) => document.getElementById(id);
const type = (key) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", {{ key, bubbles: true, cancelable: true }}));
{0}
document.body.dataset.shown = JSON.stringify(report);
}});</script></body>"""
# A window of this width for the page inside.html, which posts what it has to report.
FRAME = """<!doctype html><body style="margin:0"><script>
addEventListener("message", (e) => {{ document.body.dataset.shown = JSON.stringify(e.data); }});
</script><iframe src="inside.html" style="width:{0}px;height:800px;border:0"></iframe></body>"""


def made(kind: str, count: int = 90, classes: tuple[str, ...] = CLASSES, shots: int = 1) -> str:
    """A page with samples of all classes but the last; every tenth of them is doubtful."""
    K = len(classes)
    labels = torch.arange(count) % (K - 1)
    probability = torch.where(torch.arange(count) % 10 == 0, 0.4, 0.97)
    texts = [
        f"number {row} of the {kind} {'with a long tail ' * (row % 9)}" for row in range(count)
    ]
    answers = Answers(
        classes,
        [f"number {row}" for row in range(count)],
        texts,
        labels,
        (labels + 1) % (K - 1),
        probability,
        (1 - probability) * 0.9,
        1 - probability,
        torch.arange(K) < K - 1,
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


def dumped(browser: str, path: Path, width: int, *, real_time: bool = False) -> str:
    """The final document in the browser, whose clock stands still while it works by default."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--hide-scrollbars", "--incognito", f"--window-size={width},900"]
    options += [] if real_time else ["--virtual-time-budget=3000"]
    profile = f"--user-data-dir={path.parent / 'profile'}"
    command = [browser, *options, profile, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def shown_by(browser: str, path: Path, width: int, *, real_time: bool = False) -> dict[str, Any]:
    """The output of the probe of a page."""
    return json.loads(told(dumped(browser, path, width, real_time=real_time)))


def probed(
    browser: str, path: Path, script: str, width: int = 1440, *, real_time: bool = False
) -> dict[str, Any]:
    """What a script fills into `report` on a page."""
    other = path.with_name(f"probed-{path.name}")
    text = path.read_text(encoding="utf-8")
    other.write_text(with_probe(text, PROBE.format(script)), encoding="utf-8")
    return shown_by(browser, other, width, real_time=real_time)


def told(text: str) -> str:
    """What a script wrote to the body of a document."""
    found = re.search(r'<body[^>]* data-shown="([^"]*)"', text)
    return unescape(found[1]) if found else ""
