"""Samples to check in one list, samples of no class, and the expected accuracy."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from classify_data import NAMES, STRANGE, embeddings, run, said, settings, strange_files, table

from paddle_ext.app import outcome
from paddle_ext.app.answering import merged
from paddle_ext.app.classify import Answers, classify
from paddle_ext.app.outcome import Expected, ExpectedAccuracy, to_check
from paddle_ext.prevalence import from_sums

# --- one list -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strange_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the command said of `strange_files`, and its folder, which is next to them."""
    folder = tmp_path_factory.mktemp("strange")
    return said(*strange_files(folder), "--output", folder / "out"), folder / "out"


def test_one_list_to_check(strange_run: tuple[str, Path]) -> None:
    """Strangers and doubtful samples are in one list with the reason; classes say so."""
    told, out = strange_run
    rows = table(out / "answers.csv")
    assert [row for row in STRANGE if rows[row]["check"] == "unknown"] == STRANGE
    count = sum(bool(row["check"]) for row in rows)
    unknown = sum(row["check"] == "unknown" for row in rows)
    doubtful = f"{count - unknown} doubtful, " if count > unknown else ""
    assert f"to check: {count} samples, see the page: {doubtful}{unknown} possibly of an " in told
    text = (out / "answers.html").read_text()
    review = text.partition('id="review"')[2].partition("</section>")[0]
    listed = re.findall(r'<li class="sample[^>]*data-name="(\d+)"', review)
    assert len(listed) == count
    assert set(map(str, STRANGE)) <= set(listed[:6])  # most likely wrong
    for row in STRANGE:
        assert text.count(f'data-name="{row}"') == 1  # and not in its class as well
    label = rows[40]["label"]
    assert f'<b class="what">{label}</b>' in review
    assert f"unlike the labelled {label}" in review
    assert f"<b>{count}</b><span>to check: " in text
    strange = sum(row["label"] == label and bool(row["check"]) for row in rows)
    total = sum(row["label"] == label for row in rows)
    own = next(part for part in text.split("<section") if f'data-name="{label}"' in part)
    assert f"{total} sample" in own
    assert f"{total - strange} here; {strange} in " in own
    assert f'title="{strange} of {total} to check"' in text


def test_strangers_are_grouped(strange: tuple[Path, Path], tmp_path: Path) -> None:
    report = classify(*strange, tmp_path / "out", settings())
    assert STRANGE in report.answers.alike
    group = report.page.read_text().partition('<li class="group')[2].partition("</ul></li>")[0]
    assert "5 that resemble one another." in group
    assert "Label all 5" in group
    # Known by name, they are found again.
    (tmp_path / "a.csv").write_text("name,label\n40,yew\n41,yew\n")
    again = classify(*strange, tmp_path / "out", settings(corrected=tmp_path / "a.csv"))
    assert {again.answers.label(row) for row in STRANGE} == {"yew"}


def test_groups_by_hand() -> None:
    products = torch.eye(5)
    for one, two, product in ((0, 3, 0.9), (1, 4, 0.8), (0, 2, 0.6), (2, 3, 0.5), (0, 1, 0.3)):
        products[one, two] = products[two, one] = product
    assert merged(products, 0.7) == [[0, 3], [1, 4]]
    assert merged(products, 0.52) == [[0, 2, 3], [1, 4]]
    assert merged(products, 0.95) == []
    row = torch.nn.functional.normalize(torch.randn(1, 64), dim=-1).expand(50, -1)
    copies = row @ row.mT + 1e-7  # as rounding leaves it
    assert merged(copies, 0.9) == [list(range(50))]


