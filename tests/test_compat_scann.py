"""aniso.compat.scann: what its builder builds, what searches return, and what is refused."""

import itertools
import math

import numpy as np
import pytest

from aniso.compat import scann
from aniso.compat.scann import config_text
from aniso.compat.scann.scann_builder import parse_reorder

N, D, K = 1500, 20, 10
KINDS = scann.ReorderType
POINTS = np.random.default_rng(0).random((N, D)).astype(np.float32)
QUERIES = np.random.default_rng(1).random((30, D)).astype(np.float32)


def builder(distance="dot_product", points=POINTS, k=K):
    return scann.scann_ops_pybind.builder(points, k, distance)


def exact(distance, queries=QUERIES, points=POINTS):
    """Distances of all points, and their order, best first."""
    q, x = queries.astype(np.float64), points.astype(np.float64)
    if distance == "dot_product":
        values = q @ x.T
        return values, np.argsort(-values, axis=1, kind="stable")
    values = np.square(q[:, None] - x[None]).sum(axis=2)
    return values, np.argsort(values, axis=1, kind="stable")


def recall(found, distance, k=K, queries=QUERIES, points=POINTS):
    order = exact(distance, queries, points)[1][:, :k]
    return np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(found, order, strict=True)])


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
def test_brute_force_is_exact(distance):
    searcher = builder(distance).score_brute_force().build()
    ids, distances = searcher.search_batched(QUERIES)
    values, order = exact(distance)
    np.testing.assert_array_equal(ids, order[:, :K])
    np.testing.assert_allclose(distances, np.take_along_axis(values, order[:, :K], 1), rtol=1e-5)
    assert (ids.dtype, distances.dtype) == (np.uint32, np.float32)
    for query, row, value in zip(QUERIES, ids, distances, strict=True):
        one, its = searcher.search(query)
        np.testing.assert_array_equal(one, row)
        np.testing.assert_array_equal(its, value)
        assert (one.dtype, its.dtype, one.shape) == (np.uint32, np.float32, (K,))


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
@pytest.mark.parametrize(("kind", "least", "error"), [(KINDS.BFLOAT16, 0.97, 2e-3), (KINDS.INT8, 0.85, 3e-2)])
def test_brute_force_on_a_smaller_copy(distance, kind, least, error):
    ids, distances = builder(distance).score_brute_force(kind).build().search_batched(QUERIES)
    assert recall(ids, distance) >= least
    true = np.take_along_axis(exact(distance)[0], ids.astype(np.int64), 1)
    np.testing.assert_allclose(distances, true, atol=error * np.abs(true).max())


def trees():
    """Every combination of the settings of tree, score_ah and reorder that changes what is built."""
    for distance, hashing, kind, soar in itertools.product(
        ["dot_product", "squared_l2"], ["lut16", "lut256"], [None, *KINDS], [None, 1.5]
    ):
        if soar is None or distance == "dot_product":
            yield distance, hashing, kind, soar


@pytest.mark.parametrize(("distance", "hashing", "kind", "soar"), list(trees()))
def test_trees_with_codes(distance, hashing, kind, soar):
    made = builder(distance).tree(30, 20, soar_lambda=soar).score_ah(2, hash_type=hashing)
    searcher = (made if kind is None else made.reorder(100, kind)).build()
    ids, distances = searcher.search_batched(QUERIES)
    assert ids.shape == distances.shape == (len(QUERIES), K)
    rescored = kind not in (None, KINDS.NO_REORDER)
    assert recall(ids, distance) >= (0.8 if rescored else 0.35 if hashing == "lut16" else 0.55)
    if kind == KINDS.FLOAT32:
        true = np.take_along_axis(exact(distance)[0], ids.astype(np.int64), 1)
        np.testing.assert_allclose(distances, true, rtol=1e-4)
    better = np.diff(distances, axis=1) * (1 if distance == "squared_l2" else -1)
    assert (better >= 0).all()
    assert all(len(set(row)) == K for row in ids.tolist())


