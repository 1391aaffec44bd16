"""The classifier of batches: its results, the kinds of batches, and invalid arguments."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from paddle_ext import BatchClassifier, methods
from paddle_ext.check import ArgumentError
from paddle_ext.presence import UnfamiliarBatchWarning, novelty

K, SHOTS, D = 8, 3, 24
ADDED = ["label", "probability", "doubt", "novelty", "strangers", "alarm"]
NAMES = [f"kind {k}" for k in reversed(range(K))]  # not sorted


def random_rows(places: np.ndarray, seed: int) -> np.ndarray:
    centres = np.random.default_rng(0).normal(size=(K, D))
    noise = np.random.default_rng(seed).normal(size=(len(places), D))
    rows = centres[places] + noise
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


PLACES = np.arange(K).repeat(SHOTS)
SUPPORT = random_rows(PLACES, 1)
TRUTH = np.random.default_rng(2).choice([1, 4, 6], 40)
QUERY = random_rows(TRUTH, 3)


def classifier(**options: Any) -> BatchClassifier:
    return BatchClassifier(SUPPORT, PLACES, NAMES, **{"device": "cpu"} | options)


def batch(**columns: Any) -> dict[str, Any]:
    return {"id": np.arange(len(QUERY)) + 100, "embedding": QUERY} | columns


def vectors_of(rows: np.ndarray) -> np.ndarray:
    """A column of vectors, as Arrow gives it."""
    column = np.empty(len(rows), dtype=object)
    column[:] = list(rows)
    return column


# --- results --------------------------------------------------------------------------------------


def expected(prototypes: np.ndarray | None = None, rows: int = len(SUPPORT)) -> Any:
    return methods.create("adaptive").predict(
        torch.from_numpy(SUPPORT[:rows]),
        torch.from_numpy(PLACES[:rows]),
        torch.from_numpy(QUERY),
        prototypes=None if prototypes is None else torch.from_numpy(prototypes),
    )


def assert_answers(answer: dict[str, np.ndarray], prediction: Any) -> None:
    assert answer["label"].tolist() == [NAMES[k] for k in prediction.labels.tolist()]
    highest = prediction.probabilities.max(-1).values.numpy()
    np.testing.assert_allclose(answer["probability"], highest, atol=1e-6)
    np.testing.assert_allclose(answer["doubt"], prediction.doubt().numpy(), atol=1e-6)
    assert answer["probability"].dtype == answer["doubt"].dtype == np.float32


def test_is_the_method() -> None:
    given = batch()
    answer = classifier()(given)
    assert list(answer) == ["id", *ADDED]
    assert answer["id"] is given["id"]
    assert_answers(answer, expected())
    assert np.mean(answer["label"] == np.array(NAMES)[TRUTH]) >= 0.85
    alone = classifier()(QUERY)  # as Spark's predict_batch_udf gives it
    assert list(alone) == ADDED
    assert_answers(alone, expected())


def test_batches_are_independent() -> None:
    """A result does not depend on earlier batches, and the batch shows its classes."""
    model = classifier()
    before = model(batch())
    model({"embedding": random_rows(np.full(30, 2), 4)})
    after = model(batch())
    assert all(np.array_equal(before[name], after[name]) for name in before)
    one_by_one = np.concatenate([model(row[None])["probability"] for row in QUERY])
    assert np.abs(one_by_one - before["probability"]).max() > 0.05


@pytest.mark.parametrize(
    "form",
    [
        np.asfortranarray,
        lambda x: vectors_of(x.astype(np.float64)),
        lambda x: x.astype(np.float64).tolist(),
        list,
        torch.from_numpy,
    ],
)
def test_forms_of_a_column(form: Callable[[np.ndarray], Any]) -> None:
    answer, usual = classifier()(batch(embedding=form(QUERY))), classifier()(batch())
    assert all(np.array_equal(answer[name], usual[name]) for name in usual)


def test_later_changes_of_the_arrays() -> None:
    """The arguments may be reused for something else afterwards; Arrow's are read-only."""
    text, rows = random_rows(np.arange(K), 5), QUERY.copy()
    rows.setflags(write=False)
    for prototypes in (None, text.copy()):
        support, places = SUPPORT.copy(), PLACES.copy()
        model = BatchClassifier(support, places, NAMES, prototypes=prototypes, device="cpu")
        support[:], places[:] = 0, 0
        if prototypes is not None:
            prototypes[:] = 0
        assert_answers(model(rows), expected(None if prototypes is None else text))
    prior = np.arange(1.0, K + 1)
    model = classifier(prior=prior)
    before = model(QUERY)
    prior[:] = np.nan
    assert all(np.array_equal(found, before[name]) for name, found in model(QUERY).items())


