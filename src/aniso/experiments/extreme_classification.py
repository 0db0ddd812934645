"""Table 1: the last layer of a classifier of very many classes."""

from __future__ import annotations

import numpy as np

from aniso import datasets
from aniso.exact import ExactIndex
from aniso.experiments import charts
from aniso.experiments.classifier import Classifier
from aniso.experiments.measure import Flat, Size, decoded_by, recalls, within
from aniso.experiments.report import Claim, Report, Row, table
from aniso.loss import Loss, Reconstruction, Threshold
from aniso.progress import Progress
from aniso.quantizers import ProductQuantizer

__all__ = ["run"]

PAPER = {
    (256, "PQ"): (0.652, 0.995, 0.999),
    (256, "score-aware"): (0.656, 0.996, 1.000),
    (512, "PQ"): (0.737, 0.998, 1.000),
    (512, "score-aware"): (0.744, 0.997, 1.000),
    (1024, "PQ"): (0.778, 1.000, 1.000),
    (1024, "score-aware"): (0.812, 1.000, 1.000),
    (2048, "PQ"): (0.782, 1.000, 1.000),
    (2048, "score-aware"): (0.875, 1.000, 1.000),
}
HIDDEN = 1024


def run(size: Size, progress: Progress) -> Report:
    """Train the classifier, then quantize its last layer with both losses at four rates."""
    glosses, sentences = datasets.load("wordnet-384-angular").unit()
    glosses = glosses[: min(len(glosses), size.points)]
    unit = np.float32(np.sqrt(glosses.shape[1]))  # entries of variance 1
    classifier = Classifier(glosses.shape[1], HIDDEN, len(glosses))
    losses = classifier.fit(glosses * unit, epochs=size.pick(3, 1), negatives=1024, noise=1.0, progress=progress)
    points, queries = classifier.last, classifier.hidden(sentences[: size.queries] * unit)
    data = Flat(points, queries, ExactIndex(points).search(queries, 1).ids)
    norms = np.linalg.norm(points, axis=1)
    own = ExactIndex(points).search(classifier.hidden(glosses[:2000] * unit), 1).ids[:, 0]
    accuracy = float(np.mean(own == np.arange(len(own))))

    T = 0.2 * float(norms.mean())
    kinds: dict[str, Loss] = {"PQ": Reconstruction(), "score-aware": Threshold(T)}
    rows: list[Row] = []
    for bits in (256, 512, 1024, 2048)[:: size.pick(1, 3)]:
        for kind, loss in kinds.items():
            quantizer = ProductQuantizer(bits // 4, loss=loss, sample=size.pick(12_000, 500), rounds=size.pick(3, 1))
            found = recalls(data, decoded_by(quantizer, points, within(progress, f"{bits} bits, {kind}")))
            shown = PAPER[bits, kind]
            rows.append(
                {
                    "bits": bits,
                    "method": kind,
                    **{f"1@{n}": found[f"1@{n}"] for n in (1, 10, 100)},
                    **{f"1@{n} (paper)": shown[i] for i, n in enumerate((1, 10, 100))},
                    "relative error": found["relative error"],
                }
            )

    by = {(row["bits"], row["method"]): row for row in rows}
    rates = sorted({row["bits"] for row in rows})
    canvas, axes = charts.figure(1, 2, width=9.5, height=3.8)
    for kind, colour, line in (("PQ", charts.PLAIN, "s--"), ("score-aware", charts.AWARE, "o-")):
        axes[0].plot(rates, [by[bits, kind]["1@1"] for bits in rates], line, color=colour, label=kind)
        paper = [by[bits, kind]["1@1 (paper)"] for bits in rates]
        axes[0].plot(rates, paper, ":", color=colour, linewidth=1, label=f"{kind}: the paper, Amazon-670k")
        axes[1].plot(rates, [by[bits, kind]["relative error"] for bits in rates], line, color=colour, label=kind)
    for axis, title in zip(axes, ("recall 1@1", "relative error of the best logit"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks(rates, [str(bits) for bits in rates])
        charts.tidy(axis, title=title, x="bits per class")

    claims = [
        Claim(
            f"score-aware codes have a higher 1@1 at {bits} bits",
            f"{by[bits, 'score-aware']['1@1']:.4f} against {by[bits, 'PQ']['1@1']:.4f}",
            by[bits, "score-aware"]["1@1"] > by[bits, "PQ"]["1@1"],
        )
        for bits in rates
    ]
    return Report(
        title="The last layer of a classifier (Table 1)",
        paper=(
            "The paper's Table 1: an MLP of 670,091 classes (Amazon-670k) with a last layer of 1,024 dimensions; the "
            "class of the largest logit, found by product codes of the last layer with the reconstruction loss (PQ) "
            "and with the score-aware loss, at 256 to 2,048 bits per class."
        ),
        rows=rows,
        figure=canvas,
        tables=[table(rows)],
        claims=claims,
        method=(
            f"The classifier: sentence embeddings of the {len(points):,} WordNet glosses, one class each, one hidden "
            f"layer of {HIDDEN:,} rectified units, no bias in the last layer; {len(losses)} passes over noisy copies "
            "of the inputs (normal noise as long as the input), sampled softmax over the batch and 1,024 "
            f"other classes, last loss {losses[-1]:.2f}; it names the right gloss for {accuracy:.1%} of the clean "
            f"inputs. Points: the rows of its last layer, norms {np.quantile(norms, 0.05):.2f} to "
            f"{np.quantile(norms, 0.95):.2f} (5% to 95%). Queries: hidden activations of {len(queries):,} WordNet "
            f"example sentences, which it never saw. Product codes of 16 codewords, T = {T:.3f}, 0.2 of the mean norm."
        ),
        differences=DIFFERENCES,
    )


DIFFERENCES = (
    "Amazon-670k could not be had; our classifier has a tenth of its classes, one example each, and a few passes of "
    "training, so that absolute recalls are not comparable. As in the paper the score-aware loss is above in 1@1 at "
    "every rate, by 0.002 to 0.024 (the paper: 0.004 to 0.09). A difference of two recalls of 2,000 queries has a "
    "standard error of up to 0.015, so that the gains at 256 and 1,024 bits could be noise by themselves; an earlier "
    "run, at another time and state of the code, had gains of 0.030, 0.021, 0.010 and 0.039. In "
    "1@10 and 1@100, where both are near 1, either may be ahead (the paper's 512 bits too: 0.997 against 0.998). What "
    "the loss is meant for shows more clearly: the relative error of the best logit falls to a third or less. Hidden "
    "activations are not spread evenly around the origin, as rectified units are never negative, and still the loss "
    "that assumes so is the better one."
)
