"""Weights that are non-negative and keep the total of every class: the nearest ones to given numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from stablenet.weighting.statistic import add

SPARSE = 16  # times as many places as samples: then groups of about one size have a table of their own


class GroupSimplex:
    """{w ≥ 0, the weights of every group sum to its number of samples}.   groups: (n,) integers.

    Groups are the rows of a table as wide as the largest; of very different sizes, of several tables.
    """

    def __init__(self, groups: Tensor) -> None:
        found: tuple[Tensor, Tensor, Tensor] = groups.unique(return_inverse=True, return_counts=True)
        _, group, count = found
        self._tables: list[tuple[Tensor | None, GroupTable]] = []  # with their samples, None for all
        if len(count) * int(count.max()) <= SPARSE * len(groups):
            self._tables.append((None, GroupTable(group, count)))
            return
        size = count.double().log2().ceil().to(torch.int64)  # doubles from one table to the next
        for one in size.unique():
            members = (size[group] == one).nonzero().squeeze(1)
            _, own, counts = group[members].unique(return_inverse=True, return_counts=True)
            self._tables.append((members, GroupTable(own, counts)))

    def project(self, w: Tensor) -> Tensor:
        """The nearest point to w (n,): the entries of a group lowered by one amount and cut at zero."""
        found = torch.empty_like(w)
        for members, table in self._tables:
            if members is None:
                return table.project(w)
            found[members] = table.project(w[members])
        return found

    def gap(self, w: Tensor, g: Tensor) -> Tensor:
        """⟨g, w⟩ − Σ_groups count·min g: how much a linear model could still fall; zero at a minimum."""
        return w @ g - add([table.lowest(g if members is None else g[members]) for members, table in self._tables])


class GroupTable:
    """Groups as rows, as wide as the largest one.   group: (n,) from 0.   count: samples of every group."""

    def __init__(self, group: Tensor, count: Tensor) -> None:
        self._group, self._count = group, count
        n, self._widest = len(group), int(count.max())
        order = group.argsort(stable=True)
        place = torch.arange(n, device=group.device) - (count.cumsum(0) - count)[group[order]]
        self._slot = torch.empty_like(group)  # of every sample in a table of groups × places
        self._slot[order] = group[order] * self._widest + place

    def project(self, w: Tensor) -> Tensor:
        high = self._spread(w, float("-inf")).sort(1, descending=True).values
        there = high.isfinite()
        sums = torch.where(there, high, 0.0).cumsum(1) - self._count.to(w.dtype)[:, None]
        excess = sums / torch.arange(1, self._widest + 1, device=w.device, dtype=w.dtype)
        positive = (there & (high > excess)).sum(1, keepdim=True)  # entries that stay so
        return (w - excess.gather(1, positive - 1).squeeze(1)[self._group]).clamp_min(0)

    def lowest(self, g: Tensor) -> Tensor:
        """Σ_groups count·min g."""
        return self._count.to(g.dtype) @ self._spread(g, float("inf")).amin(1)

    def _spread(self, values: Tensor, empty: float) -> Tensor:
        table = values.new_full((len(self._count) * self._widest,), empty)
        table[self._slot] = values
        return table.view(len(self._count), self._widest)
