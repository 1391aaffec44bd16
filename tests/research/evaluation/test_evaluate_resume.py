"""Interrupted and shared evaluations give exactly the result of one uninterrupted process."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from banks import Spy, small_bank

from paddle_ext import Evaluation, FeatureBank, evaluate, methods
from paddle_ext.progress import Progress
from paddle_ext.research.evaluation import blocks, journal
from paddle_ext.research.ranks import Ranks

HERE = Path(__file__).parent
TESTS = HERE.parents[1]  # where `banks` is
TASKS = 1100  # three blocks


@pytest.fixture(autouse=True)
def _forget() -> None:
    Spy.forget()


def run(output: Path | None = None, bank: FeatureBank | None = None, **options: Any) -> Evaluation:
    defaults = {"methods": Spy(), "shots": (1, 2), "k_eff": 3, "n_query": 12, "n_tasks": TASKS}
    return evaluate(
        bank or small_bank(),
        **(defaults | {"device": "cpu", "progress": False, "output": output} | options),
    )


def timeless(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, results=tuple(replace(r, seconds=0.0) for r in evaluation))


def lines(folder: Path, rank: int = 0) -> list[Any]:
    text = (folder / f"journal-{rank}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_interrupted(tmp_path: Path) -> None:
    Spy.interrupt_at = 4  # after the warm-up and three blocks
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert len(lines(tmp_path)) == 1 + 3
    assert not (tmp_path / "evaluation.json").exists()
    Spy.forget()
    found = run(tmp_path)
    assert [len(task.query) for task in Spy.seen] == [1, 500, 500, 100]  # the second setting
    assert timeless(found) == timeless(run())
    assert found.results[0].seconds == sum(line["count"][2] for line in lines(tmp_path)[1:4])
    assert Evaluation.load(tmp_path / "evaluation.json") == found
    Spy.forget()
    assert run(tmp_path) == found  # the seconds too
    assert not Spy.seen


def test_a_slow_block_is_kept_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a few seconds are lost, however long 500 tasks take."""
    monkeypatch.setattr(journal, "SECONDS", 0.0)
    monkeypatch.setattr(blocks, "BATCH_SECONDS", 1e-9)  # a task at a time
    Spy.interrupt_at = 40
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, shots=1, n_tasks=60)
    *_, last = lines(tmp_path)
    assert last["tasks"] in (38, 39)
    Spy.forget()
    found = run(tmp_path, shots=1, n_tasks=60)
    assert len(Spy.seen) == 1 + 60 - last["tasks"]  # the warm-up, and what was left
    monkeypatch.undo()
    assert timeless(found) == timeless(run(shots=1, n_tasks=60))
    assert lines(tmp_path)[-1]["count"][0] == round(found.results[0].accuracy * 60 * 12 / 100)


def test_lines_of_parts_come_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short block has one line."""
    monkeypatch.setattr(blocks, "BATCH_SECONDS", 1e-9)
    run(tmp_path, shots=1, n_tasks=30)
    assert len(lines(tmp_path)) == 2


@pytest.mark.parametrize("tasks", [0, 61, 1.5, "many"])
def test_impossible_parts_are_refused(tmp_path: Path, tasks: object) -> None:
    run(tmp_path, shots=1, n_tasks=60)
    path = tmp_path / "journal-0.jsonl"
    header, line = path.read_text().splitlines()
    path.write_text(f"{header}\n{json.dumps(json.loads(line) | {'tasks': tasks})}\n")
    with pytest.raises((ValueError, TypeError), match="is not a journal of an evaluation"):
        run(tmp_path, shots=1, n_tasks=60)


def test_the_bar_names_the_method_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its start, not when its first tasks are done."""
    shown: list[tuple[int, str]] = []
    monkeypatch.setattr(
        Progress, "advance", lambda _, count=1, note="": shown.append((count, note))
    )
    run(methods={"one": Spy(), "two": Spy(sharpness=0.5)}, shots=1, n_tasks=10)
    assert [(count, note.partition(",")[0]) for count, note in shown] == [
        (0, "one"),
        (10, "one"),
        (0, "two"),
        (10, "two"),
    ]


