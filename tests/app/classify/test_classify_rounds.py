"""Several rounds: saved models, corrected labels, a check of the labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classify_data import (
    NAMES,
    column,
    embeddings,
    feature_columns,
    picture_folders,
    refused,
    said,
    settings,
    table,
    write_table,
)
from encoder_models import stand_in_sentences

from paddle_ext.app.answering import answer, strangeness_of
from paddle_ext.app.classify import classify, stream
from paddle_ext.app.outcome import check_labelled, expected_accuracy
from paddle_ext.app.read.model import load_model
from paddle_ext.app.read.samples import Batch, Labelled

CPU = torch.device("cpu")


# --- the table ------------------------------------------------------------------------------------


def test_novelty_needs_two_of_a_class(files: tuple[Path, Path], tmp_path: Path) -> None:
    support, labels, _, _ = embeddings()
    first = [int(np.flatnonzero(labels == k)[0]) for k in range(len(NAMES))]
    np.savez(tmp_path / "one.npz", features=support[first], labels=NAMES[labels[first]])
    report = classify(tmp_path / "one.npz", files[1], tmp_path / "out", settings())
    assert report.answers.novelty is None
    assert {row["novelty"] for row in table(report.table)} == {""}
    assert report.outcome.checked is None
    assert not report.table.with_name("labelled.csv").exists()
    into_file = stream(tmp_path / "one.npz", files[1], tmp_path / "out.csv", settings())
    for one in (report, into_file):
        assert any("do not trust the probabilities" in note for note in one.notes)
    many = np.repeat(first, [25] + [1] * (len(first) - 1))
    rows = support[many] + 0.1 * np.random.default_rng(0).normal(size=(len(many), support.shape[1]))
    np.savez(tmp_path / "many.npz", features=rows, labels=NAMES[labels[many]])
    uneven = classify(tmp_path / "many.npz", files[1], tmp_path / "uneven", settings())
    few = "half of the classes or more have fewer than 3 labelled samples"
    assert any(few in note for note in uneven.notes)
    more = classify(*files, tmp_path / "more", settings())
    assert not any("trust" in note or "calibrated" in note for note in more.notes)


def test_what_few_labels_allow(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Two labels of each class are too few for a rate of 5 %, and probabilities are rough."""
    support, labels, _, _ = embeddings()
    two = np.arange(len(labels)) % 4 < 2
    np.savez(tmp_path / "two.npz", features=support[two], labels=NAMES[labels[two]])
    told = said(tmp_path / "two.npz", files[1], "--output", tmp_path / "out")
    assert "half of the classes or more have fewer than 3 labelled samples" in told
    assert "19 labelled samples, of classes with two or more, are needed to say which" in told
    assert {row["novelty"] for row in table(tmp_path / "out" / "answers.csv")} == {""}
    three = (np.arange(len(labels)) % 4 < 3) & (labels < 6)
    np.savez(tmp_path / "three.npz", features=support[three], labels=NAMES[labels[three]])
    told = said(tmp_path / "three.npz", files[1], "--output", tmp_path / "out")
    assert (
        f"calibrated on {three.sum()} labelled samples, and need 20, of classes with 3 or" in told
    )


def test_names_and_labelled_samples_of_some_classes() -> None:
    """Novelty is given for classes with labelled samples."""
    labels = torch.arange(2).repeat(10)
    features = torch.eye(3)[labels] + 0.01 * torch.arange(60).view(20, 3)
    names = ("a", "b", "c")
    labelled = Labelled(features, labels, names, ("",) * 20, prototypes=torch.eye(3))
    batch = Batch(["x", "y"], torch.tensor([[0.0, 0.1, 1.0], [1.0, 0.1, 0.0]]), ["", ""], None)
    found = answer(labelled, [batch])
    assert found.labels.tolist() == [2, 0]
    assert found.novelty.isnan().tolist() == [True, False]


