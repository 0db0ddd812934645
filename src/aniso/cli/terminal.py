"""What commands show: help, progress with the time left, tables, JSON, and errors in one line."""

from __future__ import annotations

import argparse
import errno
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from aniso.progress import Progress

__all__ = ["Commands", "Help", "check_output", "check_plot", "one_line", "print_json", "progress", "replacing", "table"]

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # what a command adds its parser to

_WIDTH = 100  # of help: the same in every terminal, and in docs/cli.md
_PERIOD = 5.0  # seconds between two plain lines of a stage


class Help(argparse.RawDescriptionHelpFormatter):
    """Help of one width, with descriptions and examples as they were written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH, max_help_position=26)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """-o, --output INDEX: as Python writes it from 3.13 on, in every version."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def one_line(error: BaseException) -> str:
    """An error as a user reads it."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    elif isinstance(error, KeyError) and error.args:
        text = str(error.args[0])  # whose str is a repr
    elif isinstance(error, MemoryError):
        text = f"not enough memory: {error}"
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def table(rows: Sequence[Sequence[Any]], head: Sequence[str]) -> str:
    """Columns as wide as they need to be, numbers to the right.

    >>> print(table([["a", 1], ["long", 20]], ["name", "n"]))
    name   n
    a      1
    long  20
    """
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    right = [all(not isinstance(row[at], str) or row[at][:1].isdigit() for row in rows) for at in range(len(head))]
    lines = []
    for row in cells:
        fitted = (cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True))
        lines.append("  ".join(fitted).rstrip())
    return "\n".join(lines)


def check_output(path: Path | None, endings: Sequence[str] = (), inputs: Sequence[Any] = ()) -> None:
    """Refuse a place where nothing can be written, or that is read from, before any work is done."""
    if path is None:
        return
    for read in inputs:
        source = Path(str(read).partition("::")[0])  # file::array
        if read is not None and path.exists() and source.exists() and path.samefile(source):
            raise ValueError(f"{path} is both read and to be written; needed: another name for what is written")
    if endings and path.suffix.lower() not in endings:
        raise ValueError(f"{path} ends in {path.suffix!r}; needed: {' or '.join(endings)}")
    folder = path.resolve().parent
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; needed: the name of a file to write", str(path))
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(folder))
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "nothing can be written into this folder", str(folder))


def check_plot(path: Path | None) -> None:
    """The same for a plot, which needs matplotlib as well."""
    check_output(path, [".png", ".svg", ".pdf"])
    if path is not None and importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("--plot needs matplotlib: pip install 'aniso[plot]'")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the other's place once all is written; an error or ctrl-C leaves nothing."""
    descriptor, name = tempfile.mkstemp(prefix=".aniso-", suffix=path.suffix, dir=path.resolve().parent)
    os.close(descriptor)
    try:
        yield Path(name)
        os.chmod(name, 0o666 & ~_umask())  # mkstemp gives the file to the owner alone
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def progress(out: TextIO | None = None) -> Iterator[Progress]:
    """A progress callable: bars with the time left on a terminal where rich is there, else plain lines."""
    stream = sys.stderr if out is None else out
    if not stream.isatty():
        yield PlainLines(stream)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
    except ImportError:
        yield PlainLines(stream)
        return
    columns = (TextColumn("{task.description:20}"), BarColumn(), TaskProgressColumn(), TextColumn("left"))
    with Bars(
        *columns, TimeRemainingColumn(), TimeElapsedColumn(), console=Console(file=stream), transient=True
    ) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks or done == 0:  # a stage may come again
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


class PlainLines:
    """Progress as lines: one when a stage begins, one every few seconds with the time left, one when it ends."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._stage, self._start, self._shown, self._ended = "", 0.0, 0.0, False

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.perf_counter()
        if stage != self._stage or (self._ended and done < total):
            self._stage, self._start, self._ended = stage, now, False
            self._shown = now
            if done < total:
                self._say(stage)
        if done >= total and not self._ended:
            self._ended = True
            self._say(f"{stage}: done, {now - self._start:.1f} s")
        elif now - self._shown > _PERIOD:
            self._shown = now
            left = (now - self._start) / done * (total - done) if done else None
            self._say(f"{stage}: {done} of {total}" + ("" if left is None else f", about {left:.0f} s left"))

    def _say(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()
