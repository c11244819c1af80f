"""Retrieval on random corpora: the order is total and that of a full sort, whatever k and whatever else is in the batch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from r3flow.retrieval.bm25 import BM25Retriever, build_bm25
from r3flow.retrieval.dense import DenseRetriever, build_dense
from r3flow.retrieval.ranking import best
from r3flow.retrieval.text import words
from r3flow.trajectory import Passage

WORDS = st.sampled_from(["fox", "hen", "owl", "red", "blue", "the", "X", "Ünder", "non-stop", "zz\u0301"])
TEXTS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
CORPORA = st.lists(TEXTS, min_size=1, max_size=25).filter(lambda texts: any(words(text, "en") for text in texts))


@given(
    arrays.arrays(np.float32, st.integers(1, 60), elements=st.sampled_from([0.0, 0.5, 1.0, 1.5, -2.0])),
    st.integers(1, 80),
    st.permutations(range(60)),
)
def test_best_is_a_sort_by_score_and_then_place_cut_to_k(scores, k, order):
    places = np.array([place for place in order if place < len(scores)])
    expected = sorted(range(len(scores)), key=lambda at: (-scores[at], places[at]))[:k]
    assert best(scores, k, places).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(CORPORA, st.lists(TEXTS, min_size=1, max_size=25), st.integers(1, 30))
def test_hits_are_the_head_of_the_full_ranking_alone_or_in_a_batch(texts, queries, k):
    corpus = [Passage(str(place), "", text) for place, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as folder:
        build_bm25(corpus, Path(folder), "en")
        build_dense(corpus, Path(folder), "hashed-tfidf", 4)
        for retriever in (BM25Retriever(corpus, Path(folder), "en"), DenseRetriever(corpus, Path(folder), "hashed-tfidf")):
            whole = retriever.search(queries, len(corpus))
            for query, hits, full in zip(queries, retriever.search(queries, k), whole, strict=True):
                assert hits == full[:k] == retriever.search([query], k)[0]
                assert full == sorted(full, key=lambda hit: (-hit.score, int(hit.passage.id)))
                assert len({hit.passage.id for hit in full}) == len(full)
                if isinstance(retriever, BM25Retriever):
                    known = set(words(query, "en"))
                    assert {hit.passage.id for hit in full} == {p.id for p in corpus if known & set(words(p.text, "en"))}
