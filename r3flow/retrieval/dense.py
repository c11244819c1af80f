"""Dense retrieval: unit vectors in a FAISS flat index, so that the inner product is the cosine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import faiss

from r3flow.errors import IndexMismatchError
from r3flow.retrieval.encoders import TFIDF_SVD, Encoder, SentenceEncoder, TfidfSvd
from r3flow.retrieval.text import indexed_text
from r3flow.trajectory import Hit, Passage

FILE = "vectors.faiss"


def build_dense(passages: Sequence[Passage], folder: Path, encoder: str, dimension: int, seed: int) -> int:
    """Encode and index `passages` into `folder`; returns the vectors' dimension."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [indexed_text(passage) for passage in passages]
    if encoder == TFIDF_SVD:
        fitted = TfidfSvd.fit(texts, dimension, seed)
        fitted.save(folder)
        vectors = fitted.encode(texts, query=False)
    else:
        vectors = SentenceEncoder(encoder).encode(texts, query=False)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    faiss.write_index(index, str(folder / FILE))
    return int(vectors.shape[1])


class DenseRetriever:
    """A saved FAISS index over `passages` and the encoder of its queries."""

    def __init__(self, passages: Sequence[Passage], folder: Path, encoder: str) -> None:
        """Raises IndexMismatchError if the files cannot be read or do not fit the corpus."""
        self.passages = passages
        try:
            self.index = faiss.read_index(str(folder / FILE))
        except RuntimeError as error:
            raise IndexMismatchError(f"{folder / FILE}: cannot be read ({str(error).splitlines()[0]}); run `dvc repro -f index`") from None
        if self.index.ntotal != len(passages):
            raise IndexMismatchError(f"{folder / FILE}: holds {self.index.ntotal} passages, the corpus {len(passages)}; run `dvc repro index`")
        self.encoder: Encoder = TfidfSvd.load(folder) if encoder == TFIDF_SVD else SentenceEncoder(encoder)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if not queries:
            return []
        vectors = self.encoder.encode(queries, query=True)
        if vectors.shape[1] != self.index.d:
            raise IndexMismatchError(f"the encoder gives {vectors.shape[1]} dimensions, the index has {self.index.d}; run `dvc repro index`")
        scores, places = self.index.search(vectors, min(k, len(self.passages)))
        results = []
        for row, at in zip(scores, places, strict=True):
            ranked = sorted((-float(score), int(place)) for score, place in zip(row, at, strict=True) if place >= 0)
            results.append([Hit(self.passages[place], -score) for score, place in ranked])
        return results
