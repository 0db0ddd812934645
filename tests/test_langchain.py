"""AnisoVectorStore against LangChain's own suite, and what that does not ask: filters, files, threads, relevance."""

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_tests.integration_tests.vectorstores import VectorStoreIntegrationTests

import aniso
from aniso.integrations.langchain import AnisoVectorStore


class TestStandard(VectorStoreIntegrationTests):
    """LangChain's suite for vector stores, synchronous and asynchronous."""

    @pytest.fixture
    def vectorstore(self):
        return AnisoVectorStore(self.get_embeddings())


class TestStandardReloaded(VectorStoreIntegrationTests):
    """The same on a store that was changed, emptied, saved and loaded."""

    @pytest.fixture
    def vectorstore(self, tmp_path):
        store = AnisoVectorStore.from_texts(["old", "older"], self.get_embeddings(), metric="l2")
        store.delete()
        store.save(tmp_path / "store")
        return AnisoVectorStore.load(tmp_path / "store", self.get_embeddings())


class Numbers(Embeddings):
    """A text of numbers stands for the vector of them."""

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        return [float(part) for part in text.split()]


def compass(metric="cosine"):
    """Documents in four directions."""
    texts = {"east": "1 0", "north": "0 1", "west": "-1 0", "northeast": "1 0.9"}
    metadatas = [{"letters": len(name), "sides": list(name[:1])} for name in texts]
    return AnisoVectorStore.from_texts(
        list(texts.values()), Numbers(), metadatas, ids=list(texts), metric=metric, threads=1
    )


def ids(documents):
    return [document.id for document in documents]


def many(count, **metadata):
    """So many random texts and vectors, with their numbers as metadata."""
    rng = np.random.default_rng(0)
    texts = [" ".join(f"{value:.4f}" for value in row) for row in rng.normal(size=(count, 8))]
    return texts, [{"number": number, "odd": number % 2 == 1} for number in range(count)]


# Searches


@pytest.mark.parametrize(
    ("metric", "scores"), [("cosine", [1.0, 0.74329, 0.0]), ("dot", [2.0, 2.0, 0.0]), ("l2", [-1.0, -1.81, -5.0])]
)
def test_scores_are_those_of_the_metric_and_higher_is_better(metric, scores):
    found = compass(metric).similarity_search_with_score("2 0", k=3)
    np.testing.assert_allclose([score for _, score in found], scores, atol=1e-5)
    assert found[0][0].page_content == "1 0"
    assert all(type(score) is float for _, score in found)


def test_relevance_is_from_0_to_1_and_may_be_a_threshold():
    for metric in ("cosine", "dot", "l2"):
        scored = compass(metric).similarity_search_with_relevance_scores("1 0", k=4)
        assert ids(document for document, _ in scored)[-1] == "west"
        assert all(0 <= relevance <= 1 for _, relevance in scored)
        assert scored[0][1] == 1.0
    retriever = compass().as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.5, "k": 4}
    )
    assert ids(retriever.invoke("1 0")) == ["east", "northeast"]


def test_searches_by_vector_and_for_variety():
    store = compass()
    assert ids(store.similarity_search_by_vector([0.0, 3.0], k=2)) == ["north", "northeast"]
    assert ids(store.max_marginal_relevance_search("1 0.2", k=2, fetch_k=3, lambda_mult=1.0)) == ["east", "northeast"]
    assert ids(store.max_marginal_relevance_search("1 0.2", k=2, fetch_k=3, lambda_mult=0.1)) == ["east", "north"]
    assert ids(store.max_marginal_relevance_search("1 0.2", k=3, filter={"letters": 4})) == ["east", "west"]
    assert ids(store.as_retriever(search_type="mmr", search_kwargs={"k": 1}).invoke("0 1")) == ["north"]
    assert AnisoVectorStore(Numbers()).max_marginal_relevance_search("1 0") == []


