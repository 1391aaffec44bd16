"""``paddle-ext classify`` with class names: embeddings, texts, images, messages."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from classify_data import (
    NAMES,
    PRESENT,
    classified,
    column,
    embeddings,
    feature_columns,
    refused,
    write_table,
)
from encoder_models import COLOURS, stand_in_folder, stand_in_sentences
from PIL import Image

from paddle_ext.app import answering
from paddle_ext.app.answering import answer
from paddle_ext.app.classify import Columns, Settings
from paddle_ext.app.read.names import ClassPrompts, embedded_names, read_names, with_labels
from paddle_ext.app.read.samples import Batch, Labelled

Arrays = dict[str, np.ndarray]


BY_NAMES = (
    "do not trust the probabilities: they rest on class names, and three labelled samples of every "
    "class would calibrate them"
)


def centred() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`embeddings`, and plausible text embeddings of the names: near the class means."""
    support, labels, query, truth = embeddings(queries=60)
    random = np.random.default_rng(5)
    means = np.stack([support[labels == k].mean(0) for k in range(len(NAMES))])
    text = means + 0.3 * random.normal(size=means.shape)
    return support, labels, query, truth, text.astype(np.float32)


# --- embeddings ---------------------------------------------------------------------------------


def test_one_file_with_its_names(tmp_path: Path) -> None:
    """No label at all: the class embeddings in the file are enough."""
    _, _, query, truth, text = centred()
    np.savez(tmp_path / "rows.npz", features=query, text=text, class_names=NAMES)
    report = classified(tmp_path / "rows.npz", None, tmp_path)
    assert column(tmp_path / "answers.csv", "label") == NAMES[truth].tolist()
    assert report.answers.class_names == tuple(NAMES)
    assert report.answers.present.nonzero().squeeze(1).tolist() == list(PRESENT)
    assert "Classified by the names of 6 classes." in report.page.read_text()
    assert report.notes == [BY_NAMES]


@pytest.mark.parametrize("key", ["labels", "prototypes"])
def test_labels_of_some_rows(tmp_path: Path, key: str) -> None:
    """Labelled rows of some classes help, whatever the key of the names."""
    support, labels, query, truth, text = centred()
    some = labels < 3
    arrays: Arrays = {
        "features": np.concatenate([support[some], query]),
        "labels": np.concatenate([labels[some], np.full(len(query), -1)]),
        "text" if key == "labels" else "prototypes": text,
        "class_names": NAMES,
        "logit_scale": np.float32(50.0),
    }
    np.savez(tmp_path / "rows.npz", **arrays)
    report = classified(tmp_path / "rows.npz", None, tmp_path)
    assert column(tmp_path / "answers.csv", "label") == NAMES[truth].tolist()
    assert report.answers.names[0] == str(int(some.sum()))
    assert "the names of 6 classes and 12 labelled examples." in report.page.read_text()


def test_all_rows_labelled(tmp_path: Path) -> None:
    """Then all rows are classified; the labels may be their truth."""
    _, _, query, truth, text = centred()
    wrong = truth.copy()
    wrong[:6] = 0
    arrays: Arrays = {"features": query, "text": text, "class_names": NAMES, "labels": wrong}
    np.savez(tmp_path / "rows.npz", **arrays)
    report = classified(tmp_path / "rows.npz", None, tmp_path)
    assert column(tmp_path / "answers.csv", "label") == NAMES[truth].tolist()
    assert report.notes == [
        "every row has a label, so labels were ignored and all rows classified by the names",
        BY_NAMES,
    ]
    report = classified(tmp_path / "rows.npz", None, tmp_path, columns=Columns(truth="labels"))
    assert report.answers.accuracy() == (54 / 60, 60, 0)
    assert report.notes == [BY_NAMES]


