"""`adaptive` with class names: against the specification, and its guarantees."""

from typing import Any

import pytest
import torch
from method_tasks import assert_close
from rounds import assert_sound
from torch import Tensor

from paddle_ext import Solution, methods, reference
from paddle_ext import task as layout
from paddle_ext.adaptive_rule.names import MOST_LIKELY_CLASSES
from paddle_ext.adaptive_rule.solve import solve_tasks
from paddle_ext.groups import groups_of
from paddle_ext.methods import Prediction
from paddle_ext.prior import measures_of

pytestmark = pytest.mark.usefixtures("one_thread")


def towers(
    shots: tuple[int, ...],
    *,
    present: int | None = None,
    Q: int = 24,
    D: int = 12,
    noise: float = 0.6,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Rows and names from two towers: an offset apart, and names only near their class."""
    random = torch.Generator().manual_seed(seed)
    K = len(shots)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    classes, offset, gap = draw(K, D), 3 * draw(D), 3 * draw(D)
    labels = torch.arange(K).repeat_interleave(torch.tensor(shots))
    truth = torch.arange(Q) % (present or K)
    return {
        "support": offset + classes[labels] + noise * draw(len(labels), D),
        "support_labels": labels,
        "query": offset + classes[truth] + noise * draw(Q, D),
        "prototypes": gap + classes + 0.5 * draw(K, D),
        "truth": truth,
    }


def given(scene: dict[str, Tensor]) -> dict[str, Any]:
    return {name: x for name, x in scene.items() if name != "truth"}


def predict(scene: dict[str, Any], **options: Any) -> Prediction:
    return methods.create("adaptive", **options).predict(**given(scene))


def batch(*scenes: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.stack([scene[name] for scene in scenes]) for name in scenes[0]}


# --- the specification --------------------------------------------------------------------------

SHOTS = {
    "none": (0,) * 6,
    "one": (1,) * 6,
    "two": (2,) * 6,
    "six": (6,) * 6,
    "some": (0, 5, 0, 1, 2, 0),
    "uneven": (1, 9, 2, 1, 4, 3),
    "many of few": (0, 0, 70, 60, 80, 90),
    "a single class": (0,),
    "a single class with rows": (3,),
}


@pytest.mark.parametrize("by", ["prototypes", "logits", "equal prototypes"])
@pytest.mark.parametrize("kind", SHOTS)
def test_agrees_with_the_reference(device: str, kind: str, by: str) -> None:
    scene = towers(SHOTS[kind], present=min(3, len(SHOTS[kind])))
    if by == "logits":
        logits = 5 * scene["query"] @ scene.pop("prototypes").mT / 50
        scene["logits"] = logits
    elif by != "prototypes":
        scene["prototypes"] = scene["prototypes"][:1].repeat(len(SHOTS[kind]), 1)
    want = reference.names(**given(scene))
    there = {name: x.to(device) for name, x in scene.items()}
    got = predict(there)
    # Steps for the sharpness end when its error is below 1e-6, as docs/adaptive.md has them.
    assert float((got.probabilities.cpu() - want).abs().max()) < 1e-7
    assert torch.equal(got.labels.cpu(), want.argmax(-1))
    single = {name: x.float() if x.is_floating_point() else x for name, x in there.items()}
    assert float((predict(single).probabilities.cpu() - want).abs().max()) < 2e-3


@pytest.mark.parametrize("kind", ["none", "one", "some"])
def test_a_large_batch_agrees_with_the_reference(device: str, kind: str) -> None:
    """With more than eight queries per class, features covary as they do in the batch."""
    scene = towers(SHOTS[kind], Q=8 * 6 + 12)
    want = reference.names(**given(scene))
    there = {name: x.to(device) for name, x in scene.items()}
    assert float((predict(there).probabilities.cpu() - want).abs().max()) < 1e-9
    single = {name: x.float() if x.is_floating_point() else x for name, x in there.items()}
    assert float((predict(single).probabilities.cpu() - want).abs().max()) < 2e-3


@pytest.mark.parametrize(
    "options",
    [{"logit_scale": 2.0}, {"max_iter": 1}, {"tol": 0.0}, {"metric": "diagonal"}],
)
def test_options_agree_with_the_reference(options: dict[str, Any]) -> None:
    for shots in (SHOTS["none"], SHOTS["some"], SHOTS["six"]):
        scene = towers(shots)
        want = reference.names(**given(scene), **options)
        assert float((predict(scene, **options).probabilities - want).abs().max()) < 1e-9


def test_more_classes_than_can_be_present() -> None:
    """Classes that no query is likely to have are dropped, and have no share."""
    K = MOST_LIKELY_CLASSES + 40
    for shots in ((0,) * K, (2, 1) + (0,) * (K - 2)):
        scene = towers(shots, present=5, Q=20, D=24, noise=0.3)
        want = reference.names(**given(scene))
        got = predict(scene)
        assert float((got.probabilities - want).abs().max()) < 1e-9
        assert int((got.probabilities > 0).any(0).sum()) <= MOST_LIKELY_CLASSES
        assert_sound(got, K, 1e-12)


# --- batches --------------------------------------------------------------------------------------


def test_a_task_does_not_depend_on_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of one batch may use different code: with and without rows of every class."""
    shots = [(3, 3, 3, 3), (0, 6, 3, 3), (6, 2, 2, 2), (12, 0, 0, 0)]
    scenes = [towers(one, seed=i) for i, one in enumerate(shots)]
    together = predict(batch(*scenes))
    for b, scene in enumerate(scenes):
        assert_close(Prediction(*(x[b] for x in together)), predict(scene), 1e-9)
    monkeypatch.setitem(layout.BUDGET, "cpu", 1)
    assert_close(predict(batch(*scenes)), together, 1e-9)


@pytest.mark.parametrize("shots", [(0,) * 4, (0, 2, 1, 0), (3,) * 4])
def test_what_all_tasks_share(shots: tuple[int, ...]) -> None:
    scenes = [towers(shots), towers(shots)]
    scenes[1]["query"] = scenes[1]["query"].flip(0)[:, :] * 1.5
    apart = predict(batch(*scenes))
    shared = batch(*scenes) | {
        name: scenes[0][name] for name in ("support", "support_labels", "prototypes")
    }
    assert_close(predict(shared), apart, 1e-9)
    names = batch(*scenes) | {"prototypes": scenes[0]["prototypes"]}
    assert_close(predict(names), apart, 1e-9)


# --- rows that belong together --------------------------------------------------------------------


def together(scene: dict[str, Tensor], prior: Tensor | None = None, **names: Any) -> Solution:
    """The solution with groups or things by their names, and whether they share."""
    share, query = names.pop("share", True), scene["query"]
    options = {name: groups_of(x, len(query), query.device) for name, x in names.items()}
    K = len(scene["prototypes"]) if "prototypes" in scene else scene["logits"].shape[-1]
    batches = len(options["groups"].names) if "groups" in options else None
    measures = None if prior is None else measures_of(prior, K, batches, query).values
    rows = {name: x[None] for name, x in given(scene).items()}
    task = layout.Task(**rows, num_classes=K, measures=measures)
    return solve_tasks(task, "auto", share=share, max_iter=100, tol=1e-3, **options)


SITES = torch.tensor([0] * 9 + [7] + [3] * 2 + [-2] * 5 + [4] * 7)[torch.randperm(24)]


@pytest.mark.parametrize("prior", [None, [6], [5, 6]], ids=str)
@pytest.mark.parametrize(
    ("kind", "by"),
    [("none", "prototypes"), ("one", "logits"), ("some", "prototypes"), ("six", "logits")],
)
def test_groups_agree_with_the_reference(device: str, kind: str, by: str, prior: Any) -> None:
    scene = towers(SHOTS[kind], present=3)
    if by == "logits":
        scene["logits"] = scene["query"] @ scene.pop("prototypes").mT / 10
    if prior is not None:
        prior = torch.rand(prior, generator=torch.Generator().manual_seed(1)).double()
        prior[..., 4] = 0
    want = reference.names(**given(scene), groups=SITES, prior=prior)
    for dtype, tolerance in ((torch.float64, 1e-7), (torch.float32, 2e-3)):
        there = {name: x.to(device, dtype) for name, x in scene.items()}
        there["support_labels"] = scene["support_labels"].to(device)
        found = together(there, prior, groups=SITES)
        assert float((found.probabilities.cpu() - want).abs().max()) < tolerance
        assert found.proportions.shape == (5, 6)
        assert float(found.over_all().proportions.sum()) == pytest.approx(1)
    text = together(there, prior, groups=[f"{10 + site}" for site in SITES])
    if prior is None:
        assert torch.equal(text.labels, found.labels)


def test_groups_of_many_classes_and_of_one_row() -> None:
    scene = towers((0,) * (MOST_LIKELY_CLASSES + 40), present=5, D=24, noise=0.3)
    prior = torch.ones(5, MOST_LIKELY_CLASSES + 40)
    prior[0, :100] = 0  # nothing that the rows resemble
    for groups in (SITES, torch.arange(24)):
        for known in (None, prior if groups is SITES else prior[1]):
            want = reference.names(**given(scene), groups=groups, prior=known)
            found = together(scene, known, groups=groups)
            assert float((found.probabilities - want).abs().max()) < 1e-7
            assert found.dual.shape == found.proportions.shape == (len(groups.unique()), 168)


@pytest.mark.parametrize("kind", ["none", "six"])
def test_groups_alone_and_things(kind: str) -> None:
    scene = towers(SHOTS[kind], present=3)
    alone = together(scene, groups=SITES, share=False)
    for place, site in enumerate(sorted({*SITES.tolist()})):
        own = together(scene | {"query": scene["query"][site == SITES]})
        assert torch.allclose(alone.probabilities[site == SITES], own.probabilities[0], atol=1e-9)
        assert torch.allclose(alone.proportions[place], own.proportions[0], atol=1e-9)
    one = together(scene, groups=torch.zeros(24))
    assert torch.allclose(one.probabilities, together(scene).probabilities[0], atol=1e-9)
    copies = scene | {"query": scene["query"].repeat_interleave(2, 0)}
    found = together(copies, groups=SITES.repeat_interleave(2), same=torch.arange(48) // 2)
    want = together(scene, groups=SITES)
    assert torch.allclose(found.things().probabilities, want.probabilities, atol=1e-6)
    assert torch.equal(found.labels[::2], found.labels[1::2])


# --- what it is for -------------------------------------------------------------------------------


def accuracy(scene: dict[str, Tensor], **options: Any) -> float:
    found = predict(scene, **options).labels
    return float((found == scene["truth"]).double().mean())


def test_the_batch_helps_the_names() -> None:
    """Whether one class is present or all, names with a batch beat names alone; two rows do not."""
    for present, Q in ((1, 60), (3, 60), (12, 60), (1, 2)):
        scenes = [
            towers((0,) * 12, present=present, Q=Q, D=32, noise=0.9, seed=s) for s in range(8)
        ]
        alone = methods.create("zero_shot")
        before = [
            float((alone.predict(**given(s)).labels == s["truth"]).double().mean()) for s in scenes
        ]
        assert sum(map(accuracy, scenes)) >= sum(before) + 0.01 * (Q > 2)


def test_a_large_batch_knows_its_classes() -> None:
    """Features vary together inside classes, along most of what tells classes apart."""
    scenes = []
    for seed in range(4):
        scene = towers((0,) * 6, Q=240, D=24, noise=0.4, seed=seed)
        random = torch.Generator().manual_seed(seed)
        classes = scene["prototypes"] - scene["prototypes"].mean(0)
        common = torch.randn(240, 1, generator=random, dtype=torch.float64)
        scene["query"] = scene["query"] + common * (classes[0] - classes[1]) / 2
        scenes.append(scene)
    large = sum(map(accuracy, scenes)) / len(scenes)
    small = 0.0
    for scene in scenes:
        parts = [
            scene | {name: scene[name][i : i + 40] for name in ("query", "truth")}
            for i in range(0, 240, 40)
        ]
        small += sum(map(accuracy, parts)) / len(parts) / len(scenes)
    assert large > small + 0.02


def test_labelled_rows_help_the_names() -> None:
    def total(shots: tuple[int, ...]) -> float:
        drawn = [towers(shots, present=4, Q=40, D=24, noise=1.2, seed=s) for s in range(8)]
        return sum(map(accuracy, drawn)) / len(drawn)

    none, one, four = total((0,) * 8), total((1,) * 8), total((4,) * 8)
    assert none + 0.01 < one < four + 0.02


@pytest.mark.parametrize(
    ("shots", "calibrated"),
    [((0,) * 8, False), ((2,) * 8, False), ((9,) * 7 + (0,), False), ((3,) * 8, True)],
)
def test_only_labelled_rows_of_every_class_calibrate(
    shots: tuple[int, ...], calibrated: bool
) -> None:
    found = together(towers(shots, Q=40))
    assert found.calibrated == calibrated
    share = found.prevalence()
    if not calibrated:  # intervals are those of one labelled row of each class
        assert torch.equal(found.shots, torch.ones(1, 8, dtype=torch.float64))
        with_three = found._replace(shots=3 * found.shots).prevalence()
        assert (share.high - share.low > with_three.high - with_three.low).any()


# --- hard input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "change",
    [
        {"query": lambda x: x * 0},
        {"query": lambda x: x[:1]},
        {"query": lambda x: x[:1].expand(7, -1)},
        {"prototypes": lambda x: x * 0},
        {"prototypes": lambda x: x[:1].expand_as(x)},
        {"prototypes": lambda x: -x, "query": lambda x: 1e3 * x},
        {"support": lambda x: x * 0},
        {"support": lambda x: x[:1].expand_as(x)},
        {"query": lambda x: x * 1e-2, "support": lambda x: x * 1e2},
    ],
)
@pytest.mark.parametrize("shots", [(0,) * 4, (0, 3, 1, 0), (3,) * 4])
def test_hard_input(shots: tuple[int, ...], change: dict[str, Any], dtype: torch.dtype) -> None:
    scene = given(towers(shots))
    scene = {name: change[name](x) if name in change else x for name, x in scene.items()}
    scene = {name: x.to(dtype) if x.is_floating_point() else x for name, x in scene.items()}
    assert_sound(methods.create("adaptive").predict(**scene), len(shots), 1e-5)
