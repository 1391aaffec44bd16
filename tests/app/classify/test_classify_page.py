"""The page of ``paddle-ext classify``, in a browser and as text."""

import csv
import http.server
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from classify_data import refused, said
from pages import CLASSES, made, posted, probed

from paddle_ext.app.corrections import read_corrections
from paddle_ext.app.write import page as module
from paddle_ext.app.write.page import MOST_OF_A_CLASS, MOST_TO_CHECK, caption

# What only a browser knows.
LOOK = """
Object.assign(report, {
  width: document.documentElement.scrollWidth,
  inner: window.innerWidth,
  sections: document.querySelectorAll("section.class").length,
  samples: document.querySelectorAll(".sample").length,
  loaded: performance.getEntriesByType("resource")
    .filter((e) => !e.name.startsWith("data:")).length,
  titles: [...document.querySelectorAll("section.class > h2")]
    .map((h) => h.firstChild.textContent),
  counts: [...document.querySelectorAll(".bars .count")].map((c) => c.textContent),
  targets: [...document.querySelectorAll(".bars a")].every((a) => document.querySelector(a.hash)),
  scripts: document.scripts.length,
});
const visible = () => [...document.querySelectorAll(".sample")].filter((s) => !s.hidden).length;
at("search").value = "number 3";
show();
report.found = visible();
at("search").value = "no such thing";
show();
report.nothing = !at("nothing").hidden;
at("search").value = "";
at("doubtful").checked = true;
show();
report.doubtful = visible();
"""
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, browser: str) -> list[dict[str, Any]]:
    """Of the scripts, each on a page from disk."""
    folder = tmp_path_factory.mktemp("pages")
    pictures, texts = folder / "pictures.html", folder / "texts.html"
    with pytest.MonkeyPatch.context() as patch:  # the images do not exist
        patch.setattr(module, "thumbnail", lambda path, side: PIXEL)
        pictures.write_text(made("pictures"), encoding="utf-8")
    long = caption("texts", "number 9", f"{'many words ' * 150}end of")
    texts.write_text(made("texts").replace("number 9 of", long), encoding="utf-8")
    return probed(browser, (pictures, LOOK), (pictures, CORRECT), (texts, READ), width=1200)


def test_in_a_browser(reports: list[dict[str, Any]]) -> None:
    """The classes, the counts, the search; nothing is loaded; names are not markup."""
    shown = reports[0]
    assert shown["titles"] == ["Most likely wrong first", *CLASSES[:3], "Classes without a sample"]
    assert shown["counts"] == ["30", "30", "30"]
    assert (shown["sections"], shown["samples"]) == (5, 94)  # and a labelled one of each class
    assert shown["targets"] is True
    assert shown["loaded"] == 0
    assert shown["scripts"] == 3  # its own, its data, and the probe
    assert shown["found"] == 11  # number 3, and 30 to 39
    assert shown["nothing"] is True
    assert shown["doubtful"] == 9
    assert shown["width"] <= shown["inner"] == 1200


CORRECT = """
const first = document.querySelector(".sample");
const label = at("look-class");
first.click();
report.open = at("look").open;
report.large = at("look-image").getBoundingClientRect().width
  > 2 * (first.querySelector("img")?.getBoundingClientRect().width ?? 0);
report.offered = document.querySelectorAll("#classes option").length;
report.before = label.value;
report.disabled = at("export").disabled;
label.value = '=new, "one"';
at("look-save").click();
report.asked = at("ask-text").textContent;
at("ask-new").click();
report.marked = first.classList.contains("corrected");
report.mine = first.querySelector(".mine").textContent;
report.next = at("look-said").textContent;
at("look-save").click();  // the second one is right
at("look-undo").click();  // of the third nothing was said
at("look-close").click();
report.button = at("export").textContent;
report.file = corrections();
let saved = null;
URL.createObjectURL = (blob) => { saved = blob; return "data:,"; };
HTMLAnchorElement.prototype.click = function () { report.download = this.download; };
at("export").click();
report.same = (await saved.text()) === report.file;
report.how = !at("how").hidden;
"""


def test_labels_are_corrected_and_exported(reports: list[dict[str, Any]], tmp_path: Path) -> None:
    """A sample is enlarged; its new label is exported to a file for `--corrected`."""
    shown = reports[1]
    for name in ("open", "large", "disabled", "marked", "same", "how"):
        assert shown[name] is True, name
    assert shown["offered"] == len(CLASSES) + 1  # and unknown
    assert shown["asked"] == "New class '=new, \"one\"'?"
    assert shown["before"] == CLASSES[0]
    assert shown["mine"] == 'changed to =new, "one"'
    assert str(shown["next"]).startswith(f"predicted: {CLASSES[1]}, ")
    assert shown["button"] == "Export 2 corrected labels"
    assert shown["download"] == "corrected.csv"
    (tmp_path / "corrected.csv").write_bytes(str(shown["file"]).encode())
    found = read_corrections(tmp_path / "corrected.csv")
    assert list(found.values()) == ['=new, "one"', CLASSES[1]]
    assert list(found) == [("number 0", "new", "x0"), ("number 10", "new", "x10")]


