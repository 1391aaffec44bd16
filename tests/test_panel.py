"""The panel of benchmarks: promises of its protocols, measures, baselines and printed tables."""

import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("rich")

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
panel = importlib.import_module("panel")
banks, bars, baselines, gaussian, measures, protocols, registry, results, tasks = (
    importlib.import_module(f"laboratory.{name}")
    for name in (
        "banks",
        "bars",
        "baselines",
        "gaussian",
        "measures",
        "protocols",
        "registry",
        "results",
        "tasks",
    )
)

CLASSES, SIZE, FEATURES = 22, 60, 6
GROUP = 5  # rows
SITE = 10  # rows: two groups
N_TASKS = 2


def random_bank() -> Any:
    """A bank of distinct rows, so that a row of a task can be found in it again."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), SIZE)
    centres = random.standard_normal((CLASSES, FEATURES))
    features = 3 * centres[labels] + random.standard_normal((len(labels), FEATURES))
    number = np.arange(len(labels))

    return banks.Bank(
        name="random",
        role="choosing",
        protocols=tuple(protocols.PROTOCOLS),
        features=torch.from_numpy(features).float(),
        labels=torch.from_numpy(labels),
        group=torch.from_numpy(number // GROUP),
        site=torch.from_numpy(number // SITE),
        text=torch.from_numpy(centres).float(),
    )


BANK = random_bank()
PLACE = {row.numpy().tobytes(): number for number, row in enumerate(BANK.features)}


def numbers_of(rows: Tensor) -> np.ndarray:
    """The numbers of rows [S, D] in the bank."""
    return np.array([PLACE[row.numpy().tobytes()] for row in rows])


def cells_of(name: str) -> list[Any]:
    return list(protocols.PROTOCOLS[name](BANK, N_TASKS))


def single_tasks(cell: Any) -> Iterator[Any]:
    for batch in cell.batches:
        for number in range(len(batch)):
            yield batch.part(number, number + 1)


# --- protocols ----------------------------------------------------------------------------------


# In "shared background" rows are moved, and cannot be found in the bank.
@pytest.mark.parametrize("name", [name for name in protocols.PROTOCOLS if "shared" not in name])
def test_rows_and_classes_of_a_protocol(name: str) -> None:
    cells = cells_of(name)
    assert cells

    for cell in cells:
        assert sum(map(len, cell.batches)) == N_TASKS
        for task in single_tasks(cell):
            labelled = numbers_of(task.support[0])
            queries = numbers_of(task.query[0])
            labels, truth = task.labels[0], task.truth[0]

            assert len(set(labelled)) == len(labelled)
            assert not set(labelled) & set(queries)
            assert set(labels.tolist()) == set(range(task.num_classes))

            # A class of the task is one class of the bank, and no two are the same.
            class_of = {int(k): int(BANK.labels[n]) for k, n in zip(labels, labelled, strict=True)}
            assert len(set(class_of.values())) == task.num_classes
            for k, n in zip(labels.tolist(), labelled, strict=True):
                assert class_of[k] == BANK.labels[n]
            for k, n in zip(truth.tolist(), queries, strict=True):
                own = int(BANK.labels[n])
                assert own not in class_of.values() if k == -1 else own == class_of[k]


@pytest.mark.parametrize("name", protocols.PROTOCOLS)
def test_draws_depend_on_nothing(name: str) -> None:
    first, second = cells_of(name), cells_of(name)
    assert [results.checksum(cell) for cell in first] == [results.checksum(cell) for cell in second]
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one.batches, other.batches, strict=True):
            assert torch.equal(a.support, b.support)
            assert torch.equal(a.query, b.query)


def test_further_tasks_do_not_change_the_first() -> None:
    few = next(protocols.equal(BANK, 1)).batches[0]
    more = next(protocols.equal(BANK, 3)).batches[0]
    assert torch.equal(few.query, more.query[:1])


def test_groups_of_other_sites_share_none() -> None:
    for cell in cells_of("real groups"):
        for task in single_tasks(cell):
            labelled = numbers_of(task.support[0])
            queries = numbers_of(task.query[0])
            assert torch.equal(task.query_groups[0], BANK.group[queries])
            assert torch.equal(task.support_groups[0], BANK.group[labelled])
            if cell.situation.endswith("of other sites"):
                assert not set(BANK.site[labelled].tolist()) & set(BANK.site[queries].tolist())


def test_sites_of_a_class_with_few_of_them() -> None:
    """Its labelled rows may come from the half of the batch, but then not their sites."""
    site = BANK.site.clone()
    first = BANK.labels == 0
    site[first] = site[first] % 4  # one of them at least
    bank = protocols.replace(BANK, site=site)
    for t in range(20):
        random = protocols.random_of("few sites", t)
        task = protocols.real_group_task(bank, np.arange(CLASSES), 5, True, random)
        labelled = numbers_of(task.support[0])
        queries = numbers_of(task.query[0])
        assert not set(site[labelled].tolist()) & set(site[queries].tolist())


def test_queries_of_a_pattern_do_not_depend_on_its_labels() -> None:
    by_present: dict[str, list[Any]] = {}
    for cell in cells_of("patterns"):
        pattern, present = cell.situation.split("; ")
        by_present.setdefault(f"{pattern.split(':')[0]}; {present}", []).append(cell.batches[0])

    assert len(by_present["10; 5 present"]) == 6
    for batches in by_present.values():
        for batch in batches:
            assert torch.equal(batch.query, batches[0].query)
            assert torch.equal(batch.truth, batches[0].truth)


def test_a_longer_pattern_has_the_labels_of_a_shorter() -> None:
    first_batch = {cell.situation: cell.batches[0] for cell in cells_of("patterns")}
    for chain in bars.CHAINS.values():
        before: set[int] = set()
        for pattern in chain:
            labelled = set(numbers_of(first_batch[f"{pattern}; 2 present"].support[0]))
            assert labelled > before
            before = labelled


def test_names_are_in_the_order_of_the_classes() -> None:
    for cell in cells_of("names"):
        for task in single_tasks(cell):
            own = BANK.labels[numbers_of(task.support[0])]
            assert torch.equal(task.names[0, task.labels[0]], BANK.text[own])


def test_tables_are_marked() -> None:
    assert not cells_of("tables")[0].batches[0].table
    table = protocols.replace(BANK, table=True)
    for name in ("tables", "real groups"):
        cell = next(protocols.PROTOCOLS[name](table, 1))
        assert cell.batches[0].table
        assert cell.batches[0].part(0, 1).table


# --- measures -----------------------------------------------------------------------------------


def test_measures_by_hand() -> None:
    """Three queries of class 0, one of class 1, and one of none; class 2 is not there."""
    truth = torch.tensor([[0, 0, 0, 1, -1]])
    probabilities = torch.tensor(
        [[[0.5, 0.3, 0.2], [0.6, 0.4, 0], [0.1, 0.9, 0], [0, 0, 1.0], [0, 0, 1.0]]]
    )
    found = measures.Measured()
    found.add(probabilities, truth)

    nll = -(math.log(0.5) + math.log(0.6) + math.log(0.1) + math.log(1e-6)) / 4
    assert found.accuracy == [pytest.approx(50)]
    assert found.balanced == [pytest.approx(100 * (2 / 3 + 0) / 2)]
    assert found.claim == [pytest.approx(75)]
    assert found.nll == [pytest.approx(nll)]
    assert found.errors == 0


def test_failures_are_counted_and_left_out() -> None:
    truth = torch.zeros(2, 3, dtype=torch.long)
    probabilities = torch.tensor([0.75, 0.25]).expand(2, 3, 2).clone()
    probabilities[1, 0, 0] = math.nan
    found = measures.Measured()
    found.add(probabilities, truth)
    found.add_failure(1, "ValueError: no")

    assert found.accuracy == [100, None, None]
    assert found.errors == 2
    assert found.messages == ["probabilities that are not finite", "ValueError: no"]
    total = measures.summary([found])
    assert (total.accuracy, total.off, total.errors) == (100, -25, 2)

    failed = measures.Measured()
    failed.add_failure(1, "ValueError: no")
    assert measures.summary([failed, found]).accuracy == 100
    assert math.isnan(measures.summary([failed]).accuracy)


def test_probabilities_of_another_shape() -> None:
    with pytest.raises(ValueError, match="probabilities must be"):
        measures.Measured().add(torch.ones(1, 2, 3), torch.zeros(1, 3, dtype=torch.long))


def with_accuracies(accuracies: list[float], claim: float, seconds: float = 1.0) -> Any:
    n = len(accuracies)
    return measures.Measured(list(accuracies), list(accuracies), [claim] * n, [1.0] * n, seconds)


def test_summary_by_hand() -> None:
    """The first cell has the accuracies 0, 1, .. 19: its worst tenth are two tasks."""
    first = with_accuracies([float(n) for n in range(20)], claim=19.5)
    second = with_accuracies([80.0, 90.0], claim=65.0)
    total = measures.summary([first, second])

    assert total.accuracy == pytest.approx((9.5 + 85) / 2)
    assert total.off == pytest.approx((10 - 20) / 2)
    assert total.off_absolute == pytest.approx(15)
    assert total.off_worst == pytest.approx(-20)
    assert total.worst_tenth == pytest.approx((0.5 + 80) / 2)
    assert (total.cells, total.seconds) == (2, 2)


# --- bars ---------------------------------------------------------------------------------------


def cell_result(protocol: str, situation: str, bank: str = "a", **accuracies: float) -> Any:
    """A cell in which rules, with _ for a space, are honest and have these accuracies."""
    rules = {
        name.replace("_", " "): with_accuracies([accuracy], claim=accuracy)
        for name, accuracy in accuracies.items()
    }
    return results.CellResult(protocol, situation, bank, "choosing", 0, rules)


def bar(cells: list[Any], start: str) -> Any:
    (found,) = (bar for bar in bars.bars(cells, "torch") if bar.name.startswith(start))
    return found


def test_bars_compare_means_over_banks() -> None:
    cells = [
        cell_result("equal", "5 classes", "a", torch=60.0, adaptive=61.0),
        cell_result("equal", "5 classes", "b", torch=70.0, adaptive=69.5),
        cell_result("equal", "20 classes", "a", torch=50.0, adaptive=40.0),
    ]
    found = bar(cells, "equal")
    assert (found.figure, found.where, found.passed) == (pytest.approx(-0.25), "5 classes", True)
    cells[1].rules["torch"] = with_accuracies([69.0], claim=69.0)
    assert bar(cells, "equal").passed is False
    assert bar(cells, "drawn groups").passed is None


def test_bars_of_tails() -> None:
    others = {"logistic_regression": 52.0, "nearest_mean": 53.0}
    cells = [cell_result("natural", "1/k", torch=52.2, adaptive=53.8, **others)]
    cells[0].rules["alpha-TIM"] = with_accuracies([40.0], claim=40.0)
    assert bar(cells, "tails: over best").figure == pytest.approx(-0.8)
    assert bar(cells, "tails: over best").passed
    assert bar(cells, "tails: balanced").figure == pytest.approx(0.2)
    assert bar(cells, "tails: lead").figure == pytest.approx(-1.6)
    assert not bar(cells, "tails: lead").passed


def test_a_pattern_is_compared_with_the_best_before_it() -> None:
    accuracies = [70.0, 80.0, 79.8, 79.4, 90.0]
    cells = [
        cell_result("patterns", f"{pattern}; 5 present", torch=accuracy)
        for pattern, accuracy in zip(bars.CHAINS["ten classes"], accuracies, strict=True)
    ]
    # A bank without all patterns of the chain does not count.
    cells.append(cell_result("patterns", "10: 20 ..; 5 present", "b", torch=0.0))
    found = bar(cells, "patterns of ten")
    assert found.figure == pytest.approx(-0.6)
    assert (found.where, found.passed) == ("10: 20 x 5, 1 x 5; 5 present", False)
    assert found.cells == "5 of 6"


def test_bars_of_real_groups_and_honesty() -> None:
    cells = [cell_result("real groups", "2 labels", torch=60.0)]
    rules = cells[0].rules
    rules["torch, one batch"] = with_accuracies([60.5], claim=60)
    rules["torch, each alone"] = with_accuracies([30.0], claim=30)
    rules["logistic regression"] = with_accuracies([50.0], claim=50)
    rules["regression, summed"] = with_accuracies([58.0], claim=58)
    assert bar(cells, "real groups: over one batch, alone; any cell").figure == pytest.approx(-0.5)
    assert bar(cells, "real groups: over regression, summed; average").figure == pytest.approx(2)

    rules["torch"] = with_accuracies([60.0], claim=68.0)
    assert not bar(cells, "honest: mean of a protocol").passed
    assert bar(cells, "honest: any situation on one bank").passed
    assert bar(cells, "errors").passed
    rules["torch"].add_failure(1, "ValueError: no")
    assert not bar(cells, "errors").passed


# --- rules --------------------------------------------------------------------------------------


def test_nearest_mean_by_hand() -> None:
    """The length of a labelled row does not count: the mean of class 0 is on the diagonal."""
    task = tasks.Tasks(
        support=torch.tensor([[[100.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]]),
        labels=torch.tensor([[0, 0, 1]]),
        query=torch.tensor([[[2.0, 2.0], [-3.0, 1.0]]]),
        truth=torch.tensor([[0, 1]]),
        num_classes=2,
    )
    cosines = torch.tensor(
        [[1, -math.sqrt(0.5)], [-2 / math.sqrt(20), 3 / math.sqrt(10)]], dtype=torch.float64
    )
    expected = (10 * cosines).softmax(-1).float()
    torch.testing.assert_close(baselines.nearest_mean(task)[0], expected)


@pytest.mark.parametrize("table", [False, True])
def test_logistic_regression_of_scikit_learn(table: bool) -> None:
    """With one row of each class nothing can be left out, and C is 100."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    cell = next(protocols.equal(BANK, 1))
    task = protocols.replace(cell.batches[0], table=table)
    assert task.labels.shape == (1, task.num_classes)

    def rows(x: Tensor) -> np.ndarray:
        x = x[0].double()
        return (x if table else torch.nn.functional.normalize(x, dim=-1)).numpy()

    model = linear_model.LogisticRegression(C=100.0, tol=1e-8, max_iter=5000)
    model.fit(rows(task.support), task.labels[0].numpy())
    expected = model.predict_proba(rows(task.query))
    found = registry.Regression().plain(task)[0].numpy()
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_regressions_compute_one_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def regression(task: Any, **options: Any) -> Tensor:
        seen.append(options)
        return torch.full((*task.truth.shape, task.num_classes), 1 / task.num_classes)

    monkeypatch.setattr(registry, "logistic_regression", regression)
    task = next(protocols.drawn_groups(BANK, 1)).batches[0]
    rules = registry.Regression()
    rules.plain(task)
    torch.testing.assert_close(rules.summed(task), rules.plain(task))
    assert seen == [{"unit_rows": True}]
    rules.plain(task.part(0, 1))
    assert len(seen) == 2


