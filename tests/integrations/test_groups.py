"""Groups in the estimator, in batches and in AnnData, and what batches remember."""

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

import paddle_ext
from paddle_ext import BatchClassifier, PaddleClassifier
from paddle_ext.integrations.anndata import label

K, SHOTS, D = 12, 3, 16
RANDOM = np.random.default_rng(0)
CENTRES = RANDOM.normal(size=(K, D))
NAMES = np.array([f"kind {k:02}" for k in range(K)])
KNOWN = np.arange(K).repeat(SHOTS)
TRUTH = RANDOM.integers(K, size=12).repeat(5)  # twelve groups of five rows of one class


def rows_of(classes: np.ndarray, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(len(classes), D))
    rows = CENTRES[classes] + 1.3 * noise
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


SUPPORT, QUERY = rows_of(KNOWN, 1), rows_of(TRUTH, 2)
PLACES = np.array([f"place {g:02}" for g in np.arange(12).repeat(5)], dtype=object)
X = np.concatenate([QUERY, SUPPORT])
Y = np.concatenate([[None] * len(TRUTH), NAMES[KNOWN]])
GROUPS = np.concatenate([PLACES, [None] * len(KNOWN)])  # labelled rows are of no place


def expected() -> paddle_ext.Solution:
    known = torch.from_numpy(SUPPORT), torch.from_numpy(KNOWN)
    return paddle_ext.adaptive(*known, torch.from_numpy(QUERY), groups=PLACES)


def right(labels: Any, truth: np.ndarray = TRUTH) -> float:
    return float(np.mean(np.asarray(labels) == NAMES[truth]))


def test_estimator() -> None:
    solution, model = expected(), PaddleClassifier(device="cpu").fit(X, Y, groups=GROUPS)
    assert model.transduction_[:60].tolist() == NAMES[solution.labels.numpy()].tolist()
    np.testing.assert_allclose(model.label_distributions_[:60], solution.probabilities, atol=1e-5)
    assert model.groups_.tolist() == sorted(set(PLACES))
    for own, found in zip(model.group_prevalence_, solution.prevalence(), strict=True):
        np.testing.assert_allclose(own, found, atol=1e-4)
    over_all = solution.over_all().prevalence().estimate
    np.testing.assert_allclose(model.prevalence_.estimate, over_all, atol=1e-4)
    one_batch = PaddleClassifier(device="cpu").fit(X, Y)
    assert right(model.transduction_[:60]) > right(one_batch.transduction_[:60]) + 0.1
    assert one_batch.groups_ is one_batch.group_prevalence_ is None

    order = np.random.default_rng(3).permutation(60)  # rows come back in their order
    labels = model.predict_batch(QUERY[order], groups=PLACES[order])
    assert labels.tolist() == model.transduction_[:60][order].tolist()


