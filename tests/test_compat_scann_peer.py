"""aniso.compat.scann beside ScaNN itself, where that is installed: the same calls, and results at least as good."""

import numpy as np
import pytest

from aniso.compat import scann as ours

theirs = pytest.importorskip(
    "scann", reason="ScaNN itself is not installed (pip install scann==1.4.2 compares with it)"
)

N, D, K = 4000, 32, 10
POINTS = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
QUERIES = np.random.default_rng(1).normal(size=(100, D)).astype(np.float32)
DOCIDS = [str(i) for i in range(N)]

WAYS = {
    "brute force": lambda b, kinds: b.score_brute_force(),
    "brute force in bytes": lambda b, kinds: b.score_brute_force(True),
    "brute force in 16 bits": lambda b, kinds: b.score_brute_force(kinds.BFLOAT16),
    "leaves": lambda b, kinds: b.tree(40, 8).score_brute_force(),
    "codes": lambda b, kinds: b.score_ah(2),
    "codes, rescored": lambda b, kinds: b.score_ah(2).reorder(50),
    "tree": lambda b, kinds: b.tree(40, 8).score_ah(2),
    "tree, rescored": lambda b, kinds: b.tree(40, 8).score_ah(2).reorder(50),
    "tree of 8-bit codes": lambda b, kinds: b.tree(40, 8).score_ah(4, hash_type="lut256").reorder(50),
    "truncated": lambda b, kinds: b.truncate(24).tree(40, 20).score_ah(2).reorder(200),
}


def recall(found, distance):
    if distance == "dot_product":
        order = np.argsort(-(QUERIES @ POINTS.T), axis=1)[:, :K]
    else:
        order = np.argsort(np.square(QUERIES[:, None] - POINTS[None]).sum(axis=2), axis=1)[:, :K]
    return np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(found, order, strict=True)])


def pair(way, distance, docids=None):
    return [
        WAYS[way](scann.scann_ops_pybind.builder(POINTS, K, distance), scann.ReorderType).build(docids=docids)
        for scann in (ours, theirs)
    ]


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
@pytest.mark.parametrize("way", WAYS)
def test_the_same_calls_return_the_same_things(way, distance):
    if way == "truncated" and distance == "squared_l2":
        pytest.skip("ScaNN cannot build it")
    (a, b), (c, d) = [(s.search_batched(QUERIES), s.search(QUERIES[0])) for s in pair(way, distance)]
    for mine, its in ((a, c), (b, d)):
        assert [x.dtype for x in mine] == [x.dtype for x in its]
        assert [x.shape for x in mine] == [x.shape for x in its]
    assert recall(a[0], distance) >= recall(c[0], distance) - 0.05
    np.testing.assert_allclose(a[1].mean(), c[1].mean(), rtol=0.1)
    if way == "brute force":
        np.testing.assert_array_equal(a[0], c[0])
        np.testing.assert_allclose(a[1], c[1], rtol=1e-4)


def test_changes_have_the_same_effect():
    searchers = pair("brute force", "dot_product", list(DOCIDS))
    for searcher in searchers:
        searcher.delete(DOCIDS[:100])
        searcher.upsert(["new", "7"], POINTS[:2] * 3)
    mine, its = (searcher.search_batched(QUERIES) for searcher in searchers)
    assert mine[0] == its[0]
    np.testing.assert_allclose(mine[1], its[1], rtol=1e-4)
    assert searchers[0].size() == searchers[1].size() == N - 98
    assert searchers[0].docids == searchers[1].docids


@pytest.mark.parametrize("n", [1000, 60_000, 1_000_000])
@pytest.mark.parametrize("d", [100, 128, 1000])
def test_autopilot_chooses_the_same_sizes(n, d):
    points = np.broadcast_to(np.float32(0), (n, d))
    mine, its = (
        [
            line.strip()
            for line in s.scann_ops_pybind.builder(points, K, "dot_product").autopilot().create_config().split("\n")
        ]
        for s in (ours, theirs)
    )
    for name in ("num_children", "max_spill_centers", "approx_num_neighbors", "expected_sample_size"):
        assert [line for line in mine if line.startswith(name)] == [line for line in its if line.startswith(name)]