def test_calibration_error_by_hand(files: tuple[Path, Path], tmp_path: Path) -> None:
    report = classify(*files, tmp_path, settings())
    assert report.answers.calibration_error() is None
    answers = replace(
        report.answers,
        labels=torch.zeros(40, dtype=torch.int64),
        probability=torch.tensor([0.95] * 20 + [0.65] * 20),
        truth=[NAMES[0]] * 10 + [NAMES[1]] * 10 + [NAMES[0]] * 13 + [NAMES[1]] * 7,
    )
    assert answers.calibration_error() == pytest.approx((0.45 + 0.0) / 2, abs=1e-6)
    some = replace(answers, truth=[""] * 20 + answers.truth[20:])
    assert some.calibration_error() == pytest.approx(0.0, abs=1e-6)


# --- the labelled samples -------------------------------------------------------------------------


def test_wrong_labels_are_reported(files: tuple[Path, Path], tmp_path: Path) -> None:
    support, labels, _, _ = embeddings()
    labels[5] = (labels[5] + 2) % len(NAMES)
    np.savez(files[0], features=support, labels=NAMES[labels])
    told = said(*files, "--truth", "labels", "--output", tmp_path / "out")
    assert "calibration: probabilities are off by" in told
    assert "labels to look at first: row 5, in the order of" in told  # without an alarming count
    rows = table(tmp_path / "out" / "labelled.csv")
    assert list(rows[0]) == ["sample", "label", "doubt", "suggestion"]
    assert len(rows) == len(labels)
    assert (rows[0]["sample"], rows[0]["label"]) == ("row 5", NAMES[labels[5]])
    assert rows[0]["suggestion"] == NAMES[1]
    doubts = [float(row["doubt"]) for row in rows]
    assert doubts == sorted(doubts, reverse=True)
    page = (tmp_path / "out" / "answers.html").read_text()
    assert "Labels to look at first" in page
    assert "look wrong" not in page
    assert f"labelled <b>{NAMES[labels[5]]}</b>, probably <b>{NAMES[1]}</b>" in page


def test_corrected_samples_do_not_say_what_is_ordinary() -> None:
    """They were chosen because they look strange; they do if there are few others."""
    labels, random = torch.arange(80) % 4, torch.Generator().manual_seed(0)
    rows, noise = 5 * torch.eye(4, 16)[labels], torch.randn(80, 16, generator=random)
    rows += noise * torch.where(torch.arange(80) < 40, 1, 4).unsqueeze(1)
    found = []
    for trusted in (None, torch.arange(80) >= 40, torch.arange(80) >= 4):
        known = Labelled(rows, labels, tuple("abcd"), ("",), trusted=trusted)
        strange = rows[:1] - 4 * torch.eye(4, 16)[:1], labels[:1]
        found.append(float(strangeness_of(known, CPU).of(*strange)))
    assert found[0] == found[2] < found[1]


def test_classes_without_samples_are_not_suggested() -> None:
    features = torch.eye(3).repeat(4, 1) + 0.05 * torch.randn(12, 3)
    labels = torch.tensor([0, 1, 3] * 4)  # class 2 has a name alone
    labelled = Labelled(features, labels, tuple("abcd"), ("",) * 12, prototypes=torch.rand(4, 3))
    found = check_labelled(labelled, CPU)
    assert found.suggestion.tolist() == labels.tolist()


def test_samples_of_a_thing_do_not_vouch_for_each_other() -> None:
    labels = torch.arange(30) % 3  # nothing to do with the features
    features, same = torch.randn(30, 8, generator=torch.Generator().manual_seed(0)), range(30)
    for copies in (1, 3):
        thing = tuple(f"t{k}" for k in same) * copies
        many = features.repeat(copies, 1), labels.repeat(copies)
        found = check_labelled(Labelled(*many, ("a", "b", "c"), ("",), same=thing), CPU)
        accuracy = expected_accuracy(found, 90)
        assert int(accuracy.tested.sum()) == 30
        assert int(accuracy.right.sum()) < 20
        assert len(found.doubt) == 30 * copies


