"""A vector store for LangChain: an index of embeddings, and beside it the documents that they stand for."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso.config import check_metric
from aniso.errors import check_count, check_threads, check_vectors
from aniso.index import Index, build
from aniso.integrations.filters import compile_filter
from aniso.integrations.folder import Folder, read_folder, write_folder
from aniso.tune import check_recall

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.runnables.config import run_in_executor
    from langchain_core.vectorstores import VectorStore
    from langchain_core.vectorstores.utils import maximal_marginal_relevance
except ImportError as error:
    raise ImportError(f'{error}; needed: langchain-core 1.0 or newer (pip install "aniso[langchain]")') from error

__all__ = ["AnisoVectorStore"]

Filter = dict[str, Any] | Callable[[Document], bool]
Scored = list[tuple[Document, float]]


class AnisoVectorStore(VectorStore):
    """Documents found by their embeddings, in the memory of this process; `save` and `load` keep them in a folder.

    >>> from langchain_core.embeddings import DeterministicFakeEmbedding
    >>> store = AnisoVectorStore(DeterministicFakeEmbedding(size=8))
    >>> store.add_texts(["one", "two", "three"], [{"n": 1}, {"n": 2}, {"n": 3}], ids=["a", "b", "c"])
    ['a', 'b', 'c']
    >>> store.similarity_search("two", k=1)[0].id
    'b'
    >>> [document.id for document in store.similarity_search("two", filter={"n": {"$gt": 2}})]
    ['c']

    embedding    turns texts into vectors
    metric       "cosine", "dot" or "l2"
    recall       the share of the true best documents that a search finds; for up to 1000 documents it is all of them
    threads      for building; all cores by default

    Searches take `filter`, a dict of conditions on the metadata (`aniso.integrations.filters`) or a function of a
    document, and `recall` for that one search. Scores are cosines, inner products or negative squared distances: higher
    is better. Any number of threads may search while one changes the store.
    """

    def __init__(
        self, embedding: Embeddings, *, metric: str = "cosine", recall: float = 0.95, threads: int | None = None
    ) -> None:
        self._embedding = embedding
        self._metric = check_metric(metric)
        self._recall = check_recall(recall)
        self._threads = check_threads(threads)
        self._lock = threading.RLock()  # between writers, and while documents and index must agree
        self._index: Index | None = None  # where there are no documents
        self._documents: dict[str, Document] = {}

    @property
    def embeddings(self) -> Embeddings:
        """What turns texts into vectors."""
        return self._embedding

    def __len__(self) -> int:
        return len(self._documents)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> AnisoVectorStore:
        """A store of these texts; what else is given goes to the constructor."""
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> AnisoVectorStore:
        """The same, with the embedding's asynchronous calls."""
        store = cls(embedding, **kwargs)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    # Changes

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, and return their ids; a text whose id is there already replaces that one.

        Where ids are missing, new ones are made up. Of an id given twice, the last text stays.
        """
        documents = _as_documents(texts, metadatas, ids)
        return self._put(documents, self._embedding.embed_documents([each.page_content for each in documents]))

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """The same, with the embedding's asynchronous call."""
        documents = _as_documents(texts, metadatas, ids)
        vectors = await self._embedding.aembed_documents([each.page_content for each in documents])
        return await run_in_executor(None, self._put, documents, vectors)

    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by their ids, or all of them for None; an id that is not there is passed over."""
        with self._lock:
            gone = set(self._documents if ids is None else ids) & self._documents.keys()
            if len(gone) == len(self._documents):
                self._index = None
            elif gone and self._index is not None:
                self._index.remove(gone)
            self._documents = {key: each for key, each in self._documents.items() if key not in gone}
        return True

    def _put(self, documents: list[Document], vectors: Any) -> list[str]:
        """Documents with their vectors into the index; those whose ids are there are replaced."""
        ids = [str(each.id) for each in documents]
        if not ids:
            return []
        last = {key: row for row, key in enumerate(ids)}
        with self._lock:
            index = self._index
            array = check_vectors(vectors, "embeddings", rows=1, d=None if index is None else index.d)
            if len(array) != len(ids):
                raise ValueError(f"the embedding gave {len(array)} vectors for {len(ids)} texts; needed: one for each")
            old = [key for key in last if key in self._documents]
            new = [key for key in last if key not in self._documents]
            if index is None:
                self._index = self._built(array[[last[key] for key in new]], new)
            else:
                if old:
                    index.update(array[[last[key] for key in old]], old)
                if new:
                    index.add(array[[last[key] for key in new]], new)
                if new and index.info()["partitions"] > 1 and not index.info()["curve"]:
                    index.tune(recall=self._recall)  # it has outgrown the size at which every score is computed
            self._documents.update((key, documents[row]) for key, row in last.items())
        return ids

    def _built(self, array: NDArray[np.float32], ids: list[str]) -> Index:
        return build(array, metric=self._metric, recall=self._recall, ids=ids, threads=self._threads)

    # Searches

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents of these ids, in their order; an id that is not there is passed over."""
        documents = self._documents
        return [_copy(documents[key]) for key in ids if key in documents]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The k documents that are nearest to a text."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The same, with the embedding's asynchronous call."""
        return [document for document, _ in await self.asimilarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> Scored:
        """The k documents that are nearest to a text, and their scores."""
        return self.similarity_search_with_score_by_vector(self._embedding.embed_query(query), k, **kwargs)

    async def asimilarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> Scored:
        """The same, with the embedding's asynchronous call."""
        vector = await self._embedding.aembed_query(query)
        return await run_in_executor(None, self.similarity_search_with_score_by_vector, vector, k, **kwargs)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """The k documents that are nearest to a vector."""
        return [document for document, _ in self.similarity_search_with_score_by_vector(embedding, k, **kwargs)]

    def similarity_search_with_score_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        *,
        filter: Filter | None = None,
        recall: float | None = None,
        **kwargs: Any,
    ) -> Scored:
        """The k documents that are nearest to a vector, and their scores."""
        ids, scores = self._nearest(embedding, k, filter, recall)
        documents = self._documents
        found = ((documents.get(key), score) for key, score in zip(ids, scores, strict=True))
        return [(_copy(document), score) for document, score in found if document is not None]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """k of the fetch_k documents nearest to a text, chosen to be near it and unlike each other.

        lambda_mult is 1 for the nearest alone and 0 for the most various.
        """
        vector = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **kwargs)

    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """The same, with the embedding's asynchronous call."""
        vector = await self._embedding.aembed_query(query)
        return await self.amax_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Filter | None = None,
        recall: float | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """k of the fetch_k documents nearest to a vector, chosen to be near it and unlike each other."""
        k = check_count(k, "k")
        with self._lock:  # the vectors must be those of the documents found
            ids, _ = self._nearest(embedding, max(k, check_count(fetch_k, "fetch_k")), filter, recall)
            if self._index is None or not ids:
                return []
            vectors = self._index.points(ids)
            chosen = maximal_marginal_relevance(np.asarray(embedding, np.float32), list(vectors), lambda_mult, k)
            return [_copy(self._documents[ids[at]]) for at in chosen]

    def _nearest(
        self, embedding: Sequence[float], k: int, filter: Filter | None, recall: float | None
    ) -> tuple[list[str], list[float]]:
        """The ids and scores of the k best documents that the filter lets pass."""
        k = check_count(k, "k")
        vector = check_vectors([embedding], "query")[0]
        passes = None if filter is None else _passes(filter)
        if passes is None:
            index = self._index
            if index is None:
                return [], []
            found = index.search(vector, k, recall=recall)
        else:
            with self._lock:  # every id that passes must be in the index
                allowed = [key for key, document in self._documents.items() if passes(document)]
                if self._index is None or not allowed:
                    return [], []
                found = self._index.search(vector, k, where=allowed, recall=recall)
        return found.ids.tolist(), found.scores.tolist()

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """From a score to LangChain's relevance, 0 to 1.

        It is the cosine, or the inner product, cut to that range; of a distance it is 1 / (1 + distance).
        """
        if self._metric == "l2":
            return lambda score: 1 / (1 + float(np.sqrt(max(-score, 0.0))))
        return lambda score: min(max(score, 0.0), 1.0)

    # Files

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the store into a folder, which is made if need be: the index, and the documents as JSON.

        An interrupted save leaves the store that was there before. The folder may be moved. Metadata must be what JSON
        can hold.
        """
        with self._lock:
            documents = {key: (each.page_content, each.metadata) for key, each in self._documents.items()}
            write_folder(folder, Folder(self._metric, self._recall, documents, self._index))

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], embedding: Embeddings, *, threads: int | None = None
    ) -> AnisoVectorStore:
        """Open the store that `save` wrote into a folder; what is wrong with it is an aniso.FormatError."""
        held = read_folder(folder, threads=threads)
        store = cls(embedding, metric=held.metric, recall=held.recall, threads=threads)
        store._index = held.index
        store._documents = {
            key: Document(id=key, page_content=text, metadata=metadata)
            for key, (text, metadata) in held.documents.items()
        }
        return store


def _as_documents(
    texts: Iterable[str], metadatas: list[dict[str, Any]] | None, ids: Sequence[str | None] | None
) -> list[Document]:
    """One document for each text, with an id."""
    listed = list(texts)
    for name, values in (("metadatas", metadatas), ("ids", ids)):
        if values is not None and len(values) != len(listed):
            raise ValueError(f"{len(values)} {name} were given for {len(listed)} texts; needed: one for each")
    return [
        _copy(Document(id=key or uuid.uuid4().hex, page_content=text, metadata=metadata))
        for text, metadata, key in zip(
            listed, metadatas or [{} for _ in listed], ids or [None for _ in listed], strict=True
        )
    ]


def _copy(document: Document) -> Document:
    """A document of the caller's own: what they do to it leaves the store alone."""
    return document.model_copy(deep=True)


def _passes(filter: Filter) -> Callable[[Document], bool]:
    if callable(filter):
        return filter
    holds = compile_filter(filter)
    return lambda document: holds(document.metadata)
