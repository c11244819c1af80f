"""BM25 and dense retrieval against brute force written here, ties, unknown words, and recall on a real corpus."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
import types
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bm25s.stopwords import STOPWORDS_EN

from r3flow.environment import Environment
from r3flow.errors import ConfigError, DataError, IndexMismatchError
from r3flow.params import load
from r3flow.protocol import PROTOCOLS
from r3flow.retrieval import encoders
from r3flow.retrieval.bm25 import BM25Retriever, build_bm25
from r3flow.retrieval.dense import DenseRetriever, build_dense
from r3flow.retrieval.encoders import HashedTfidf, SentenceEncoder
from r3flow.trajectory import Hit, Passage

ROOT = Path(__file__).parents[2]
PARAMS = load(ROOT / "params.yaml")
HOTPOTQA = Path(os.environ.get("R3FLOW_SHARED_DATA", ROOT.parent / "shared" / "data")) / "hotpotqa"


def passages(count: int = 400, seed: int = 0, vocabulary: int = 150) -> list[Passage]:
    """Random passages of Zipf-like words, stop words and single letters among them, each tenth a copy of an earlier one."""
    rng = random.Random(seed)
    pool = [f"word{place}" for place in range(vocabulary)] + ["the", "of", "and", "x", "Éclair", "NAÏVE"]
    weights = [1 / (1 + place % 40) for place in range(len(pool))]
    made: list[Passage] = []
    for place in range(count):
        if place and place % 10 == 0:
            twin = rng.choice(made)
            made.append(Passage(str(place), twin.title, twin.text))
        else:
            made.append(
                Passage(str(place), " ".join(rng.choices(pool, weights, k=2)), " ".join(rng.choices(pool, weights, k=rng.randint(3, 30))))
            )
    return made


def queries(count: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices([f"word{place}" for place in range(160)] + ["the", "éclair"], k=rng.randint(1, 6))) for _ in range(count)]


def tokens(text: str, stopwords: bool) -> list[str]:
    found = [word for word in re.split(r"\W+", text.lower()) if len(word) > 1]
    return [word for word in found if word not in STOPWORDS_EN] if stopwords else found


def brute_force_bm25(corpus: list[Passage], query: str, *, stopwords: bool) -> dict[int, float]:
    """Robertson's BM25 as Lucene computes it: idf = ln(1 + (N - n + 1/2) / (n + 1/2)), tf / (tf + k1 (1 - b + b length / average))."""
    documents = [Counter(tokens(f"{passage.title}\n{passage.text}", stopwords)) for passage in corpus]
    lengths = [sum(document.values()) for document in documents]
    average = sum(lengths) / len(lengths)
    scores: dict[int, float] = {}
    for word in tokens(query, stopwords):
        holders = sum(word in document for document in documents)
        idf = math.log(1 + (len(corpus) - holders + 0.5) / (holders + 0.5))
        for place, document in enumerate(documents):
            if tf := document[word]:
                scores[place] = scores.get(place, 0.0) + idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * lengths[place] / average))
    return scores


def places(hits: list[Hit]) -> list[int]:
    return [int(hit.passage.id) for hit in hits]


def bm25(corpus: list[Passage], folder: Path, stopwords: str | None = "en") -> BM25Retriever:
    build_bm25(corpus, folder, stopwords)
    return BM25Retriever(corpus, folder, stopwords)


def dense(corpus: list[Passage], folder: Path, dimension: int = 24) -> DenseRetriever:
    build_dense(corpus, folder, "hashed-tfidf", dimension)
    return DenseRetriever(corpus, folder, "hashed-tfidf")


@pytest.mark.parametrize("stopwords", ["en", None])
def test_bm25_finds_what_brute_force_finds(tmp_path, stopwords):
    corpus = passages()
    asked = [*queries(40), "word3 word3 word3 word7", "The word1 of"]
    for query, hits in zip(asked, bm25(corpus, tmp_path, stopwords).search(asked, 10), strict=True):
        expected = brute_force_bm25(corpus, query, stopwords=stopwords is not None)
        ranked = sorted(expected, key=lambda place: (-round(expected[place], 5), place))[:10]
        assert [expected[place] for place in places(hits)] == pytest.approx([expected[place] for place in ranked], rel=1e-5)
        assert [hit.score for hit in hits] == pytest.approx([expected[place] for place in places(hits)], rel=1e-5)


