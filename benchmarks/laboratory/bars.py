"""What a rule must reach on the panel: the bars that decide whether it may replace `adaptive`.

All figures are percentage points. A bar looks only at cells in which all rules that it compares
were measured, and says how many these are. "On average over banks" means: for every situation, the
mean over the banks that have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .measures import Summary, done, off, summary
from .registry import (
    ADAPTIVE,
    ALPHA_TIM,
    NEAREST_MEAN,
    REGRESSION,
    REGRESSION_SUMMED,
    each_alone,
    one_batch,
)
from .results import CellResult, by_bank, by_protocol, by_situation

EQUAL_LABELS = -0.3  # against `adaptive`
TAILS = -1.0  # accuracy against the best baseline
TAILS_BALANCED = -3.0  # against regression
KEPT_LEAD = -0.5  # against `adaptive`, where that leads the baselines
MONOTONE = -0.5  # more labels, against fewer
GROUPS = -1.0  # against the better of one batch and each group alone
LEVEL = -1.0  # what counts as level with regression, on one bank
AHEAD = 0.0  # of regression, as the mean over banks
DRAWN_GROUPS = -1.0  # against `adaptive`
OFF_ON_AVERAGE = 5.0  # claimed minus right, either way
OFF_IN_A_CELL = 10.0

ROUNDING = 1e-9

# Patterns of `protocols.PATTERNS`, each with all labels of the one before it and more.
CHAINS = {
    "ten classes": (
        "10: 1 ..",
        "10: 20, 1 ..",
        "10: 20, 20, 1 ..",
        "10: 20 x 5, 1 x 5",
        "10: 20 ..",
    ),
    "two classes": ("2: 1, 1", "2: 20, 1", "2: 20, 20"),
}


@dataclass(frozen=True)
class Bar:
    name: str
    limit: str
    figure: float | None  # the one that decides; None if it was not measured
    where: str  # it was found
    cells: str  # how many it is about
    passed: bool | None


def bars(cells: Sequence[CellResult], judged: str) -> list[Bar]:
    """All bars for the rule of this name."""
    of_protocol = by_protocol(cells)

    return [
        equal(of_protocol.get("equal", []), judged),
        *natural(of_protocol.get("natural", []), judged),
        *patterns(of_protocol.get("patterns", []), judged),
        *real_groups(of_protocol.get("real groups", []), judged),
        drawn_groups(of_protocol.get("drawn groups", []), judged),
        *honest(cells, judged),
        no_errors(cells, judged),
    ]


# --- shared ---------------------------------------------------------------------------------------


def measured(cells: Sequence[CellResult], rules: Sequence[str]) -> list[CellResult]:
    """The cells in which each of the rules worked on a task at least."""
    return [
        cell
        for cell in cells
        if all(rule in cell.rules and done(cell.rules[rule].accuracy) for rule in rules)
    ]


def of_rule(cells: Sequence[CellResult], rule: str) -> Summary:
    return summary([cell.rules[rule] for cell in cells])


def accuracy(cells: Sequence[CellResult], rule: str) -> float:
    return of_rule(cells, rule).accuracy


def count(part: Sequence[CellResult], whole: Sequence[CellResult]) -> str:
    return f"{len(part)} of {len(whole)}"


def at_least(name: str, limit: float, differences: dict[str, float], cells: str) -> Bar:
    """Passed if the smallest of the differences, by where they are, is at least the limit."""
    text = f"at least {limit:+.1f}"
    if not differences:
        return Bar(name, text, None, "not measured", cells, None)

    where = min(differences, key=lambda place: differences[place])
    figure = differences[where]
    return Bar(name, text, figure, where, cells, figure >= limit - ROUNDING)


def within(name: str, limit: float, differences: dict[str, float], cells: str) -> Bar:
    """Passed if the difference that is farthest from zero is at most the limit, either way."""
    text = f"within {limit:.1f}"
    if not differences:
        return Bar(name, text, None, "not measured", cells, None)

    where = max(differences, key=lambda place: abs(differences[place]))
    figure = differences[where]
    return Bar(name, text, figure, where, cells, abs(figure) <= limit + ROUNDING)


# --- the bars -------------------------------------------------------------------------------------


def equal(cells: Sequence[CellResult], judged: str) -> Bar:
    """On average over banks, never worse than `adaptive` with equally many labels of each class."""
    return over_adaptive("equal labels: over adaptive", EQUAL_LABELS, cells, judged)


def over_adaptive(name: str, limit: float, cells: Sequence[CellResult], judged: str) -> Bar:
    """The difference to `adaptive` in every situation, on average over banks."""
    usable = measured(cells, [judged, ADAPTIVE])
    differences = {
        situation: accuracy(same, judged) - accuracy(same, ADAPTIVE)
        for situation, same in by_situation(usable).items()
    }
    return at_least(name, limit, differences, count(usable, cells))


def natural(cells: Sequence[CellResult], judged: str) -> list[Bar]:
    """Long tails, on average over banks: near the best baseline, and no lead is lost."""
    baselines = [REGRESSION, NEAREST_MEAN, ALPHA_TIM]
    usable = measured(cells, [judged, *baselines])

    over_best = {}
    over_regression = {}
    for situation, same in by_situation(usable).items():
        best = max(accuracy(same, baseline) for baseline in baselines)
        over_best[situation] = accuracy(same, judged) - best

        ours = of_rule(same, judged).balanced
        theirs = of_rule(same, REGRESSION).balanced
        over_regression[situation] = ours - theirs

    # Where `adaptive` leads
    with_adaptive = measured(usable, [ADAPTIVE])
    led = []
    over_adaptive = {}
    for situation, same in by_situation(with_adaptive).items():
        best = max(accuracy(same, baseline) for baseline in baselines)
        if accuracy(same, ADAPTIVE) > best:
            led += same
            over_adaptive[situation] = accuracy(same, judged) - accuracy(same, ADAPTIVE)

    cells_of_all = count(usable, cells)
    lead = at_least("tails: lead of adaptive", KEPT_LEAD, over_adaptive, count(led, cells))
    if with_adaptive and not led:  # there is no lead to keep
        lead = Bar(lead.name, lead.limit, None, "adaptive leads nowhere", lead.cells, True)

    return [
        at_least("tails: over best baseline", TAILS, over_best, cells_of_all),
        at_least("tails: balanced, over regression", TAILS_BALANCED, over_regression, cells_of_all),
        lead,
    ]


def patterns(cells: Sequence[CellResult], judged: str) -> list[Bar]:
    """More labels never cost accuracy, on average over the banks that have all of a chain.

    Every pattern is compared with the best of those before it, for each number of classes present.
    """
    usable = measured(cells, [judged])
    return [of_chain(name, chain, usable, cells, judged) for name, chain in CHAINS.items()]


def of_chain(
    name: str,
    chain: Sequence[str],
    usable: Sequence[CellResult],
    cells: Sequence[CellResult],
    judged: str,
) -> Bar:
    """One chain of patterns: "10: 1 ..; 5 present" is one of the situations."""
    in_chain = [cell for cell in usable if pattern_of(cell) in chain]
    of_chain_at_all = [cell for cell in cells if pattern_of(cell) in chain]

    # Only banks with every pattern of the chain: each pattern is then a mean over the same banks.
    complete = [
        cell
        for same in by_bank(in_chain).values()
        if {pattern_of(cell) for cell in same} == set(chain)
        for cell in same
    ]

    differences = {}
    for present in dict.fromkeys(present_of(cell) for cell in complete):
        before: list[float] = []
        for pattern in chain:
            situation = f"{pattern}; {present}"
            same = [cell for cell in complete if cell.situation == situation]
            now = accuracy(same, judged)
            if before:
                differences[situation] = now - max(before)
            before.append(now)

    name = f"patterns of {name}: more labels"
    return at_least(name, MONOTONE, differences, count(complete, of_chain_at_all))


def pattern_of(cell: CellResult) -> str:
    return cell.situation.split("; ")[0]


def present_of(cell: CellResult) -> str:
    return cell.situation.split("; ")[1]


def real_groups(cells: Sequence[CellResult], judged: str) -> list[Bar]:
    """Groups pay on real groups, or do no harm; and regression is not better."""
    ways = [one_batch(judged), each_alone(judged)]
    with_ways = measured(cells, [judged, *ways])
    over_ways_of_cell = {
        f"{cell.bank}: {cell.situation}": over_best([cell], judged, ways) for cell in with_ways
    }
    over_ways_of_bank = {
        bank: over_best(same, judged, ways) for bank, same in by_bank(with_ways).items()
    }

    regressions = [REGRESSION, REGRESSION_SUMMED]
    with_regressions = measured(cells, [judged, *regressions])
    over_regression = {
        bank: over_best(same, judged, regressions)
        for bank, same in by_bank(with_regressions).items()
    }
    average = {"mean over banks": fmean(over_regression.values())} if over_regression else {}

    cells_of_ways = count(with_ways, cells)
    cells_of_regressions = count(with_regressions, cells)
    return [
        at_least(
            "real groups: over one batch, alone; any cell",
            GROUPS,
            over_ways_of_cell,
            cells_of_ways,
        ),
        at_least(
            "real groups: over one batch, alone; any bank",
            GROUPS,
            over_ways_of_bank,
            cells_of_ways,
        ),
        at_least(
            "real groups: over regression, summed; any bank",
            LEVEL,
            over_regression,
            cells_of_regressions,
        ),
        at_least(
            "real groups: over regression, summed; average",
            AHEAD,
            average,
            cells_of_regressions,
        ),
    ]


def over_best(cells: Sequence[CellResult], judged: str, others: Sequence[str]) -> float:
    """How far the judged rule is ahead of the best other one, in mean accuracy over the cells."""
    return accuracy(cells, judged) - max(accuracy(cells, other) for other in others)


def drawn_groups(cells: Sequence[CellResult], judged: str) -> Bar:
    """On average over banks, what groups gain with `adaptive` is kept."""
    return over_adaptive("drawn groups: over adaptive", DRAWN_GROUPS, cells, judged)


def honest(cells: Sequence[CellResult], judged: str) -> list[Bar]:
    """Claimed minus right: of every protocol, every situation, and every single cell."""
    usable = measured(cells, [judged])

    of_protocol = {}
    of_situation = {}
    of_cell = {}
    for protocol, in_protocol in by_protocol(usable).items():
        of_protocol[protocol] = of_rule(in_protocol, judged).off
        for situation, same in by_situation(in_protocol).items():
            of_situation[f"{protocol}: {situation}"] = of_rule(same, judged).off
        for cell in in_protocol:
            place = f"{protocol}: {cell.bank}: {cell.situation}"
            of_cell[place] = off(cell.rules[judged])

    used = count(usable, cells)
    return [
        within("honest: mean of a protocol", OFF_ON_AVERAGE, of_protocol, used),
        within("honest: any situation, mean over banks", OFF_IN_A_CELL, of_situation, used),
        within("honest: any situation on one bank", OFF_IN_A_CELL, of_cell, used),
    ]


def no_errors(cells: Sequence[CellResult], judged: str) -> Bar:
    """The rule failed on no task."""
    name = "errors"
    limit = "none"
    tried = [cell for cell in cells if judged in cell.rules]
    if not tried:
        return Bar(name, limit, None, "not measured", count(tried, cells), None)

    errors = {
        protocol: of_rule(same, judged).errors for protocol, same in by_protocol(tried).items()
    }
    where = ", ".join(protocol for protocol, number in errors.items() if number)
    total = sum(errors.values())
    return Bar(name, limit, float(total), where, count(tried, cells), total == 0)
