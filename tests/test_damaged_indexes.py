"""Damaged files of whole indexes: tests/fuzz_indexes.py, in a process that may crash without taking the tests along."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parent / "fuzz_indexes.py"
COUNT = 20_000


@pytest.mark.timeout(1800)  # the machine may be busy; the fuzzer itself stops a case that hangs
def test_damaged_indexes_are_refused_or_work() -> None:
    run = subprocess.run([sys.executable, FUZZER, "--count", str(COUNT)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"exit code {run.returncode}\n{run.stderr[-3000:]}"
    outcomes = json.loads(run.stdout)["outcomes"]
    assert sum(outcomes.values()) == COUNT
    for kind in ("header", "array", "sizes", "rows", "slots", "entries", "bytes"):  # each damage reaches both ends
        assert outcomes[f"change_{kind} refused"] > 10
        assert outcomes[f"change_{kind} used"] > 10
