"""How long work tells what it is doing: a callable that is given a stage, the steps done and the steps in all."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """The progress callable that shows nothing."""
