"""The report of a comparison: tables and plots in benchmarks/results/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from peers_log import OUT, RESULTS, Row, identity, read, say

from aniso.experiments.peers import LIBRARIES, MISSING
from aniso.experiments.peers.curves import front, speed_at

TARGETS = (0.90, 0.95, 0.99)


def points_of(rows: Sequence[Row]) -> list[Row]:
    """The turns of each point as one row: the best and the median speed over the rounds."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(identity(row), []).append(row)
    return [
        {
            **{key: group[0][key] for key in ("library", "settings", "knobs", "recall")},
            "qps": max(row["qps"] for row in group),
            "median": float(np.median([row["qps"] for row in group])),
            "rounds": len(group),
        }
        for group in groups.values()
    ]


def latest(path: Path, wanted: str | None) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """The rows of each library's latest run that has turns, or of the run asked for; and which run that was."""
    rows = read(path)
    runs: dict[str, str] = {}
    for row in rows:
        if row["kind"] == "turn" and wanted in (None, row["run"]):
            runs[row["library"]] = max(row["run"], runs.get(row["library"], ""))
    return {name: [r for r in rows if r.get("library") == name and r["run"] == run] for name, run in runs.items()}, runs


def text_of(values: Row) -> str:
    return ", ".join(f"{key} {f'{value:.3g}' if isinstance(value, float) else value}" for key, value in values.items())


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for cells in body:
        yield "| " + " | ".join(cells) + " |"
    yield ""


def titles(name: str) -> str:
    return LIBRARIES[name].name


def speeds(points: dict[str, list[Row]], speed: str) -> Iterator[str]:
    """The table of speeds at the targets, with aniso's ratio to each library and the best peer."""
    ours = [speed_at(points.get("aniso", []), target, speed) for target in TARGETS]

    def cell(found: tuple[float, str] | None, own: tuple[float, str] | None, name: str) -> str:
        if found is None:
            return "not reached"
        ratio = f" ({own[0] / found[0]:.2f}x)" if own and name != "aniso" else ""
        return f"{found[1]}{found[0]:,.0f}{ratio}"

    body = []
    for name in sorted(points, key=lambda name: (name != "aniso", titles(name))):
        found = [speed_at(points[name], target, speed) for target in TARGETS]
        body.append([titles(name), *(cell(f, own, name) for f, own in zip(found, ours, strict=True))])
    best = ["**best peer**"]
    for target, own in zip(TARGETS, ours, strict=True):
        peers = {n: s[0] for n in points if n != "aniso" and (s := speed_at(points[n], target, speed))}
        top = max(peers, key=lambda name: peers[name], default="")
        ratio = f"**{own[0] / peers[top]:.2f}x** of {titles(top)}" if own and top else ""
        best.append(ratio or (titles(top) if top else "none"))
    yield from markdown(["library", *(f"recall {target:.2f}" for target in TARGETS)], [*body, best])