def test_things_priors_and_share() -> None:
    same = np.concatenate([np.arange(60) // 2, np.full(len(KNOWN), -1)])
    prior = np.random.default_rng(5).uniform(0.1, 1, size=(12, K))
    known = torch.from_numpy(SUPPORT), torch.from_numpy(KNOWN), torch.from_numpy(QUERY)
    more: dict[str, Any] = {"prior": prior, "share": False}
    groups = np.where(np.arange(96) < 60, (np.arange(96) // 4) % 12, -1)  # whole things
    want = paddle_ext.adaptive(*known, groups=groups[:60], same=same[:60], **more)
    model = PaddleClassifier(device="cpu", **more).fit(X, Y, groups=groups, same=same)
    assert model.transduction_[:60].tolist() == NAMES[want.labels.numpy()].tolist()
    np.testing.assert_allclose(model.label_distributions_[:60], want.probabilities, atol=1e-5)
    again = model.predict_batch(QUERY, groups=groups[:60], same=same[:60])
    assert again.tolist() == model.transduction_[:60].tolist()
    with pytest.raises(ValueError, match="of a thing in one group, got 2 in 'place 00' and"):
        model.fit(X, Y, groups=GROUPS, same=same)
    with pytest.raises(ValueError, match=r"prior must have shape \[12\], got \[12, 12\]"):
        model.fit(X, Y, same=same)
    batches = BatchClassifier(SUPPORT, KNOWN, NAMES, group="place", share=False, device="cpu")
    alone = paddle_ext.adaptive(*known, groups=PLACES, share=False)
    found = batches({"place": PLACES, "embedding": QUERY})["label"]
    assert found.tolist() == NAMES[alone.labels.numpy()].tolist()


def test_labelled_things() -> None:
    """Copies of labelled rows are one row, for further batches too."""
    model, rows = PaddleClassifier(device="cpu"), np.concatenate([X, SUPPORT])
    y, same = np.concatenate([Y, NAMES[KNOWN]]), np.r_[:60, 100:136, 100:136]
    for names in ({}, {"prototypes": CENTRES, "classes": NAMES}):
        want, new = model.fit(X, Y, **names).transduction_[:60], model.novelty(QUERY)
        found = model.fit(rows, y, same=same.astype(str), **names).transduction_[:60]
        assert model.novelty(QUERY) == pytest.approx(new, abs=1e-5)
        again = model.predict_batch(QUERY, same=same[:60])
        assert found.tolist() == again.tolist() == want.tolist()
    with pytest.raises(ValueError, match="rows of a thing in one class, got '9' in"):
        model.fit(rows, y, same=np.where(same < 100, same, 9))
    with pytest.raises(ValueError, match="sample_weight must be None with labelled things"):
        model.fit(rows, y, np.ones(len(y)), same=same)
    with pytest.raises(ValueError, match=r"same must have shape \[36\]"):
        model.fit(SUPPORT, KNOWN, same=same)


@pytest.mark.parametrize("names", [{}, {"prototypes": CENTRES, "classes": NAMES}])
def test_single_rows_after_things(names: dict[str, Any]) -> None:
    """Copies of a row that are one thing are absorbed once, and leave what the row leaves."""
    new = rows_of(TRUTH, 4)
    model = PaddleClassifier(device="cpu").fit(X, Y, **names)
    want, labelled = model.predict_proba(new), model.fit(SUPPORT, NAMES[KNOWN], **names)
    before = labelled.predict_proba(new)
    same = np.r_[np.arange(60).repeat(3), 100:136]
    copies = np.concatenate([QUERY.repeat(3, 0), SUPPORT]), np.r_[[None] * 180, NAMES[KNOWN]]
    found = model.fit(*copies, same=same, **names).predict_proba(new)
    np.testing.assert_allclose(found, want, atol=1e-4)
    assert np.abs(before - want).max() > 0.1


def test_metadata_routing() -> None:
    usual = PaddleClassifier(device="cpu").fit(X, Y, groups=GROUPS).transduction_
    with config_context(enable_metadata_routing=True):
        model = PaddleClassifier(device="cpu").set_fit_request(groups=True)
        pipeline = make_pipeline(Normalizer(), model).fit(X, Y, groups=GROUPS)
    assert pipeline[-1].transduction_.tolist() == usual.tolist()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (GROUPS[:-1], r"groups must have shape \[96\], one for each row, got \[95\]"),
        (np.where(np.arange(96) == 7, None, GROUPS), "integers of 64 bits, got None in row 7"),
    ],
)
def test_invalid_groups(groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PaddleClassifier().fit(X, Y, groups=groups)


def test_groups_and_names() -> None:
    model, known = PaddleClassifier(device="cpu"), {"prototypes": CENTRES, "classes": NAMES}
    shares = []  # right in groups, one by one after them, and as one batch
    for draw in range(10, 16):
        rows = rows_of(TRUTH, draw)
        one_batch = model.fit(rows, None, **known).transduction_
        labels = model.fit(rows, None, groups=PLACES, **known).transduction_
        shares.append([right(x) for x in (labels, model.predict(rows), one_batch)])
    grouped, single, whole = np.mean(shares, 0)
    assert grouped > single + 0.01 > whole + 0.03
    assert grouped > 0.9

    labels = model.fit(QUERY, None, groups=PLACES, **known).transduction_
    assert model.predict_batch(QUERY, PLACES).tolist() == labels.tolist()
    assert model.group_prevalence_.estimate.shape == (12, K)
    batches = BatchClassifier(None, None, NAMES, prototypes=CENTRES, group="place", device="cpu")
    assert batches({"place": PLACES, "embedding": QUERY})["label"].tolist() == labels.tolist()
    same = np.arange(60) // 5
    assert len({*model.fit(QUERY, None, same=same, **known).transduction_[:5]}) == 1


def test_batches() -> None:
    model = BatchClassifier(SUPPORT, KNOWN, NAMES, group="place", device="cpu")
    frame = pd.DataFrame({"place": PLACES, "embedding": list(QUERY)})
    answer = model(frame)
    assert answer["label"].tolist() == NAMES[expected().labels.numpy()].tolist()
    # Frames that cut the sixth and the eleventh group in two, and one that is inside a group.
    frames = [frame[:28], frame[28:29], frame[29:53], frame[:0], frame[53:]]
    parts = list(model.map_in_pandas(iter(frames)))
    whole = [model(frame[:25]), model(frame[25:50]), model(frame[50:55]), model(frame[55:])]
    assert pd.concat(parts).equals(pd.concat(whole))
    with pytest.raises(ValueError, match="batch must have a column 'place', got embedding"):
        model({"embedding": QUERY})
    assert list(model.map_in_pandas(iter([]))) == []
    numbers = [frame[:3].assign(id=[2**60 + 1, 2, 3]), frame[3:5].assign(id=[1.5, 2.5])]
    (kept,) = model.map_in_pandas(pd.concat([x, x[["id"]]], axis=1) for x in numbers)
    assert str(kept["id"].iloc[0, 0]) == str(2**60 + 1)
    kept = kept.loc[:, ~kept.columns.duplicated()]
    assert kept["id"].tolist() == [2**60 + 1, 2, 3, 1.5, 2.5]
    for given, message in (
        (frame, "frames must be DataFrames, one after another, got str"),
        (
            [frame[:3], frame[3:5].assign(more=1)],
            "frames must have the same columns, got place, em",
        ),
        ([frame.assign(place=[[1]] * len(frame))], "frames must have strings or integers as 'pl"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            list(model.map_in_pandas(given))
    with pytest.raises(TypeError, match="batch must be a dict or a DataFrame, got ndarray"):
        model(QUERY)


def test_memory() -> None:
    """It helps where proportions last, is pickled, and is dropped after a jump."""
    random = np.random.default_rng(4)
    truth = [random.choice([1, 5, 7, 8], 10) for _ in range(12)]
    truth += [random.choice([0, 2, 3, 4], 10) for _ in range(12)]
    batches = [rows_of(classes, 10 + i) for i, classes in enumerate(truth)]
    shares = {}
    for remember in (False, True):
        model = BatchClassifier(SUPPORT, KNOWN, NAMES, remember=remember, device="cpu")
        found = []
        for number, batch in enumerate(batches):
            if number == 5:
                model = pickle.loads(pickle.dumps(model))
            found.append(model(batch)["label"])
        halves = np.split(np.concatenate(found), 2), np.split(np.concatenate(truth), 2)
        shares[remember] = [right(*half) for half in zip(*halves, strict=True)]
    assert all(np.subtract(shares[True], shares[False]) > 0.03), shares
    with pytest.raises(ValueError, match="prior must be None with remember=True"):
        BatchClassifier(SUPPORT, KNOWN, NAMES, remember=True, prior=np.ones(K))


@pytest.mark.parametrize("real", [False, True])
def test_cells(real: bool) -> None:
    """A stand-in has the four attributes that are used."""
    obs = pd.DataFrame({"type": Y, "donor": GROUPS}, index=[f"cell {i}" for i in range(96)])
    adata: Any = SimpleNamespace(obs=obs, obsm={"X_pca": X}, uns={}, X=X)
    if real:
        library = pytest.importorskip("anndata", reason="needs anndata")
        adata = library.AnnData(X=X, obs=obs, obsm={"X_pca": X})
    model = label(adata, "type", groups="donor")
    assert adata.obs["type_label"].tolist() == model.transduction_.tolist()
    assert right(adata.obs["type_label"][:60]) > 0.8
    assert adata.obs["type_probability"][60:].eq(1).all()
    assert not adata.obs["type_unknown"][60:].any()
    shares = adata.uns["type_shares"]
    assert list(shares.columns) == ["donor", "label", "share", "low", "high"]
    assert shares["share"].to_numpy() == pytest.approx(model.group_prevalence_.estimate.ravel())
    label(adata, "type", use_rep="X")
    assert list(adata.uns["type_shares"]["label"]) == NAMES.tolist()
    with pytest.raises(ValueError, match=r"groups must not be one of .*'share'.*, got share"):
        label(SimpleNamespace(obs=obs.assign(share=GROUPS), obsm={}), "type", groups="share")
    with pytest.raises(ValueError, match=r"use_rep must be X or in obsm \(X_pca\), got X_umap"):
        label(adata, "type", use_rep="X_umap")
    with pytest.raises(ValueError, match=r"groups must be a column of obs .*, got site"):
        label(adata, "type", groups="site")


def test_cells_without_a_label() -> None:
    """They may be unknown, whether the label is missing or -1."""
    strange = np.random.default_rng(5).normal(size=(20, D)).astype(np.float32)
    rows, numbers = np.concatenate([X, strange]), np.concatenate([[-1] * 60, KNOWN, [-1] * 20])
    unknown = []
    for labels in (numbers, pd.Series(numbers).where(numbers >= 0)):
        obs = pd.DataFrame({"type": labels})
        label(SimpleNamespace(obs=obs, obsm={"X_pca": rows}, uns={}, X=rows), "type")
        unknown.append(obs["type_unknown"].tolist())
    assert unknown[0] == unknown[1]
    assert any(unknown[0][-20:])