def test_new_samples_are_judged_like_single_labelled_ones() -> None:
    """Means of the samples of a thing are nearer to one another than any new sample is."""
    torch.manual_seed(0)
    labels, new = torch.arange(4).repeat(10), torch.arange(4).repeat(50)
    samples = 9 * torch.eye(4, 32)[labels.repeat(5)] + torch.randn(200, 32)
    thing = tuple(map(str, range(40))) * 5
    kind: Any = {"rows_are": "embeddings", "same": thing}
    labelled = Labelled(samples, labels.repeat(5), ("a", "b", "c", "d"), ("",), **kind)
    assert labelled.shots().tolist() == [10] * 4
    rows = 9 * torch.eye(4, 32)[new] + torch.randn(200, 32)
    found = strangeness_of(labelled, CPU).of(rows, new)
    assert float((found > 0.95).float().mean()) < 0.15


# --- kept for the next data -----------------------------------------------------------------------


def test_the_model_predicts_like_the_labelled_data(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    saved = tmp_path / "kept" / "model.npz"
    first = classify(*files, tmp_path / "a", settings(save=saved))
    assert saved in first.written
    again = classify(files[1], None, tmp_path / "b", settings(model=saved))
    assert (tmp_path / "a" / "answers.csv").read_bytes() == again.table.read_bytes()
    both = classify(saved, files[1], tmp_path / "c", settings())  # it is a labelled file too
    assert both.table.read_bytes() == again.table.read_bytes()


def test_a_model_of_a_table(tmp_path: Path) -> None:
    """The columns are those of the model; a column of labels in the new table is not a feature."""
    support, labels, query, truth = embeddings(features=3)
    for name, rows, own in (("known", support, NAMES[labels]), ("new", query, truth)):
        write_table(tmp_path / f"{name}.csv", {**feature_columns(rows), "label": own})
    saved = tmp_path / "model.npz"
    first = classify(tmp_path / "known.csv", tmp_path / "new.csv", tmp_path, settings(save=saved))
    again = classify(tmp_path / "new.csv", None, tmp_path / "b", settings(model=saved))
    assert torch.equal(first.answers.labels, again.answers.labels)


@pytest.mark.usefixtures("quick_network")
def test_a_model_of_pictures(tmp_path: Path) -> None:
    labelled, new = picture_folders(tmp_path)
    saved = tmp_path / "model.npz"
    first = classify(labelled, new, tmp_path / "a", settings(save=saved))
    again = classify(new, None, tmp_path / "b", settings(model=saved))
    assert first.answers.names == again.answers.names
    torch.testing.assert_close(first.answers.probability, again.answers.probability)
    other, timm = tmp_path / "other.npz", {"backbone": "timm:resnet18"}
    np.savez(other, **dict(np.load(saved)) | timm)
    assert len(classify(new, None, tmp_path / "c", settings(model=other, **timm))) == len(first)
    for model, more, message in ((saved, timm, "omitted with"), (other, {}, "given again, if you")):
        with pytest.raises(ValueError, match=f"backbone must be {message}"):
            classify(new, None, tmp_path, settings(model=model, **more))
    np.savez(tmp_path / "rows.npz", features=np.eye(3))
    with pytest.raises(ValueError, match="model must match the data to classify"):
        classify(tmp_path / "rows.npz", None, tmp_path, settings(model=saved))


def test_a_model_of_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "text.npz", text=np.eye(4)[:3], class_names=["a", "b", "c"])
    np.savez(tmp_path / "new.npz", features=np.eye(4)[[0, 2, 2]] + 0.1)
    saved = tmp_path / "model.npz"
    named = settings(names=tmp_path / "text.npz", save=saved)
    first = classify(tmp_path / "new.npz", None, tmp_path / "a", named)
    again = classify(tmp_path / "new.npz", None, tmp_path / "b", settings(model=saved))
    assert first.answers.labels.tolist() == again.answers.labels.tolist() == [0, 2, 2]
    both = settings(model=saved, names=tmp_path / "text.npz")
    with pytest.raises(ValueError, match="names must be omitted with a model"):
        classify(tmp_path / "new.npz", None, tmp_path, both)


