"""aniso.compat.scann: docids, changes, training anew, autopilot, and folders."""

import os
import shutil
import threading

import numpy as np
import pytest

from aniso import FormatError
from aniso.compat import scann
from aniso.compat.scann import stanzas

N, D, K = 1500, 16, 8
KINDS, MODES = scann.ReorderType, scann.IncrementalMode
POINTS = np.random.default_rng(0).random((N, D)).astype(np.float32)
QUERIES = np.random.default_rng(1).random((20, D)).astype(np.float32)
DOCIDS = [f"doc {i}" for i in range(N)]

WAYS = {
    "brute force": lambda b: b.score_brute_force(),
    "brute force in bytes": lambda b: b.score_brute_force(True),
    "brute force in 16 bits": lambda b: b.score_brute_force(KINDS.BFLOAT16),
    "leaves": lambda b: b.tree(20, 6).score_brute_force(),
    "codes": lambda b: b.score_ah(2).reorder(60),
    "tree": lambda b: b.tree(20, 6).score_ah(2, 0.2).reorder(60),
    "spilled tree": lambda b: b.tree(20, 6, soar_lambda=1.5).score_ah(2).reorder(60, KINDS.BFLOAT16),
    "truncated": lambda b: b.truncate(12).tree(20, 6).score_ah(2).reorder(60),
    "components": lambda b: b.pca(8, None).tree(20, 6).score_ah(2).reorder(250, KINDS.INT8),  # coarse codes tie
}
UNSCORED = {
    "codes alone": lambda b: b.score_ah(2),
    "tree alone": lambda b: b.tree(20, 6).score_ah(3, hash_type="lut256"),
    "spilled tree alone": lambda b: b.tree(20, 6, soar_lambda=1.5).score_ah(2),
    "components alone": lambda b: b.pca(8, None).score_ah(2),
}
EVERY = WAYS | UNSCORED


def build(way, distance="dot_product", points=POINTS, docids=DOCIDS):
    made = EVERY[way](scann.scann_ops_pybind.builder(points, K, distance))
    return made.build(docids=None if docids is None else docids[: len(points)])


def same(a, b):
    np.testing.assert_array_equal(np.array(a[0]), np.array(b[0]))
    np.testing.assert_allclose(a[1], b[1], rtol=1e-6)


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
@pytest.mark.parametrize("way", WAYS)
def test_points_come_change_and_go(way, distance):
    if distance == "squared_l2" and "spilled" in way:
        pytest.skip("soar_lambda goes with dot_product only")
    searcher = build(way, distance)
    query = QUERIES[0]
    names, values = searcher.search(query)
    assert isinstance(names, list)
    assert isinstance(names[0], str)
    assert isinstance(searcher.search_batched(QUERIES)[0][0], list)

    searcher.delete(names[:3])
    assert searcher.size() == N - 3 == len(searcher.docids)
    left, distances = searcher.search(query)
    assert left[:5] == names[3:]
    np.testing.assert_allclose(distances[:5], values[3:], rtol=1e-5)

    searcher.upsert(["new 0", "new 1", "new 2"], [POINTS[DOCIDS.index(name)] for name in names[:3]])
    back, distances = searcher.search(query)
    assert back == ["new 0", "new 1", "new 2", *names[3:]]
    np.testing.assert_allclose(distances, values, rtol=1e-5)

    far = np.zeros((2, 1, D), np.float32) if distance == "dot_product" else np.full((2, 1, D), 9, np.float32)
    searcher.upsert([names[3], "newest"], far)  # one that is there, one that is not
    assert searcher.size() == N + 1
    assert names[3] not in searcher.search(query)[0]
    assert set(searcher.docid_to_id) == set(searcher.docids)


@pytest.mark.parametrize("way", ["brute force", "tree"])
def test_a_change_that_fails_changes_nothing(way):
    searcher = build(way)
    before = searcher.search_batched(QUERIES)
    for docids in (["doc 1", "nobody"], ["doc 1", "doc 1"], "nobody"):
        with pytest.raises(KeyError):
            searcher.delete(docids)
    with pytest.raises(ValueError, match="2 docids were given for 1 points"):
        searcher.upsert(["a", "b"], POINTS[:1])
    with pytest.raises(ValueError, match="5 dimensions"):
        searcher.upsert(["a"], POINTS[:1, :5])
    with pytest.raises(ValueError, match="row 1, dimension 0 is not finite"):
        searcher.upsert(["a", "doc 1"], np.array([POINTS[0], np.full(D, np.nan)]))
    with pytest.raises(ValueError, match="batch_size is 0"):
        searcher.upsert(["a"], POINTS[:1], batch_size=0)
    for docids in ([3, "a"], [3, 4]):
        with pytest.raises(TypeError, match="id 3"):
            searcher.upsert(docids, POINTS[:2])
    assert searcher.size() == N
    same(searcher.search_batched(QUERIES), before)