def test_half_precision_and_integers() -> None:
    """They equal the same values in float32."""
    half = QUERY.astype(np.float16)
    answer, usual = (classifier()(x)["probability"] for x in (half, half.astype(np.float32)))
    assert np.array_equal(answer, usual)
    counts = (QUERY * 8).round().astype(np.int64)
    found, usual = (classifier()(x)["label"] for x in (counts, counts.astype(np.float32)))
    assert np.array_equal(found, usual)
    assert np.mean(found == np.array(NAMES)[TRUTH]) > 0.8


def test_large_batches_are_remembered() -> None:
    """They are solved in chunks, where only a prior has a bound."""
    random, K = np.random.default_rng(0), 300
    centres = random.normal(size=(K, 16)).astype(np.float32)
    classify = BatchClassifier(
        centres.repeat(2, 0), np.arange(K).repeat(2), remember=True, alarms=False
    )
    for _ in range(3):
        truth = random.integers(0, 4, 300)
        found = classify(centres[truth] + 0.1 * random.normal(size=(300, 16)))
        assert (found["label"] == truth).mean() > 0.99


def test_frames() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    frame = pandas.DataFrame({"id": np.arange(40) + 100, "embedding": list(QUERY), "more": "x"})
    frame.index = frame.index + 7
    first, second = classifier().map_in_pandas(iter([frame[:25], frame[25:]]))
    assert list(first.columns) == ["id", "more", *ADDED]
    assert first.index.equals(frame.index[:25])
    assert list(frame.columns) == ["id", "embedding", "more"]
    for part, rows in ((first, QUERY[:25]), (second, QUERY[25:])):
        answer = classifier()(rows)
        assert all(np.array_equal(part[name].to_numpy(), answer[name]) for name in answer)
    empty = classifier()(pandas.DataFrame({"id": [], "embedding": []}))
    assert list(empty.columns) == ["id", *ADDED]
    assert len(empty) == 0


def test_text_of_a_group_that_frames_cut_is_in_one_piece() -> None:
    """Spark turns each column into one Arrow array, and pandas joins text as several chunks."""
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    text = pandas.array(["a", "b", "b", "c"] * 10, dtype=pandas.StringDtype("pyarrow"))
    frame = pandas.DataFrame({"place": text.take(np.argsort(text)), "embedding": list(QUERY)})
    frame["count"] = pandas.array(range(40), dtype=pandas.ArrowDtype(pyarrow.int32()))
    found = list(classifier(group="place").map_in_pandas(frame[k : k + 7] for k in range(0, 40, 7)))
    for part in found:
        for name in part:
            assert isinstance(pyarrow.Array.from_pandas(part[name]), pyarrow.Array), name
    whole = pandas.concat(found)
    assert whole["place"].tolist() == frame["place"].tolist()
    assert whole["count"].tolist() == list(range(40))
    assert (whole.dtypes[["place", "count"]] == frame.dtypes[["place", "count"]]).all()


def test_columns_by_other_names() -> None:
    model = classifier(column="vector", keep_embedding=True, prefix="our_")
    given = {"vector": QUERY, "label": TRUTH, "doubt": TRUTH}
    answer = model(given)
    assert list(answer) == ["vector", "label", "doubt", *(f"our_{name}" for name in ADDED)]
    assert answer["vector"] is QUERY
    assert answer["our_label"].tolist() == classifier()(QUERY)["label"].tolist()


@pytest.mark.parametrize("rows", [0, 5, K * SHOTS])
def test_names(rows: int) -> None:
    """Prototypes of names with labelled rows of none, some and all classes."""
    text = random_rows(np.arange(K), 5)
    model = BatchClassifier(SUPPORT[:rows], PLACES[:rows], NAMES, prototypes=text, device="cpu")
    assert_answers(model(QUERY), expected(text, rows))
    again = pickle.loads(pickle.dumps(model))
    assert again(QUERY)["label"].tolist() == model(QUERY)["label"].tolist()


