"""Tables: standardised columns where these serve better than unit-norm rows."""

import datetime as dt
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_wine

from paddle_ext import BatchClassifier, PaddleClassifier
from paddle_ext.app.classify import Settings, classify
from paddle_ext.integrations.columns import MOST_CATEGORIES, Columns, TableEncoder, columns_for
from paddle_ext.integrations.model_selection import BatchSplit


def table(K: int, D: int, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each class around well-separated centres, in columns of very different scale."""
    random = np.random.default_rng(seed)
    truth = np.arange(K).repeat(rows)
    centres = 8.0 * np.arange(K)[:, None] if D == 1 else 5 * random.normal(size=(K, D))
    X = 20 + centres[truth] + random.normal(size=(len(truth), D))
    return X * np.logspace(-3, 3, D), truth


def hidden(truth: np.ndarray, rows: int, shots: int) -> np.ndarray:
    """The labels of the first rows of each class, -1 for the others."""
    return np.where(np.arange(len(truth)) % rows < shots, truth, -1)


def crabs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sizes of four kinds: the size hides small differences in shape."""
    random = np.random.default_rng(seed)
    truth = np.arange(4).repeat(50)
    size = np.exp(0.2 * random.normal(size=(200, 1)) + 2.7)
    shape = 1 + 0.04 * np.random.default_rng(77).normal(size=(4, 5))
    return size * [1, 0.8, 2.1, 2.4, 0.9] * shape[truth] * (
        1 + 0.025 * random.normal(size=(200, 5))
    ), truth


def questionnaire(seed: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of 1 to 10 that all rise with one trait: the columns share a unit."""
    random = np.random.default_rng(seed)
    truth = np.arange(2).repeat(100)
    trait = np.where(truth, 1.0, -1.0)[:, None] + 0.9 * random.normal(size=(200, 1))
    scores = 5.5 + 2 * (trait * 0.8 + 0.7 * random.normal(size=items))
    return np.clip(np.round(scores + 2 * random.normal(size=(200, items))), 1, 10), truth


def accuracy(X: Any, truth: np.ndarray, shots: int, seed: int, **options: Any) -> float:
    known = np.zeros(len(truth), bool)
    random = np.random.default_rng(seed)
    for label in np.unique(truth):
        known[random.permutation(np.flatnonzero(truth == label))[:shots]] = True
    model = PaddleClassifier(device="cpu", **options).fit(X, np.where(known, truth, -1))
    return float(np.mean(model.transduction_[~known] == truth[~known]))


def standardised(X: np.ndarray, y: np.ndarray) -> bool:
    known = y >= 0
    support, query = torch.from_numpy(X[known]), torch.from_numpy(X[~known])
    K = int(y.max()) + 1
    return columns_for(support, torch.from_numpy(y[known]), K, query).centre is not None


@pytest.mark.parametrize("shots", [1, 2, 5])
@pytest.mark.parametrize(("K", "D"), [(2, 1), (3, 1), (4, 6)])
def test_columns_of_any_scale(K: int, D: int, shots: int) -> None:
    X, truth = table(K, D, 40)
    y = hidden(truth, 40, shots)
    model = PaddleClassifier(device="cpu").fit(X, y)
    least = 0.85 if shots == 1 else 0.95
    assert (model.transduction_ == truth).mean() > least
    assert (model.predict(X) == truth).mean() > least
    assert (model.predict_batch(X[y < 0]) == truth[y < 0]).mean() > least
    means = np.stack([X[truth == k].mean(0) for k in range(K)])
    np.testing.assert_allclose(model.prototypes_, means, rtol=0.3)


def test_the_unit_of_a_column_does_not_matter() -> None:
    X, truth = table(4, 6, 30)
    y = hidden(truth, 30, 3)
    found = PaddleClassifier(device="cpu").fit(X, y)
    other = X * np.logspace(4, -4, 6) - 7.0
    again = PaddleClassifier(device="cpu").fit(other, y)
    np.testing.assert_allclose(
        again.label_distributions_, found.label_distributions_, atol=1e-6, rtol=0
    )
    np.testing.assert_allclose(again.novelty(other), found.novelty(X), atol=1e-6, rtol=0)


def test_a_saved_table_classifies_alike() -> None:
    X, truth = table(3, 4, 30)
    y = hidden(truth, 30, 4)
    model = PaddleClassifier(device="cpu").fit(X, y)
    same = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(same.predict_proba(X), model.predict_proba(X))
    batches = BatchClassifier(X[y >= 0], y[y >= 0], device="cpu")
    loaded = pickle.loads(pickle.dumps(batches))
    assert (loaded(X)["label"] == truth).mean() > 0.95


def few_of_many_columns(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Few labelled rows, whose columns seem to vary otherwise than those of all rows do."""
    random = np.random.default_rng(seed)
    K, D, shots = (int(random.integers(*ends)) for ends in ((2, 8), (2, 64), (1, 5)))
    centres = random.normal(size=(K, D)) * random.gamma(1, 1, size=D)
    truth = np.concatenate([np.arange(K).repeat(shots), random.integers(0, K, 60)])
    X = centres[truth] + random.normal(size=D) * random.choice([0, 0.5])
    X += random.normal(size=X.shape)
    return X, np.where(np.arange(len(X)) < K * shots, truth, -1)


@pytest.mark.parametrize("seed", [6, 9, 18, 21, 35, 38])
def test_both_estimators_decide_alike(seed: int) -> None:
    """Whether rows are a table depends on the labelled ones, not on who asks or on the batch."""
    X, y = few_of_many_columns(seed)
    batches = BatchClassifier(X[y >= 0], y[y >= 0], device="cpu")
    for n in (len(X), len(X) - 50):
        assert PaddleClassifier(device="cpu").fit(X[:n], y[:n]).rows_ == batches.rows
    assert pickle.loads(pickle.dumps(batches)).rows == batches.rows


@pytest.mark.parametrize("rows", ["table", "embeddings"])
def test_both_estimators_can_be_given_what_rows_are(rows: str) -> None:
    X, y = few_of_many_columns(6)
    batches = BatchClassifier(X[y >= 0], y[y >= 0], rows=rows, device="cpu")
    model = PaddleClassifier(rows=rows, device="cpu").fit(X[y >= 0], y[y >= 0])
    assert batches.rows == model.rows_ == rows
    assert batches(X[y < 0])["label"].tolist() == model.predict_batch(X[y < 0]).tolist()


def test_wine() -> None:
    """Unit-norm rows have 73 %: one of 13 columns hides the others."""
    X, truth = load_wine(return_X_y=True)
    right = []
    for known, batch in BatchSplit(5, shots=5, n_query=100).split(X, truth):
        y = np.full(len(truth), -1)
        y[known] = truth[known]
        rows = np.concatenate([known, batch])
        model = PaddleClassifier(device="cpu").fit(X[rows], y[rows])
        right.append(np.mean(model.transduction_[len(known) :] == truth[batch]))
    assert np.mean(right) > 0.93


def test_the_labels_decide() -> None:
    """The same spread of columns: either the direction of a row tells the classes, or not."""
    random = np.random.default_rng(0)
    y = np.concatenate([np.arange(4).repeat(20), np.full(40, -1)])
    angle = np.concatenate([np.arange(4).repeat(20), random.integers(0, 4, 40)]) * np.pi / 2
    length = np.exp(2 * random.normal(size=(120, 1)))
    rays = length * (np.stack([np.cos(angle), np.sin(angle)], 1) + 0.1)
    assert not standardised(rays * [1.0, 0.8], y)
    X, truth = table(4, 2, 30)
    assert standardised(X, hidden(truth, 30, 20))


@pytest.mark.parametrize("shots", [1, 2, 5, 20])
def test_pixels_and_embeddings_stay_as_they_are(shots: int) -> None:
    X, truth = load_digits(return_X_y=True)
    known, batch = next(BatchSplit(1, shots=shots, n_query=300).split(X, truth))
    y = np.full(len(truth), -1)
    y[known] = truth[known]
    rows = np.concatenate([known, batch])
    assert not standardised(X[rows], y[rows])
    few = table(3, 3, 30)[0]
    unit = few / np.linalg.norm(few, axis=1, keepdims=True)
    assert not standardised(unit, hidden(np.arange(3).repeat(30), 30, shots))


def test_constant_columns_and_extreme_numbers() -> None:
    X, truth = table(3, 3, 20)
    y = hidden(truth, 20, 3)
    for factor in (1e-300, 1.0, 1e300):
        wide = np.concatenate([X * factor / 1e5, np.full((60, 2), 0.1)], axis=1)
        model = PaddleClassifier(device="cpu").fit(wide, y)
        assert (model.transduction_ == truth).mean() > 0.95
    same = columns_for(torch.full((4, 3), 2.0), torch.tensor([0, 0, 1, 1]), 2)
    assert same.centre is None
    rows = torch.tensor([[1.0, 2.0]])
    assert Columns().applied_to(rows) is rows


def test_the_labels_choose_the_preparation() -> None:
    """Neither unit-norm rows nor standardised columns suit both kinds of data."""
    means = {
        name: [
            np.mean([accuracy(*data, 5, seed, rows=rows) for seed, data in enumerate(sets)])
            for rows in ("auto", "table", "embeddings")
        ]
        for name, sets in {
            "crabs": [crabs(seed) for seed in range(4)],
            "few items": [questionnaire(seed, 6) for seed in range(4)],
            "many items": [questionnaire(seed, 40) for seed in range(4)],
        }.items()
    }
    for name, (auto, table, embeddings) in means.items():
        assert auto > max(table, embeddings) - 0.05, name
        assert name == "crabs" or auto > embeddings + 0.1
    assert means["crabs"][0] > 0.8


def test_what_rows_are_can_be_said() -> None:
    X, truth = table(3, 5, 30)
    y = hidden(truth, 30, 4)
    assert PaddleClassifier(device="cpu").fit(X, y).rows_ == "table"
    for rows in ("table", "embeddings"):
        assert PaddleClassifier(rows=rows, device="cpu").fit(X, y).rows_ == rows
    with pytest.raises(ValueError, match="rows must be one of 'auto', 'table'"):
        PaddleClassifier(rows="x").fit(X, y)
    with pytest.raises(ValueError, match=r"rows must be 'auto' or 'embeddings' with .*'table'"):
        PaddleClassifier(rows="table").fit(X, y, prototypes=X[:3])


def mixed_frame() -> tuple[Any, np.ndarray]:
    """Columns of every type of pandas, each with gaps, and an id that tells nothing."""
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    truth = np.arange(3).repeat(40)
    colour = np.array(["red", "green", "blue"])[(truth + (random.random(120) < 0.2)) % 3]
    columns = {
        "size": pandas.Series(truth + 0.5 * random.normal(size=120)),
        "colour": pandas.Series(colour, dtype="category"),
        "shape": pandas.Series(np.where(truth == 1, "round", "long"), dtype=object),
        "count": pandas.Series(10 * truth + random.integers(0, 9, 120), dtype="Int64"),
        "wild": pandas.Series(random.random(120) < 0.5, dtype="boolean"),
    }
    for column in columns.values():
        column[random.random(120) < 0.1] = pandas.NA if column.name != "size" else np.nan
    columns["id"] = pandas.Series([f"row {row}" for row in range(120)])
    return pandas.DataFrame(columns), truth


def test_gaps_and_categories_of_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    X, truth = mixed_frame()
    y = hidden(truth, 40, 5)
    model = PaddleClassifier(device="cpu").fit(X, y)
    assert model.rows_ == "table"
    assert model.feature_names_in_.tolist() == list(X)
    assert (model.transduction_ == truth).mean() > 0.9
    new = X.assign(colour="violet", size=np.nan)  # a category and a gap that fit did not see
    assert (model.predict(X) == truth).mean() > 0.9
    assert (model.predict(new) == truth).mean() > 0.6
    assert (model.predict_batch(X[y < 0]) == truth[y < 0]).mean() > 0.9
    same = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(same.predict_proba(X), model.predict_proba(X))
    with pytest.raises(TypeError, match="X must be a DataFrame, as in fit, got"):
        model.predict(np.zeros((2, X.shape[1])))
    day = dt.date(2020, 1, 1)
    several, one = [day] * len(X), dt.time(12)
    cells = [np.datetime64(day)] * len(X)
    for dates, kind in (
        (np.datetime64(day), "datetime64"),
        (several, "date"),
        (pandas.Categorical(several), "date|Timestamp"),
        (pandas.Series(cells, dtype=object), "datetime64|Timestamp"),
        (one, "time"),
    ):
        message = f"X must have numbers or categories, got ({kind}).* in column 'day'"
        with pytest.raises(TypeError, match=message):
            PaddleClassifier().fit(X.assign(day=dates), y)
    for gaps in (
        pandas.array([None] * len(X), dtype="string"),
        pandas.Categorical([None] * len(X)),
    ):
        found = model.predict(X.assign(size=gaps))
        np.testing.assert_array_equal(found, model.predict(X.assign(size=np.nan)))
    for odd in ("red", pandas.Timedelta("1D"), 1j):
        with pytest.raises(TypeError, match=r"X must have numbers .*in column 'size'"):
            model.predict(X.assign(size=odd))


def test_a_gap_among_whole_numbers_does_not_change_the_others() -> None:
    pandas = pytest.importorskip("pandas")
    code = np.arange(60) % 3
    X = pandas.DataFrame({"size": code * 0.0, "code": pandas.Categorical(code)})
    model = PaddleClassifier(device="cpu").fit(X, code)
    gap = X.assign(code=pandas.Series(np.where(code == 1, np.nan, code)).astype("category"))
    assert (model.predict(gap) == code)[code != 1].all()


def test_gaps_of_an_array() -> None:
    X, truth = table(3, 5, 30)
    y = hidden(truth, 30, 4)
    X[::7, 2] = np.nan
    model = PaddleClassifier(device="cpu").fit(X, y)
    assert (model.transduction_ == truth).mean() > 0.9
    assert np.isfinite(model.prototypes_).all()
    masked = PaddleClassifier(device="cpu").fit(np.ma.masked_invalid(X), y)
    assert (masked.label_distributions_ == model.label_distributions_).all()
    full = PaddleClassifier(device="cpu").fit(np.nan_to_num(X), y)  # gaps in new rows alone
    assert (full.predict(X) == truth).mean() > 0.8
    with pytest.raises(ValueError, match="NaN"):
        PaddleClassifier(rows="embeddings").fit(X, y)


def test_sparse_rows_are_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    rows = sparse.csr_array(np.eye(4))
    with pytest.raises(TypeError, match="dense data is required"):
        PaddleClassifier().fit(rows, [0, 0, 1, 1])
    with pytest.raises(TypeError, match="support must be dense, got csr_array"):
        BatchClassifier(rows, [0, 0, 1, 1])


def test_balanced_labels_find_more_of_a_rare_class() -> None:
    random = np.random.default_rng(0)
    truth = np.concatenate([np.arange(2).repeat(20), np.repeat([0, 1], [340, 60])])
    X = random.normal(size=(440, 6)) + 0.9 * truth[:, None]
    y = np.where(np.arange(440) < 40, truth, -1)
    recalls = []
    for balanced in (False, True):
        model = PaddleClassifier(balanced=balanced, device="cpu").fit(X, y)
        answers = model.transduction_[40:], model.predict(X[40:]), model.predict_batch(X[40:])
        recalls.append([[np.mean(a[truth[40:] == k] == k) for k in (0, 1)] for a in answers])
    usual, even = np.array(recalls)  # [way, class]
    assert (even[:, 1] > usual[:, 1] + 0.1).all()
    assert (even[:, 0] < usual[:, 0]).all()
    assert (even.mean(1) > usual.mean(1)).all()


def test_balanced_labels_of_things() -> None:
    """Copies of a row that are one thing change nothing."""
    random = np.random.default_rng(1)
    rows, known = random.normal(size=(30, 8)) + 0.4, random.normal(size=(40, 8))
    y = np.concatenate([np.arange(40) % 4, np.full(30, -1)])
    one = PaddleClassifier(balanced=True, device="cpu").fit(np.concatenate([known, rows]), y)
    copies = np.concatenate([known, rows.repeat(10, 0)])
    same = np.concatenate([np.full(40, -1), np.arange(30).repeat(10)])
    many = PaddleClassifier(balanced=True, device="cpu").fit(
        copies, np.concatenate([y[:40], np.full(300, -1)]), same=same
    )
    assert (many.transduction_[40:].reshape(30, 10) == one.transduction_[40:, None]).all()
    np.testing.assert_array_equal(many.predict(rows), one.predict(rows))


def test_classify_fills_gaps_and_takes_categories(tmp_path: Path) -> None:
    """So does a saved model, by column name; what is new counts as in one run."""
    X, truth = mixed_frame()
    y, saved, new = hidden(truth, 40, 8), tmp_path / "m.npz", tmp_path / "new.csv"
    X["colour"] = X["colour"].astype(object)
    X.loc[np.flatnonzero(y < 0)[:5], ["colour", "shape"]] = "never seen"
    X.loc[np.flatnonzero(y >= 0)[0], "shape"] = "seen once"
    X["label"] = [f"kind {label}" if label >= 0 else "" for label in y]
    X.to_csv(tmp_path / "table.csv", index=False)
    path, chosen = tmp_path / "table.csv", {"device": "cpu", "cache": None}
    report = classify(path, None, tmp_path / "out", Settings(save=saved, **chosen))
    found = [report.answers.class_names[k] for k in report.answers.labels]
    expected = [f"kind {k}" for k in truth[y < 0]]
    assert np.mean([a == b for a, b in zip(found, expected, strict=True)]) > 0.9
    assert "categories: 'colour', 'shape', 'wild'" in report.notes[0]
    assert any(note.startswith("rows: taken as a table") for note in report.notes)
    plain = Settings(rows="embeddings", **chosen)
    with pytest.raises(ValueError, match=r"got an empty cell .* or add --rows table"):
        classify(path, None, tmp_path, plain)

    rows = X[y < 0].drop(columns="label").assign(more=1.5)
    rows[rows.columns[::-1]].to_csv(new, index=False)
    for kept in (saved, tmp_path / "again.npz"):
        known = Settings(model=kept, save=tmp_path / "again.npz", **chosen)
        again = classify(new, None, tmp_path / "out", known)
        assert again.answers.probability.tolist() == report.answers.probability.tolist()
    rows[:2].assign(size=np.nan).to_csv(new, index=False)
    assert len(classify(new, None, tmp_path / "out", known)) == 2
    rows.drop(columns="colour").to_csv(new, index=False)
    with pytest.raises(ValueError, match=r"features must be a column of .*new.csv .*got 'colour'"):
        classify(new, None, tmp_path / "out", known)
    for odd in ({"cells": np.ones((2, 5))}, {"columns": np.array(["size"] * 5)}):
        np.savez(tmp_path / "again.npz", **dict(np.load(saved)) | odd)
        with pytest.raises(ValueError, match="model must be a file written by classify --save"):
            classify(new, None, tmp_path / "out", known)


def test_equivalent_cells_teach_an_encoder_the_same() -> None:
    """Also with more categories than are kept, with none that is, and with a gap among them."""
    random = np.random.default_rng(0)
    cells = np.empty((900, 4), dtype=object)
    cells[:, 0] = random.normal(size=900)
    cells[:, 1] = [f"word {int(x)}" for x in random.exponential(40, 900)]
    cells[:, 2] = [f"row {row}" for row in range(900)]
    cells[:, 3] = random.choice(["a", "b", None], 900)
    first = TableEncoder(cells, [1, 2, 3])
    again = TableEncoder(first.equivalent_cells(), [1, 2, 3])
    cells[0], cells[1] = [np.nan, "new", "new", "new"], [0.5, None, None, None]
    np.testing.assert_array_equal(first(cells), again(cells))
    assert len(first.made_of) == 1 + MOST_CATEGORIES + 1 + 3
    assert len(first.equivalent_cells()) == 2 * MOST_CATEGORIES + 1


def test_a_model_fills_gaps_of_new_rows_alone(tmp_path: Path) -> None:
    lines = [f"{k % 2 + k / 50},{k % 2},{k % 2}" for k in range(20)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,label", *lines, "1.5,1,", ""]))
    (tmp_path / "new.csv").write_text("b,a\n1,1.5\n,1.5\n0,\n")
    for path, option in (("table", "save"), ("new", "model")):
        given: dict[str, Any] = {"device": "cpu", "cache": None, option: tmp_path / "m.npz"}
        report = classify(tmp_path / f"{path}.csv", None, tmp_path / "out", Settings(**given))
    assert report.answers.labels.tolist() == [1, 1, 0]
