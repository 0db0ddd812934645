"""The graph of nearest neighbours as a scikit-learn transformer, for pipelines, UMAP and scanpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso.errors import check_count, check_vectors
from aniso.exact import ExactIndex
from aniso.index import Index, build
from aniso.tune import check_recall

try:
    from joblib import effective_n_jobs
    from scipy.sparse import csr_matrix
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(f'{error}; needed: scikit-learn 1.6 or newer (pip install "aniso[sklearn]")') from error

__all__ = ["AnisoTransformer"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_METRICS = {"euclidean": "l2", "l2": "l2", "cosine": "cosine", "dot": "dot"}
_MODES = ("distance", "connectivity")


class AnisoTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Points to the sparse graph of their nearest neighbours, like scikit-learn's KNeighborsTransformer.

    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(100, 4))
    >>> graph = AnisoTransformer(n_neighbors=5).fit_transform(points)
    >>> graph.shape, graph.nnz  # each point itself, and 5 others
    ((100, 100), 600)

    n_neighbors    how many neighbours; mode "distance" has one more, because each point is its own nearest
    mode           "distance": the graph holds distances; "connectivity": ones
    metric         "euclidean" or "l2", "cosine" (1 - the cosine), or "dot", the largest inner products, which are no
                   distances and so need mode "connectivity"
    recall         the share of the true neighbours to find; 1 computes every distance, and so does any recall for up to
                   1000 points
    n_jobs         threads, as scikit-learn counts them: None is 1, -1 all cores. The graph is the same for any number

    After fit: index_, the index; n_samples_fit_, how many points it has; effective_metric_, its name of the metric;
    n_features_in_ and, where X has named columns, feature_names_in_.
    """

    def __init__(
        self,
        *,
        n_neighbors: int = 5,
        mode: str = "distance",
        metric: str = "euclidean",
        recall: float = 0.95,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.mode = mode
        self.metric = metric
        self.recall = recall
        self.n_jobs = n_jobs

    def fit(self, X: ArrayLike, y: Any = None) -> AnisoTransformer:
        """Index the points X (n, d); y is not looked at."""
        metric = self._check_parameters()
        given = validate_data(self, X)
        points = check_vectors(given, "X")
        if np.may_share_memory(points, given):  # what was fitted must not change with the caller's X
            points = points.copy()
        threads = effective_n_jobs(self.n_jobs)
        self.index_: Index | ExactIndex
        if self.recall == 1:
            self.index_ = ExactIndex(points, metric=metric, threads=threads)
        else:
            self.index_ = build(points, metric=metric, recall=self.recall, threads=threads)
        self.n_samples_fit_ = self._n_features_out = len(points)
        self.effective_metric_ = metric
        self._points = points
        return self

    def transform(self, X: ArrayLike) -> csr_matrix:
        """The graph from the rows of X to their neighbours among the fitted points: CSR (len(X), n_samples_fit_).

        The values of each row ascend.
        """
        return self._graph(*self._neighbours(self._checked(X), self._graph_neighbours()))

    def fit_transform(self, X: ArrayLike, y: Any = None) -> csr_matrix:
        """Index the points X and return the graph from them to each other.

        In mode "distance" the first neighbour of each point is the point itself, at 0, duplicates or not.
        """
        self.fit(X)
        count = self._graph_neighbours()
        if self.mode == "connectivity":
            return self._graph(*self._neighbours(self._points, count))
        distances, ids = self._neighbours_of_fitted(count - 1)
        own = np.arange(len(ids))[:, None]
        return self._graph(np.hstack([np.zeros(own.shape), distances]), np.hstack([own, ids]))

    def kneighbors(
        self, X: ArrayLike | None = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        """Distances and row numbers of the nearest fitted points, each (len(X), n_neighbors), or the numbers alone.

        Without X, the neighbours of each fitted point, which is not counted among its own. With metric "dot", distances
        are negative inner products.
        """
        check_is_fitted(self)
        count = self.n_neighbors if n_neighbors is None else check_count(n_neighbors, "n_neighbors")
        if X is None:
            distances, ids = self._neighbours_of_fitted(count)
        else:
            distances, ids = self._neighbours(self._checked(X), count)
        return (distances, ids) if return_distance else ids

    def _check_parameters(self) -> str:
        """The index's name of the metric, if all parameters are what they may be."""
        check_count(self.n_neighbors, "n_neighbors")
        if self.mode not in _MODES:
            raise ValueError(f"mode is {self.mode!r}; needed: one of {', '.join(_MODES)}")
        if self.metric not in _METRICS:
            raise ValueError(f"metric is {self.metric!r}; needed: one of {', '.join(_METRICS)}")
        if self.metric == "dot" and self.mode == "distance":
            raise ValueError("metric 'dot' gives no distances; needed: mode='connectivity', or metric 'cosine'")
        check_recall(self.recall)
        return _METRICS[self.metric]

    def _checked(self, X: ArrayLike) -> F32:
        check_is_fitted(self)
        return check_vectors(validate_data(self, X, reset=False), "X")

    def _graph_neighbours(self) -> int:
        self._check_parameters()  # they may have been set after fit
        return int(self.n_neighbors) + (self.mode == "distance")

    def _neighbours(self, queries: F32, count: int) -> tuple[F64, NDArray[np.int64]]:
        """Distances and numbers of the nearest fitted points, nearest first."""
        if count > self.n_samples_fit_:
            raise ValueError(
                f"{count} neighbours are wanted of n_samples_fit_ = {self.n_samples_fit_} points; needed: at most as "
                "many (a point itself counts as one more in mode 'distance', and where it is left out)"
            )
        threads = effective_n_jobs(self.n_jobs)
        found = self.index_.search(queries, count, threads=threads)
        return _distances(found.scores, self.effective_metric_), found.ids

    def _neighbours_of_fitted(self, count: int) -> tuple[F64, NDArray[np.int64]]:
        """The same for the fitted points themselves, none of which is its own neighbour."""
        n = self.n_samples_fit_
        distances, ids = self._neighbours(self._points, count + 1)
        others = ids != np.arange(n)[:, None]
        others[others.all(axis=1), -1] = False  # hidden by duplicates or by chance: the farthest gives way
        return distances[others].reshape(n, count), ids[others].reshape(n, count)

    def _graph(self, distances: F64, ids: NDArray[np.int64]) -> csr_matrix:
        rows, count = ids.shape
        values = distances if self.mode == "distance" else np.ones(ids.shape)
        starts = np.arange(0, ids.size + 1, count)
        return csr_matrix((values.ravel(), ids.ravel(), starts), shape=(rows, self.n_samples_fit_))


def _distances(scores: F32, metric: str) -> F64:
    """Scores of an index as distances."""
    exact = scores.astype(np.float64)
    if metric == "dot":
        return -exact
    return np.maximum(1 - exact, 0) if metric == "cosine" else np.sqrt(-exact)