def test_a_docid_given_twice_keeps_the_last_point():
    searcher = build("brute force", points=POINTS[:5])
    searcher.upsert(["twice", "twice"], [np.zeros(D), np.full(D, 3.0)])
    assert searcher.size() == 6
    names, values = searcher.search(np.ones(D))
    assert (names[0], values[0]) == ("twice", 3 * D)


def test_points_without_docids_stay_as_they_are():
    searcher = build("tree", docids=None)
    assert searcher.docids is None
    for change in (lambda: searcher.upsert(["a"], POINTS[:1]), lambda: searcher.delete(["a"])):
        with pytest.raises(ValueError, match=r"build\(docids="):
            change()
    before = searcher.search_batched(QUERIES)
    assert searcher.rebalance() == N
    same(searcher.search_batched(QUERIES), before)  # the same points, seed and settings
    given = list(DOCIDS)
    searcher = build("brute force", docids=given)
    searcher.delete(tuple(given[:2]))
    searcher.delete(np.array(given[2:4]))
    searcher.upsert({given[0]}, POINTS[:1])
    assert searcher.size() == N - 3
    assert given == DOCIDS  # the caller's list is the caller's


def test_docids_that_cannot_be():
    for docids in (["a"], ["a", "a", "b"]):
        with pytest.raises(ValueError, match=r"docids were given|given twice"):
            scann.builder(POINTS[:3], K, "dot_product").score_brute_force().build(docids=docids)


def test_the_end_of_sixteen_bits():
    searcher = build("brute force in 16 bits")
    searcher.upsert(["doc 1", "new"], np.full((2, D), 60_000.0))
    before = searcher.search_batched(QUERIES)
    assert sorted(before[0][0][:2]) == ["doc 1", "new"]
    np.testing.assert_allclose(before[1][:, 0], 60_000 * QUERIES.sum(axis=1), rtol=1e-3)
    with pytest.raises(ValueError, match=r"row 1 has a value of size 70000; the copy in 16 bits ends at 65504"):
        searcher.upsert(["doc 2", "newer"], np.outer([1, 70_000], np.ones(D)))
    same(searcher.search_batched(QUERIES), before)


def test_whole_numbers_may_be_docids():
    searcher = scann.builder(POINTS[:50], 3, "squared_l2").score_brute_force().build(docids=list(range(100, 150)))
    searcher.upsert(7, POINTS[60])
    assert searcher.search(POINTS[60])[0][0] == 7


@pytest.mark.parametrize("way", EVERY)
@pytest.mark.parametrize("docids", [None, DOCIDS])
def test_folders_give_the_same_results(way, docids, tmp_path):
    searcher = build(way, docids=docids)
    if docids:
        searcher.delete(docids[:7])
        searcher.upsert("late", POINTS[3])
    searcher.serialize(tmp_path / "a", relative_path=bool(docids))
    shutil.move(tmp_path / "a", tmp_path / "b")  # and can be moved
    loaded = scann.load_searcher(str(tmp_path / "b"))
    same(loaded.search_batched(QUERIES), searcher.search_batched(QUERIES))
    assert loaded.config() == searcher.config()
    assert loaded.docids == searcher.docids
    assert loaded.size() == searcher.size()
    if docids:  # and can be changed
        for one in (searcher, loaded):
            one.upsert(["x", "doc 20"], POINTS[:2] + 1)
        same(loaded.search_batched(QUERIES), searcher.search_batched(QUERIES))


@pytest.mark.parametrize("way", EVERY)
def test_training_survives_the_last_point(way, tmp_path):
    searcher = build(way)
    before = searcher.search_batched(QUERIES)
    for first in range(0, N, 500):
        searcher.delete(DOCIDS[first : first + 500])
    assert searcher.search(QUERIES[0])[0] == []
    assert searcher.search_batched(QUERIES)[1].shape == (len(QUERIES), 0)
    searcher.serialize(tmp_path)
    loaded = scann.load_searcher(tmp_path)
    assert (loaded.docids, loaded.size()) == ([], 0)
    for first in range(0, N, 300):
        loaded.upsert([f"again {name}" for name in DOCIDS[first : first + 300]], POINTS[first : first + 300])
    after = loaded.search_batched(QUERIES)
    assert [[f"again {name}" for name in row] for row in before[0]] == after[0]
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5)