async def test_asynchronous_searches_find_the_same():
    store = await AnisoVectorStore.afrom_texts(["1 0", "0 1"], Numbers(), [{"n": 1}, {"n": 2}], ids=["a", "b"])
    assert await store.asimilarity_search_with_score("2 0.1") == store.similarity_search_with_score("2 0.1")
    assert ids(await store.asimilarity_search_by_vector([1.0, 0.0], k=1)) == ["a"]
    assert ids(await store.amax_marginal_relevance_search("1 0", k=2)) == ["a", "b"]
    assert ids(await store.asimilarity_search("1 0", filter={"n": 2})) == ["b"]
    assert ids(await store.as_retriever().ainvoke("0 1")) == ["b", "a"]


def test_a_store_that_outgrows_exact_search_finds_what_it_was_asked_to():
    texts, metadatas = many(4000)
    store = AnisoVectorStore(Numbers(), metric="l2", recall=0.9, threads=1)
    for first in range(0, 4000, 800):
        part = slice(first, first + 800)
        store.add_texts(texts[part], metadatas[part], ids=[str(number) for number in range(first, first + 800)])
    vectors = np.array(Numbers().embed_documents(texts), np.float32)
    queries = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32)
    truth = aniso.ExactIndex(vectors, metric="l2").search(queries, 10).ids
    for recall, least in ((None, 0.82), (0.99, 0.96)):  # 500 answers: some four standard errors below
        found = [ids(store.similarity_search_by_vector(list(query), 10, recall=recall)) for query in queries]
        share = np.mean([len({*map(int, a)} & {*b.tolist()}) / 10 for a, b in zip(found, truth, strict=True)])
        assert share > least
    odd = store.similarity_search_by_vector(list(queries[0]), 20, filter={"odd": True})
    true = [row for row in aniso.ExactIndex(vectors, metric="l2").search(queries[0], 200).ids.tolist() if row % 2][:20]
    assert len({*map(int, ids(odd))} & {*true}) >= 16
    assert all(document.metadata["odd"] for document in odd)


# Changes


def test_an_id_that_is_there_is_replaced():
    store = compass()
    assert store.add_texts(["0 -1", "0 -2", "5 5"], [{}, {"last": True}, {}], ids=["east", "east", "new"]) == [
        "east", "east", "new",
    ]  # fmt: skip
    assert len(store) == 5
    assert store.similarity_search("0 -1", k=1) == [Document(id="east", page_content="0 -2", metadata={"last": True})]


def test_ids_are_made_up_where_there_are_none():
    store = AnisoVectorStore(Numbers())
    given = store.add_documents([Document(page_content="1 0", id="a"), Document(page_content="0 1")])
    assert given[0] == "a"
    assert len(given[1]) == 32
    assert store.get_by_ids(given[::-1])[0].page_content == "0 1"
    assert store.add_texts([]) == []


def test_what_a_caller_does_to_a_document_leaves_the_store_alone():
    tags = ["x"]
    store = AnisoVectorStore.from_texts(["1 0"], Numbers(), [{"tags": tags}], ids=["a"])
    tags.append("y")
    store.get_by_ids(["a"])[0].metadata["tags"].append("z")
    store.similarity_search("1 0")[0].metadata.clear()
    assert store.get_by_ids(["a"])[0].metadata == {"tags": ["x"]}


def test_deleting_everything_and_starting_again_with_other_dimensions():
    store = compass()
    assert store.delete(["east", "nowhere"]) is True
    assert ids(store.similarity_search("1 0", k=9)) == ["northeast", "north", "west"]
    store.delete()
    assert len(store) == 0
    assert store.similarity_search("1 0", filter={"letters": 4}) == []
    store.add_texts(["1 2 3"])
    assert len(store.similarity_search("1 2 3")) == 1