def test_rules_apply_where_they_make_sense() -> None:
    grouped = next(protocols.drawn_groups(BANK, 1))
    plain = next(protocols.equal(BANK, 1))
    for name in ("adaptive, one batch", "torch, each alone", "regression, summed"):
        assert registry.RULES[name](grouped) is not None
        assert registry.RULES[name](plain) is None
    assert registry.RULES["Gibbs sampler"](plain) is None
    assert registry.RULES["TabPFN v1"](plain) is None


@pytest.mark.parametrize("protocol", ["equal", "drawn groups", "names"])
def test_adaptive_of_the_package(protocol: str) -> None:
    cell = next(protocols.PROTOCOLS[protocol](BANK, 1))
    for name in ("adaptive", "adaptive, one batch", "adaptive, each alone"):
        rule = registry.RULES[name](cell)
        if rule is not None:
            found = measures.Measured()
            found.add(rule(cell.batches[0]), cell.batches[0].truth)
            assert found.accuracy[0] > 70


def test_gibbs_sampler_knows_the_posterior() -> None:
    """One query: its class probabilities are known, as nothing but the labelled rows counts."""
    task = next(gaussian.cells(1)).batches[0]
    task = protocols.replace(task, query=task.query[:, :1], truth=task.truth[:, :1])
    found = gaussian.gibbs_sampled(task, 0.1, sweeps=2, burn_in=1, chains=2)

    mean = task.support.double() / (2.5**2 + 1)
    deviation = math.sqrt(2.5**2 + 2.5**2 / (2.5**2 + 1))
    density = torch.distributions.Normal(mean, deviation).log_prob(task.query.double()).sum(-1)
    torch.testing.assert_close(found[0], density.softmax(-1))