def test_more_methods_and_tasks(tmp_path: Path) -> None:
    run(tmp_path, shots=2)
    sharp = {"spy": Spy(), "other": Spy(sharpness=0.5), "paddle": methods.create("paddle")}
    Spy.forget()
    found = run(tmp_path, methods=sharp, shots=2)
    assert [len(task.query) for task in Spy.seen] == [1, 500, 500, 100]
    assert timeless(found) == timeless(run(methods=sharp, shots=2))
    for tasks, computed in ((1400, [1, 400]), (700, [1, 200])):  # only the last block is another
        Spy.forget()
        found = run(tmp_path, shots=2, n_tasks=tasks)
        assert [len(task.query) for task in Spy.seen] == computed
        assert timeless(found) == timeless(run(shots=2, n_tasks=tasks))


def test_another_label_is_the_same_method(tmp_path: Path) -> None:
    run(tmp_path)
    Spy.forget()
    found = run(tmp_path, methods={"nearest": Spy()})
    assert not Spy.seen
    assert found.methods == ("nearest",)


def turned_bank() -> FeatureBank:
    """The same rows with the labels of others."""
    bank = small_bank()
    return FeatureBank(bank.features, bank.labels.flip(0), base_mean=bank.base_mean)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"with another seed \(there 0, here 1\) \(or pass"),
        ({"n_query": 9}, r"with another n_query \(there 12, here 9\) \(or pass"),
        ({"num_classes": 5}, r"with another num_classes \(there 12, here 5\) \(or"),
        ({"sampling": "balanced", "alpha": 2.0}, r"another sampling \(.*\), another alpha \(there"),
        ({"support": torch.arange(0, 360, 2)}, r"with another rows \("),
        ({"bank": small_bank(noise=1.1)}, r"with another features \("),
        ({"bank": small_bank(base_mean=None)}, r"with another features \("),
        ({"bank": turned_bank()}, r"with another rows \("),
    ],
)
def test_another_evaluation(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    run(tmp_path, n_tasks=3)
    before = (tmp_path / "journal-0.jsonl").read_bytes()
    Spy.forget()
    with pytest.raises(ValueError, match=message) as caught:
        run(tmp_path, n_tasks=3, **changes)
    assert str(tmp_path) in str(caught.value)
    assert "resume=False" in str(caught.value)
    assert not Spy.seen
    assert (tmp_path / "journal-0.jsonl").read_bytes() == before
    found = run(tmp_path, n_tasks=3, resume=False, **changes)
    assert timeless(found) == timeless(run(n_tasks=3, **changes))
    assert Evaluation.load(tmp_path / "evaluation.json") == found


@pytest.mark.parametrize("lost", [1, 20])
def test_torn_line(tmp_path: Path, lost: int) -> None:
    expected = run(tmp_path, shots=2)
    journal = tmp_path / "journal-0.jsonl"
    journal.write_bytes(journal.read_bytes()[:-lost])
    Spy.forget()
    assert timeless(run(tmp_path, shots=2)) == timeless(expected)
    assert [len(task.query) for task in Spy.seen] == [1, 100]
    assert len(lines(tmp_path)) == 1 + 3


def test_torn_header(tmp_path: Path) -> None:
    (tmp_path / "journal-0.jsonl").write_text('{"journal": "0.')
    run(tmp_path, shots=2)
    assert len(lines(tmp_path)) == 1 + 3


@pytest.mark.parametrize("text", ["no journal\n", "[1]\n", '{"task": 1}\n', "HEADER\n{}\n"])
def test_damaged_journal(tmp_path: Path, text: str) -> None:
    run(tmp_path, n_tasks=1)
    journal = tmp_path / "journal-0.jsonl"
    journal.write_text(text.replace("HEADER", json.dumps(lines(tmp_path)[0])))
    with pytest.raises(ValueError, match=r"journal-0\.jsonl is not a journal of an evaluation"):
        run(tmp_path, n_tasks=1)


GOOD = [[2, 3, "spy", 0, 10], [60, 400, 0.5]]  # 10 tasks of 12 queries


@pytest.mark.parametrize(
    ("task", "count"),
    [
        ([2, 3, "spy", 0, 10], [121, 1500, 0.5]),  # more correct labels than queries
        ([2, 3, "spy", 0, 10], [-1, 0, 0.5]),
        ([2, 3, "spy", 0, 10], [60, 359, 0.5]),  # less than equal counts have
        ([2, 3, "spy", 0, 10], [60, 721, 0.5]),  # more than whole tasks have
        ([2, 3, "spy", 0, 10], [60.5, 400, 0.5]),
        ([2, 3, "spy", 0, 10], ["60", 400, 0.5]),
        ([2, 3, "spy", 0, 10], [True, 1, 0.5]),
        ([2, 3, "spy", 0, 10], [60, 400, -1.0]),
        ([2, 3, "spy", 0, 10], [60, 400, float("nan")]),
        ([2, 3, "spy", 0, 10], [60, 400, float("inf")]),
        ([2, 3, "spy", 0, 10], [60, 400, "1"]),
        ([2, 3, "spy", 0, 0], [0, 0, 0.5]),
        ([2, 3, "spy", 0, 501], [60, 400, 0.5]),
        ([2, 3, "spy", -1, 10], [60, 400, 0.5]),
        ([2, 3, 7, 0, 10], [60, 400, 0.5]),
        ([-2, 3, "spy", 0, 10], [60, 400, 0.5]),
    ],
)
def test_impossible_counts(tmp_path: Path, task: list[Any], count: list[Any]) -> None:
    run(tmp_path, n_tasks=1)
    header = json.dumps(lines(tmp_path)[0])
    journal = tmp_path / "journal-0.jsonl"
    good = json.dumps({"task": GOOD[0], "count": GOOD[1]})
    journal.write_text(f"{header}\n{good}\n")
    run(tmp_path, n_tasks=1)
    journal.write_text(f"{header}\n{json.dumps({'task': task, 'count': count})}\n")
    with pytest.raises(ValueError, match=r"journal-0\.jsonl is not a journal of an evaluation"):
        run(tmp_path, n_tasks=1)


def test_a_journal_that_is_not_text(tmp_path: Path) -> None:
    run(tmp_path, n_tasks=1)
    for content in (b"\xff\xfe\n", b"[" * 100_000 + b"\n"):
        (tmp_path / "journal-0.jsonl").write_bytes(content)
        with pytest.raises(ValueError, match=r"journal-0\.jsonl is not a journal of an evaluation"):
            run(tmp_path, n_tasks=1)


def test_a_folder_is_made(tmp_path: Path) -> None:
    run(tmp_path / "runs" / "first", n_tasks=1)
    assert (tmp_path / "runs" / "first" / "evaluation.json").exists()


# --- ranks --------------------------------------------------------------------------------------

RANK = """
import json, sys
from pathlib import Path
import torch.distributed as dist
from test_evaluate_resume import run

out = Path(sys.argv[1])
first = run(out / "shared")
second = run(methods=["paddle", "simpleshot"], shots=2, n_tasks=501)
try:
    run(out / "shared", seed=1)
except ValueError as error:
    refused = str(error)
assert dist.get_world_size() == 2
for number, found in enumerate((first, second)):
    found.save(out / f"{number}-of-{dist.get_rank()}.json")
(out / f"refused-{dist.get_rank()}").write_text(refused)
"""


def test_two_ranks(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", RANK, tmp_path],
            cwd=tmp_path,  # away from the sources, which may have no native module
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    found = [
        [Evaluation.load(tmp_path / f"{number}-of-{rank}.json") for rank in range(2)]
        for number in range(2)
    ]
    assert found[0][0] == found[0][1]
    assert found[1][0] == found[1][1]
    assert found[0][0] == Evaluation.load(tmp_path / "shared" / "evaluation.json")
    expected = run()
    assert timeless(found[0][0]).results == timeless(expected).results
    alone = run(methods=["paddle", "simpleshot"], shots=2, n_tasks=501)
    assert timeless(found[1][0]).results == timeless(alone).results
    blocks = [
        [line["task"][3] for line in lines(tmp_path / "shared", rank)[1:]] for rank in range(2)
    ]
    assert blocks == [[0, 2, 0, 2], [1, 1]]
    for rank in range(2):
        assert "with another seed" in (tmp_path / f"refused-{rank}").read_text()

    Spy.forget()  # one process resumes what two began
    assert run(tmp_path / "shared").results == found[0][0].results
    assert not Spy.seen


def test_an_error_of_one_rank_reaches_all() -> None:
    class Two(Ranks):
        def gather(self, value: Any) -> list[Any]:
            return [value, OSError("the disk is full")]

    with pytest.raises(OSError, match="the disk is full"):
        Two().call_on_all(lambda: 3)
    assert Ranks().call_on_all(lambda: 3) == [3]