def test_eight_bits_for_a_dimension_are_nearly_exact():
    codes = builder().score_ah(1, hash_type="lut256").build()
    assert recall(codes.search_batched(QUERIES)[0], "dot_product") >= 0.85


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
def test_codes_without_a_tree(distance):
    assert recall(builder(distance).score_ah(2).build().search_batched(QUERIES)[0], distance) >= 0.4
    rescored = builder(distance).score_ah(2).reorder(200).build()
    assert recall(rescored.search_batched(QUERIES)[0], distance) >= 0.97


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
@pytest.mark.parametrize("kind", [False, True, KINDS.BFLOAT16])
def test_brute_force_within_leaves(distance, kind):
    searcher = builder(distance).tree(20, 4).score_brute_force(kind).build()
    few, all_of_them = (searcher.search_batched(QUERIES, leaves_to_search=count)[0] for count in (2, 20))
    assert recall(few, distance) < recall(searcher.search_batched(QUERIES)[0], distance)
    assert recall(all_of_them, distance) >= (1.0 if kind is False else 0.85)


def test_settings_of_a_tree_that_change_nothing_here_are_taken():
    tree = {"min_partition_size": 5, "spherical": True, "quantize_centroids": True, "random_init": False, "avq": 2.5}
    made = builder().tree(30, 20, training_sample_size=1000, training_iterations=4, **tree)
    made.upper_tree(8, 5, avq=2.5, soar_lambda=1.5, scoring_mode=KINDS.BFLOAT16).score_ah(2).reorder(100)
    searcher = made.set_n_training_threads(1).build()
    assert recall(searcher.search_batched(QUERIES)[0], "dot_product") >= 0.8
    for words in ("SPHERICAL", "FIXED_POINT_INT8", "DEFAULT_KMEANS_PLUS_PLUS", "avq: 2.5", "num_centroids: 8"):
        assert words in searcher.config()


def test_the_threshold_makes_high_scores_truer():
    rng = np.random.default_rng(3)
    points = rng.normal(size=(4000, 32)).astype(np.float32)
    points *= 7 / np.linalg.norm(points, axis=1, keepdims=True)  # T is absolute: 0.3 of the norm is 2.1
    errors = []
    for threshold in (math.nan, 2.1, 700.0):
        searcher = builder(points=points).score_ah(4, anisotropic_quantization_threshold=threshold).build()
        ids, distances = searcher.search_batched(points[:200])
        true = np.einsum("qd,qkd->qk", points[:200], points[ids])
        errors.append(float(np.abs(distances - true)[:, 0].mean()))
    assert errors[1] < 0.8 * errors[0]
    assert errors[2] == errors[0]  # beyond the norm of the points it does nothing, as in ScaNN


def test_numbers_of_results():
    searcher = builder().tree(30, 3).score_ah(2).reorder(30).build()
    query = QUERIES[0]
    assert len(searcher.search(query)[0]) == K
    assert len(searcher.search(query, final_num_neighbors=20)[0]) == 20
    assert len(searcher.search(query, 15, 40, 5)[0]) == 15
    assert len(searcher.search(query, final_num_neighbors=50)[0]) == 50  # more than are rescored by default
    assert searcher.search_batched(QUERIES, 7)[0].shape == (len(QUERIES), 7)
    assert searcher.search_batched(QUERIES[:0])[0].shape == (0, K)
    assert searcher.search_batched(QUERIES, final_num_neighbors=N + 5)[0].shape == (len(QUERIES), N)
    assert builder(points=POINTS[:4]).score_brute_force().build().search_batched(QUERIES)[1].shape == (len(QUERIES), 4)


def test_more_candidates_and_leaves_find_more():
    searcher = builder().tree(60, 2).score_ah(4).reorder(10).build()
    narrow = recall(searcher.search_batched(QUERIES)[0], "dot_product")
    candidates = recall(searcher.search_batched(QUERIES, pre_reorder_num_neighbors=500)[0], "dot_product")
    wide = searcher.search_batched(QUERIES, pre_reorder_num_neighbors=N, leaves_to_search=60)[0]
    assert narrow < candidates < recall(wide, "dot_product") == 1.0


def test_threads_and_batches_change_nothing():
    searcher = builder("squared_l2").tree(40, 8).score_ah(2).build()
    ids, distances = searcher.search_batched(QUERIES)
    for threads, size in ((1, 1), (2, 7), (3, 256)):
        searcher.set_num_threads(threads)
        others = searcher.search_batched_parallel(QUERIES, batch_size=size)
        np.testing.assert_array_equal(others[0], ids)
        np.testing.assert_array_equal(others[1], distances)


