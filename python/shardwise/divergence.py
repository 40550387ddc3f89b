"""What to say when ranks ran the same model in different ways."""

from collections.abc import Sequence

from shardwise.units import Unit


def different_calls(calls: Sequence[Sequence[int] | None], units: Sequence[Unit]) -> str:
    """The units that some ranks ran more often than others in the last forward; "" for none.

    ``calls``: by rank and unit; None for a rank that said nothing.
    """
    known = {rank: counts for rank, counts in enumerate(calls) if counts is not None}
    lines = []
    for position, unit in enumerate(units):
        counts = {rank: of_rank[position] for rank, of_rank in known.items()}
        if len(set(counts.values())) > 1:
            parameter = f" ({unit.parameters[0][0]}, ...)" if unit.parameters else ""
            lines.append(f"  {unit.name}{parameter} ran {_in_words(counts)}")
    if not lines:
        return ""
    return (
        "Modules that the ranks ran a different number of times in this forward, so far:\n"
        + "\n".join(lines)
        + "\nEach gather needs all ranks. Run such modules equally often, or have their weights "
        "gathered at a point that all ranks pass: "
        "shardwise.utils.set_z3_leaf_modules_by_name(model, [...]) before initialize(), or keep "
        "them whole with a larger zero_optimization.stage3_param_persistence_threshold."
    )


def _in_words(counts: dict[int, int]) -> str:
    ranks: dict[int, list[int]] = {}
    for rank, count in counts.items():
        ranks.setdefault(count, []).append(rank)
    return ", ".join(
        f"{count} time{'s' * (count != 1)} on rank{'s' * (len(of_count) > 1)} "
        f"{', '.join(map(str, of_count))}"
        for count, of_count in sorted(ranks.items())
    )