@pytest.mark.parametrize("named", [False, True])
def test_a_model_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    """It has no texts, and its labelled samples count all the same, also when it is saved again."""
    stand_in_sentences(monkeypatch, lambda text: [1 + text.count(x) for x in "abyz"])
    texts = ["aaa b", "aab a", "zzz y", "zyz z", "aba", "zzy", "azz"]
    write_table(tmp_path / "a.csv", {"said": texts, "label": [*"aazz", "", "", ""]})
    write_table(tmp_path / "b.csv", {"said": texts[4:]})
    (tmp_path / "names.txt").write_text("a\nz\n")
    new, saved, out = tmp_path / "b.csv", tmp_path / "m.npz", ("--output", tmp_path / "out")
    names = ("--names", tmp_path / "names.txt") if named else ()
    answers = []
    for words in ((tmp_path / "a.csv", "--text", "said", *names), *[(new, "--model", saved)] * 2):
        assert "labelled 4 samples of 2 classes" in said(*words, "--save", saved, *out)
        rows = table(tmp_path / "out" / "answers.csv")
        answers.append([(row["label"], row["probability"]) for row in rows])
    assert [label for label, _ in answers[0][:2]] == ["a", "z"]
    assert answers[0] == answers[1] == answers[2]
    np.savez(saved, **dict(np.load(saved)) | {"encoder": np.array("someone/model")})
    told = refused(new, "--model", saved, *out)
    assert "--encoder must be given again, if you trust this model: someone/model, got none" in told
    said(new, "--model", saved, "--encoder", "here/model", *out)


def test_invalid_models(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no")
    for path in (files[0], tmp_path / "text.npz", tmp_path / "nothing.npz"):
        with pytest.raises(ValueError, match="model must be a file written by classify --save"):
            classify(files[1], None, tmp_path, settings(model=path))
    saved = tmp_path / "model.npz"
    classify(*files, tmp_path, settings(save=saved))
    with pytest.raises(ValueError, match="model must replace the labelled samples"):
        classify(*files, tmp_path, settings(model=saved))
    with pytest.raises(ValueError, match=r"save must be a file ending in \.npz"):
        classify(*files, tmp_path, settings(save=tmp_path / "model.pt"))
    contents = dict(np.load(saved))
    wide = np.zeros((len(NAMES), 99), np.float32)
    for name, odd in (
        ("labels", contents["labels"] + 90),
        ("labels", contents["labels"] * 1.0),
        ("labels", contents["labels"].clip(1)),
        ("class_names", np.full(len(NAMES), "a")),
        ("features", contents["features"] * np.float32("nan")),
        ("text", wide),
        ("text", wide[0, 0]),
        ("text", wide[1:, : contents["features"].shape[1]]),
    ):
        np.savez(saved, **contents | {name: odd})
        with pytest.raises(ValueError, match=r"model must be intact, got .*model\.npz"):
            load_model(saved)
    for odds in ({"logit_scale": "x"}, {"features": 5.0}, {"class_names": wide}):
        np.savez(saved, **contents | odds)
        with pytest.raises(ValueError, match="model must be a file written by classify --save"):
            load_model(saved)
    np.savez(tmp_path / "wide.npz", features=np.zeros((3, 99)))
    classify(*files, tmp_path, settings(save=saved))
    with pytest.raises(ValueError, match="must have as many features as"):
        classify(tmp_path / "wide.npz", None, tmp_path, settings(model=saved))


def test_columns_given_again(tmp_path: Path) -> None:
    """Those of the saved model may be named again."""
    rows = {"a": [0.0, 3.0] * 10, "kind": ["x", "y"] * 10, "other": [1.0] * 20}
    known = write_table(tmp_path / "known.csv", {**rows, "label": ["p", "q"] * 10})
    new, saved = write_table(tmp_path / "new.csv", rows), tmp_path / "m.npz"
    own = ("--embedding", "a,kind")
    said(known, new, *own, "--save", saved, "--output", tmp_path / "a")
    for again in ((), own):
        said(new, "--model", saved, *again, "--output", tmp_path / "b")
        assert column(tmp_path / "b" / "answers.csv", "label") == ["p", "q"] * 10