def test_gibbs_sampler_learns_from_the_batch() -> None:
    cell = next(gaussian.cells(2))  # one label a class, two classes present
    task = cell.batches[0]
    sampler = gaussian.sampler_of(cell)
    assert sampler is not None

    few = protocols.replace(task, query=task.query[:, :30], truth=task.truth[:, :30])
    found, alone = measures.Measured(), measures.Measured()
    found.add(gaussian.gibbs_sampled(few, 0.1, sweeps=12, burn_in=6, chains=2), few.truth)
    alone.add(baselines.nearest_mean(few), few.truth)
    assert measures.summary([found]).accuracy > measures.summary([alone]).accuracy + 10


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one bank for choosing and one for reporting."""
    entries = [
        {"name": "small", "file": "small.npz", "role": "choosing", "protocols": ["strangers"]},
        {"name": "apart", "file": "small.npz", "role": "reporting", "protocols": ["strangers"]},
    ]
    roles = tmp_path / "banks.json"
    roles.write_text(json.dumps(entries))
    monkeypatch.setattr(banks, "ROLES", roles)
    np.savez(tmp_path / "small.npz", features=BANK.features.numpy(), labels=BANK.labels.numpy())
    return tmp_path


@pytest.fixture
def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run the panel on that folder, and return what it prints."""

    def command(*arguments: str) -> str:
        threads = str(torch.get_num_threads())
        common = ["--data", str(folder), "--output", str(folder), "--threads", threads]
        monkeypatch.setattr(sys, "argv", ["panel.py", *common, *arguments])
        panel.main()
        return capsys.readouterr().out

    return command