def test_the_order_is_the_chance_of_an_error() -> None:
    """A stranger among many ordinary samples may be chance; one far beyond them is not."""
    N = 100
    novelty = torch.linspace(0, 0.97, N).double()  # three of them over 0.95 by chance
    novelty[7] = 0.9999
    doubt = torch.full((N,), 0.01)
    doubt[3], doubt[5] = 0.6, 0.995
    labels, zeros = torch.zeros(N, dtype=torch.int64), torch.zeros(N)
    names = [str(row) for row in range(N)]
    present = torch.tensor([True, True])
    counts = torch.tensor([N, 0.0])
    answers = Answers(
        class_names=("a", "b"),
        names=names,
        texts=names,
        labels=labels,
        second=labels + 1,
        probability=1 - doubt,
        second_probability=zeros,
        doubt=doubt,
        present=present,
        prevalence=from_sums(torch.stack([counts, counts, 0 * counts, counts])),
        likeliest=torch.stack([labels, labels + 1], 1),
        novelty=novelty,
    )
    found = to_check(answers)
    assert [one.row for one in found[:3]] == [5, 7, 3]
    assert found[1].wrong == pytest.approx(0.99, abs=0.005)
    assert {one.row for one in found[3:]} == {97, 98, 99}
    assert all(one.wrong < 0.3 for one in found[3:])


def test_samples_of_another_source(files: tuple[Path, Path], tmp_path: Path) -> None:
    note = "or all samples are from another source, and then probabilities are too high"
    assert not any(note in line for line in classify(*files, tmp_path / "a", settings()).notes)
    _, _, query, _ = embeddings()
    away = np.random.default_rng(0).normal(size=query.shape[1])
    np.savez(tmp_path / "away.npz", features=query + away)
    report = classify(files[0], tmp_path / "away.npz", tmp_path / "b", settings())
    assert any(note in line for line in report.notes)
    assert note in report.page.read_text()


def notes_of(*words: object) -> set[str]:
    """The notes of the command, except those about files."""
    return {line for line in run(*words).output.splitlines() if line.startswith("note: ")}


@pytest.mark.parametrize("shots", [1, 2, 4])
def test_one_file_says_what_a_folder_says(tmp_path: Path, shots: int) -> None:
    """Samples of another source, few labels: the same notes, and the same expected accuracy."""
    support, labels, query, _ = embeddings()
    some = np.arange(len(labels)) % 4 < shots
    np.savez(tmp_path / "known.npz", features=support[some], labels=NAMES[labels[some]])
    away = np.random.default_rng(0).normal(size=query.shape[1])
    np.savez(tmp_path / "away.npz", features=query + away)
    files = tmp_path / "known.npz", tmp_path / "away.npz"
    in_folder = notes_of(*files, "--output", tmp_path / "out")
    assert in_folder
    assert notes_of(*files, "--output", tmp_path / "answers.csv") == in_folder
    if shots == 4:
        assert any("are unlike the labelled ones" in note for note in in_folder)
        told = said(*files, "--output", tmp_path / "answers.csv")
        assert "expected accuracy of single samples of known classes: " in told
        assert "labelled samples of the classes found, each classified by the others" in told


