"""Run a published experiment on a feature bank, its numbers alongside ours; or `any-batch`.

A folder of results gets the tables as Markdown, all numbers as JSON, figures, and the results of
`paddle_ext.evaluate`, from which the same command resumes.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reproduce import paper
from reproduce.accuracy import reproduce_table
from reproduce.batches import evaluate_any_batch, evaluate_stata_batches
from reproduce.convergence import measure_convergence
from reproduce.lambda_ import evaluate_lambdas
from reproduce.report import Report

from paddle_ext import FeatureBank, evaluate
from paddle_ext.research.tune import Tuning

EXAMPLES = """\
examples:
  python benchmarks/reproduce table1 mini-test.npz --dataset mini --output results/table1
  python benchmarks/reproduce table1 tiered-test.npz --dataset tiered --methods all
  python benchmarks/reproduce table1 mini-test.npz --dataset mini --methods paper,my_module:MyMethod
  python benchmarks/reproduce table1 my-features.npz --methods paddle,tim,adaptive
  python benchmarks/reproduce keff mini-test.npz --dataset mini --methods paddle,tim --n-tasks 500
  python benchmarks/reproduce dirichlet mini-test.npz --dataset mini --num-classes 5
  python benchmarks/reproduce stata my-features.npz --names text.npz --n-tasks 40
  python benchmarks/reproduce any-batch my-features.npz --shots 1,5 --n-tasks 100
"""


# What each experiment does, and the function that runs it.
EXPERIMENTS: dict[str, tuple[str, Callable[..., Report]]] = {
    "table1": (
        "all methods at 5, 10 and 20 shots, 5 classes present",
        partial(reproduce_table, "table1"),
    ),
    "table2": (
        "one support for all tasks, as for i-Nat, 5 classes present",
        partial(reproduce_table, "table2", shots=None),
    ),
    "ablation": (
        "PADDLE without and with the partition complexity",
        partial(reproduce_table, "ablation"),
    ),
    "keff": (
        "accuracy against the number of classes present, 2 to 10",
        partial(reproduce_table, "keff", k_eff=paper.K_EFFS, n_tasks=1000),
    ),
    "dirichlet": (
        "5 or more ways, all present in proportions from Dirichlet(2), 1 to 20 shots",
        partial(
            reproduce_table,
            "dirichlet",
            methods=("simpleshot", *paper.methods("table1"), "adaptive"),
            shots=paper.DIRICHLET_SHOTS,
            num_classes=5,
            k_eff=None,
        ),
    ),
    "stata": (
        "class names, no labelled row: batches of 1 to 4 classes to whole datasets",
        evaluate_stata_batches,
    ),
    "any-batch": (
        "accuracy from one class present to all, compared with the nearest class mean",
        evaluate_any_batch,
    ),
    "convergence": (
        "PADDLE against projected gradient descent on one task: criterion against seconds",
        measure_convergence,
    ),
    "lambda": (
        "PADDLE's accuracy against lambda, and the best lambda against the number of queries",
        evaluate_lambdas,
    ),
}


def words_of(text: str) -> str | list[str]:
    words = text.split(",")
    return words[0] if len(words) == 1 else words


def numbers_of(text: str) -> int | list[int]:
    numbers = [int(word) for word in text.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


def parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:12}{about}" for name, (about, _) in EXPERIMENTS.items())
    made = argparse.ArgumentParser(
        "python benchmarks/reproduce",
        description=f"{__doc__}\nexperiments:\n{listed}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # each experiment has its own defaults
    )
    add = made.add_argument
    add("experiment", choices=EXPERIMENTS, metavar="EXPERIMENT")
    add("bank", type=Path, metavar="BANK", help="feature bank of the test classes")
    add("--dataset", help="mini, tiered or inat, to show published numbers; default: none of them")
    add("--backbone", help="resnet18 or wrn28_10")
    add(
        "--methods",
        type=words_of,
        help="paper, all, or names such as paddle,tim,my_module:MyMethod",
    )
    add("--shots", type=numbers_of, help="labelled rows per class, such as 5,10,20")
    add("--k-eff", type=numbers_of, help="classes present per task, such as 2,5,10")
    add("--n-tasks", type=int, help="tasks per setting")
    add("--n-query", type=int, help="queries per task")
    add("--num-classes", type=int, help="candidate classes; default: all, for dirichlet 5")
    add("--scaling", help="minmax, auto or none")
    add("--support", help="split to draw the support from")
    add("--query", help="split to draw the queries from")
    add("--names", type=Path, help="embeddings of the class names; default: in the bank's file")
    add("--tuned", type=Path, help="tuning.json of paddle-ext tune")
    add("--seed", type=int, help="random seed of the tasks")
    add("--device", help="cpu, cuda, cuda:1; default: a GPU if any")
    add("--memory", type=float, help="memory limit of a batch of tasks, in GiB")
    add("--output", type=Path, help="folder of results; default: results/EXPERIMENT")
    add("--fresh", action="store_true", help="start over instead of resuming")
    return made


def arguments_of(given: dict[str, Any], bank: Path, run: Callable[..., Report]) -> dict[str, Any]:
    """The options as arguments of an experiment; one that it does not take is an error."""
    own = inspect.signature(run).parameters
    allowed = set(own) | (set(inspect.signature(evaluate).parameters) if "run" in own else set())
    names = {"names": "prototypes", "tuned": "options", "fresh": "resume"}
    for option in given:
        if names.get(option, option) not in allowed:
            raise ValueError(f"--{option.replace('_', '-')} is no option of this experiment")
    arguments = {option: value for option, value in given.items() if option not in names}
    if arguments.get("dataset") == "none":
        arguments["dataset"] = None
    if "tuned" in given:
        arguments["options"] = Tuning.load(given["tuned"]).options
    if given.get("fresh"):
        arguments["resume"] = False
    if "prototypes" in own:
        from paddle_ext.app.read.names import stored_names

        named = stored_names(given.get("names", bank))
        if FeatureBank.load(bank).class_names not in (None, named.class_names):
            raise ValueError("--names must have the class names of the bank, in its order")
        arguments |= {"prototypes": named.prototypes, "logit_scale": named.logit_scale}
    return arguments


def main(words: list[str] | None = None) -> int:
    given = vars(parser().parse_args(words))
    experiment, bank = given.pop("experiment"), given.pop("bank")
    output = given.pop("output", Path("results") / experiment)
    _, run = EXPERIMENTS[experiment]
    try:
        arguments = arguments_of(given, bank, run)
        report = run(FeatureBank.load(bank), name=bank.stem, output=output, **arguments)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted: the same command resumes from {output}", file=sys.stderr)
        return 130
    report.show()
    for path in report.save(output):
        print(f"written: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