RUN = ("--protocols", "strangers", "--n-tasks", "2")


def test_panel(run: Callable[..., str], folder: Path) -> None:
    printed = run(*RUN, "--rules", "nearest mean", "--cells", "--judge", "nearest mean")
    assert printed.startswith("banks for choosing: small\n")
    assert "strangers: 2 situations, 2 cells" in printed
    assert "bars for nearest mean" in printed

    path = folder / "panel.json"
    stored = json.loads(path.read_text())
    assert [cell["bank"] for cell in stored["cells"]] == ["small", "small"]
    for cell in stored["cells"]:
        (measured,) = cell["rules"].values()
        assert len(measured["accuracy"]) == 2
        assert min(measured["accuracy"]) > 70
    assert stored["runs"][0]["n_tasks"] == 2

    assert run("--show", str(path), "--cells", "--judge", "nearest mean") == printed


def test_panel_for_reporting(run: Callable[..., str]) -> None:
    printed = run(*RUN, "--rules", "nearest mean", "--role", "reporting")
    assert printed.startswith("banks for reporting: apart\nnothing may be chosen")


def failing(_: Any) -> Tensor:
    raise ValueError("this rule\nhas failed")


def test_panel_continues_after_an_error(
    run: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.RULES, "torch", registry.everywhere(failing))
    printed = run(*RUN, "--rules", "torch,nearest mean")
    assert "error of torch: ValueError: this rule (first: strangers" in printed

    measured = results.load(folder / "panel.json").cells[0].rules
    assert measured["torch"].errors == 2
    assert measured["nearest mean"].errors == 0


