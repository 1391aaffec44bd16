"""Match clusters to classes, one to one: a batch of assignment problems."""

from __future__ import annotations

import torch
from torch import Tensor


def matched(cost: Tensor, wanted: Tensor) -> Tensor:
    """The class of each cluster, minimising the total cost of the wanted clusters.

    Parameters
    ----------
    cost : Tensor [B, K, K]
        Of clusters and classes.
    wanted : Tensor [B, K] bool
        The clusters that count. The others get the remaining classes, in order.

    Returns
    -------
    Tensor [B, K] int64
        A permutation of the classes.
    """
    best = cost.argmin(-1)
    # Usually every cluster has a nearest class of its own, and that is the solution.
    chosen = torch.zeros_like(best).scatter_add_(1, best, wanted.long())
    contested = (chosen > 1).any(-1).nonzero().flatten()
    match = best.clone()
    if len(contested):
        match[contested] = assigned(cost[contested], wanted[contested])
    taken = torch.zeros_like(best).scatter_add_(1, match, wanted.long())
    others = wanted.long().argsort(dim=-1, stable=True)  # unwanted clusters first
    left = taken.argsort(dim=-1, stable=True)  # free classes first
    filled = torch.zeros_like(best).scatter_(1, others, left)
    return torch.where(wanted, match, filled)


def assigned(cost: Tensor, wanted: Tensor) -> Tensor:
    """The class of each wanted cluster, [B, K]: shortest augmenting paths, one cluster per round.

    Dual prices keep reduced costs at 0 or above. A round looks for the cheapest path from a new
    cluster to a free class through clusters matched before, in all tasks at once.
    """
    B, K, _ = cost.shape
    tasks = torch.arange(B, device=cost.device)
    order = (~wanted).long().argsort(dim=-1, stable=True)  # wanted clusters first
    rounds = wanted.sum(-1)
    owner = torch.full((B, K), -1, device=cost.device)  # cluster of each class
    cluster_price, class_price = cost.new_zeros(B, K), cost.new_zeros(B, K)
    for i in range(int(rounds.max())):
        active = i < rounds
        new = order[:, i]
        reach = torch.full_like(class_price, torch.inf)  # cost of the cheapest path so far
        before = torch.full_like(owner, -1)  # class before this one on it; -1: the new cluster
        visited = torch.zeros_like(owner, dtype=torch.bool)
        here, cluster = torch.full_like(new, -1), new
        length = cost.new_zeros(B)
        searching = active.clone()
        while bool(searching.any()):
            reduced = cost[tasks, cluster] - cluster_price.gather(1, cluster[:, None]) - class_price
            path = length.unsqueeze(-1) + reduced
            nearer = searching.unsqueeze(-1) & ~visited & (path < reach)
            reach = torch.where(nearer, path, reach)
            before = torch.where(nearer, here.unsqueeze(-1), before)
            nearest = reach.masked_fill(visited, torch.inf).argmin(-1)
            here = torch.where(searching, nearest, here)
            length = torch.where(searching, reach[tasks, here.clamp(min=0)], length)
            holder = owner[tasks, here.clamp(min=0)]
            searching = searching & (holder >= 0)
            visited[tasks[searching], here[searching]] = True
            cluster = torch.where(searching, holder, cluster)
        # Update the prices of visited nodes so that the path found costs nothing.
        saved = torch.where(visited, length.unsqueeze(-1) - reach, 0)
        class_price = class_price - saved
        held = torch.where(visited, owner, 0)
        cluster_price = cluster_price.scatter_add(1, held, saved)
        cluster_price[tasks, new] += torch.where(active, length, 0)
        # Along the path every class gets the cluster of the previous one.
        walking = active.clone()
        while bool(walking.any()):
            some, place = tasks[walking], here[walking]
            last = before[some, place]
            owner[some, place] = torch.where(last < 0, new[some], owner[some, last.clamp(min=0)])
            here[walking] = last
            walking = walking & (here >= 0)
    match = torch.zeros_like(owner)
    found = owner >= 0
    places = torch.arange(K, device=cost.device).expand(B, K)
    match[tasks.unsqueeze(-1).expand(B, K)[found], owner[found]] = places[found]
    return match
