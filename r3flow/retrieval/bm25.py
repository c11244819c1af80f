"""Sparse retrieval by BM25 (Lucene's variant, k1 1.5, b 0.75), with bm25s."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import bm25s

from r3flow.errors import DataError, IndexMismatchError
from r3flow.retrieval.ranking import best
from r3flow.retrieval.text import indexed_text, words
from r3flow.trajectory import Hit, Passage

K1, B, METHOD = 1.5, 0.75, "lucene"


def build_bm25(passages: Sequence[Passage], folder: Path, stopwords: str | None) -> None:
    """Index `passages` into `folder`. Raises DataError if they hold no word at all."""
    tokens = [words(indexed_text(passage), stopwords) for passage in passages]
    vocabulary = {word: place for place, word in enumerate(sorted({word for row in tokens for word in row}))}
    if not vocabulary:
        raise DataError("no passage of the corpus holds a word of two characters or more that is no stop word; nothing can be found")
    ids = [[vocabulary[word] for word in row] for row in tokens]
    index = bm25s.BM25(k1=K1, b=B, method=METHOD)
    index.index((ids, vocabulary), show_progress=False)
    index.save(str(folder), show_progress=False)


class BM25Retriever:
    """A saved BM25 index over `passages`. A query of which no word is known finds nothing."""

    def __init__(self, passages: Sequence[Passage], folder: Path, stopwords: str | None) -> None:
        """Raises IndexMismatchError if the files cannot be read or cover another number of passages."""
        self.passages, self.stopwords = passages, stopwords
        try:
            self.index = bm25s.BM25.load(str(folder), show_progress=False, allow_pickle=False)
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise IndexMismatchError(f"{folder}: cannot be read ({error}); run `dvc repro -f index`") from None
        if self.index.scores["num_docs"] != len(passages):
            raise IndexMismatchError(
                f"{folder}: holds {self.index.scores['num_docs']} passages, the corpus {len(passages)}; run `dvc repro index`"
            )

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`. A word that a query repeats counts each time; a passage that shares no word with it is no hit."""
        results: list[list[Hit]] = []
        for query in queries:
            known = [word for word in words(query, self.stopwords) if word in self.index.vocab_dict]
            if not known:
                results.append([])
                continue
            scores = self.index.get_scores(known)
            results.append([Hit(self.passages[place], float(scores[place])) for place in best(scores, k) if scores[place] > 0])
        return results