def test_a_sensor_that_is_stuck(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Most samples are copies of one: a note on the terminal, the page, and of one file."""
    _, _, query, _ = embeddings()
    np.savez(tmp_path / "stuck.npz", features=np.concatenate([query[:15], query[[0] * 25]]))
    note = "26 of 40 samples are copies of one, most of their batch: is a sensor or the encoder"
    for output in (tmp_path / "out", tmp_path / "answers.csv"):
        assert note in said(files[0], tmp_path / "stuck.npz", "--output", output)
        assert "copies of one" not in said(*files, "--output", output.with_name(f"x{output.name}"))
    assert note in (tmp_path / "out" / "answers.html").read_text()


def test_what_is_claimed_beyond_what_is_expected(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence with both numbers, on the terminal and the page, in a folder and one file."""
    claim = r"the mean probability is (\d+) %, but the expected accuracy of single samples (\d+) %"
    assert not re.search(claim, said(*files, "--output", tmp_path / "quiet"))
    monkeypatch.setattr(outcome, "MOST_ABOVE_EXPECTED", -1)
    told = said(*files, "--output", tmp_path / "out")
    page = (tmp_path / "out" / "answers.html").read_text()
    numbers = re.findall(claim, told)
    assert len(numbers) == 1
    assert f"({numbers[0][1]} % (" in told.replace("classes: ", "(")
    assert re.findall(claim, page.replace("The mean", "the mean")) == numbers
    assert re.findall(claim, said(*files, "--output", tmp_path / "answers.csv")) == numbers


def test_a_claim_up_to_ten_points_above_is_not_told() -> None:
    expected = Expected(0.8, 0.7, 0.9, 30)
    assert outcome.about_claim(0.89, expected) == []
    assert outcome.about_claim(0.99, None) == []
    assert "is 91 %, but" in outcome.about_claim(0.91, expected)[0]


def test_one_labelled_example_says_nothing(tmp_path: Path) -> None:
    """No sample of such a class is called a stranger; the page and the terminal say so."""
    support, labels, query, truth = embeddings()
    rows = np.flatnonzero((labels != 4) | (np.arange(len(labels)) == 16))
    np.savez(tmp_path / "known.npz", features=support[rows], labels=NAMES[labels[rows]])
    np.savez(tmp_path / "new.npz", features=query)
    told = said(tmp_path / "known.npz", tmp_path / "new.npz", "--output", tmp_path)
    found = table(tmp_path / "answers.csv")
    elms = [row for row in found if row["label"] == "elm"]
    assert len(elms) == int((truth == 4).sum())
    assert {row["novelty"] for row in elms} == {""}
    assert not any(row["check"] == "unknown" for row in elms)
    sentence = (
        "elm has fewer than two labelled samples, so nothing can be said about whether what is "
        "predicted as such (20 samples) is of an unknown class"
    )
    assert sentence in told
    assert sentence in (tmp_path / "answers.html").read_text()


def test_expected_accuracy_of_two_labels_is_not_trusted(tmp_path: Path) -> None:
    support, labels, query, _ = embeddings(shots=3)
    np.savez(tmp_path / "new.npz", features=query)
    for shots, few in ((2, True), (3, False)):
        rows = [row for row in range(len(labels)) if row % 3 < shots]
        np.savez(tmp_path / "few.npz", features=support[rows], labels=NAMES[labels[rows]])
        output = said(tmp_path / "few.npz", tmp_path / "new.npz", "--output", tmp_path / "out")
        page = (tmp_path / "out" / "answers.html").read_text()
        for text in (output, page):
            assert ("or less: two labels of a class say little" in text) == few
    assert ExpectedAccuracy(torch.tensor([2]), torch.tensor([2])).of_class(0) == (
        1,
        pytest.approx(0.27, abs=0.01),  # as of one test
        1,
        2,
    )


def test_strangers_have_one_share_everywhere(strange_run: tuple[str, Path]) -> None:
    """In the terminal, on the page and in classes.csv; and the classes are without them."""
    told, out = strange_run
    rows = table(out / "classes.csv")
    page = (out / "answers.html").read_text(encoding="utf-8")
    for row in rows:
        share, low, high = (100 * float(row[name]) for name in ("share", "low", "high"))
        words = f"{share:.1f} % ({low:.1f} to {high:.1f})"
        if int(row["samples"]):
            assert words in told
            assert f"share {words}" in page
    assert rows[-1]["class"] == "of no known class"
    assert f"of no known class: {words}" in told
    assert f"Of no known class: {words} of the samples" in page
    assert low <= 100 * len(STRANGE) / len(table(out / "answers.csv")) <= high
    assert share > 5
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1.0, abs=1e-3)


def test_expected_accuracy(strange_run: tuple[str, Path], tmp_path: Path) -> None:
    """From the labelled samples, each classified by the others: one of 24 has a wrong label."""
    told, out = strange_run
    pattern = r"expected accuracy of single samples of known classes: \d+ % \(\d+ to \d+\), from "
    assert re.search(pattern, told)
    classes = {row["class"]: row for row in table(out / "classes.csv")}
    wrong = next(row for row in classes.values() if float(row["recognised"]) < 1)
    assert float(wrong["recognised"]) == pytest.approx(4 / 5, abs=1e-4)
    assert float(wrong["recognised_low"]) < 0.8 < float(wrong["recognised_high"])
    text = (out / "answers.html").read_text()
    assert "<span>expected accuracy of single samples, " in text
    assert re.search(r"<small>100 % of \d labelled samples recognised \(\d+ to 100 %\)", text)
    one = tmp_path / "one.npz"
    support, labels, _, _ = embeddings()
    np.savez(one, features=support[::4], labels=NAMES[labels[::4]])
    assert "expected accuracy" not in said(one, out.parent / "new.npz", "--output", tmp_path)
