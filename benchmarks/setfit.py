"""Texts: an encoder fine-tuned by SetFit (arXiv 2209.11055), next to the same encoder as it is.

Tasks of K classes, a few labelled texts of each, and 300 texts to classify, of 5 of the classes or
of all. SetFit learns from pairs of labelled texts, 20 of one class and 20 of two for each text, by
the squared error of their cosine, one epoch; logistic regression then classifies the embeddings.
Written from the paper, with its options: AdamW, 2e-5, batches of 16 pairs. Each classifier also
gets the embeddings of the other, so that the effect of each can be seen.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

import paddle_ext

EXAMPLES = """\
  python benchmarks/setfit.py clinc150_text.tsv all-MiniLM-L6-v2
  python benchmarks/setfit.py clinc150_text.tsv all-MiniLM-L6-v2 --classes 20 --n-tasks 2
"""
QUERIES = 300
PAIRS = 20  # of each kind, for every labelled text
BATCH, RATE, WARM_UP = 16, 2e-5, 0.1  # pairs of a step, its size, the share of steps it grows


def options() -> argparse.Namespace:
    parser = harness.parser(__doc__, EXAMPLES)
    parser.add_argument("texts", type=Path, help="lines of split, class number and text, by tabs")
    parser.add_argument("encoder", type=Path, help="folder of a BERT with mean pooling")
    parser.add_argument("--classes", default="20,150", help="candidate classes (default: 20,150)")
    parser.add_argument("--shots", default="1,5,20", help="labelled texts (default: 1,5,20)")
    parser.add_argument("--n-tasks", type=int, default=5, help="per cell (default: 5)")
    return parser.parse_args()


class Encoder:
    """A sentence encoder: the mean of the last layer over the tokens, unit-norm."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.device = device
        self.model = AutoModel.from_pretrained(folder).float().to(self.device)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        tokens = tokens.to(self.device)
        mask = tokens["attention_mask"].unsqueeze(-1)
        states = self.model(**tokens).last_hidden_state
        return F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Tensor:
        self.model.eval()
        parts = [self(texts[i : i + 256]) for i in range(0, len(texts), 256)]
        return torch.cat(parts)

    def tuned(self, texts: Sequence[str], labels: Tensor, generator: torch.Generator) -> Encoder:
        """A copy that is fine-tuned on pairs of these texts."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model).train()
        first, second, alike = pairs(labels, generator)
        steps = -(-len(first) // BATCH)
        optimizer = torch.optim.AdamW(other.model.parameters(), lr=RATE)
        warm = max(1, round(WARM_UP * steps))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
        )
        for some in torch.randperm(len(first), generator=generator).split(BATCH):
            chosen = torch.cat([first[some], second[some]]).tolist()
            left, right = other([texts[i] for i in chosen]).chunk(2)
            loss = F.mse_loss((left * right).sum(-1), alike[some].to(left))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(other.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        return other


def pairs(labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of the texts of each pair, and 1 or 0, whether they are of one class."""
    alike = labels.unsqueeze(0) == labels.unsqueeze(1)
    partners = [
        torch.multinomial(kind.float(), PAIRS, replacement=True, generator=generator)
        for kind in (alike, ~alike)
    ]
    second = torch.cat(partners, 1)
    first = torch.arange(len(labels)).unsqueeze(1).expand_as(second)
    return first.flatten(), second.flatten(), alike[first, second].float().flatten()


def accuracies(
    kind: str, support: Tensor, labels: Tensor, batches: dict[str, tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """Of logistic regression and `adaptive`, in per cent, by the classes present."""
    learned = LogisticRegression(max_iter=1000).fit(support.cpu().numpy(), labels.numpy())
    found = {}
    for batch, (query, truth) in batches.items():
        guess = torch.from_numpy(learned.predict(query.cpu().numpy()))
        ours = paddle_ext.adaptive(support, labels.to(support.device), query).labels.cpu()
        found[f"{kind} LR {batch}"] = 100 * (guess == truth).float().mean().item()
        found[f"{kind} adaptive {batch}"] = 100 * (ours == truth).float().mean().item()
    return found


class TextTask:
    """The texts of one task by class; the first of each are labelled."""

    def __init__(self, texts: list[list[str]], shots: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(texts), generator=self.generator).tolist()
        rows = [self.shuffled(texts[k]) for k in order]
        self.labels = torch.arange(len(rows)).repeat_interleave(shots)
        self.support = [text for row in rows for text in row[:shots]]
        self.rest = [row[shots:] for row in rows]

    def shuffled(self, texts: list[str]) -> list[str]:
        return [texts[i] for i in torch.randperm(len(texts), generator=self.generator)]

    def batch(self, present: int) -> tuple[list[str], Tensor]:
        """Texts of the first classes, and their classes."""
        pool = [(text, k) for k in range(present) for text in self.rest[k]]
        drawn = torch.randperm(len(pool), generator=self.generator)[:QUERIES]
        return [pool[i][0] for i in drawn], torch.tensor([pool[i][1] for i in drawn])


def measured(encoder: Encoder, task: TextTask, batches: dict[str, Any]) -> dict[str, float]:
    """Accuracies with the encoder as it is and fine-tuned, and the seconds of that."""
    started = time.perf_counter()
    tuned = encoder.tuned(task.support, task.labels, task.generator)
    found = {"tuning, s": time.perf_counter() - started}
    for kind, model in (("plain", encoder), ("tuned", tuned)):
        embedded = {name: (model.embed(texts), y) for name, (texts, y) in batches.items()}
        found |= accuracies(kind, model.embed(task.support), task.labels, embedded)
    return found


def main() -> None:
    chosen = options()
    encoder = Encoder(chosen.encoder, harness.start(chosen))
    by_class: dict[int, list[str]] = {}
    for line in chosen.texts.read_text("utf-8").splitlines():
        _, label, text = line.split("\t", 2)
        by_class.setdefault(int(label), []).append(text)
    by_class.pop(-1, None)  # texts of no class
    table = []
    for K in map(int, chosen.classes.split(",")):
        for shots in map(int, chosen.shots.split(",")):
            tasks = []
            for number in range(chosen.n_tasks):
                harness.progress(f"{K} classes, {shots} labels: task {number + 1}")
                generator = torch.Generator().manual_seed(chosen.seed + number)
                classes = torch.randperm(len(by_class), generator=generator)[:K].tolist()
                task = TextTask([by_class[k] for k in classes], shots, chosen.seed + number)
                batches = {name: task.batch(n) for name, n in (("5", 5), ("all", K))}
                tasks.append(measured(encoder, task, batches))
            means = {name: statistics.fmean(task[name] for task in tasks) for name in tasks[0]}
            table.append({"classes": K, "labels": shots, **means})
    harness.progress("")
    harness.print_table("SetFit: accuracy", table)
    harness.write_csv(chosen.output / "setfit.csv", table)


if __name__ == "__main__":
    main()