def test_names_alone() -> None:
    text = random_rows(np.arange(K), 5)
    model = BatchClassifier(None, None, prototypes=text, device="cpu")
    assert model.classes.tolist() == list(range(K))
    assert model(QUERY)["label"].tolist() == expected(text, 0).labels.tolist()
    assert repr(model) == "BatchClassifier(8 classes, 24 features, 0 labelled rows, names)"
    for labels in ([], np.array([]), np.array([], dtype="S")):
        same = BatchClassifier(np.empty((0, D)), labels, prototypes=text, device="cpu")
        assert same(QUERY)["label"].tolist() == model(QUERY)["label"].tolist()


def test_labels_and_names() -> None:
    """Labels as indices of names, as names, and without names."""
    text = np.array(NAMES)[PLACES]
    found = [
        BatchClassifier(SUPPORT, labels, names, device="cpu")
        for labels, names in (
            (PLACES, NAMES),
            (text, NAMES),
            (text.astype(object), np.array(NAMES, dtype=object)),
            (torch.from_numpy(PLACES), NAMES),
            (text, None),
        )
    ]
    assert [model.classes.tolist() for model in found] == [NAMES] * 4 + [sorted(NAMES)]
    answers = [model(QUERY)["label"].tolist() for model in found]
    assert all(answer == answers[0] for answer in answers)
    numbers = BatchClassifier(SUPPORT, PLACES * 10, device="cpu")(QUERY)["label"]
    assert numbers.dtype == np.int64
    assert [NAMES[k // 10] for k in numbers.tolist()] == answers[0]


def test_options_reach_the_method() -> None:
    found = methods.create("adaptive", max_iter=1).predict(
        torch.from_numpy(SUPPORT), torch.from_numpy(PLACES), torch.from_numpy(QUERY)
    )
    assert_answers(classifier(max_iter=1)(QUERY), found)
    assert (found.probabilities - expected().probabilities).abs().max() > 1e-4


@pytest.mark.parametrize("embedding", [np.empty(0, dtype=object), [], QUERY[:0]])
def test_empty(embedding: Any) -> None:
    answer = classifier()({"id": np.empty(0, dtype=np.int64), "embedding": embedding})
    usual = classifier()(batch())
    assert list(answer) == list(usual)
    for name, column in answer.items():
        assert len(column) == 0
        assert column.dtype == usual[name].dtype


# --- alarms ---------------------------------------------------------------------------------------


def broken_batches() -> dict[str, np.ndarray]:
    """Batches as a broken encoder, a stuck sensor, or another encoder or source would send."""
    random = np.random.default_rng(7)
    rotation = np.linalg.qr(random.normal(size=(D, D)))[0]
    return {
        "zeros": np.zeros_like(QUERY),
        "one row": QUERY[:1].repeat(40, 0),
        "one row and its noise": QUERY[:1] * random.uniform(0.5, 2, (40, 1)),
        "rotated": QUERY @ rotation,
        "permuted": QUERY[:, random.permutation(D)],
        "another source": random.normal(size=QUERY.shape),
    }


@pytest.mark.parametrize("kind", broken_batches())
def test_an_unfamiliar_batch_raises_the_alarm(kind: str) -> None:
    rows = broken_batches()[kind]
    with pytest.warns(UnfamiliarBatchWarning, match=r"batch looks unlike the labelled rows: ") as w:
        found = classifier()(rows)
    assert len(w) == 1
    assert w[0].filename == __file__
    copies = kind.startswith(("zeros", "one row"))
    assert set(found["alarm"]) <= ({"copies", "copies, strangers"} if copies else {"strangers"})
    assert ("are copies of one" in str(w[0].message)) == copies


def test_an_ordinary_batch_raises_none() -> None:
    """Warnings are errors here. Half of a batch may be copies, and few rows say nothing."""
    model = classifier()
    for rows in (QUERY, np.concatenate([QUERY[1:11], QUERY[:1].repeat(10, 0)]), QUERY[:9] * 0):
        found = model(rows)
        assert set(found["alarm"]) == {""}
        assert found["novelty"].dtype == found["strangers"].dtype == np.float32


def test_novelty_and_strangers_of_a_batch() -> None:
    """Twelve of forty rows are of no class, which is just below an alarm."""
    rows = QUERY.copy()
    rows[:12] = broken_batches()["another source"][:12]
    found = classifier()(rows)
    given = (torch.from_numpy(x) for x in (SUPPORT, PLACES, rows))
    support, labels, query = given
    prediction = methods.create("adaptive").predict(support, labels, query)
    usual = novelty(prediction, support, labels, query)
    np.testing.assert_allclose(found["novelty"], usual.numpy(), atol=1e-5)
    strange = (usual > 0.95).double().mean()
    np.testing.assert_allclose(found["strangers"], (strange - 0.05) / 0.95, atol=1e-6)
    assert 0.15 < found["strangers"][0] < 0.3


def test_adjacent_batches_are_warned_of_once() -> None:
    """And again after an ordinary batch, or in another process."""
    model, zeros = classifier(), np.zeros_like(QUERY)
    with pytest.warns(UnfamiliarBatchWarning) as warned:
        alarms = [model(rows)["alarm"][0] for rows in (zeros, zeros, QUERY, zeros)]
    assert list(map(bool, alarms)) == [True, True, False, True]
    assert len(warned) == 2
    with pytest.warns(UnfamiliarBatchWarning):
        pickle.loads(pickle.dumps(model))(zeros)


def test_without_alarms() -> None:
    found = classifier(alarms=False)(np.zeros_like(QUERY))
    assert list(found) == ADDED[:3]


def test_alarms_where_novelty_is_not_known() -> None:
    """One labelled row of each class, or names alone, tell no spread; copies are found all the
    same."""
    for given in ((SUPPORT[::SHOTS], range(K)), (None, None)):
        names = random_rows(np.arange(K), 5) if given[0] is None else None
        model = BatchClassifier(*given, prototypes=names, device="cpu")
        found = model(QUERY)
        assert np.isnan(found["novelty"]).all()
        assert np.isnan(found["strangers"]).all()
        assert set(found["alarm"]) == {""}
        with pytest.warns(UnfamiliarBatchWarning, match=r"^.*: 40 of 40 rows are copies of one"):
            assert set(model(QUERY[:1].repeat(40, 0))["alarm"]) == {"copies"}


# --- other processes ------------------------------------------------------------------------------


def test_pickled() -> None:
    """It holds no labelled rows, only what was learned; results are bitwise identical."""
    many = np.random.default_rng(6).normal(size=(1000, D)).astype(np.float32)
    model = BatchClassifier(many, np.arange(1000) % K, device="cpu")
    before = model(QUERY)
    data = pickle.dumps(model)
    assert len(data) < many.nbytes / 2
    again = pickle.loads(data)
    assert again._here is None
    assert (
        repr(again) == repr(model) == "BatchClassifier(8 classes, 24 features, 1000 labelled rows)"
    )
    after = again(QUERY)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_devices(device: str) -> None:
    answer, other = classifier(device=device)(batch()), classifier()(batch())
    assert answer["label"].tolist() == other["label"].tolist()
    np.testing.assert_allclose(answer["probability"], other["probability"], atol=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_of_another_machine() -> None:
    """The constructor does not need the requested GPU; the call does."""
    model = classifier(device="cuda:3")
    with pytest.raises(ArgumentError, match="must be 'cpu' because torch finds no usable GPU"):
        model(QUERY)


# --- bad arguments --------------------------------------------------------------------------------

WITH_NAN = QUERY.copy()
WITH_NAN[5, 2] = np.nan


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": [1]}, r"batch must have a column 'embedding', got id"),
        (
            {"embedding": QUERY[:, :5]},
            r"batch\['embedding'\] must have 24 features like the data of the classes, got 5",
        ),
        ({"embedding": WITH_NAN}, r"must be finite, got nan in row 5, feature 2"),
        ({"embedding": QUERY.astype(float) * 1e40}, r"must be at most 1e\+30 in magnitude, got "),
        ({"embedding": [*QUERY[:2], QUERY[0, :3]]}, r"got 3 numbers in row 2 and 24 in row 0"),
        ({"embedding": [QUERY[0], None]}, r"must have vectors of one length, got None in row 1"),
        ({"embedding": ["a", "b"]}, r"numbers of shape \[N, D\] or a column of vectors, got <U1"),
        ({"embedding": QUERY[0]}, r"or a column of vectors, got float32 of shape \[24\]"),
        ({"embedding": QUERY, "id": [1]}, r"got 40 rows of 'embedding' and 1 of 'id'"),
        ({"embedding": QUERY, "label": TRUTH}, r"batch must have no column 'label', which the"),
        (np.float32(1), r"batch must be a dict, a DataFrame or an array, got float32"),
    ],
)
def test_bad_batches(given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        classifier()(given)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((SUPPORT, PLACES[:3]), {}, r"labels must have one label for each row of support, shape"),
        ((SUPPORT, PLACES * 0), {}, r"labels must have at least two classes, got 1"),
        ((SUPPORT, PLACES * 0.5), {}, r"labels must be text or integers of 64 bits, got 0"),
        (
            (SUPPORT, PLACES.astype(np.uint64) + np.uint64(2**63)),
            {},
            r"labels must be text or integers of 64 bits",
        ),
        (
            (SUPPORT, PLACES.astype("M8[D]")),
            {},
            r"labels must be text or integers of 64 bits, got 1970",
        ),
        (
            (SUPPORT, PLACES.astype("S")),
            {},
            r"labels must be text or integers of 64 bits, got b'0'",
        ),
        ((SUPPORT, PLACES - 1), {}, r"labels must be text or integers >= 0, got -1"),
        ((SUPPORT, ["a", 1] * 12), {}, r"labels must be all text or .*, got int and str"),
        ((SUPPORT, PLACES[:, None]), {}, r"labels must have one dimension, got shape \[24, 1\]"),
        ((SUPPORT, PLACES, NAMES[:7]), {}, r"labels must be indices of the 7 names, in \[0, 7\)"),
        ((SUPPORT, PLACES, [*NAMES, "x"]), {}, r"names must all have .* got 'x' without one"),
        ((SUPPORT, PLACES, ["a"] * 8), {}, r"names must be unique, got 'a'"),
        ((SUPPORT, ["!"] * 24, NAMES), {}, r"labels must be among the 8 names, got '!'"),
        ((SUPPORT, ["?"] * 24, NAMES), {}, r"must be .* got \?, which means a missing label"),
        ((SUPPORT * np.nan, PLACES), {}, r"support must be finite, got nan in row 0, feature 0"),
        ((SUPPORT[:0], PLACES[:0]), {}, r"support must have a row of every class, unless there"),
        ((None, None), {"prototypes": SUPPORT[:1]}, r"prototypes must have at least two"),
        ((None, None, NAMES), {"prototypes": SUPPORT[:5]}, r"as there are prototypes, 5, got 8"),
        ((SUPPORT, PLACES), {"prototypes": SUPPORT[:8, :3]}, r"support must have 3 features"),
        ((SUPPORT, PLACES), {"alarms": 1}, r"alarms must be True or False, got int"),
        ((SUPPORT, PLACES), {"rows": "matrix"}, r"rows must be .*, got 'matrix'"),
        (
            (SUPPORT, PLACES),
            {"prototypes": SUPPORT[:8], "rows": "table"},
            r"rows must be 'auto' or 'embeddings' with prototypes, got 'table'",
        ),
        ((SUPPORT, PLACES), {"column": 3}, r"column must be a string, got int"),
        ((SUPPORT, PLACES), {"column": None}, r"column must be a string, got None"),
        ((SUPPORT, PLACES), {"prefix": None}, r"prefix must be a string, got None"),
        ((SUPPORT, PLACES), {"keep_embedding": 1}, r"keep_embedding must be True or False"),
        ((SUPPORT, PLACES), {"device": "cuda:x"}, r"device must be the CPU or a CUDA device"),
        (
            (SUPPORT, PLACES),
            {"logit_scale": 0},
            r"logit_scale must be > 0 and at most 1e\+06, got 0",
        ),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        BatchClassifier(*arguments, **options)
