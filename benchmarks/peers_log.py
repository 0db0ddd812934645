"""What peers.py writes down: a line of JSON for every build and every measurement."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out"
RESULTS = HERE / "results"

Row = dict[str, Any]


class Log:
    """The JSON lines of one data set and mode."""

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run
        self.rows = [row for row in read(path) if row["run"] == run]

    def write(self, row: Row) -> None:
        row = {"run": self.run, **row, "at": time.strftime("%Y-%m-%dT%H:%M:%S"), "load": os.getloadavg()[0]}
        self.rows.append(row)
        self.path.parent.mkdir(exist_ok=True)
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")

    def of(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["kind"] == kind]


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # a line cut short by a power failure
            continue
    return rows


def identity(row: Row) -> str:
    return json.dumps([row["library"], row["settings"], row.get("knobs")], sort_keys=True)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