def report(dataset: str, wanted: str | None) -> None:
    RESULTS.mkdir(exist_ok=True)
    lines = [f"# aniso and its peers on {dataset}", "", "Method: the head of benchmarks/peers.py.", ""]
    builds: dict[str, Row] = {}
    told: set[str] = set()
    for mode, title in (
        ("single", "Single queries, one core, one thread"),
        ("batch", "All queries in one call, two threads"),
    ):
        path = OUT / f"peers-{dataset}-{mode}.jsonl"
        rows, runs = latest(path, wanted)
        if not rows:
            continue
        for row in read(path):
            if row["kind"] == "build":
                builds[identity(row)] = row
            if row["kind"] in ("skipped", "failure"):
                told.add(f"- {titles(row['library'])}: {row['why']}")
        points = {name: points_of([r for r in group if r["kind"] == "turn"]) for name, group in rows.items()}
        turns = [row for group in rows.values() for row in group if row["kind"] == "turn"]
        number = {row["queries"] for row in turns}
        counts = sorted({point["rounds"] for group in points.values() for point in group})
        loads = np.quantile([row["load"] for row in turns], [0, 0.5, 1])
        lines += [f"## {title}", ""]
        spread = "-".join(str(count) for count in sorted({counts[0], counts[-1]}))
        lines.append(
            f"{'/'.join(str(n) for n in sorted(number))} queries, {spread} rounds, load average {loads[0]:.1f} to "
            f"{loads[2]:.1f} (median {loads[1]:.1f}). Queries per second, best of the rounds; in parentheses: aniso's "
            "speed over the library's."
        )
        apart = [titles(name) for name, own in runs.items() if own != runs.get("aniso", own)]
        if apart:
            lines.append(f"Not measured in the same run as aniso: {', '.join(apart)}.")
        lines += ["", *speeds(points, "qps"), "The same with the median of the rounds:", "", *speeds(points, "median")]
        lines += ["What each library's front was chosen from (a larger grid has more chances to look good):", ""]
        lines += markdown(["library", "builds", "points tried", "measured in rounds"], map(tried, rows.items()))
        lines += ["The fastest measured point that reaches the recall:", ""]
        fastest = []
        for name in sorted(points, key=lambda name: (name != "aniso", titles(name))):
            for target in TARGETS:
                reaching = [row for row in points[name] if row["recall"] >= target]
                if reaching:
                    row = max(reaching, key=lambda row: float(row["qps"]))
                    knobs = f"{text_of(row['settings'])}; {text_of(row['knobs'])}"
                    figures = [f"{target:.2f}", f"{row['recall']:.4f}", f"{row['qps']:,.0f}"]
                    fastest.append([titles(name), *figures, knobs])
        lines += markdown(["library", "target", "recall", "QPS", "build; knobs"], fastest)
        if mode == "single":
            calls = {row["library"]: row["us"] for group in rows.values() for row in group if row["kind"] == "overhead"}
            body = [[titles(name), f"{us:.1f}"] for name, us in sorted(calls.items(), key=lambda item: item[1])]
            lines += ["Per call, the best of 256 points:", "", *markdown(["library", "microseconds"], body)]
        curves = {titles(name): [(r["recall"], r["qps"]) for r in front(group)] for name, group in points.items()}
        import plot

        picture = f"peers-{dataset}-{mode}.png"
        plot.fronts(curves, titles("aniso"), f"{dataset}: {title[0].lower()}{title[1:]}", RESULTS / picture)
        lines += [f"![recall and speed]({picture})", ""]
    lines += ["## Builds", "", "All cores, each built once: seconds far above CPU seconds mean a machine that stalled."]
    lines += ["Peak memory is above the input; MB = 10^6 bytes.", ""]
    lines += markdown(
        ["library", "build", "seconds", "CPU s", "peak MB", "index MB", "counted"], map(build_cells, builds.values())
    )
    lines += ["## Left out", "", *sorted(told), *(f"- {name}: {why}" for name, why in MISSING.items()), ""]
    path = RESULTS / f"peers-{dataset}.md"
    path.write_text("\n".join(lines))
    say(f"wrote {path}")


def tried(item: tuple[str, list[Row]]) -> list[str]:
    name, rows = item
    counts = [len({identity(row) for row in rows if row["kind"] == kind}) for kind in ("swept", "rough", "turn")]
    return [titles(name), *map(str, counts)]


def build_cells(row: Row) -> list[str]:
    name, settings = titles(row["library"]), text_of(row["settings"])
    if "failed" in row:
        return [name, settings, "failed", "", "", "", row["failed"].replace("|", "/")]
    figures = [
        f"{row['seconds']:.1f}",
        f"{row.get('cpu', float('nan')):.1f}",
        f"{row['peak'] / 1e6:.0f}",
        f"{row['bytes'] / 1e6:.1f}",
    ]
    return [name, settings, *figures, row["size"]]
