"""Greedy pairwise cover: few rows in which every two values of different factors meet."""

from itertools import combinations, product


def pairs_of(row: tuple) -> set:
    return {((i, row[i]), (j, row[j])) for i, j in combinations(range(len(row)), 2)}


def pairwise(factors: dict) -> list[dict]:
    """Rows as dicts. Each round takes the row of the full product that meets most open pairs."""
    rows = list(product(*factors.values()))
    open_pairs = set().union(*map(pairs_of, rows))
    cover = []
    while open_pairs:
        best = max(rows, key=lambda row: len(pairs_of(row) & open_pairs))
        open_pairs -= pairs_of(best)
        cover.append(dict(zip(factors, best, strict=True)))
    return cover