def test_a_call_that_fails_changes_nothing():
    store = compass()
    with pytest.raises(ValueError, match="embeddings have 3 dimensions, needed: 2"):
        store.add_texts(["1 2 3"], ids=["east"])
    with pytest.raises(ValueError, match="embeddings row 1, dimension 0 is not finite"):
        store.add_texts(["1 2", "nan 1"], ids=["east", "new"])
    with pytest.raises(ValueError, match="1 metadatas were given for 2 texts"):
        store.add_texts(["1 2", "3 4"], [{}])
    with pytest.raises(ValueError, match="1 ids were given for 2 texts"):
        store.add_texts(["1 2", "3 4"], ids=["east"])
    assert len(store) == 4
    assert store.get_by_ids(["east"])[0].page_content == "1 0"
    with pytest.raises(ValueError, match="k is 0; needed: at least 1"):
        store.similarity_search("1 0", k=0)


def test_threads_search_while_one_changes_the_store():
    store = compass()
    wrong, stop = [], threading.Event()

    def search():
        while not stop.is_set():
            try:
                assert "north" in ids(store.similarity_search("0 1", k=3))
                assert ids(store.similarity_search("0 1", filter={"letters": 5})) == ["north"]
            except Exception as error:
                wrong.append(error)
                return

    readers = [threading.Thread(target=search) for _ in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(60):
        store.add_texts(["-1 -1", "-1 -2"], [{"letters": 0}, {"letters": 0}], ids=["a", f"b{turn}"])
        store.delete(["a"])
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_what_a_filter_lets_pass_is_still_there_when_it_is_searched():
    store, deleting = compass(), []

    def passes(document):
        if not deleting:
            deleting.append(threading.Thread(target=store.delete, args=(["east"],)))
            deleting[0].start()
            deleting[0].join(0.2)
        return True

    assert ids(store.similarity_search("1 0", filter=passes))[0] == "east"
    deleting[0].join()
    assert "east" not in ids(store.similarity_search("1 0", filter=passes))


# Filters


def test_filters_restrict_a_search():
    store = compass()
    assert ids(store.similarity_search("1 0", filter={"letters": 4})) == ["east", "west"]
    assert ids(store.similarity_search("1 0", filter=lambda document: document.id.startswith("n"))) == [
        "northeast", "north",
    ]  # fmt: skip
    assert store.similarity_search("1 0", filter={"letters": 77}) == []
    assert len(store.similarity_search("1 0", filter={})) == 4
    assert ids(store.similarity_search("0 1", k=1, filter={"letters": {"$gt": 5}})) == ["northeast"]


def test_filters_reach_the_index(monkeypatch):
    """The index is told which points it may find, so that there are k results wherever k documents pass."""
    store, asked = compass(), []
    search = aniso.Index.search

    def spy(self, *arguments, where=None, **options):
        asked.append(where)
        return search(self, *arguments, where=where, **options)

    monkeypatch.setattr(aniso.Index, "search", spy)
    store.similarity_search("1 0", k=1, filter={"letters": 4})
    store.similarity_search("1 0", k=1)
    assert asked == [["east", "west"], None]


def test_a_wrong_filter_is_named_even_where_there_is_nothing_to_filter():
    for store in (compass(), AnisoVectorStore(Numbers())):
        with pytest.raises(ValueError, match=r"operator '\$near'"):
            store.similarity_search("1 0", filter={"letters": {"$near": 3}})


# Files


def test_a_folder_holds_the_store_and_may_be_moved(tmp_path):
    texts, metadatas = many(1500)
    embedding = DeterministicFakeEmbedding(size=8)
    store = AnisoVectorStore.from_texts(texts, Numbers(), metadatas, metric="l2", recall=0.9)
    store.save(tmp_path / "a" / "store")
    shutil.move(tmp_path / "a" / "store", tmp_path / "b")
    loaded = AnisoVectorStore.load(tmp_path / "b", Numbers())
    for query in texts[:5]:
        assert loaded.similarity_search_with_score(query) == store.similarity_search_with_score(query)
        assert loaded.similarity_search(query, filter={"odd": True}) == store.similarity_search(
            query, filter={"odd": True}
        )
    assert {path.suffix for path in (tmp_path / "b").iterdir()} == {".json", ".aniso"}
    said = json.loads((tmp_path / "b" / "documents.json").read_text(encoding="utf-8"))
    assert said["documents"][3]["text"] == texts[3]
    assert said["metric"] == "l2"
    assert "embeddings" not in said
    with pytest.raises(ValueError, match="dimensions"):
        AnisoVectorStore.load(tmp_path / "b", DeterministicFakeEmbedding(size=9)).similarity_search("x")
    assert AnisoVectorStore.load(tmp_path / "b", embedding).embeddings is embedding


def test_a_loaded_store_goes_on(tmp_path):
    compass().save(tmp_path)
    for turn in range(3):
        store = AnisoVectorStore.load(tmp_path, Numbers())
        store.add_texts(["0 -1"], [{"turn": turn}], ids=[f"south{turn}"])
        store.add_texts([f"1 {turn}"], [{"größe": "ß"}], ids=["east"])
        store.save(tmp_path)
        assert len(list(tmp_path.iterdir())) == 2  # the old index is gone
    store = AnisoVectorStore.load(tmp_path, Numbers())
    assert len(store) == 7
    assert store.get_by_ids(["east"]) == [Document(id="east", page_content="1 2", metadata={"größe": "ß"})]
    assert sorted(ids(store.similarity_search("0 -1", k=3))) == ["south0", "south1", "south2"]


@pytest.mark.parametrize("moment", ["index", "documents", "replace"])
def test_an_interrupted_save_leaves_what_was_there(tmp_path, monkeypatch, moment):
    compass().save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    store = compass()
    store.delete(["east"])

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "index":
            patch.setattr(aniso.Index, "save", interrupt)
        elif moment == "documents":
            patch.setattr("aniso.integrations.folder.json.dump", interrupt)
        else:
            patch.setattr("aniso.integrations.folder._replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    store.save(tmp_path)
    assert len(AnisoVectorStore.load(tmp_path, Numbers())) == 3


def test_metadata_that_json_would_change_is_refused_before_anything_is_written(tmp_path):
    for value in ({1, 2}, (1, 2), {3: 4}, float("nan"), b"x"):
        store = AnisoVectorStore.from_texts(["1 0"], Numbers(), [{"key": value}], ids=["a"])
        with pytest.raises((TypeError, ValueError), match=r"the metadata of document 'a'\['key'\]"):
            store.save(tmp_path / "store")
    assert not (tmp_path / "store").exists()


def damage(folder: Path, change) -> None:
    path = folder / "documents.json"
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda said: said.update(version=2), "version is 2; needed: 1"),
        (lambda said: said.update(index="../index-0123456789abcdef.aniso"), "needed: a name such as"),
        (lambda said: said.update(index=None), "index is None"),
        (lambda said: said.update(metric="hamming"), "metric is 'hamming'"),
        (lambda said: said.update(metric="l2"), "is the index of other documents"),
        (lambda said: said.update(recall="high"), "recall is 'high'"),
        (lambda said: said["documents"].pop(), "is the index of other documents"),
        (lambda said: said["documents"].append(said["documents"][0]), "5 documents have 4 ids"),
        (lambda said: said["documents"][0].update(text=7), "a document is"),
        (lambda said: said["documents"][0].pop("metadata"), "KeyError: 'metadata'"),
        (lambda said: said.pop("documents"), "KeyError: 'documents'"),
    ],
)
def test_a_damaged_folder_is_a_format_error(tmp_path, change, message):
    compass().save(tmp_path)
    damage(tmp_path, change)
    with pytest.raises(aniso.FormatError, match=message) as caught:
        AnisoVectorStore.load(tmp_path, Numbers())
    assert "documents.json" in str(caught.value)


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError):
        AnisoVectorStore.load(tmp_path, Numbers())
    (tmp_path / "documents.json").write_text("[" * 100_000)
    with pytest.raises(aniso.FormatError, match=r"documents\.json"):
        AnisoVectorStore.load(tmp_path, Numbers())
