"""aniso reproduce: an experiment of the paper."""

from __future__ import annotations

import argparse
from pathlib import Path

from aniso.cli.terminal import Commands, Help, progress

__all__ = ["add_reproduce"]


def add_reproduce(commands: Commands) -> None:
    """aniso reproduce NAME"""
    from aniso.experiments import NAMES

    listed = "\n".join(f"  {name:24}{what}" for name, what in NAMES.items())
    parser = commands.add_parser(
        "reproduce",
        help="run an experiment of the paper",
        description="Run an experiment of the paper and write its CSV, plot and page.\n"
        "The exit code is 1 where a claim of the paper does not hold in a full run.\n\n"
        f"experiments:\n{listed}",
        epilog="example:\n  aniso reproduce eta --quick",
        formatter_class=Help,
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
        with progress() as show:
            report = run(name, folder, size=QUICK if options.quick else FULL, progress=show)
        print(folder / f"{name}.md")
        for claim in report.claims:
            print(f"  {'holds' if claim.holds else 'FAILS'}: {claim.statement}: {claim.found}")
            broken += not claim.holds
    return 0 if options.quick else min(broken, 1)
