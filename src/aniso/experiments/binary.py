"""Table 2: stochastic generative hashing with the reconstruction and with the score-aware loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from aniso.exact import ExactIndex
from aniso.experiments import charts
from aniso.experiments.measure import F32, Ids, Size, flat, within
from aniso.experiments.report import Claim, Report, Row, table
from aniso.loss import Loss, Reconstruction, Threshold
from aniso.progress import Progress
from aniso.quantizers import BinaryQuantizer

__all__ = ["run"]

SEARCHED = "SGH, score-aware, bits searched"
CELLS = ((1, 1), (1, 10), (10, 10), (10, 100))
PAPER = {
    (64, "SGH"): (0.028, 0.096, 0.053, 0.220),
    (64, "SGH, score-aware"): (0.071, 0.185, 0.093, 0.327),
    (128, "SGH"): (0.073, 0.195, 0.105, 0.376),
    (128, "SGH, score-aware"): (0.196, 0.406, 0.209, 0.574),
    (256, "SGH"): (0.142, 0.331, 0.172, 0.539),
    (256, "SGH, score-aware"): (0.362, 0.662, 0.363, 0.820),
}


def run(size: Size, progress: Progress) -> Report:
    """Both losses at 64, 128 and 256 bits, and the score-aware codes improved by local search."""
    data, _ = flat("sift-128-euclidean", size, depth=10, queries=size.pick(1000, 60))
    norm = float(np.linalg.norm(data.points, axis=1).mean())
    aware = Threshold(0.2 * norm)
    kinds: dict[str, Loss] = {"SGH": Reconstruction(), "SGH, score-aware": aware}
    steps = size.pick(3000, 60)
    rows: list[Row] = []
    for length in (64, 128, 256):
        models = {
            kind: BinaryQuantizer(length, loss=loss, steps=steps).fit(
                data.points, progress=within(progress, f"{length} bits, {kind}")
            )
            for kind, loss in kinds.items()
        }
        decoded_by_kind = {kind: model.decode(model.encode(data.points)) for kind, model in models.items()}
        searched = models["SGH, score-aware"]
        searched.restarts = 0
        decoded_by_kind[SEARCHED] = searched.decode(searched.encode(data.points))
        for kind, decoded in decoded_by_kind.items():
            shown = PAPER.get((length, kind))
            row: Row = {"bits": length, "method": kind}
            for cell, found in zip(CELLS, recall_cells(decoded, data.queries, data.truth), strict=True):
                name = f"{cell[0]}@{cell[1]}"
                row[name] = found
                row[f"{name} (paper)"] = shown[CELLS.index(cell)] if shown else None
            rows.append(row)

    canvas = picture(rows)
    claims = []
    for length in (64, 128, 256):
        sgh, ours = (
            next(r for r in rows if (r["bits"], r["method"]) == (length, kind)) for kind in ("SGH", "SGH, score-aware")
        )
        names = [f"{k}@{n}" for k, n in CELLS]
        told = ", ".join(f"{name} {ours[name]:.3f} > {sgh[name]:.3f}" for name in names)
        claims.append(
            Claim(
                f"score-aware SGH above SGH at {length} bits, in every cell",
                told,
                all(ours[n] > sgh[n] for n in names),
            )
        )
    return Report(
        title="Binary codes with both losses (Table 2)",
        paper=(
            "The paper's Table 2 trains the binary auto-encoder of Stochastic Generative Hashing on SIFT1M with the "
            "reconstruction loss and with the score-aware loss, “a one line change”: recall is far higher in every "
            "cell. k@N is the share of the true k best points among the N best by decoded score."
        ),
        rows=rows,
        figure=canvas,
        tables=[table(rows)],
        claims=claims,
        method=(
            f"`quantizers.BinaryQuantizer`, {steps:,} steps of 500 points with Adam, encoder sign(xW + b), linear "
            f"decoder; {len(data.points):,} points and {len(data.queries):,} queries of sift-128-euclidean as stored, "
            f"exact inner products as the truth. T = 0.2 |x| with |x| = {norm:.0f}, the same for nearly all points of "
            f"this set: eta = {float(aware.weights([norm], data.points.shape[1]).eta[0]):.2f}."
        ),
        differences=(
            "The stand-in for SIFT1M has 300,000 descriptors of another detector, so that absolute recalls are not "
            "comparable. In 1@1 the score-aware loss gains a factor of 1.9 to 2.2 (the paper: 2.5 to 2.7), in 1@10 "
            "one of 1.4 to 1.7 (the paper: 1.9 to 2.1). Our SGH has two things that the paper does not mention: its "
            "decoder has a shift, so that the mean of the descriptors is not spent on bits, and its rate falls to "
            "zero. The last rows go on from the encoder's bits to bits of less loss by coordinate descent, four bits "
            "at a time; the paper does not do that."
        ),
    )


def picture(rows: list[Row]) -> Any:
    """Two of the four recalls against the number of bits."""
    canvas, axes = charts.figure(1, 2, width=9.5, height=3.8)
    looks = ((charts.PLAIN, "s--"), (charts.AWARE, "o-"), (charts.COLOURS[1], "^-"))
    for axis, name in zip(axes, ("1@10", "10@100"), strict=True):
        for kind, (colour, line) in zip(("SGH", "SGH, score-aware", SEARCHED), looks, strict=True):
            own = [row for row in rows if row["method"] == kind]
            axis.plot([r["bits"] for r in own], [r[name] for r in own], line, color=colour, label=kind)
            if f"{name} (paper)" in own[0] and own[0][f"{name} (paper)"] is not None:
                axis.plot(
                    [r["bits"] for r in own],
                    [r[f"{name} (paper)"] for r in own],
                    ":",
                    color=colour,
                    linewidth=1,
                    label=f"{kind}: the paper, SIFT1M",
                )
        axis.set_xticks([64, 128, 256])
        axis.set_ylim(0, 1)
        charts.tidy(axis, title=f"recall {name}", x="bits per point", legend=name == "10@100")
    return canvas


def recall_cells(decoded: F32, queries: F32, truth: Ids) -> list[float]:
    """k@N for each of CELLS: the share of the true k best among the N best by decoded score."""
    found = ExactIndex(decoded).search(queries, 100).ids
    return [float(np.mean((truth[:, :k, None] == found[:, None, :n]).any(axis=2))) for k, n in CELLS]