def test_names_in_a_file_of_their_own(tmp_path: Path) -> None:
    """Their order is that of the integer labels, of the labelled rows and of the truth."""
    support, labels, query, truth, text = centred()
    np.savez(tmp_path / "text.npz", text=text, class_names=NAMES)
    np.savez(tmp_path / "known.npz", features=support[:8], labels=labels[:8])
    np.savez(tmp_path / "new.npz", features=query, labels=truth)
    chosen = {"names": tmp_path / "text.npz", "columns": Columns(truth="labels")}
    report = classified(tmp_path / "known.npz", tmp_path / "new.npz", tmp_path, **chosen)
    assert report.answers.accuracy() == (1.0, 60, 0)
    assert classified(tmp_path / "new.npz", None, tmp_path, **chosen).answers.accuracy() == (
        1.0,
        60,
        0,
    )
    np.save(tmp_path / "rows.npy", query)
    classified(tmp_path / "rows.npy", None, tmp_path, names=tmp_path / "text.npz")
    assert column(tmp_path / "answers.csv", "label") == NAMES[truth].tolist()
    write_table(tmp_path / "rows.csv", feature_columns(query))
    classified(tmp_path / "rows.csv", None, tmp_path, names=tmp_path / "text.npz")
    assert column(tmp_path / "answers.csv", "label") == NAMES[truth].tolist()


def test_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches in one call give the same as one at a time, whatever their sizes."""
    support, labels, query, truth, text = (torch.from_numpy(x) for x in centred())
    known = Labelled(
        support, labels, tuple(NAMES), ("",) * len(labels), prototypes=text, logit_scale=50.0
    )
    rows = Batch([str(row) for row in range(60)], query, [""] * 60, None)
    found = answer(known, [rows], batch=13)
    assert (found.labels == truth).float().mean() > 0.95
    assert found.names == rows.names
    monkeypatch.setattr(answering, "BATCHES", 1)
    alone = answer(known, [rows], batch=13)
    torch.testing.assert_close(found.probability, alone.probability)
    assert found.labels.tolist() == alone.labels.tolist()
    assert found.present.tolist() == alone.present.tolist()


# --- texts --------------------------------------------------------------------------------------

SENTENCES = ["red as a rose", "deep blue sea", "green grass", "the red sun", "blue, so blue"]


@pytest.fixture
def sentences(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A stand-in for sentence-transformers, which looks for colours; returns the texts it saw."""

    def features(text: str) -> list[float]:
        more = [0.02 * (len(text) % size) + 0.1 for size in (7, 5)]
        return [*(float(colour in text) for colour in COLOURS), *more]

    return stand_in_sentences(monkeypatch, features)


def test_texts(tmp_path: Path, sentences: list[str]) -> None:
    """Names are encoded like the texts, with spaces for underscores."""
    write_table(tmp_path / "tickets.csv", {"sentence": SENTENCES})
    (tmp_path / "names.txt").write_text("light_red\nlight_green\nlight_blue\n")
    chosen = {"columns": Columns(text="sentence"), "names": tmp_path / "names.txt"}
    report = classified(tmp_path / "tickets.csv", None, tmp_path, **chosen)
    colours = ["red", "blue", "green", "red", "blue"]
    assert column(tmp_path / "answers.csv", "label") == [f"light_{colour}" for colour in colours]
    assert sentences[:3] == ["light red", "light green", "light blue"]
    assert "deep blue sea" in report.page.read_text()
    classified(tmp_path / "tickets.csv", None, tmp_path, **chosen, templates=("a {} thing", "{}!"))
    assert "a light red thing" in sentences
    assert "light blue!" in sentences


def test_texts_with_labels_and_truth(tmp_path: Path, sentences: list[str]) -> None:
    """Rows without a label are classified; a column of true classes is not used as labels."""
    labels = ["red", "", "", "", ""]
    write_table(tmp_path / "tickets.csv", {"sentence": SENTENCES, "label": labels})
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    chosen = {"columns": Columns(text="sentence"), "names": tmp_path / "names.txt"}
    report = classified(tmp_path / "tickets.csv", None, tmp_path, **chosen)
    assert column(tmp_path / "answers.csv", "label") == ["blue", "green", "red", "blue"]
    assert "red as a rose" in report.page.read_text()
    chosen["columns"] = Columns(text="sentence", truth="label")
    report = classified(tmp_path / "tickets.csv", None, tmp_path, **chosen)
    assert report.answers.accuracy() == (1.0, 1, 0)
    assert len(report.answers) == 5


