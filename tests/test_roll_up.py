"""Groups of classes for samples whose class is unsure."""

from types import MappingProxyType

import pytest
import torch

import paddle_ext
from paddle_ext import presence
from paddle_ext.methods import Adaptive
from paddle_ext.presence import hierarchy

NAMES = ("oak", "elm", "fern", "moss", "newt")
PARENTS = MappingProxyType(
    {
        "oak": "tree",
        "elm": "tree",
        "tree": "plant",
        "fern": "plant",
        "moss": "plant",
        "newt": "animal",
    }
)
U = torch.tensor(
    [
        [0.95, 0.05, 0.0, 0.0, 0.0],
        [0.5, 0.45, 0.05, 0.0, 0.0],
        [0.5, 0.2, 0.25, 0.0, 0.05],
        [0.3, 0.2, 0.2, 0.0, 0.3],
        [0.0, 0.05, 0.0, 0.0, 0.95],
    ]
)


def test_the_most_specific_node_by_hand() -> None:
    found = hierarchy.Hierarchy.of(PARENTS, NAMES).roll_up(U, 0.9)
    assert found.names() == ["oak", "tree", "plant", None, "newt"]
    expected = torch.tensor([0.95, 0.95, 0.95, 1.0, 0.95])
    torch.testing.assert_close(found.probability, expected)
    rounded = hierarchy.Hierarchy.of(dict.fromkeys(NAMES, "all"), NAMES).roll_up(
        U * (1 - 2e-7), 1.0
    )
    assert rounded.names() == ["all"] * 5
    batched = hierarchy.Hierarchy.of(PARENTS, NAMES).roll_up(U.expand(2, 5, 5), 0.9)
    assert torch.equal(batched.node, found.node.expand(2, 5))


def test_of_a_solution_and_a_prediction(device: str) -> None:
    """Numbers by default; the largest probabilities alone give the same nodes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat(4)
    centres = torch.randn(6, 8, generator=generator)
    support = (centres[labels] + torch.randn(24, 8, generator=generator)).to(device)
    query = (centres[labels] + torch.randn(24, 8, generator=generator)).to(device)
    labels = labels.to(device)
    parents = {k: "low" if k < 3 else "high" for k in range(6)}
    solution = paddle_ext.adaptive(support, labels, query)
    found = presence.roll_up(solution, parents, 0.8)
    u = solution.probabilities
    for at, name in enumerate(found.names()):
        group = float(u[at, :3].sum()), float(u[at, 3:].sum())
        if name in ("low", "high"):
            assert u[at].max() < 0.8 <= group[name == "high"] + 1e-6
        elif name is None:
            assert max(group) < 0.8
        else:
            assert u[at, name] >= 0.8
    assert len(set(map(str, found.names()))) > 3
    prediction = Adaptive().predict(support, labels, query)
    assert presence.roll_up(prediction, parents, 0.8).names() == found.names()
    top = u.topk(6)
    few = solution._replace(probabilities=top.values, classes=top.indices)
    assert presence.roll_up(few, parents, 0.8).names() == found.names()


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({**PARENTS, "plant": "tree"}, "cycle"),
        ({**PARENTS, "oka": "tree"}, "'oka', which is no class and no parent"),
        ({"oak": "tree"}, "a parent for every class, got none for 'elm' and 3 others"),
    ],
)
def test_what_is_no_tree(parents: dict[str, str], message: str) -> None:
    solution = paddle_ext.adapt(U.clamp(min=1e-3).log())
    with pytest.raises(ValueError, match=message):
        presence.roll_up(solution, parents, classes=NAMES)


def test_bad_arguments() -> None:
    solution = paddle_ext.adapt(U.clamp(min=1e-3).log())
    for confidence in (0.5, 0.0, 1.1):
        with pytest.raises(ValueError, match="confidence must be"):
            presence.roll_up(solution, PARENTS, confidence, classes=NAMES)
    with pytest.raises(ValueError, match="classes must be the 5 of the solution, got 4"):
        presence.roll_up(solution, PARENTS, classes=NAMES[:4])
    with pytest.raises(ValueError, match="one twice"):
        presence.roll_up(solution, PARENTS, classes=("oak", *NAMES[:4]))