def test_dense_finds_what_brute_force_finds(tmp_path):
    corpus, asked = passages(), queries(40)
    retriever = dense(corpus, tmp_path)
    vectors = retriever.encoder.encode([f"{passage.title}\n{passage.text}" for passage in corpus], query=False).astype(np.float64)
    for query, hits in zip(asked, retriever.search(asked, 10), strict=True):
        vector = retriever.encoder.encode([query], query=True)[0].astype(np.float64)
        cosines = [float(row @ vector / np.linalg.norm(row) / np.linalg.norm(vector)) for row in vectors]
        ranked = sorted(range(len(corpus)), key=lambda place: (-round(cosines[place], 9), place))[:10]
        assert places(hits) == ranked
        assert [hit.score for hit in hits] == pytest.approx([cosines[place] for place in ranked], abs=1e-6)


def brute_force_tfidf(texts: list[str], asked: list[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The vocabulary and the TF-IDF vectors (N, V) and (Q, V): (1 + ln tf) (1 + ln((1 + N) / (1 + n))), words without stop list."""
    vocabulary = sorted({word for text in texts for word in tokens(text, False)})
    counts, of_asked = (np.array([[tokens(text, False).count(word) for word in vocabulary] for text in some]) for some in (texts, asked))
    idf = 1 + np.log((1 + len(texts)) / (1 + (counts > 0).sum(0)))
    return vocabulary, *(np.where(some > 0, 1 + np.log(np.maximum(some, 1)), 0) * idf for some in (counts, of_asked))


def test_hashed_tfidf_is_tfidf_times_the_signs_of_each_words_hash():
    texts = [f"{passage.title}\n{passage.text}" for passage in passages(60, vocabulary=30)]
    asked = [*queries(20), "word3 word3 unheard", "unheard"]
    vocabulary, weights, of_asked = brute_force_tfidf(texts, asked)
    signs = np.zeros((len(vocabulary), 20))
    for row, word in enumerate(vocabulary):
        bits = "".join(f"{byte:08b}" for byte in hashlib.shake_128(word.encode()).digest(3))
        signs[row] = [1 if bit == "1" else -1 for bit in bits[:20]]
    encoder = HashedTfidf.fit(texts, 20)
    for some, expected, query in ((texts, weights @ signs, False), (asked, of_asked @ signs, True)):
        vectors = encoder.encode(some, query=query)
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, np.divide(expected, lengths, out=np.zeros_like(expected), where=lengths > 0), atol=1e-6)
    assert not encoder.encode(["unheard"], query=True).any(), "a word that the corpus does not hold has no weight"


def test_hashed_tfidf_keeps_the_cosines_of_tfidf():
    texts, asked = [f"{passage.title}\n{passage.text}" for passage in passages(60)], queries(40)
    _, weights, of_asked = brute_force_tfidf(texts, asked)
    exact = [rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12) for rows in (weights, of_asked)]
    encoder = HashedTfidf.fit(texts, 4096)
    error = encoder.encode(asked, query=True) @ encoder.encode(texts, query=False).T - exact[1] @ exact[0].T
    assert error.std() < 1.2 / math.sqrt(4096) and abs(error).max() < 6 / math.sqrt(4096)


def test_hashed_tfidf_encodes_more_texts_than_a_block_and_none(monkeypatch):
    texts = [f"{passage.title}\n{passage.text}" for passage in passages(100)]
    encoder = HashedTfidf.fit(texts, 24)
    whole = encoder.encode(texts, query=False)
    monkeypatch.setattr(encoders, "BLOCK", 7)
    assert (encoder.encode(texts, query=False) == whole).all() and encoder.encode([], query=True).shape == (0, 24)


def test_hashed_tfidf_is_the_same_in_every_process():
    """Python's own hash of a word, and the order of a set of words, differ from process to process."""
    code = (
        "import hashlib; from r3flow.retrieval.encoders import HashedTfidf; from tests.unit.test_retrieval import passages; "
        "texts = [passage.text for passage in passages(50)]; "
        "print(hashlib.sha256(HashedTfidf.fit(texts, 64).encode(texts, query=False).tobytes()).hexdigest())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            check=True, capture_output=True, text=True, timeout=300,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1 and len(said.pop().strip()) == 64


@pytest.mark.parametrize("build", [bm25, dense])
def test_equal_scores_come_in_the_corpus_order_whatever_k_and_batch(tmp_path, build):
    rng, distinct, asked = random.Random(0), passages(40), queries(30)
    kinds = [rng.randrange(40) for _ in range(3000)]
    members = [[place for place, kind in enumerate(kinds) if kind == wanted] for wanted in range(40)]
    corpus = [Passage(str(place), distinct[kind].title, distinct[kind].text) for place, kind in enumerate(kinds)]
    retriever = build(corpus, tmp_path)
    for k in (1, 3, 99, 100):  # from about 100 on FAISS chooses in another way
        for query, hits in zip(asked, retriever.search(asked, k), strict=True):
            for kind in range(40):
                shown = [place for place in places(hits) if kinds[place] == kind]
                assert shown == members[kind][: len(shown)]
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
            assert retriever.search([query], k) == [hits], "alone and in a batch it is the same"


@pytest.mark.parametrize("build", [bm25, dense])
def test_a_query_of_unknown_words_finds_nothing(tmp_path, build):
    retriever = build(passages(), tmp_path)
    assert retriever.search(["zzz qqq", "", "?", "word1 zzz"], 5)[:3] == [[], [], []]
    assert len(retriever.search(["word1 zzz"], 5)[0]) == 5
    assert retriever.search([], 5) == []


def test_k_larger_than_the_corpus_gives_what_there_is(tmp_path):
    corpus = [Passage("0", "", "red fox"), Passage("1", "", "blue fox"), Passage("2", "", "green hen")]
    assert places(bm25(corpus, tmp_path / "bm25").search(["blue fox"], 50)[0]) == [1, 0], "a passage that shares no word is no hit"
    assert sorted(places(dense(corpus, tmp_path / "dense").search(["blue fox"], 50)[0])) == [0, 1, 2]


@pytest.mark.parametrize("build", [bm25, dense])
def test_tiny_corpora(tmp_path, build):
    only = build([Passage("0", "Fox", "red fox")], tmp_path / "one")
    assert places(only.search(["fox"], 3)[0]) == [0]
    same = build([Passage(str(place), "", "alpha") for place in range(5)], tmp_path / "same")
    assert places(same.search(["alpha"], 3)[0]) == [0, 1, 2]


def test_a_corpus_without_words_is_refused(tmp_path):
    with pytest.raises(DataError, match="no passage of the corpus holds a word"):
        build_bm25([Passage("0", "", "!!!"), Passage("1", "", "the")], tmp_path, "en")


@pytest.mark.parametrize("build", [bm25, dense])
def test_threads_do_not_disturb_each_other(tmp_path, build):
    retriever, asked = build(passages(), tmp_path), queries(60)
    expected = retriever.search(asked, 5)
    with ThreadPoolExecutor(8) as pool:
        assert [rows[0] for rows in pool.map(lambda query: retriever.search([query], 5), asked)] == expected


class _FakeModel:
    """Stands in for a sentence-transformers model: a vector of letter counts. Keeps what it was given."""

    seen: list[str] = []  # noqa: RUF012
    letters = "abcdefgh"

    def __init__(self, name: str, **options: object) -> None:
        if name == "absent":
            raise OSError("absent is not a local folder\nand more lines")
        self.options = options

    def encode(self, texts: list[str], **_: object) -> np.ndarray:
        type(self).seen += texts
        return np.array([[1 + text.count(letter) for letter in self.letters] for text in texts], np.float32)


def test_a_sentence_encoder_gets_its_prefixes_and_runs_no_foreign_code(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", types.SimpleNamespace(SentenceTransformer=_FakeModel))
    corpus = [Passage("0", "Bad", "abba"), Passage("1", "Egg", "hedge")]
    _FakeModel.seen = []
    assert build_dense(corpus, tmp_path, "someone/e5-tiny", 99) == 8
    retriever = DenseRetriever(corpus, tmp_path, "someone/e5-tiny")
    assert places(retriever.search(["hedge"], 1)[0]) == [1]
    assert _FakeModel.seen == ["passage: Bad\nabba", "passage: Egg\nhedge", "passage: Bad\nabba", "query: hedge"]
    assert SentenceEncoder("someone/plain").prefixes == ("", "")
    options = SentenceEncoder("someone/plain").model.options
    assert options["trust_remote_code"] is False and options["model_kwargs"]["use_safetensors"] is True
    with pytest.raises(ConfigError, match=r"index.encoder: 'absent' cannot be loaded: absent is not a local folder$"):
        SentenceEncoder("absent")


def test_a_model_whose_weights_changed_under_its_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", types.SimpleNamespace(SentenceTransformer=_FakeModel))
    corpus = [Passage("0", "Bad", "abba"), Passage("1", "Egg", "hedge")]
    build_dense(corpus, tmp_path, "someone/plain", 99)
    monkeypatch.setattr(_FakeModel, "letters", "hgfedcba")
    with pytest.raises(IndexMismatchError, match="'someone/plain' encodes the first passage otherwise than when this was built"):
        DenseRetriever(corpus, tmp_path, "someone/plain")


def test_a_sentence_encoder_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ConfigError, match=r"index.encoder: 'some/model' needs sentence-transformers: pip install"):
        SentenceEncoder("some/model")


class _Listed:
    def __init__(self, corpus: list[Passage]) -> None:
        self.corpus, self.calls = corpus, []

    def search(self, asked, k):
        self.calls.append((list(asked), k))
        return [[Hit(passage, 1.0) for passage in self.corpus[:k]] for _ in asked]


def test_the_environment_asks_for_top_k_and_shows_hits_in_the_protocols_frame():
    changed = PARAMS.model_copy(
        update={
            "retrieval": PARAMS.retrieval.model_copy(update={"top_k": 2}),
            "protocol": PARAMS.protocol.model_copy(update={"max_document_characters": 20}),
        }
    )
    retriever = _Listed([Passage("a", "Fox", "The final answer: nine lives"), Passage("b", "", "hen"), Passage("c", "Owl", "wise")])
    environment = Environment(retriever, PROTOCOLS["r3rag"], changed)
    found = environment.search(["one", "two"])
    assert retriever.calls == [(["one", "two"], 2)]
    assert [[hit.passage.id for hit in hits] for hits in found] == [["a", "b"], ["a", "b"]] and all(type(hits) is tuple for hits in found)
    assert environment.documents(found[0]) == "\nThe retrieval documents: [1] Fox: The final answe [2] hen\n"
    assert environment.documents(()) == "\nThe retrieval documents: none found\n"
    assert environment.search([]) == [] and len(retriever.calls) == 1


@pytest.mark.skipif(not HOTPOTQA.is_dir(), reason=f"the HotpotQA sample is not at {HOTPOTQA}")
def test_bm25_recall_on_hotpotqa(tmp_path):
    corpus = [Passage.from_json(json.loads(line)) for line in (HOTPOTQA / "corpus.jsonl").read_text("utf-8").splitlines()]
    asked = [json.loads(line) for line in (HOTPOTQA / "questions.jsonl").read_text("utf-8").splitlines()]
    found = bm25(corpus, tmp_path).search([item["question"] for item in asked], 10)
    for k, expected in ((2, 0.554), (5, 0.717), (10, 0.852)):
        shares = []
        for item, hits in zip(asked, found, strict=True):
            gold = set(item["gold_titles"])
            shares.append(len(gold & {hit.passage.title for hit in hits[:k]}) / len(gold))
        assert sum(shares) / len(shares) == pytest.approx(expected, abs=0.005), f"recall@{k}"