# --- images -------------------------------------------------------------------------------------


def coloured(folder: Path, colours: str, seed: int) -> None:
    """Images in folders named by their colours."""
    random = np.random.default_rng(seed)
    for number, colour in enumerate(colours.split()):
        pixels = random.integers(0, 60, size=(40, 50, 3))
        pixels[..., COLOURS[colour]] += 150
        (folder / colour).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / colour / f"{number}.png")


def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By names alone, and by names with labelled folders of some classes."""
    seen = stand_in_folder(tmp_path / "clip", monkeypatch)
    coloured(tmp_path / "photos", "red blue red green blue red", 0)
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    chosen = {
        "names": tmp_path / "names.txt",
        "encoder": str(tmp_path / "clip"),
        "columns": Columns(truth="folder"),
        "cache": tmp_path / "cache",
    }
    report = classified(tmp_path / "photos", None, tmp_path, **chosen)
    assert report.answers.accuracy() == (1.0, 6, 0)
    assert "Classified by the names of 3 classes." in report.page.read_text()
    assert set(seen) == {f"a photo of a {colour}." for colour in COLOURS}
    seen.clear()
    coloured(tmp_path / "known", "red red green", 1)
    report = classified(tmp_path / "known", tmp_path / "photos", tmp_path, **chosen)
    assert report.answers.accuracy() == (1.0, 6, 0)
    assert "the names of 3 classes and 3 labelled examples." in report.page.read_text()
    assert seen == []  # the names were known
    (tmp_path / "names.txt").write_text("red\ta rose, red\tred blood\ngreen\nblue\n")
    report = classified(tmp_path / "photos", None, tmp_path, **chosen)
    assert {"a rose, red", "red blood"} <= set(seen)
    assert report.answers.accuracy() == (1.0, 6, 0)


def test_embeddings_with_the_encoder_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_folder(tmp_path / "clip", monkeypatch)
    rows = np.eye(3, dtype=np.float32)[[0, 2, 2, 1]].repeat(2, 1) - 1 / 3
    np.savez(tmp_path / "rows.npz", features=rows)
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    chosen = {"names": tmp_path / "names.txt", "encoder": str(tmp_path / "clip")}
    model = tmp_path / "model.npz"
    again = {"model": model, "encoder": str(tmp_path / "clip")}
    for options in (chosen | {"save": model}, again):
        classified(tmp_path / "rows.npz", None, tmp_path, **options)
        assert column(tmp_path / "answers.csv", "label") == ["red", "blue", "blue", "green"]
    np.savez(tmp_path / "rows.npz", features=rows[:, :4])
    with pytest.raises(ValueError, match=r"rows.npz must have as many .*names.txt, 6, got 4"):
        classified(tmp_path / "rows.npz", None, tmp_path, **chosen)


# --- files of names -----------------------------------------------------------------------------


def test_names_files(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("\ufeffpolar bear \ncat\ta tabby\ta tom cat \nice_cream\t\n\n \n", "utf-8")
    found = read_names(file)
    assert found.class_names == ("polar bear", "cat", "ice_cream")
    assert found.prompts == ((), ("a tabby", "a tom cat"), ())
    for text, message in {
        "cat\n\ndog\n": r"^names must have a name on each line, got none in line 2 of",
        "cat\n\tan animal\ndog\n": r"^names must have a name on each line, got none in line 2 of",
        "cat\ndog\ncat \n": r"^names must be unique, got 'cat' in lines 1 and 3 of",
        "": r"^names must be at least two, got none in",
        "\n\n": r"^names must be at least two, got none in",
        "cat\n": r"^names must be at least two, got only 'cat' in",
    }.items():
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            with_labels(read_names(file), [], file)
    file.write_bytes(b"\xfe\x00cat")
    with pytest.raises(ValueError, match=r"names.txt must be a text file with one name"):
        read_names(file)


def test_means_of_several_phrases() -> None:
    """Unit-norm before and after, so that a phrase with a long embedding has no more weight."""
    rows = {"x a": [3.0, 4.0], "a x": [0.0, 9.0], "own": [5.0, 0.0]}
    names = ClassPrompts(("a", "b"), ((), ("own",)))
    options = Settings(templates=("x {}", "{} x"), logit_scale=7.0)
    found = embedded_names(
        names, None, lambda texts: torch.tensor([rows[t] for t in texts]), options
    )
    mean = torch.tensor([0.3, 0.9])
    torch.testing.assert_close(found.prototypes, torch.stack([mean / mean.norm(), torch.eye(2)[0]]))
    assert found.logit_scale == 7.0


@pytest.mark.parametrize(
    ("cat", "listed", "message"),
    [
        ("cat", "bird", ""),
        ("cat", "dog\nbird", "must have labels among"),  # all names, but one is missing
        ("birds", "bird", "names must be at least two"),  # meant to be the same
        ("1", "bird\nfish", "must have labels among"),  # numbers of the names
    ],
)
def test_names_of_classes_without_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cat: str, listed: str, message: str
) -> None:
    """Labelled classes join them by name, unless they are meant to be among them."""
    words = ["cat", "dog", "bird"]
    stand_in_sentences(monkeypatch, lambda text: [float(word in text) for word in words])
    texts = ["a cat", "my dog", "dog", "one dog", "the cat", "a bird", "two birds"]
    path = write_table(
        tmp_path / "a.csv",
        {"message": texts, "label": [cat, "2" if cat == "1" else "dog", *[""] * 5]},
    )
    (tmp_path / "names.txt").write_text(listed)
    chosen = {"names": tmp_path / "names.txt", "columns": Columns(text="message")}
    if message:
        with pytest.raises(ValueError, match=message):
            classified(path, None, tmp_path, **chosen)
        return
    report = classified(path, None, tmp_path, **chosen)
    assert column(tmp_path / "answers.csv", "label") == ["dog", "dog", "cat", "bird", "bird"]
    assert any("names of 2 labelled classes were added" in note for note in report.notes)


def test_texts_of_another_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default model is for English; another one may not be, and keywords have no language."""
    stand_in_sentences(monkeypatch, lambda text: [len(text), 1.0, text.count("e")])
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    german = ["Mein Drucker geht nicht", "Ich kann mich nicht anmelden", "Der Schirm ist schwarz"]
    for texts, look, model in (
        (german, ["German"], None),
        (["Mon mot de passe ne marche pas", "Le colis est perdu"], ["French"], None),
        (["мой принтер сломан", "экран чёрный"], ["written in other letters"], None),
        (german, [], "other"),
        (["my printer is broken", "how can I log in", "the screen is black"], [], None),
        (["printer broken", "VPN down", "Outlook", "wifi slow"], [], None),
    ):
        path = write_table(tmp_path / "a.csv", {"message": texts})
        chosen = {"names": tmp_path / "names.txt", "encoder": model}
        notes = classified(path, None, tmp_path, columns=Columns(text="message"), **chosen).notes
        told = "\n".join(notes)
        assert re.findall("the texts look (.*), and the default model is for English", told) == look