def test_two_builds_are_the_same():
    results = [builder().tree(30, 5).score_ah(2).build().search_batched(QUERIES) for _ in range(2)]
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("how", ["truncate", "pca"])
def test_projections_are_rescored_in_full(how, tree, distance):
    rng = np.random.default_rng(4)
    points = (rng.normal(size=(N, D)) / np.arange(1, D + 1) + 0.3).astype(np.float32)
    queries = (rng.normal(size=(30, D)) / np.arange(1, D + 1)).astype(np.float32)
    made = builder(distance, points)
    made = made.truncate(12) if how == "truncate" else made.pca(12, None)
    made = (made.tree(20, 16) if tree else made).score_ah(2)
    plain = made.build()
    assert plain.search_batched(queries)[0].shape == (len(queries), K)
    assert {"truncate": "TRUNCATE", "pca": "PCA"}[how] in plain.config()
    for kind in (KINDS.FLOAT32, KINDS.INT8, KINDS.BFLOAT16):
        made.params["reorder"] = {"candidates": 200, "threshold": math.nan, "kind": kind}
        ids, distances = made.build().search_batched(queries)
        assert recall(ids, distance, queries=queries, points=points) >= 0.85
        if kind == KINDS.FLOAT32:
            true = np.take_along_axis(exact(distance, queries, points)[0], ids.astype(np.int64), 1)
            np.testing.assert_allclose(distances, true, rtol=1e-4, atol=1e-5)


def test_principal_components_are_as_many_as_the_variance_needs():
    rng = np.random.default_rng(5)
    points = (rng.normal(size=(N, 4)) @ rng.normal(size=(4, D)) + 5 + 0.01 * rng.normal(size=(N, D))).astype(np.float32)
    queries = points[:20]

    def axes(**limits):
        return builder(points=points).pca(**limits).score_ah(2).build().searcher.engine.axes.kept

    assert axes(pca_significance_threshold=0.999) == 4
    assert axes(pca_significance_threshold=0.999, pca_truncation_threshold=0.1) == D  # too many to be worth it
    assert axes(reduction_dim=7, pca_significance_threshold=None) == 7
    ids, distances = builder(points=points).pca(4, None).score_ah(1, hash_type="lut256").build().search_batched(queries)
    true = np.take_along_axis(exact("dot_product", queries, points)[0], ids.astype(np.int64), 1)
    np.testing.assert_allclose(distances, true, rtol=0.02)  # although the mean lies mostly along what was dropped


@pytest.mark.parametrize("size", [1e-7, 1.0, 1e7])
def test_sixteen_bits_hold_points_of_any_size(size):
    points = (POINTS * size).astype(np.float32)
    for distance in ("dot_product", "squared_l2"):
        searcher = builder(distance, points).score_brute_force(KINDS.BFLOAT16).build()
        ids, distances = searcher.search_batched(QUERIES * np.float32(size))
        assert recall(ids, distance) >= 0.97
        true = np.take_along_axis(exact(distance)[0], ids.astype(np.int64), 1) * size**2
        np.testing.assert_allclose(distances, true, rtol=1e-2)


def test_config_texts():
    made = builder().tree(30, 5, incremental_threshold=0.2, soar_lambda=1.5).score_ah(3, 0.2).reorder(50, True)
    text = made.create_config()
    message = config_text.read(text)
    assert config_text.write(message) == text
    assert message["hash"]["asymmetric_hash"]["projection"]["variable_blocks"][1] == {
        "num_blocks": 1,
        "num_dims_per_block": 2,
    }
    searcher = scann.create_searcher(POINTS, text)
    assert searcher.config() == text == made.build().config()
    for words in ("partitioning {", "asymmetric_hash {", "TWO_CENTER_ORTHOGONALITY_AMPLIFIED", "fraction: 0.2"):
        assert words in text
    assert "brute_force" in builder().score_brute_force().create_config()
    compact = 'num_neighbors:3,distance_measure:{distance_measure:"SquaredL2Distance"} brute_force{} # all'
    assert len(scann.create_searcher(POINTS, compact).search(QUERIES[0])[0]) == 3


@pytest.mark.parametrize(
    "text",
    ["num_neighbors 3", "num_neighbors: }", "brute_force {", "a: 1 %", "}", "x" + " {" * 40, 'num_neighbors: "3'],
)
def test_config_texts_that_are_not(text):
    with pytest.raises(ValueError, match="the config has"):
        config_text.read(text)


