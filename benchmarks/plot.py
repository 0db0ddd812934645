"""The plots of the benchmarks: recall against queries per second, and growth with the number of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TICKS = (0.85, 0.9, 0.95, 0.98, 0.99, 0.995)
LEFT, RIGHT = 0.84, 0.9965


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _plain(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def fronts(lines: Mapping[str, Sequence[tuple[float, float]]], ours: str, title: str, path: Path) -> None:
    """One line of (recall, queries per second) per library, recall on a logit scale, `ours` emphasised."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(9.5, 5), layout="constrained")
    colours = plt.get_cmap("tab10").colors
    heights: list[float] = []
    order = sorted(lines, key=lambda name: (name != ours, name))
    for number, name in enumerate(order):
        shown = [(min(max(recall, 0.01), 0.9999), qps) for recall, qps in lines[name]]  # logit has neither 0 nor 1
        heights += [qps for recall, qps in shown if LEFT <= recall <= RIGHT]
        first = name == ours
        axis.plot(
            [recall for recall, _ in shown],
            [qps for _, qps in shown],
            "o-",
            label=name,
            color="black" if first else colours[(number - 1) % len(colours)],
            linewidth=2.6 if first else 1.3,
            markersize=5 if first else 3.5,
            zorder=3 if first else 2,
        )
    axis.set_xscale("logit")
    axis.set_yscale("log")
    axis.set_xlim(LEFT, RIGHT)
    if heights:
        axis.set_ylim(min(heights) / 1.3, max(heights) * 1.3)
    axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axis.set_xticks([], minor=True)
    low, high = axis.get_ylim()
    steps = [m * 10**e for e in range(7) for m in (1, 2, 5) if low <= m * 10**e <= high]
    axis.set_yticks(steps, [_plain(step) for step in steps])
    axis.set_yticks([], minor=True)
    axis.set(xlabel="recall@10", ylabel="queries per second", title=title)
    axis.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def growth(rows: Sequence[Mapping[str, Any]], slope: float, path: Path) -> None:
    """Query time with its fitted line, the time of each stage where known, and build seconds and bytes per point."""
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    n = [row["n"] for row in rows]
    times = [row["us"] for row in rows]
    left.plot(n, times, "o-", color="black", linewidth=2.2, label="one query")
    for name in rows[0].get("stages") or {}:
        left.plot(n, [row["us"] * row["stages"][name] for row in rows], "o--", linewidth=1, markersize=3, label=name)
    left.plot(n, [times[0] * (count / n[0]) ** 0.5 for count in n], ":", color="gray", label="sqrt(n)")
    left.set(title=f"query time at recall 0.95: n^{slope:.2f}", xlabel="points", ylabel="microseconds")
    right.plot(n, [row["build s"] for row in rows], "o-", label="build seconds")
    right.plot(n, [row["bytes"] / 1e6 for row in rows], "o-", label="index MB")
    right.set(title="build and size", xlabel="points")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(n, [_plain(count) if count < 1e6 else f"{count / 1e6:g}M" for count in n])
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, bbox_to_anchor=(1, 1), loc="upper left")
    figure.savefig(path, dpi=120)
    plt.close(figure)