# --- what cannot be done ------------------------------------------------------------------------


def test_messages_of_labels(tmp_path: Path) -> None:
    support, labels, query, _, text = centred()
    odd = NAMES[labels].copy().astype(object)
    odd[0], odd[1] = "birsch", "elms"
    np.savez(tmp_path / "text.npz", text=text, class_names=NAMES)
    np.savez(tmp_path / "known.npz", features=support, labels=odd.astype(str))
    np.savez(tmp_path / "new.npz", features=query)
    chosen = {"names": tmp_path / "text.npz"}
    sentence = (
        r"known.npz must have labels among the 6 names of .*text.npz, "
        r"got 'birsch' \(did you mean 'birch'\?\), 'elms' \(did you mean 'elm'\?\)$"
    )
    with pytest.raises(ValueError, match=sentence):
        classified(tmp_path / "known.npz", tmp_path / "new.npz", tmp_path, **chosen)
    np.savez(tmp_path / "known.npz", features=support[:, :9], labels=NAMES[labels])
    with pytest.raises(ValueError, match=r"known.npz must have as many .*text.npz, 16, got 9"):
        classified(tmp_path / "known.npz", tmp_path / "new.npz", tmp_path, **chosen)
    assert not (tmp_path / "answers.csv").exists()


def test_messages_of_stored_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, query, _, text = centred()
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", features=query)
    broken, twice = text.copy(), NAMES.copy()
    broken[2, 3], twice[4] = np.nan, "ash"
    whole: Arrays = {"text": text, "class_names": NAMES}
    for arrays, message in [
        (whole | {"text": text[:5]}, "--names must be as many as their embeddings, 5, got 6 in"),
        (whole | {"text": broken}, "text.npz must have finite features, at most 1e+30, got nan in"),
        (whole | {"text": text[0]}, "--names must be floating-point numbers of shape [K, D], got"),
        (whole | {"class_names": twice}, "--names must be unique, got 'ash' twice in"),
        ({"text": text[:1], "class_names": NAMES[:1]}, "--names must be at least two, got only"),
        (
            whole | {"logit_scale": np.float32(-1)},
            "--logit-scale must be > 0 and at most 1e+06, got -1",
        ),
        (whole | {"logit_scale": np.ones(2)}, "--logit-scale must be one number, got shape [2]"),
        ({"features": text, "class_names": NAMES}, "--names must be a file with 'text' or 'proto"),
        (
            whole | {"text": text[:, :9]},
            "rows.npz must have as many features as text.npz, 9, got 16",
        ),
    ]:
        np.savez("text.npz", **arrays)
        assert message in refused("rows.npz", "--names", "text.npz")