READ = """
const long = document.querySelector('[data-name="number 9"]');
report.lines = long.querySelector(".who").getBoundingClientRect().height / 23;
long.click();
report.text = at("look-text").textContent;
"""


def test_a_long_text_can_be_read(reports: list[dict[str, Any]]) -> None:
    """Its tile has a few lines, and the opened sample all of it."""
    shown = reports[2]
    assert shown["lines"] < 6
    assert "end of" in shown["text"]


def test_markup_that_got_into_the_page_does_nothing(tmp_path: Path, browser: str) -> None:
    """The policy allows the script of the page alone, and lets nothing reach the network."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run = "parent.postMessage('obeyed', '*')"
    address = f"http://127.0.0.1:{server.server_port}"
    smuggled = f'<script>{run}</script><img src="data:," onerror="{run}"><img src="{address}/leak">'
    page = made("rows")
    free = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    assert free != page
    try:
        # The frame of a page goes when it posts, so the free one does so after its request.
        late = f'<script>let ran = true</script><img src="{address}/free" onerror="if (ran) {run}">'
        pairs = (free, late), (page, smuggled)
        views = ((text.replace("</body>", f"{more}</body>"), 800) for text, more in pairs)
        assert posted(browser, tmp_path, *views) == ["obeyed"]
        assert asked == ["/free"]
    finally:
        server.shutdown()
        server.server_close()


# --- without a browser --------------------------------------------------------------------------


def test_large_classes_are_cut(tmp_path: Path) -> None:
    text = made("rows", 6000)
    listed = MOST_TO_CHECK["rows"]
    assert text.count('class="sample" tabindex') == 3 * MOST_OF_A_CLASS
    assert text.count('class="sample doubtful" tabindex') == listed
    assert f"{2000 - MOST_OF_A_CLASS - listed // 3:,} more in answers.csv" in text
    assert len(text) < 500_000


def test_doubtful_samples_are_in_one_list() -> None:
    text = made("rows")
    review = text[text.index('id="review"') : text.index('id="class-0"')]
    assert re.findall(r'<li class="sample( doubtful)?"', review) == [" doubtful"] * 9
    first = text[text.index('id="class-0"') : text.index('id="class-1"')]
    assert re.findall(r'<li class="sample( doubtful)?"', first) == [""] * 27
    assert '27 here; 3 in <a href="#to-check">the list to check</a>.' in first


def test_intervals_end_within_their_track() -> None:
    """Also where an interval reaches beyond the largest class."""
    track = r'<b title="[^"]*" style="left:([\d.]+)%;width:([\d.]+)%">'
    ends = [float(left) + float(width) for left, width in re.findall(track, made("rows"))]
    assert len(ends) == 3
    assert 99.8 < max(ends) < 100.2  # the longest fills the track


def test_a_class_of_one_sample_is_unsure(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b,label\n1,2,x\n2,1,y\n1.1,2,\n")
    shown = said(tmp_path / "table.csv", "--output", tmp_path)
    assert "1 sample, 1 of 2 classes found, 1 of them unsure" in shown
    text = (tmp_path / "answers.html").read_text(encoding="utf-8")
    assert "<b>1</b><span>of 2 classes found, 1 of them unsure</span>" in text
    assert '<li class="unsure"' in text


def test_formulas_and_escapes_stay_text(tmp_path: Path) -> None:
    """Names from a file do nothing to a spreadsheet or a terminal."""
    red = "\x1b[31mred"
    rows = [f"1,2,=HYPERLINK(1),a{red}", "2,1,@y,b", "1.1,2,,=3+4", "2,1.1,,-7"]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,label,+who", *rows, ""]))
    options = ("--id", "+who", "--embedding", "a,b", "--output", tmp_path)
    done = said(tmp_path / "table.csv", *options)
    with (tmp_path / "answers.csv").open(newline="", encoding="utf-8-sig") as file:
        header, first, second = csv.reader(file)
    assert (header[0], first[0], second[0]) == ("'+who", "'=3+4", "-7")
    assert {first[1], second[1]} <= {"'=HYPERLINK(1)", "'@y"}
    failed = refused(tmp_path / f"no{red}.csv")
    assert "\\x1b[31mred" in failed
    assert "\x1b[31m" not in done + failed


def test_markup_is_escaped_and_complete() -> None:
    text = made("texts")
    assert "<b onmouseover" not in text
    assert "&lt;b onmouseover" in text
    assert "What is in &lt;new&gt;" in text
    assert text.count("<section") == text.count("</section>") == 5
    assert not re.search(r'(src|href)="(?!data:|#)', text)
