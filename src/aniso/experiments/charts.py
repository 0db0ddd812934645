"""The look of the plots."""

from __future__ import annotations

from typing import Any

__all__ = ["AWARE", "COLOURS", "PLAIN", "figure", "tidy"]

PLAIN, AWARE = "#8a8f98", "#c8102e"  # the plain loss is grey and the score-aware one red, on every plot
COLOURS = ("#c8102e", "#1b5e9e", "#e08a00", "#2e8b57", "#7b4fa3", "#6b4226", "#0099a8", "#d05a9b", "#444444", "#9aa800")


def figure(rows: int = 1, columns: int = 1, *, width: float = 7.0, height: float = 4.2) -> tuple[Any, Any]:
    """A figure and its axes; drawn into memory, no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ModuleNotFoundError("the plots need matplotlib: pip install 'aniso[plot]'") from None
    canvas = Figure(figsize=(width, height), layout="constrained")
    return canvas, canvas.subplots(rows, columns)


def tidy(axis: Any, *, title: str = "", x: str = "", y: str = "", legend: bool = True) -> None:
    """Labels, a light grid, and no box around the plot."""
    axis.set_title(title, fontsize=11, loc="left")
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.25)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if legend:
        axis.legend(fontsize=8, frameon=False)
