"""The page where labels are corrected, in a browser: the loop, keyboards, phones, many samples."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from classify_data import STRANGE, pattern, picture_folders, settings
from pages import made, posted, probed, with_probe

from paddle_ext.app.classify import classify
from paddle_ext.app.corrections import read_corrections
from paddle_ext.app.read.pictures import thumbnail
from paddle_ext.app.write import page as module

FILE = """
const exportedFile = async () => {
  let saved = null;
  URL.createObjectURL = (blob) => { saved = blob; return "data:,"; };
  HTMLAnchorElement.prototype.click = function () {};
  at("export").click();
  return saved.text();
};
"""


def test_the_loop_in_a_browser(strange: tuple[Path, Path], tmp_path: Path, browser: str) -> None:
    """An export has old corrections and new ones; each run shows them, to be changed again."""
    out = tmp_path / "out"
    classify(*strange, out, settings())
    script = (
        FILE
        + """
    const group = document.querySelector(".group");
    group.querySelector("input").value = "yew";
    group.querySelector("button").click();
    report.asked = at("ask-text").textContent;
    at("ask-new").click();
    report.marked = group.querySelectorAll(".sample.corrected").length;
    const suspect = document.querySelector("#suspects .sample");
    suspect.click();
    report.said = at("look-said").textContent;
    at("look-class").value = "birch";
    at("look-save").click();
    at("look-close").click();
    const absent = at("absent");
    absent.querySelector(".all").click();
    const labelled = absent.querySelector(".sample");
    report.labelled = labelled.dataset.name;
    labelled.click();
    at("look-unknown").click();
    report.file = await exportedFile();
    """
    )
    (first,) = probed(browser, (out / "answers.html", script))
    assert first["asked"] == "New class 'yew'?"
    assert first["marked"] == 5
    assert first["said"] == "labelled date palm, probably birch"
    (out / "corrected.csv").write_bytes(first["file"].encode())  # into the folder of the page
    report = classify(*strange, out, settings())
    labels = {report.answers.names[row]: label for row, label in report.answers.corrected.items()}
    assert labels == {str(row): "yew" for row in STRANGE}
    examples, now = report.outcome.source.examples, report.outcome.corrected.example_labels
    both = zip(examples.names, now, examples.truth, strict=True)
    changed = {name: label for name, label, given in both if label != given}
    assert changed == {"5": "birch", first["labelled"]: "unknown"}
    script = (
        FILE
        + """
    const tiles = [...document.querySelectorAll("#corrected .sample")];
    report.shown = tiles.map((tile) => tile.querySelector(".mine").textContent);
    report.button = at("export").textContent;
    tiles[0].click();
    report.before = at("look-class").value;
    at("look-class").value = "yaw";
    at("look-save").click();
    report.asked = at("ask-text").textContent;
    at("ask-near").click();
    tiles[1].click();
    at("look-undo").click();
    at("look-close").click();
    const other = document.querySelector("[id^=class-] > .samples > .sample");
    report.name = other.dataset.name;
    other.click();
    at("look-unknown").click();
    report.after = at("export").textContent;
    report.file = await exportedFile();
    """
    )
    (second,) = probed(browser, (report.page, script))
    assert second["shown"][:5] == ["changed to yew"] * 5
    count = 5 + len(changed)
    assert second["button"] == f"Export {count} corrected labels"
    assert second["before"] == "yew"
    assert second["asked"] == "New class 'yaw', or did you mean 'yew'?"
    assert second["after"] == f"Export {count} corrected labels (2 changed)"
    (tmp_path / "more.csv").write_bytes(second["file"].encode())
    found = {key.name: label for key, label in read_corrections(tmp_path / "more.csv").items()}
    assert found["40"] == "yew"
    assert found["41"] == ""
    assert found[second["name"]] == "unknown"
    classify(*strange, out, settings(corrected=[tmp_path / "more.csv"]))
    kept = {key.name for key in read_corrections(out / "corrected.csv")}
    assert "41" not in kept
    assert {"40", "42", second["name"]} <= kept


# A new class is asked about; a group keeps the labels of single samples.
BY_CLICKS = """
const first = document.querySelector("[id^=class-] > .samples > .sample");
const say = (label) => {
  first.click();
  at("look-class").value = label;
  at("look-save").click();
  return at("ask").open ? at("ask-text").textContent : "";
};
report.near = say("birhc");
at("ask-back").click();
report.none = first.classList.contains("corrected");
report.far = say("Zanthoxylum");
at("ask-new").click();
report.again = say("Zanthoxylum");
report.known = say("birch");
at("look-close").click();
const group = document.querySelector(".group");
group.querySelector(".sample").click();
at("look-unknown").click();
at("look-close").click();
const name = (label) => {
  group.querySelector("input").value = label;
  group.querySelector("button").click();
  at("ask-new").click();
  return [...group.querySelectorAll(".mine")].map((one) => one.textContent);
};
report.first = name("yaw");
report.second = name("yew");
"""
CLICKED = {
    "near": "New class 'birhc', or did you mean 'birch'?",
    "none": False,
    "far": "New class 'Zanthoxylum'?",
    "again": "",
    "known": "",
    "first": ["changed to unknown", *["changed to yaw"] * 4],
    "second": ["changed to unknown", *["changed to yew"] * 4],
}

# All that a click does can be done with keys, and the focus comes back.
BY_KEYS = """
const first = document.querySelector("#review .sample");
first.focus();
type("Enter");
report.open = at("look").open;
type("c");
report.field = document.activeElement.id;
document.activeElement.value = "fri";
report.answered = type("Enter");  // the question that it opens, by the same key press
report.asked = document.activeElement.textContent;
at("ask-back").click();
document.activeElement.value = "fir";
type("Enter");
report.marked = first.classList.contains("corrected");
at("look-close").focus();
document.activeElement.click();  // what Enter does on a button
report.back = document.activeElement.classList.contains("sample");
const focusable = [...document.querySelectorAll(".sample, button, input, a, summary")];
report.all = focusable.every((one) => one.tabIndex === 0);
report.clickable = [...document.querySelectorAll("img")].every(
  (one) => one.closest(".sample, dialog"));