def test_what_is_refused():
    with pytest.raises(ValueError, match="distance_measure is 'cosine'"):
        builder("cosine").score_brute_force().build()
    with pytest.raises(ValueError, match="score_ah and score_brute_force"):
        builder().tree(10, 2).build()
    with pytest.raises(ValueError, match="score_ah and score_brute_force"):
        builder().score_ah(2).score_brute_force().build()
    with pytest.raises(ValueError, match="tree has already been configured"):
        builder().tree(10, 2).tree(10, 2)
    with pytest.raises(ValueError, match="hash_type is 'lut4'"):
        builder().score_ah(2, hash_type="lut4").build()
    for arguments in ({"avq": 2.0}, {"soar_lambda": 1.5}):
        with pytest.raises(ValueError, match="dot_product only"):
            builder("squared_l2").tree(10, 2, **arguments).score_ah(2).build()
    with pytest.raises(ValueError, match="less than the 20 dimensions"):
        builder().truncate(D).score_ah(2).build()
    with pytest.raises(ValueError, match="pca and truncate"):
        builder().truncate(5).pca().score_ah(2).build()
    with pytest.raises(ValueError, match="must be None"):
        builder().pca(5, 0.8).score_ah(2).build()
    with pytest.raises(ValueError, match="dimensions_per_block is 0"):
        builder().score_ah(0).build()
    with pytest.raises(ValueError, match="num_neighbors is 0"):
        builder(k=0).score_ah(2).build()
    with pytest.raises(ValueError, match="quantize is 3"):
        parse_reorder(3)
    with pytest.raises(ValueError, match="set_builder_lambda"):
        scann.ScannBuilder(POINTS, K, "dot_product").score_brute_force().build()
    with pytest.raises(ValueError, match="a field 'epsilon'"):
        scann.create_searcher(POINTS, builder().score_brute_force().create_config() + "epsilon: 1")


@pytest.mark.parametrize("made", [lambda b: b.score_brute_force(), lambda b: b.tree(10, 2).score_ah(2)])
def test_bad_numbers_never_reach_the_core(made):
    points = POINTS.copy()
    points[77, 3] = np.nan
    with pytest.raises(ValueError, match="row 77, dimension 3 is not finite"):
        made(builder(points=points)).build()
    searcher = made(builder()).build()
    with pytest.raises(ValueError, match="not finite"):
        searcher.search_batched(np.full((2, D), np.inf, np.float32))
    with pytest.raises(ValueError, match="5 dimensions"):
        searcher.search(QUERIES[0, :5])
    with pytest.raises(ValueError, match="one query"):
        searcher.search(QUERIES)
    with pytest.raises(ValueError, match="shape"):
        searcher.search_batched(QUERIES[0])
    with pytest.raises(ValueError, match="num_threads is 0"):
        searcher.set_num_threads(0)
    with pytest.raises(ValueError, match="batch_size is 0"):
        searcher.search_batched_parallel(QUERIES, batch_size=0)
    for name in ("final_num_neighbors", "pre_reorder_num_neighbors", "leaves_to_search"):
        for value in (0, -5):
            with pytest.raises(ValueError, match=f"{name} is {value}"):
                searcher.search(QUERIES[0], **{name: value})


def test_statistics_of_leaves():
    searcher = builder().tree(20, 3).score_ah(2).build()
    assert searcher.get_health_stats()["sum_partition_sizes"] == 0
    searcher.initialize_health_stats()
    stats = searcher.get_health_stats()
    assert stats["sum_partition_sizes"] == N
    assert 0 < stats["avg_quantization_error"] < POINTS.var(axis=0).sum()
    assert stats["partition_weighted_avg_relative_imbalance"] > 0
    assert stats["partition_avg_relative_positive_imbalance"] > 0
    spilled = builder().tree(20, 3, soar_lambda=1.5).score_ah(2).build()
    spilled.initialize_health_stats()
    assert spilled.get_health_stats()["sum_partition_sizes"] == 2 * N
    flat = builder().score_brute_force().build()
    flat.initialize_health_stats()
    assert set(flat.get_health_stats().values()) == {0}


def test_the_module_can_stand_in_for_scanns():
    for module in (scann, scann.scann_ops_pybind):
        for name in ("builder", "create_searcher", "load_searcher", "ScannSearcher", "ScannBuilder", "scann_builder"):
            assert hasattr(module, name)
    assert scann.scann_builder.ReorderType is scann.ReorderType
    assert [kind.value for kind in (KINDS.FLOAT32, KINDS.INT8, KINDS.BFLOAT16)] == [1, 2, 3]
    assert [mode.name for mode in scann.IncrementalMode] == ["NONE", "ONLINE", "ONLINE_INCREMENTAL"]