def test_files_that_scann_would_have_written(tmp_path):
    def files(way, **kwargs):
        build(way, **kwargs).serialize(tmp_path)
        return {path.name for path in tmp_path.iterdir()}

    always = {"searcher.aniso", "scann_assets.pbtxt", "scann_config.pb"}
    assert files("brute force") == always | {"dataset.npy"}
    np.testing.assert_array_equal(np.load(tmp_path / "dataset.npy"), POINTS)
    tree = always | {"ah_codebook.pb", "datapoint_to_token.npy", "hashed_dataset.npy", "serialized_partitioner.pb"}
    assert files("tree") == tree | {"dataset.npy"}
    codes = np.load(tmp_path / "hashed_dataset.npy")
    assert (codes.shape, codes.dtype, codes.max()) == ((N, D // 2), np.uint8, 15)
    tokens = np.load(tmp_path / "datapoint_to_token.npy")
    assert (tokens.shape, tokens.dtype, len(np.unique(tokens))) == ((N,), np.int32, 20)
    assert files("spilled tree") == tree | {"bfloat16_dataset.npy", "hashed_dataset_soar.npy"}
    assert np.load(tmp_path / "datapoint_to_token.npy").shape == (2 * N,)
    rounded = (np.load(tmp_path / "bfloat16_dataset.npy").view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(rounded, POINTS, rtol=2**-7)
    assert files("components") == tree | {"int8_dataset.npy", "int8_multipliers.npy", "dp_norms.npy"}
    assert np.load(tmp_path / "hashed_dataset.npy").shape == (N, 4)
    factors = np.load(tmp_path / "int8_multipliers.npy")
    np.testing.assert_allclose(np.load(tmp_path / "int8_dataset.npy") / factors, POINTS, atol=0.01)
    assert files("tree alone") == tree  # two codes of 4 bits make the byte of a block of 3 dimensions
    assert np.load(tmp_path / "hashed_dataset.npy").shape == (N, 6)
    build("tree").serialize(tmp_path, scann_files=False)
    assert [path.name for path in tmp_path.iterdir()] == ["searcher.aniso"]


@pytest.mark.parametrize("way", ["brute force", "tree", "truncated"])
def test_damaged_folders(way, tmp_path):
    build(way).serialize(tmp_path)
    with pytest.raises(ValueError, match="is not a directory"):
        scann.load_searcher(tmp_path / "nowhere")
    file = tmp_path / "searcher.aniso"
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1], b"", b"\0" * 100, whole[:40] + b"#" + whole[41:]):
        file.write_bytes(damaged)
        with pytest.raises(FormatError):
            scann.load_searcher(tmp_path)
    for place in np.linspace(64, len(whole) - 1, 40).astype(int):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(FormatError):
            scann.load_searcher(tmp_path)
    os.unlink(file)
    with pytest.raises(ValueError, match=r"Google's ScaNN: build a searcher from its points"):
        scann.load_searcher(tmp_path)


def test_rebalance():
    searcher = build("tree", points=POINTS[:800])
    searcher.upsert(DOCIDS[800:], POINTS[800:])
    before = searcher.searcher.engine.index._store.encoder.partitions.centroids
    assert searcher.rebalance() == N
    after = searcher.searcher.engine.index._store.encoder.partitions.centroids
    assert not np.array_equal(before, after)
    assert sorted(searcher.docids) == sorted(DOCIDS)
    config = scann.builder(POINTS, K, "dot_product").score_brute_force().create_config()
    assert searcher.rebalance(config) == N
    assert searcher.config() == config
    same(searcher.search_batched(QUERIES), build("brute force").search_batched(QUERIES))
    assert searcher.reserve(10_000) is None
    with pytest.raises(ValueError, match="keeps no copy of its points"):
        build("tree alone").rebalance()


@pytest.mark.parametrize("threshold", [0.2, 100])
def test_incremental_training(threshold):
    def centroids():
        return searcher.searcher.engine.index._store.encoder.partitions.centroids

    made = scann.builder(POINTS[:500], K, "dot_product").tree(10, 3, incremental_threshold=threshold)
    searcher = made.score_ah(2).reorder(40).build(docids=DOCIDS[:500])
    first = centroids()
    searcher.upsert(DOCIDS[500:590], POINTS[500:590])
    assert np.array_equal(centroids(), first)
    searcher.delete(DOCIDS[:20])  # with these, more than a fifth of 500, and more than 100
    assert not np.array_equal(centroids(), first)


@pytest.mark.parametrize("way", WAYS)
def test_from_nothing(way):
    searcher = build(way, points=POINTS[:0])
    assert searcher.search(QUERIES[0])[0] == []
    assert searcher.rebalance() == 0
    for first in (0, 1, 10, 100):
        searcher.upsert(DOCIDS[first : 10 * first or 1], POINTS[first : 10 * first or 1])
    searcher.upsert(DOCIDS[1000:], POINTS[1000:])
    assert searcher.size() == N
    truth = build("brute force").search_batched(QUERIES)[0]

    def recall(names):
        return np.mean([len(set(a) & set(b)) / K for a, b in zip(names, truth, strict=True)])

    at_once = recall(build(way).search_batched(QUERIES)[0])
    assert recall(searcher.search_batched(QUERIES)[0]) >= at_once - 0.1


def test_from_nothing_needs_a_copy_to_train_on(tmp_path):
    with pytest.raises(ValueError, match=r"score_ah alone cannot start from no points"):
        build("tree alone", points=POINTS[:0])
    empty = build("brute force", points=POINTS[:0])
    empty.serialize(tmp_path)
    loaded = scann.load_searcher(tmp_path)
    loaded.upsert(DOCIDS, POINTS)
    same(loaded.search_batched(QUERIES), build("brute force").search_batched(QUERIES))


@pytest.mark.parametrize(("d", "least"), [(100, 55_020), (128, 43_008), (656, 8400), (1536, 8400)])
def test_autopilot_begins_a_tree(d, least):
    for n in (0, least - 1, least):
        text = scann.builder(np.broadcast_to(np.float32(0), (n, d)), K, "dot_product").autopilot().create_config()
        assert ("brute_force" in text, "partitioning" in text) == (n < least, n >= least)


def test_autopilot_changes_with_the_number_of_points(tmp_path, monkeypatch):
    monkeypatch.setattr(stanzas, "_LEAST_LEAF", 20)  # so that a tree is worth it from 42 times 20 points on
    monkeypatch.setattr(stanzas, "_LEAF_VALUES", 20 * 32)
    points = np.random.default_rng(2).normal(size=(2000, 32)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    names = [str(i) for i in range(len(points))]
    made = scann.builder(points[:100], K, "dot_product").autopilot(MODES.ONLINE_INCREMENTAL, KINDS.BFLOAT16)
    searcher = made.build(docids=names[:100])
    assert "brute_force" in searcher.config()
    searcher.upsert(names[100:], points[100:])
    assert "partitioning" in searcher.config()
    assert "asymmetric_hash" in searcher.config()
    whole = scann.builder(points, K, "dot_product").autopilot(MODES.ONLINE_INCREMENTAL, KINDS.BFLOAT16)
    assert searcher.config() == whole.create_config()
    searcher.serialize(tmp_path)
    assert (tmp_path / "bfloat16_dataset.npy").exists()
    assert not (tmp_path / "dataset.npy").exists()
    loaded = scann.load_searcher(tmp_path)
    assert loaded.config() == searcher.config()
    same(loaded.search_batched(points[:5]), searcher.search_batched(points[:5]))
    assert [row[0] for row in loaded.search_batched(points[:5])[0]] == names[:5]
    searcher.delete(names[500:])
    assert "partitioning" in searcher.config()  # not at once, or it would go to and fro
    searcher.delete(names[400:500])
    assert "brute_force" in searcher.config()
    assert [row[0] for row in searcher.search_batched(points[:5])[0]] == names[:5]


def test_autopilot_waits_for_rebalance_unless_it_is_online():
    d = 1000
    made = scann.builder(np.ones((3, d), np.float32), K, "squared_l2").autopilot()
    searcher = made.build(docids=["a", "b", "c"])
    searcher.upsert([str(i) for i in range(9000)], np.random.default_rng(0).random((9000, d), dtype=np.float32))
    assert "brute_force" in searcher.config()
    text = scann.builder(np.broadcast_to(np.float32(0), (9003, d)), K, "squared_l2").autopilot().create_config()
    assert "num_children: 45" in text
    assert "max_spill_centers: 43" in text


@pytest.mark.parametrize("way", ["brute force", "tree", "truncated"])
def test_searches_while_points_change(way):
    searcher = build(way)
    moving = [f"moving {i}" for i in range(100)]
    wrong: list[object] = []
    done = threading.Event()

    def search():
        while not done.is_set():
            try:
                names, values = searcher.search_batched(QUERIES)
                if not (np.isfinite(values).all() and all(len(set(row)) == K for row in names)):
                    wrong.append(names)
            except Exception as error:
                wrong.append(error)

    readers = [threading.Thread(target=search) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(10):
        searcher.upsert(moving, POINTS[:100] * 1.5)
        searcher.delete(moving)
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert searcher.size() == N
