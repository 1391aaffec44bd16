"""The panel that judges every change of the rule: all rules on all protocols and banks, one table.

It runs `adaptive` as the package has it and in batched torch, where a change of the rule begins,
and what others use, on tasks as people have them. `laboratory/banks.json` says which bank is for
choosing a rule and which for reporting; nothing is chosen on banks for reporting. The last table
has the bars that a rule must reach to replace `adaptive`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
import torch
from laboratory import banks, gaussian, protocols
from laboratory import results as stored
from laboratory.bars import bars
from laboratory.measures import Measured, Summary, done, summary
from laboratory.protocols import Cell
from laboratory.registry import GIBBS, NOT_BY_DEFAULT, RULES, TORCH
from laboratory.results import CellResult, Results, by_bank, by_protocol, by_situation
from laboratory.tasks import Rule, Tasks

EXAMPLES = """\
  python benchmarks/panel.py --data DATA
  python benchmarks/panel.py --data DATA --small --threads 2
  python benchmarks/panel.py --data DATA --role reporting
  python benchmarks/panel.py --data DATA --protocols natural,patterns --rules torch,adaptive
  python benchmarks/panel.py --show benchmarks/out/panel.json other/panel.json --cells
"""

# Protocols that draw numbers, not rows of a bank: their cells by the number of tasks.
WITHOUT_BANK = {"noise": protocols.noise, gaussian.PROTOCOL: gaussian.cells}
NAME_WITHOUT_BANK = {"noise": "random numbers", gaussian.PROTOCOL: "Gaussian"}
ALL_PROTOCOLS = (*protocols.PROTOCOLS, *WITHOUT_BANK)

N_TASKS = 12
SMALL_N_TASKS = 3
SMALL_PROTOCOLS = ("natural", "patterns", "real groups", "drawn groups", "tables", "noise")
SMALL_BANKS = (
    "Pets",
    "AG News",
    "frogs",
    "balance-scale",
    "vehicle",
    "pc4",
    "random numbers",
)

# Of the temporary tensors of a rule.
MEMORY = {"cpu": 1e9, "cuda": 1.2e10}


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        default=Path(".data"),
        help="folder of the files of laboratory/banks.json (default: .data)",
    )
    add("--role", default="choosing", choices=["choosing", "reporting"], help="default: choosing")
    add("--protocols", type=names_of(ALL_PROTOCOLS), help="comma-separated; default: all")
    add("--banks", type=names_of(None), help="comma-separated; default: all of the role")
    add("--rules", type=names_of(RULES), help="comma-separated; default: all but TabPFN v1")
    add("--n-tasks", type=int, help=f"tasks of a cell (default: {N_TASKS})")
    add("--small", action="store_true", help="few banks, protocols and tasks: about two minutes")
    add("--merge", type=Path, nargs="+", default=[], metavar="FILE", help="add stored results")
    add("--show", type=Path, nargs="+", metavar="FILE", help="only print stored results")
    add("--cells", action="store_true", help="also a table of the cells of each protocol")
    add("--judge", default=TORCH, choices=RULES, metavar="RULE", help=f"default: {TORCH}")

    chosen = parser.parse_args()
    if chosen.n_tasks is None:
        chosen.n_tasks = SMALL_N_TASKS if chosen.small else N_TASKS
    if chosen.n_tasks < 1:
        parser.error(f"--n-tasks must be at least 1, got {chosen.n_tasks}")
    if chosen.protocols is None:
        chosen.protocols = SMALL_PROTOCOLS if chosen.small else ALL_PROTOCOLS
    if chosen.banks is None:
        is_choosing = chosen.role == "choosing"
        chosen.banks = SMALL_BANKS if chosen.small and is_choosing else all_banks(chosen.role)
    if chosen.rules is None:
        chosen.rules = tuple(name for name in RULES if name not in NOT_BY_DEFAULT)
    unknown = [name for name in chosen.banks if name not in all_banks(chosen.role)]
    if unknown:
        parser.error(f"no bank for {chosen.role}: {', '.join(unknown)}")
    return chosen


def names_of(known: Sequence[str] | dict[str, Any] | None) -> Any:
    """The type of an option that takes names, separated by commas; some of those that are known."""

    def split(text: str) -> tuple[str, ...]:
        # Names of rules have commas themselves: ", " does not separate.
        hidden = text.replace(", ", "\0")
        names = tuple(name.replace("\0", ", ").strip() for name in hidden.split(","))
        unknown = [name for name in names if known is not None and name not in known]
        if known is not None and unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {'; '.join(known)}")
        return names

    return split


def all_banks(role: str) -> tuple[str, ...]:
    """The names of the banks of a role, and of the numbers that are drawn without a bank."""
    of_role = [entry["name"] for entry in banks.entries(role)]
    return (*of_role, *NAME_WITHOUT_BANK.values())


# --- running --------------------------------------------------------------------------------------


def cells_to_run(chosen: argparse.Namespace) -> Iterator[Cell]:
    """The cells of the chosen banks and protocols; every bank is loaded once."""
    entries = [
        entry
        for entry in banks.entries(chosen.role)
        if entry["name"] in chosen.banks and set(entry["protocols"]) & set(chosen.protocols)
    ]
    missing = [entry["file"] for entry in entries if not (chosen.data / entry["file"]).is_file()]
    if missing:
        files = ", ".join(dict.fromkeys(missing))
        raise SystemExit(f"--data {chosen.data}: these files are missing: {files}")

    for entry in entries:
        bank = banks.load(chosen.data / entry["file"], entry)
        for name in chosen.protocols:
            if name in bank.protocols:
                yield from protocols.PROTOCOLS[name](bank, chosen.n_tasks)

    for name, draw in WITHOUT_BANK.items():
        if name in chosen.protocols and NAME_WITHOUT_BANK[name] in chosen.banks:
            yield from draw(chosen.n_tasks)


def run(chosen: argparse.Namespace, device: torch.device) -> Results:
    """Run the chosen rules; the file of results is written after each bank."""
    results = Results([description(chosen, device)], [])
    path = chosen.output / "panel.json"

    bank = None
    for cell in cells_to_run(chosen):
        if cell.bank != bank and results.cells:
            stored.save(results, path)
        bank = cell.bank
        if not cell.batches:
            continue

        harness.progress(f"{cell.bank}: {cell.protocol}: {cell.situation}")
        results.cells.append(
            CellResult(
                protocol=cell.protocol,
                situation=cell.situation,
                bank=cell.bank,
                role=chosen.role,
                draw=stored.checksum(cell),
                rules=measured(cell, chosen.rules, device),
            )
        )
    harness.progress("")

    if not results.cells:
        raise SystemExit("none of these banks has one of these protocols")
    stored.save(results, path)
    return results


def description(chosen: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """What one must know about a run, for the file of results."""
    return {
        "commit": commit(),
        "machine": harness.machine_line(device),
        "torch": torch.__version__,
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "n_tasks": chosen.n_tasks,
        "rules": list(chosen.rules),
    }


def commit() -> str:
    """The commit of this checkout, and whether files have changed since."""

    def git(*command: str) -> str:
        folder = Path(__file__).parent
        done = subprocess.run(
            ["git", *command], cwd=folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    try:
        number = git("rev-parse", "--short", "HEAD")
        return f"{number} with changes" if git("status", "--porcelain") else number
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def measured(cell: Cell, rules: Sequence[str], device: torch.device) -> dict[str, Measured]:
    """What each of the rules did on a cell, except those that make no sense there.

    Rules take turns on every part of the tasks, so that one can use what another has computed.
    """
    applicable: dict[str, Rule] = {}
    found: dict[str, Measured] = {}
    for name in rules:
        rule, measures = rule_of(name, cell)
        if rule is not None:
            applicable[name] = rule
        if rule is not None or measures.errors:
            found[name] = measures

    for batch in cell.batches:
        for part in in_parts(batch.to(device), device):
            for name, rule in applicable.items():
                add(found[name], rule, part, device)
    return found


def rule_of(name: str, cell: Cell) -> tuple[Rule | None, Measured]:
    """A rule for a cell, or None; a rule that cannot be made has failed on all tasks."""
    measures = Measured()
    try:
        return RULES[name](cell), measures
    except Exception as error:  # noqa: BLE001 - of whatever package it needs
        measures.add_failure(sum(map(len, cell.batches)), message_of(error))
        return None, measures


def add(measures: Measured, rule: Rule, tasks: Tasks, device: torch.device) -> None:
    """Run a rule, and add what it did to its measures; if it raises, the panel continues."""
    start = time.perf_counter()
    try:
        probabilities = rule(tasks)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        measures.seconds += time.perf_counter() - start
        measures.add(probabilities, tasks.truth)
    except Exception as error:  # noqa: BLE001 - counted, and printed at the end
        measures.add_failure(len(tasks), message_of(error))


def message_of(error: Exception) -> str:
    """The first line of an error, and its type."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def in_parts(tasks: Tasks, device: torch.device) -> list[Tasks]:
    """The tasks in parts whose temporary tensors fit in the memory, by a rough estimate."""
    S, D = tasks.support.shape[1:]
    Q = tasks.query.shape[1]
    K = tasks.num_classes
    numbers_of_task = 6 * S * D + 3 * S * S + 70 * S * K + 12 * Q * K
    step = max(1, int(MEMORY[device.type] // (8 * numbers_of_task)))
    return [tasks.part(start, start + step) for start in range(0, len(tasks), step)]


# --- printing -------------------------------------------------------------------------------------


def print_results(results: Results, judged: str, *, with_cells: bool) -> None:
    """All tables, of each role apart; they depend on the results alone."""
    for role in dict.fromkeys(cell.role for cell in results.cells):
        cells = [cell for cell in results.cells if cell.role == role]
        print_role(role, cells)
        for one in results.runs:
            print_run(one)

        of_protocol = by_protocol(cells)
        for protocol in ALL_PROTOCOLS:
            if protocol in of_protocol:
                print_protocol(protocol, of_protocol[protocol])
                if with_cells:
                    print_cells(protocol, of_protocol[protocol])

        print_messages(cells)
        print_bars(cells, judged)


def print_role(role: str, cells: Sequence[CellResult]) -> None:
    of_bank = [name for name in by_bank(cells) if name not in NAME_WITHOUT_BANK.values()]
    print(f"banks for {role}: {', '.join(of_bank) or 'none, only drawn numbers'}")
    if role == "reporting":
        print("nothing may be chosen by these figures")


def print_run(one: dict[str, Any]) -> None:
    print(f"{one['date']}, commit {one['commit']}, {one['n_tasks']} tasks a cell; {one['machine']}")


def rules_in(cells: Sequence[CellResult]) -> list[str]:
    """The rules that were tried in any of the cells, in the order of the registry."""
    tried = {name for cell in cells for name in cell.rules}
    known = [name for name in RULES if name in tried]
    return known + sorted(tried - set(known))


def of_rule(cells: Sequence[CellResult], rule: str) -> Summary:
    return summary([cell.rules[rule] for cell in cells if rule in cell.rules])


def print_protocol(protocol: str, cells: Sequence[CellResult]) -> None:
    rules = rules_in(cells)
    gibbs = of_rule(cells, GIBBS).accuracy if GIBBS in rules else math.nan

    rows = []
    for rule in rules:
        found = of_rule(cells, rule)
        row = {
            "rule": rule,
            "cells": found.cells,
            "accuracy": rounded(found.accuracy),
            "balanced": rounded(found.balanced),
            "claimed - right": rounded(found.off),
            "absolute": rounded(found.off_absolute),
            "worst cell": rounded(found.off_worst),
            "nll": rounded(found.nll, 3),
            "worst tenth": rounded(found.worst_tenth),
            "errors": found.errors,
            "seconds": rounded(found.seconds),
        }
        if GIBBS in rules:
            row["gap to Bayes"] = rounded(gibbs - found.accuracy)
        rows.append(row)

    situations = len(by_situation(cells))
    harness.print_table(f"{protocol}: {situations} situations, {len(cells)} cells", rows)


def rounded(value: float, digits: int = 1) -> float | None:
    """Rounded, and never -0; None, a dash in tables, if it is not a number."""
    return None if math.isnan(value) else round(value, digits) + 0.0


def print_cells(protocol: str, cells: Sequence[CellResult]) -> None:
    """A row for each situation: means over banks, accuracy / balanced (claimed - right)."""
    rules = rules_in(cells)
    rows = []
    for situation, same in by_situation(cells).items():
        row: dict[str, Any] = {"situation": situation, "banks": len(same)}
        for rule in rules:
            found = of_rule(same, rule)
            usable = any(rule in cell.rules and done(cell.rules[rule].accuracy) for cell in same)
            text = f"{found.accuracy:.1f} / {found.balanced:.1f} ({found.off:+.0f})"
            row[rule] = text if usable else None
        rows.append(row)

    # Side by side they would be too wide.
    for start in range(0, len(rules), 6):
        columns = ["situation", "banks", *rules[start : start + 6]]
        title = f"{protocol}: accuracy / balanced (claimed - right), mean over banks"
        harness.print_table(title, rows, columns)


def print_messages(cells: Sequence[CellResult]) -> None:
    """The errors: every message once, with the rule, and where it came first."""
    first: dict[tuple[str, str], str] = {}
    for cell in cells:
        for rule, measures in cell.rules.items():
            for message in measures.messages:
                place = f"{cell.protocol}, {cell.situation}, {cell.bank}"
                first.setdefault((rule, message), place)

    for (rule, message), place in first.items():
        print(f"error of {rule}: {message} (first: {place})")


def print_bars(cells: Sequence[CellResult], judged: str) -> None:
    verdicts = {True: "pass", False: "FAIL", None: "-"}
    rows = [
        {
            "bar": bar.name,
            "limit": bar.limit,
            "figure": None if bar.figure is None else rounded(bar.figure, 2),
            "verdict": verdicts[bar.passed],
            "where": bar.where,
            "cells": bar.cells,
        }
        for bar in bars(cells, judged)
    ]
    harness.print_table(f"bars for {judged}", rows)


def main() -> None:
    chosen = options()
    try:
        if chosen.show:
            results = stored.joined(map(stored.load, chosen.show), new_cells=True)
        else:
            device = harness.chosen_device(chosen)
            added = [stored.load(path) for path in chosen.merge]
            results = stored.joined([run(chosen, device), *added], new_cells=False)
            stored.save(results, chosen.output / "panel.json")
    except ValueError as error:
        raise SystemExit(str(error)) from error

    print_results(results, chosen.judge, with_cells=chosen.cells)


if __name__ == "__main__":
    main()
