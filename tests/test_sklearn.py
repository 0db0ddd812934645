"""AnisoTransformer against scikit-learn itself: its own checks, its own transformer, and what builds on the graph."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.manifold import Isomap
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsTransformer
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import aniso
from aniso.integrations.sklearn import AnisoTransformer


@parametrize_with_checks([AnisoTransformer(), AnisoTransformer(metric="dot", mode="connectivity", recall=1)])
def test_scikit_learn_checks(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it, one check skips itself
    check(estimator)


def points(n=400, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


@pytest.mark.parametrize("mode", ["distance", "connectivity"])
@pytest.mark.parametrize("metric", ["euclidean", "l2", "cosine"])
def test_the_graph_is_that_of_kneighbors_transformer(metric, mode):
    x, new = points(), points(50, seed=1)
    ours = AnisoTransformer(n_neighbors=7, mode=mode, metric=metric).fit(x)
    theirs = KNeighborsTransformer(n_neighbors=7, mode=mode, metric=metric, algorithm="brute").fit(x.astype(float))
    for graph, expected in (
        (ours.transform(new), theirs.transform(new.astype(float))),
        (ours.fit_transform(x), theirs.fit_transform(x.astype(float))),
    ):
        assert isinstance(graph, sparse.csr_matrix)
        assert graph.dtype == expected.dtype
        assert graph.shape == expected.shape
        np.testing.assert_array_equal(graph.indptr, expected.indptr)
        np.testing.assert_array_equal(graph.indices, expected.indices)
        np.testing.assert_allclose(graph.data, expected.data, atol=1e-6)  # they subtract squares, or 1 and a cosine


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_each_point_is_its_own_first_neighbour_even_among_duplicates(metric):
    x = np.repeat(points(40), 30, axis=0)
    graph = AnisoTransformer(n_neighbors=4, metric=metric).fit_transform(x)
    assert graph.shape == (1200, 1200)
    np.testing.assert_array_equal(graph.indices.reshape(1200, 5)[:, 0], np.arange(1200))
    assert graph.data.max() < 1e-6
    assert all(len(set(row)) == 5 for row in graph.indices.reshape(1200, 5))


def test_kneighbors():
    x, new = points(), points(20, seed=1)
    ours, theirs = AnisoTransformer(n_neighbors=3).fit(x), KNeighborsTransformer(n_neighbors=3).fit(x)
    for arguments in ((), (new,), (new, 9)):
        distances, ids = ours.kneighbors(*arguments)
        true_distances, true_ids = theirs.kneighbors(*arguments)
        np.testing.assert_array_equal(ids, true_ids)
        np.testing.assert_allclose(distances, true_distances, atol=1e-6)
        np.testing.assert_array_equal(ours.kneighbors(*arguments, return_distance=False), ids)


def test_dot_finds_the_largest_inner_products():
    x, new = points(), points(20, seed=1)
    transformer = AnisoTransformer(n_neighbors=4, metric="dot", mode="connectivity").fit(x)
    best = np.argsort(-(new @ x.T), axis=1)[:, :4]
    np.testing.assert_array_equal(transformer.transform(new).indices.reshape(20, 4), best)
    distances, ids = transformer.kneighbors(new)
    np.testing.assert_allclose(distances, -np.take_along_axis(new @ x.T, ids, axis=1), rtol=1e-5)


def test_recall_is_passed_on_and_1_is_exact():
    x = points(3000, 16)
    truth = AnisoTransformer(n_neighbors=10, recall=1).fit(x).kneighbors(return_distance=False)
    expected = aniso.ExactIndex(x, metric="l2").search(x, 11).ids[:, 1:]
    np.testing.assert_array_equal(truth, expected)
    shares = []
    for recall in (0.5, 0.99):
        found = AnisoTransformer(n_neighbors=10, recall=recall).fit(x).kneighbors(return_distance=False)
        shares.append(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, truth, strict=True)]))
    assert 0.4 < shares[0] < 0.9 < 0.97 < shares[1]


def test_the_same_graph_again_on_any_number_of_threads_and_from_a_pickle():
    x = points(2000, 8)
    first = AnisoTransformer(n_neighbors=5).fit(x)
    graph = first.transform(x)
    others = [
        clone(first).fit(x),
        AnisoTransformer(n_neighbors=5, n_jobs=3).fit(x),
        pickle.loads(pickle.dumps(first)),
    ]
    for other in others:
        again = other.transform(x)
        np.testing.assert_array_equal(again.indices, graph.indices)
        np.testing.assert_array_equal(again.data, graph.data)


def test_what_was_fitted_does_not_change_with_the_caller_s_array():
    x = points()
    transformer = AnisoTransformer(n_neighbors=3).fit(x)
    before = transformer.kneighbors()
    x[:] = 0
    for old, new in zip(before, transformer.kneighbors(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_pipeline_with_a_classifier():
    x, y = make_blobs(600, 8, centers=5, cluster_std=4.0, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # among others, that the graph is not sorted
        ours = make_pipeline(AnisoTransformer(n_neighbors=12), KNeighborsClassifier(12, metric="precomputed"))
        ours.fit(x[:500], y[:500])
        theirs = KNeighborsClassifier(12).fit(x[:500], y[:500])
        np.testing.assert_array_equal(ours.predict(x[500:]), theirs.predict(x[500:]))
        np.testing.assert_array_equal(ours.predict_proba(x[500:]), theirs.predict_proba(x[500:]))
        search = GridSearchCV(ours, {"anisotransformer__metric": ["euclidean", "cosine"]}, cv=3).fit(x, y)
    assert search.best_score_ > 0.6
    assert list(ours[:-1].get_feature_names_out()[:2]) == ["anisotransformer0", "anisotransformer1"]
    assert len(ours[:-1].get_feature_names_out()) == 500


def test_isomap_on_the_graph():
    x = points(300, 3)
    ours = make_pipeline(AnisoTransformer(n_neighbors=8), Isomap(n_neighbors=8, metric="precomputed")).fit_transform(x)
    theirs = Isomap(n_neighbors=8).fit_transform(x)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"metric": "manhattan"}, "metric is 'manhattan'; needed: one of euclidean, l2"),
        ({"mode": "graph"}, "mode is 'graph'; needed: one of distance, connectivity"),
        ({"metric": "dot"}, "needed: mode='connectivity'"),
        ({"n_neighbors": 0}, "n_neighbors is 0; needed: at least 1"),
        ({"recall": 1.5}, "recall is 1.5; needed: above 0"),
    ],
)
def test_bad_parameters_are_named_at_fit(parameters, message):
    with pytest.raises(ValueError, match=message):
        AnisoTransformer(**parameters).fit(points())


def test_parameters_set_after_fit():
    x = points()
    transformer = AnisoTransformer(n_neighbors=3, metric="cosine").fit(x)
    before = transformer.transform(x)
    transformer.set_params(metric="euclidean", n_neighbors=2)  # the metric of an index is that of fit
    assert transformer.transform(x).nnz == 3 * len(x)
    np.testing.assert_array_equal(transformer.transform(x).max(axis=1).toarray() <= before.max(axis=1).toarray(), True)
    with pytest.raises(ValueError, match="n_neighbors is 0"):
        transformer.set_params(n_neighbors=0).transform(x)


def test_more_neighbours_than_points():
    transformer = AnisoTransformer(n_neighbors=5).fit(points(5))
    with pytest.raises(ValueError, match="6 neighbours are wanted of n_samples_fit_ = 5 points"):
        transformer.transform(points(2))
    assert AnisoTransformer(n_neighbors=4).fit_transform(points(5)).nnz == 25


def test_umap_takes_the_neighbours():
    x, y = make_blobs(300, 8, centers=3, cluster_std=0.5, random_state=0)
    distances, ids = AnisoTransformer().fit(x).kneighbors(x, 15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that transform() is not to be had without an index of its own kind; numba's
        umap = pytest.importorskip("umap", reason="umap-learn is not installed (pip install 'aniso[neighbours]')")
        model = umap.UMAP(n_neighbors=15, n_epochs=50, random_state=0, precomputed_knn=(ids, distances, None))
        embedded = model.fit_transform(x)
    assert KNeighborsClassifier(5).fit(embedded, y).score(embedded, y) > 0.98


def test_scanpy_takes_the_transformer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scanpy = pytest.importorskip("scanpy", reason="scanpy is not installed (pip install 'aniso[neighbours]')")
        import anndata

        x, y = make_blobs(300, 8, centers=3, cluster_std=0.5, random_state=0)
        cells = anndata.AnnData(x.astype(np.float32))
        scanpy.pp.neighbors(cells, n_neighbors=10, use_rep="X", transformer=AnisoTransformer(n_neighbors=10))
        known = anndata.AnnData(x.astype(np.float32))
        scanpy.pp.neighbors(known, n_neighbors=10, use_rep="X", transformer=KNeighborsTransformer(n_neighbors=10))
    for name in ("distances", "connectivities"):
        np.testing.assert_allclose(cells.obsp[name].toarray(), known.obsp[name].toarray(), atol=1e-4)
    assert np.all(y[cells.obsp["connectivities"].nonzero()[0]] == y[cells.obsp["connectivities"].nonzero()[1]])


def test_nothing_is_imported_before_it_is_asked_for():
    code = (
        "import sys, aniso, aniso.integrations\n"
        "wrong = {'sklearn', 'scipy', 'joblib', 'langchain_core'} & {name.split('.')[0] for name in sys.modules}\n"
        "sys.exit(str(wrong) if wrong else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("module", "library"), [("sklearn", "scikit-learn"), ("langchain", "langchain-core")])
def test_a_missing_library_is_named_with_its_extra(module, library):
    blocked = {"sklearn": "sklearn", "langchain": "langchain_core"}[module]
    code = (
        f"import sys\nsys.modules[{blocked!r}] = None\n"
        f"try:\n    import aniso.integrations.{module}\nexcept ImportError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert library in said
    assert f"aniso[{module}]" in said
