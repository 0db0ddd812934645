"""The paper's figures and tables, and two of our own, each one command: `aniso reproduce NAME`.

A module per experiment, whose run(size, progress) gives a Report; reproduce writes it down as NAME.csv, NAME.png and
NAME.md. They need the extras aniso[data,plot] and the data sets in the folder that ANISO_DATA names.
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path

from aniso.experiments.measure import FULL, Size
from aniso.experiments.report import Report, write
from aniso.progress import Progress, silent

__all__ = ["NAMES", "reproduce"]

NAMES = {
    "eta": "Figure 2: eta / (d - 1) against d, and its limit",
    "threshold": "Figure 3a: recall 1@10 against the threshold T",
    "relative-error": "Figure 3b: relative error of the best score against bits",
    "fixed-bitrate": "Figure 4a: recall 1@N at 100 and 200 bits, against QUIPS, LSQ and others",
    "speed-recall": "Figure 4b: queries per second against recall 10@10, aniso and other libraries",
    "extreme-classification": "Table 1: the last layer of a classifier",
    "binary": "Table 2: binary codes (SGH) with both losses",
    "datasets": "Figure 5: correlation and variance of the data sets",
    "norms": "ours: points of different norms, one eta against one for each point",
    "query-aware": "ours: training with a sample of queries that are unlike the points",
}


def reproduce(name: str, folder: Path, *, size: Size = FULL, progress: Progress = silent) -> Report:
    """Run one experiment and write its files into the folder, which is made where it is missing."""
    if name not in NAMES:
        raise ValueError(f"no experiment {name!r}; needed: one of {', '.join(NAMES)}")
    module = importlib.import_module(f"aniso.experiments.{name.replace('-', '_')}")
    start = time.process_time()
    report: Report = module.run(size, progress)
    seconds = time.process_time() - start
    write(report, name, folder, quick=size.quick, seconds=seconds)
    return report