def test_messages_of_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", features=centred()[2])
    np.savez("text.npz", text=np.eye(2, 9, dtype=np.float32), class_names=NAMES[:2])
    coloured(Path("photos"), "red blue", 0)
    Path("names.txt").write_text("red\nblue\n")
    Path("empty.txt").write_text("\n")
    named, stored = "--names names.txt", "rows.npz --names text.npz"
    clip = f"photos {named} --encoder clip"
    for towers, words, message in (
        ({}, "rows.npz", "LABELLED must be a table (.csv, .tsv, .parquet, .xlsx,"),
        ({}, "photos", "if nothing else is given, got photos (or pass --names)"),
        ({}, "photos --names empty.txt --encoder clip", "must be at least two, got none in empty"),
        ({}, "rows.npz --names none.txt", "--names must be a file, got none.txt, which is not one"),
        ({}, f"rows.npz {named}", "--names must be a .npz or .safetensors with embeddings of"),
        ({}, f"rows.npz {named}", "got names.txt (or pass --encoder)"),
        ({}, f"rows.npz {named} --encoder none", "--encoder must be an image-text model on disk"),
        ({}, "rows.npz --template {}", "--template must be omitted unless names are a text file"),
        ({}, f"{stored} --rows table", "--rows must be omitted unless there are numbers without"),
        ({}, f"{stored} --id a", "--id must be omitted unless there is a table, got a"),
        ({}, f"{stored} --text a", "--text must be omitted unless there is a table, got a"),
        ({}, f"{stored} --embedding a", "--embedding must be omitted unless there is a table"),
        ({}, f"{stored} --sep ;", "--sep must be omitted unless there is a table, got ;"),
        ({}, f"{stored} --encoding latin-1", "--encoding must be omitted unless there is a table"),
        ({}, f"photos {named}", "--encoder must be an image-text model on disk to classify images"),
        ({}, f"{clip} --backbone mine", "--backbone must be omitted unless there are images, and"),
        ({}, f"{clip} --template {{}} --template photo", "--template must have {} once, for the"),
        ({}, f"{clip} --logit-scale 0", "--logit-scale must be > 0 and at most 1e+06, got 0"),
        ({"text_width": 5}, clip, "photos must have as many features as names.txt, 5, got 6"),
        ({"text_tower": False}, clip, "--encoder must be an image-text model on disk"),
        (
            {},
            "photos --encoder clip --names text.npz",
            "photos must have as many features as text.npz, 9, got 6",
        ),
    ):
        stand_in_folder(tmp_path / "clip", monkeypatch, **towers)
        assert message in refused(*words.split())
    assert not Path("answers.csv").exists()
