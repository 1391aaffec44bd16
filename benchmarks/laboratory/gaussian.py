"""Gaussian tasks whose model is known, and a Gibbs sampler that knows it: the gap to Bayes.

The mean of a class is N(0, I), its rows are N(mean, sigma^2 I). A batch has some of the classes,
in proportions from Dirichlet(1) over these. What the sampler gets right is about as much as any
rule could; how far a rule stays behind is its gap to Bayes. With one label a class its chains stay
near where they begin: it then claims more than it gets right, and the true gap is larger.

Letters as in tasks.py: B tasks, S labelled rows, Q queries, K classes, D features.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .protocols import QUERIES, Cell, Random, random_of
from .tasks import Rule, Tasks

PROTOCOL = "Gaussian"
CLASSES = 20
FEATURES = 64
DEVIATION = 2.5  # of a row from the mean of its class, in each feature

SHOTS: dict[str, list[int]] = {
    "1 label a class": [1] * CLASSES,
    "5 labels a class": [5] * CLASSES,
    "20 labels of ten classes, 1 of ten": [20] * 10 + [1] * 10,
}
PRESENT = (2, 5, 20)

SWEEPS = 80
BURN_IN = 30  # sweeps before the first that is counted
CHAINS = 8

# --- tasks ----------------------------------------------------------------------------------------


def situation_of(shots: str, present: int) -> str:
    return f"{CLASSES} classes, {shots}; {present} present"


def cells(n_tasks: int) -> Iterator[Cell]:
    """The ladder: from few labels to many, and from few classes present to all."""
    for name, shots in SHOTS.items():
        for present in PRESENT:
            situation = situation_of(name, present)
            draws = [draw(shots, present, random_of(situation, t)) for t in range(n_tasks)]
            yield Cell(PROTOCOL, situation, "Gaussian", [joined(draws)])


def draw(shots: list[int], present: int, random: Random) -> Tasks:
    """One task. Its rows are not made unit-norm: their columns have a common scale."""
    K = len(shots)
    means = random.standard_normal((K, FEATURES))
    labels = np.repeat(np.arange(K), shots)

    classes = random.choice(K, present, replace=False)
    proportions = random.dirichlet(np.ones(present))
    truth = classes[random.choice(present, QUERIES, p=proportions)]

    def rows(classes_of_rows: np.ndarray) -> Tensor:
        noise = random.standard_normal((len(classes_of_rows), FEATURES))
        return torch.from_numpy(means[classes_of_rows] + DEVIATION * noise).float()

    return Tasks(
        support=rows(labels)[None],
        labels=torch.from_numpy(labels)[None],
        query=rows(truth)[None],
        truth=torch.from_numpy(truth)[None],
        num_classes=K,
        table=True,
    )


def joined(tasks: list[Tasks]) -> Tasks:
    """One batch of tasks of equal sizes, which have neither groups nor names."""
    return Tasks(
        support=torch.cat([task.support for task in tasks]),
        labels=torch.cat([task.labels for task in tasks]),
        query=torch.cat([task.query for task in tasks]),
        truth=torch.cat([task.truth for task in tasks]),
        num_classes=tasks[0].num_classes,
        table=tasks[0].table,
    )


# --- the sampler ----------------------------------------------------------------------------------


def sampler_of(cell: Cell) -> Rule | None:
    """The Gibbs sampler that knows how many classes are present in this cell.

    None for the cells of other protocols.
    """
    if cell.protocol != PROTOCOL:
        return None

    present_of = {situation_of(name, present): present for name in SHOTS for present in PRESENT}
    present = present_of[cell.situation]

    def rule(tasks: Tasks) -> Tensor:
        return gibbs_sampled(tasks, concentration=present / tasks.num_classes)

    return rule


def gibbs_sampled(
    tasks: Tasks,
    concentration: float,
    *,
    deviation: float = DEVIATION,
    sweeps: int = SWEEPS,
    burn_in: int = BURN_IN,
    chains: int = CHAINS,
    seed: int = 0,
) -> Tensor:
    """Probabilities of the queries under the Gaussian model, by a collapsed Gibbs sampler.

    Means and proportions are integrated out; what is sampled is the class of every query, given
    those of all others. All tasks take their steps together. A probability is the mean, over
    sweeps and chains, of that with which the class was drawn.

    Parameters
    ----------
    concentration : float
        Of the symmetric Dirichlet prior of the proportions, for each of the K classes. With the
        number of classes present divided by K, the prior has as much mass as the one that drew
        the proportions, which is 1 for every class present. It does not know that exactly so many
        are present: under such a prior the sampler could not leave a state with too many.
    deviation : float
        The deviation of a row from the mean of its class, in each feature.
    sweeps, burn_in : int
        A sweep draws every query once. The first `burn_in` are not counted.
    chains : int
        Independent samplers of each task. A single one finds one of many modes, and is sure of it:
        at one label a class that costs five to ten points.
    """
    # Below, B counts every chain of a task as a task.
    support = tasks.support.double().repeat_interleave(chains, 0)
    labels = tasks.labels.repeat_interleave(chains, 0)
    query = tasks.query.double().repeat_interleave(chains, 0)
    B, Q, _ = query.shape
    K = tasks.num_classes
    random = torch.Generator(device=query.device).manual_seed(seed)
    variance = deviation**2

    # Of every class: the number of its rows and their sum, with the queries that it has now.
    members = F.one_hot(labels, K).to(query.dtype)
    counts = members.sum(1)  # [B, K]
    sums = members.mT @ support  # [B, K, D]
    of_batch = torch.zeros_like(counts)  # [B, K] the number of its queries alone

    # Begin with the most likely class by the labelled rows alone.
    chosen = [log_density(query[:, q], counts, sums, variance).argmax(-1) for q in range(Q)]
    own = F.one_hot(torch.stack(chosen, 1), K).to(query.dtype)  # [B, Q, K]
    counts = counts + own.sum(1)
    of_batch = of_batch + own.sum(1)
    sums = sums + own.mT @ query

    found = torch.zeros(B, Q, K, dtype=query.dtype, device=query.device)
    for sweep in range(sweeps):
        for q in torch.randperm(Q, generator=random, device=query.device).tolist():
            row = query[:, q]

            # Take the query out of its class.
            counts = counts - own[:, q]
            of_batch = of_batch - own[:, q]
            sums = sums - own[:, q].unsqueeze(-1) * row.unsqueeze(1)

            logits = log_density(row, counts, sums, variance)
            logits = logits + (of_batch + concentration).log()
            probabilities = logits.softmax(-1)
            if sweep >= burn_in:
                found[:, q] += probabilities

            # Put it into the class that is drawn.
            drawn = torch.multinomial(probabilities, 1, generator=random).squeeze(-1)
            own[:, q] = F.one_hot(drawn, K).to(query.dtype)
            counts = counts + own[:, q]
            of_batch = of_batch + own[:, q]
            sums = sums + own[:, q].unsqueeze(-1) * row.unsqueeze(1)

    of_chain = found / (sweeps - burn_in)
    return of_chain.unflatten(0, (len(tasks), chains)).mean(1)


def log_density(row: Tensor, counts: Tensor, sums: Tensor, variance: float) -> Tensor:
    """Log density of a row [B, D] in each class, [B, K], up to a constant.

    Given n rows of a class with sum t, its mean is N(t / (sigma^2 + n), sigma^2 / (sigma^2 + n)),
    because it is N(0, 1) without any.
    """
    D = row.shape[-1]
    mean = sums / (variance + counts).unsqueeze(-1)
    total = variance + variance / (variance + counts)
    squared = (row.unsqueeze(1) - mean).square().sum(-1)
    return -(squared / total + D * total.log()) / 2
