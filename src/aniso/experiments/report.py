"""What an experiment found, and how it is written down: a CSV, a plot, and a page with the paper's figures beside."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Claim", "Report", "Row", "table", "write"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, or of ours, and whether the figures bear it out."""

    statement: str
    found: str
    holds: bool


@dataclass
class Report:
    """The page, in the order in which it is read."""

    title: str
    paper: str  # what the paper shows
    rows: list[Row]  # the CSV
    figure: Any  # of matplotlib
    tables: list[str]  # in Markdown
    claims: list[Claim]
    method: str
    differences: str = ""
    seeds: str = "0"
    missing: list[str] = field(default_factory=list)  # methods that could not run here, and why


def table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """A Markdown table; floats with four digits after the point, None as an empty cell."""
    names = list(columns or rows[0])
    lines = ["| " + " | ".join(_cell(name) for name in names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row.get(name)) for name in names) + " |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value).replace("|", "\\|")


def write(report: Report, name: str, folder: Path, *, quick: bool, seconds: float) -> None:
    """NAME.csv, NAME.png and NAME.md in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in report.rows for key in row))
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in report.rows:
            writer.writerow({key: f"{v:.6g}" if isinstance(v, float) else v for key, v in row.items()})
    report.figure.savefig(folder / f"{name}.png", dpi=120)
    (folder / f"{name}.md").write_text(page(report, name, quick=quick, seconds=seconds))


def page(report: Report, name: str, *, quick: bool, seconds: float) -> str:
    """The page in Markdown."""
    parts = [f"# {report.title}", report.paper]
    if quick:
        parts.append("**A quick run on few points: the files and the code are right, the figures are not.**")
    parts.append(f"![{report.title}]({name}.png)")
    parts += report.tables
    if report.claims:
        claims = [
            {"claim": claim.statement, "found": claim.found, "holds": "yes" if claim.holds else "**no**"}
            for claim in report.claims
        ]
        parts += ["## What is claimed, and what was found", table(claims)]
    if report.differences:
        parts += ["## Differences from the paper, and why", report.differences]
    if report.missing:
        parts += ["## Missing", "\n".join(f"- {text}" for text in report.missing)]
    command = f"aniso reproduce {name}" + (" --quick" if quick else "")
    parts += [
        "## How it was measured",
        f"`{command}`; seed {report.seeds}; {seconds / 60:.1f} minutes of processor time. "
        f"All figures: [{name}.csv]({name}.csv).",
        report.method,
    ]
    return "\n\n".join(_wrapped(part.strip()) for part in parts) + "\n"


def _wrapped(part: str) -> str:
    """Paragraphs in lines of at most 120 characters; headings, tables, lists and pictures as they are."""
    return part if part.startswith(("#", "|", "-", "!")) else textwrap.fill(part, 120, break_on_hyphens=False)