def test_results_of_two_runs_are_merged(run: Callable[..., str], folder: Path) -> None:
    run(*RUN, "--rules", "nearest mean")
    other = folder / "other.json"
    (folder / "panel.json").rename(other)
    printed = run(*RUN, "--rules", "PLDA", "--merge", str(other))
    assert "nearest mean" in printed
    assert run("--show", str(folder / "panel.json")) == printed

    merged = results.load(folder / "panel.json")
    assert [set(cell.rules) for cell in merged.cells] == [{"PLDA", "nearest mean"}] * 2

    # Results of other draws are refused.
    run("--protocols", "strangers", "--n-tasks", "1", "--rules", "nearest mean")
    with pytest.raises(SystemExit, match="not the same tasks: strangers"):
        run("--show", str(folder / "panel.json"), str(other))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rules", "best"], "best: not one of"),
        (["--protocols", "equal,odd"], "odd: not one of"),
        (["--banks", "apart"], "no bank for choosing: apart"),
        (["--n-tasks", "0"], "at least 1"),
    ],
)
def test_wrong_options(
    run: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit):
        run(*arguments)
    assert message in capsys.readouterr().err


def test_missing_files(run: Callable[..., str], folder: Path) -> None:
    (folder / "small.npz").unlink()
    with pytest.raises(SystemExit, match=r"these files are missing: small\.npz"):
        run(*RUN)


def test_names_with_commas() -> None:
    split = panel.names_of(registry.RULES)
    assert split("adaptive, one batch,nearest mean") == ("adaptive, one batch", "nearest mean")
    assert split("adaptive") == ("adaptive",)
