"""The command `aniso`. A command is a function that adds its parser and names what runs it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

__all__ = ["main"]


def add_reproduce(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """aniso reproduce NAME"""
    from aniso.experiments import NAMES

    listed = "\n".join(f"  {name:24}{what}" for name, what in NAMES.items())
    parser = commands.add_parser(
        "reproduce",
        help="run an experiment of the paper",
        description=f"Run an experiment of the paper and write its CSV, plot and page.\n\nexperiments:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", choices=[*NAMES, "all"], help="an experiment, or all")
    parser.add_argument("--quick", action="store_true", help="few points: shows that everything runs")
    parser.add_argument(
        "--folder", type=Path, help="where the files go (docs/paper, and out/paper for a quick run)", metavar="PATH"
    )
    parser.set_defaults(run=reproduce)


def reproduce(options: argparse.Namespace) -> int:
    """Run the experiments named; 1 where a claim does not hold in a full run."""
    from aniso.experiments import NAMES
    from aniso.experiments import reproduce as run
    from aniso.experiments.measure import FULL, QUICK

    folder = options.folder or Path("out/paper" if options.quick else "docs/paper")
    broken = 0
    for name in NAMES if options.name == "all" else [options.name]:
        bar = Bar(name, sys.stderr)
        report = run(name, folder, size=QUICK if options.quick else FULL, progress=bar)
        bar.close()
        print(folder / f"{name}.md")
        for claim in report.claims:
            print(f"  {'holds' if claim.holds else 'FAILS'}: {claim.statement}: {claim.found}")
            broken += not claim.holds
    return 0 if options.quick else min(broken, 1)


class Bar:
    """Progress on a terminal: one line that is rewritten; elsewhere a line per stage."""

    def __init__(self, name: str, out: TextIO) -> None:
        self._name, self._out = name, out
        self._terminal, self._start, self._shown, self._stage = out.isatty(), time.perf_counter(), 0.0, ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.perf_counter()
        if self._terminal and (stage != self._stage or now - self._shown > 0.1):
            filled = 20 * done // max(total, 1)
            text = f"{self._name} [{'#' * filled}{'.' * (20 - filled)}] {stage}  {now - self._start:.0f} s"
            self._out.write(f"\r\x1b[K{text[:110]}")
            self._out.flush()
            self._shown = now
        elif not self._terminal and stage != self._stage:
            self._out.write(f"{self._name} {now - self._start:6.0f} s  {stage}\n")
            self._out.flush()
        self._stage = stage

    def close(self) -> None:
        """End the line."""
        if self._terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()


COMMANDS: tuple[Callable[[argparse._SubParsersAction[argparse.ArgumentParser]], None], ...] = (add_reproduce,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 2 where the user can mend what is wrong, said in one line."""
    parser = argparse.ArgumentParser(prog="aniso", description="Maximum-inner-product search on a CPU.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        print(f"aniso: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("aniso: stopped", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
