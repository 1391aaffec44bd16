"""Nearest queries, and the graph by which TransCLIP and StatA pull neighbours to one class.

An edge leads from a unit-norm row to each of its nearest queries, with their cosine as its weight.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rows import class_sums
from ..task import how_many


@dataclass(frozen=True)
class NeighbourGraph:
    """Edges between the queries of each task, in both directions, ordered by where they end."""

    origins: Tensor  # [E] the query where each edge starts, numbered over all tasks
    starts: Tensor  # [B Q] the first of the edges that end at each query
    cosines: Tensor  # [E]

    @classmethod
    def of(cls, query: Tensor, knn: int) -> "NeighbourGraph":
        """The graph of unit-norm queries [B, Q, D], each joined to its `knn` nearest others."""
        B, Q, _ = query.shape
        nearest = nearest_others(query, knn)  # [B, Q, knn]
        cosines = neighbour_products(query, query, nearest)
        own = torch.arange(B * Q, device=query.device)
        near = (nearest + own[::Q].view(-1, 1, 1)).flatten()
        rows = own.repeat_interleave(nearest.shape[-1])
        ends, order = torch.cat([rows, near]).sort(stable=True)
        origins = torch.cat([near, rows])[order]
        weights = torch.cat([cosines.flatten(), cosines.flatten()])[order]
        return cls(origins, torch.searchsorted(ends, own), weights)

    def pull(self, z: Tensor) -> Tensor:
        """W z + W^T z for z [B, Q, K], with W the cosines of queries with their neighbours."""
        rows = z.reshape(-1, z.shape[-1])
        # Sums in a fixed order, on CUDA too.
        pulled = F.embedding_bag(
            self.origins, rows, self.starts, mode="sum", per_sample_weights=self.cosines
        )
        return pulled.view_as(z)


def pull_of_labelled(
    query: Tensor, nearest: Tensor, support: Tensor, labels: Tensor, num_classes: int
) -> Tensor:
    """What labelled rows add to W^T z, [B, Q, K]: each to its class, at its nearest queries."""
    B, Q, _ = query.shape
    cosines = neighbour_products(support.expand(B, -1, -1), query, nearest)
    cells = nearest * num_classes + labels.unsqueeze(-1)
    sums, _ = class_sums(cosines.reshape(B, -1, 1), cells.reshape(B, -1), Q * num_classes)
    return sums.view(B, Q, num_classes)


def nearest_others(query: Tensor, count: int) -> Tensor:
    """Indices of the other queries nearest to each query, [B, Q, min(count, Q - 1)]."""
    return nearest_queries(query, query, min(count, query.shape[1] - 1), itself=False)


def nearest_queries(rows: Tensor, query: Tensor, count: int, *, itself: bool = True) -> Tensor:
    """Indices of the queries nearest to each row, [B, S, min(count, Q)], nearest first.

    For rows of norm at most one. Squared distances plus 2^-20 are computed in double and compared
    in single precision, so that equal ones compare equal whatever the order of the sums; of equals
    the first are taken. With `itself=False` the rows are the queries, and a query is not its own
    neighbour.
    """
    B, Q, _ = query.shape
    count = min(count, Q)
    rows, query = rows.double().expand(B, -1, -1), query.double()
    row_squares, squares = rows.square().sum(-1), query.square().sum(-1)
    places = torch.arange(Q, device=query.device)
    step = how_many(32 * B * Q, query)  # rows at a time: large tasks have many pairs
    parts = [torch.empty(B, 0, count, dtype=torch.int64, device=query.device)]
    for start in range(0, rows.shape[1], step):
        some = slice(start, start + step)
        distances = row_squares[:, some, None] + squares[:, None] - 2 * rows[:, some] @ query.mT
        distances = (distances.clamp(min=0) + 2.0**-20).float()
        if not itself:
            distances[:, places[some] - start, places[some]] = torch.inf
        # Positive floats sort like their bits as integers: one key for the distance and the index.
        keys = distances.view(torch.int32).long() * 2**32 + places
        parts.append(keys.topk(count, largest=False).indices)
    return torch.cat(parts, dim=1)


def neighbour_products(rows: Tensor, query: Tensor, nearest: Tensor) -> Tensor:
    """Products of rows [B, N, D] with their nearest queries, [B, N, knn]."""
    products = [
        (rows * query.gather(1, one.unsqueeze(-1).expand_as(rows))).sum(-1)
        for one in nearest.unbind(-1)
    ]
    return torch.stack(products, dim=-1) if products else rows.new_empty(*rows.shape[:2], 0)


def assigned(
    fixed: Tensor,  # [B, Q, K]
    z: Tensor,  # [B, Q, K]
    graph: NeighbourGraph,
    labelled: Tensor | float,  # [B, Q, K] of `pull_of_labelled`
    knn: int,
    inner_iter: int,
) -> Tensor:
    """ln z after sweeps of ``z = softmax( fixed + pull / (2 knn) )``."""
    log_z = fixed
    for _ in range(inner_iter):
        pull = graph.pull(z) + labelled
        log_z = torch.log_softmax(fixed + pull / (2 * knn), dim=-1)
        z = log_z.exp()
    return log_z
