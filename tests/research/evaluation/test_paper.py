"""The paper's numbers, against its tables typed a second time."""

import pytest

from paddle_ext import methods
from paddle_ext.research.evaluation import paper


@pytest.mark.parametrize(
    ("backbone", "method", "row"),
    [  # columns as printed: mini 5, 10, 20, tiered 5, 10, 20
        ("resnet18", "paddle", (63.2, 73.3, 80.0, 45.8, 62.5, 72.0)),
        ("resnet18", "tim", (66.4, 69.4, 70.9, 26.6, 26.7, 25.5)),
        ("resnet18", "pt_map", (25.8, 27.4, 29.0, 4.3, 5.1, 5.9)),
        ("wrn28_10", "alpha_tim", (68.3, 72.5, 75.8, 41.9, 46.1, 51.8)),
        ("wrn28_10", "laplacian_shot", (64.9, 65.3, 70.9, 28.1, 38.0, 45.2)),
        ("wrn28_10", "baseline", (58.0, 64.8, 69.5, 31.8, 37.0, 42.1)),
    ],
)
def test_table1(backbone: str, method: str, row: tuple[float, ...]) -> None:
    mini, tiered = (
        paper.accuracies("table1", dataset, backbone)[method] for dataset in ("mini", "tiered")
    )
    assert (*mini.values(), *tiered.values()) == row
    assert list(mini) == list(tiered) == [5, 10, 20]


def test_table1_methods() -> None:
    assert tuple(paper.accuracies("table1", "mini", "resnet18")) == paper.methods("table1")
    assert tuple(paper.accuracies("table1", "mini", "wrn28_10")) == paper.methods("table1")
    assert tuple(paper.accuracies("table1", "tiered", "wrn28_10")) == paper.methods(
        "table2"
    )  # ICI: intractable


def test_means_of_the_columns() -> None:
    """A wrong digit anywhere in Table 1 changes a sum; these sums were computed from the print."""
    sums = [
        sum(row[shots] for row in paper.accuracies("table1", dataset, backbone).values())
        for backbone in paper.BACKBONES
        for dataset in ("mini", "tiered")
        for shots in (5, 10, 20)
    ]
    assert sums[0] == pytest.approx(54.1 + 54.7 + 49.6 + 25.8 + 60.4 + 66.4 + 63.5 + 63.2)
    assert sums[5] == pytest.approx(39.5 + 26.0 + 5.9 + 39.1 + 25.5 + 48.4 + 72.0)
    assert sums[8] == pytest.approx(69.5 + 70.9 + 58.4 + 29.4 + 70.9 + 76.1 + 75.8 + 79.3)
    assert sums[10] == pytest.approx(37.0 + 24.9 + 5.0 + 38.0 + 34.1 + 46.1 + 60.3)


def test_other_tables() -> None:
    assert paper.accuracies("table2", "inat")["alpha_tim"] == {None: 66.7}
    assert tuple(paper.accuracies("table2", "inat")) == paper.methods("table2")
    assert paper.accuracies("ablation", "mini")["soft_kmeans"] == {5: 49.6, 10: 57.2, 20: 63.6}
    assert paper.accuracies("ablation", "tiered")["soft_kmeans"][20] == 39.5
    assert paper.convergence()["paddle_pgd"] == (0.61, 53.0)
    assert paper.convergence()["alpha_tim"].seconds is None


def test_dirichlet() -> None:
    published = paper.accuracies("dirichlet", "mini")
    assert published["simpleshot"] == {1: 63.0, 5: 80.1, 10: 84.0, 20: 86.1}
    by_shots = zip(*(row.values() for row in published.values()), strict=True)
    assert [round(sum(column), 1) for column in by_shots] == [390.2, 471.3, 487.8, 499.2]
    with pytest.raises(ValueError, match="dataset must be one of 'mini', got 'tiered'"):
        paper.accuracies("dirichlet", "tiered")


def test_stata() -> None:
    assert list(paper.stata()) == ["zero_shot", "em_dirichlet", "transclip", "stata"]
    columns = zip(*paper.stata().values(), strict=True)
    assert [round(sum(column), 1) for column in columns] == [
        243.0, 245.2, 242.8, 255.8, 242.3, 232.2, 234.9,
    ]  # fmt: skip


def test_ablation_is_part_of_table1() -> None:
    for dataset in ("mini", "tiered"):
        assert (
            paper.accuracies("ablation", dataset)["paddle"]
            == paper.accuracies("table1", dataset, "resnet18")["paddle"]
        )
    assert (
        paper.accuracies("ablation", "inat")["paddle"]
        == paper.accuracies("table2", "inat")["paddle"]
    )


def test_k_eff_curves() -> None:
    curve = paper.k_eff_curve("mini", "resnet18", "paddle", 5)
    assert curve == dict(
        zip(range(2, 11), (72.7, 69.6, 65.7, 63.2, 60.1, 59.0, 56.9, 54.6, 52.8), strict=True)
    )
    assert paper.k_eff_curve("tiered", "wrn28_10", "paddle", 20)[10] == 59.7
    assert paper.k_eff_curve("mini", "resnet18", "pt_map", 10) == {5: 27.4}
    assert paper.k_eff_curve("mini", "wrn28_10", "laplacian_shot", 5) == {}  # noise
    assert paper.k_eff_curve("inat", "resnet18", "paddle", None) == {}


@pytest.mark.parametrize("dataset", ["mini", "tiered"])
@pytest.mark.parametrize("backbone", paper.BACKBONES)
def test_k_eff_curves_pass_through_table1(dataset: str, backbone: str) -> None:
    compared = 0
    for method, row in paper.accuracies("table1", dataset, backbone).items():
        for shots, accuracy in row.items():
            curve = paper.k_eff_curve(dataset, backbone, method, shots)
            if curve:
                assert curve[5] == accuracy, (method, shots)
                compared += 1
    assert compared >= 18
    for shots in (5, 10, 20):
        ablated = paper.k_eff_curve(dataset, "resnet18", "soft_kmeans", shots)
        assert ablated[5] == paper.accuracies("ablation", dataset)["soft_kmeans"][shots]


def test_methods_are_known() -> None:
    numbers = paper.numbers()
    named = {*numbers["convergence"]}
    for table in (*paper.TABLES, "k_eff"):
        for by_backbone in numbers[table].values():
            for rows in by_backbone.values():
                named |= set(rows)
    assert named <= set(methods.available(named=False))
    assert len(named) == 11


def test_the_file_has_a_number_for_each_column() -> None:
    for by_backbone in paper.numbers()["k_eff"].values():
        for by_method in by_backbone.values():
            rows = [row for by_shots in by_method.values() for row in by_shots.values()]
            assert {len(row) for row in rows} == {len(paper.K_EFFS)}
            assert all(0 < x < 100 for row in rows for x in row if x is not None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: paper.accuracies("table1", "inat"),
            "dataset must be one of 'mini', 'tiered', got 'inat'",
        ),
        (lambda: paper.accuracies("table1", "mini", "wideres"), "backbone must be one of"),
        (lambda: paper.accuracies("ablation", "cub"), "dataset must be one of"),
        (lambda: paper.k_eff_curve("mini", "resnet18", "KM-BIASED", 5), "method must be one of"),
    ],
)
def test_errors(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