"""
KEYED = {
    "open": True,
    "field": "look-class",
    "answered": False,
    "asked": "Use 'fir'",
    "marked": True,
    "back": True,
    "all": True,
    "clickable": True,
}
NO_NEW_CLASS = """
document.querySelector(".sample").click();
at("look-class").value = "oka";
at("look-save").click();
report.asked = at("ask-text").textContent;
report.offered = !at("ask-new").hidden;
"""
NOT_OFFERED = {
    "asked": "'oka' is not among the names of the classes: did you mean 'oak'?",
    "offered": False,
}


def test_clicks_keys_and_names(strange: tuple[Path, Path], tmp_path: Path, browser: str) -> None:
    page = classify(*strange, tmp_path / "out", settings()).page
    np.savez(tmp_path / "text.npz", text=np.eye(4)[:3], class_names=["oak", "elm", "fir"])
    np.savez(tmp_path / "some.npz", features=np.eye(4)[[0, 2, 2, 1]] + 0.1)
    names = settings(names=tmp_path / "text.npz")
    named = classify(tmp_path / "some.npz", None, tmp_path / "named", names).page
    views = (page, BY_CLICKS), (page, BY_KEYS), (named, NO_NEW_CLASS)
    assert probed(browser, *views) == [CLICKED, KEYED, NOT_OFFERED]


@pytest.mark.usefixtures("quick_network")
def test_keys_and_a_reload(tmp_path: Path, browser: str) -> None:
    """Labels by keys are there after a reload; enlarged is the file, or what a browser can show."""
    labelled, new = picture_folders(tmp_path)
    pattern(0, 1, (900, 700)).save(new / "ü 1#?.jpg")
    pattern(0, 2, (90, 70)).save(new / "z.tiff")
    report = classify(labelled, new, tmp_path / "out", settings(suggest=2))
    script = """
    const tile = (name) => document.querySelector(`.sample[data-name="${name}"]`);
    const enlarged = (name) => new Promise((done) => {
      tile(name).click();
      setTimeout(() => done([image.naturalWidth, image.src.slice(0, 5)]), 500);
    });
    const keyed = { "deep/stripes/0.jpg": "2", "deep/chess/0.jpg": "u", "z.tiff": "1" };
    if (!sessionStorage.getItem("again")) {
      Object.entries(keyed).forEach(([name, key]) => { tile(name).click(); type(key); });
      sessionStorage.setItem("again", 1);
      location.reload();
      await new Promise(() => {});
    }
    report.labels = Object.keys(keyed).map((name) => tile(name).querySelector(".mine").textContent);
    report.second = data.classes[tile("deep/stripes/0.jpg").dataset.likeliest.split(" ")[1]];
    report.button = at("export").textContent;
    report.suggested = document.querySelectorAll("#suggested .next").length;
    report.file = await enlarged("ü 1#?.jpg");
    report.fallback = await enlarged("z.tiff");
    report.choices = [...at("look-likeliest").children].map((one) => one.textContent[0]);
    report.steps = ["n", "ArrowRight", "b", "ArrowLeft"].map((key) => (type(key), current));
    """
    (shown,) = probed(browser, (report.page, script))
    one, two, three, four = shown["steps"]
    assert four < one == three < two
    assert shown["labels"][:2] == [f"changed to {shown['second']}", "changed to unknown"]
    assert shown["labels"][2].startswith("correct: ")
    assert (shown["file"], shown["fallback"]) == ([900, "file:"], [90, "data:"])
    assert (shown["suggested"], shown["choices"]) == (2, ["1", "2", "3"])
    assert shown["button"] == "Export 3 corrected labels"


WIDTHS = """<style>section.class { content-visibility: visible !important; }</style><script>
window.addEventListener("load", () => { document.querySelectorAll(".all").forEach((b) => b.click());
const width = (one) => Math.round(one.getBoundingClientRect().width);
const tracks = [...document.querySelectorAll(".bars .track")].map(width);
parent.postMessage([window.innerWidth, document.documentElement.scrollWidth, tracks], "*");
});</script></body>"""


def test_all_sections_on_phones_and_desktops(
    strange: tuple[Path, Path], tmp_path: Path, browser: str
) -> None:
    """None is too wide; the bars of all classes have one length, whatever the counts and names."""
    (tmp_path / "a.csv").write_text(f"name,label\n0,{'a_long_name_' * 9}\n3,unknown\n")
    report = classify(*strange, tmp_path, settings(corrected=tmp_path / "a.csv"))
    text, rows = report.page.read_text(), made("rows", 3001)
    assert all(f'id="{name}"' in text for name in ("review", "corrected", "suspects"))
    views = (text, 390), (text, 1440), (made("pictures"), 390), (rows, 1200), (rows, 500)
    shown = posted(browser, tmp_path, *((with_probe(page, WIDTHS), wide) for page, wide in views))
    for (_, wide), (inner, needed, tracks) in zip(views, shown, strict=True):
        assert inner == needed == wide
        (track,) = set(tracks)
        assert track > (0.8 if wide < 600 else 0.1) * wide


def test_five_thousand_samples(
    tmp_path: Path, browser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading, filtering and opening take time in proportion to the samples shown, or less.

    Compared with a page of fewer in the same minute, as other work may slow both of them down.
    """
    drawn = []
    for number in range(30):
        pattern(number % 3, number, (200, 150)).save(tmp_path / f"{number}.png")
        drawn.append(thumbnail(str(tmp_path / f"{number}.png"), 160))
    again = itertools.cycle(drawn)
    monkeypatch.setattr(module, "thumbnail", lambda path, side: next(again))
    classes = tuple(f"kind {k}" for k in range(52))
    script = """
    report.load = performance.now();
    report.samples = document.querySelectorAll(".sample").length;
    const work = (text) => {
      const start = performance.now();
      at("search").value = text;
      show();
      document.querySelector("#review .sample:not([hidden])").click();
      at("look-save").click();
      document.body.getBoundingClientRect();
      return performance.now() - start;
    };
    report.work = Math.min(...["kind 7", "", "kind 1", "", "kind 3"].map(work));
    document.querySelector("main").remove();  // printing all of it takes long
    """
    found = []
    for count, shots in ((250, 1), (5000, 20)):
        path = tmp_path / f"{count}.html"
        path.write_text(made("pictures", count, classes, shots=shots), encoding="utf-8")
        found += probed(browser, (path, script), real_time=True)
    few, many = found
    more = many["samples"] / few["samples"]
    assert more > 4
    for name in ("load", "work"):
        assert 0 < many[name] < 3 * more * few[name]
    assert many["load"] + many["work"] < 20_000
