"""Dense retrieval: unit vectors in a FAISS flat index, so that the inner product is the cosine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from r3flow.errors import IndexMismatchError
from r3flow.retrieval.encoders import HASHED_TFIDF, Encoder, HashedTfidf, SentenceEncoder
from r3flow.retrieval.ranking import best
from r3flow.retrieval.text import indexed_text
from r3flow.trajectory import Hit, Passage

FILE = "vectors.faiss"
SPARE = 8  # candidates asked for beyond k
SAME = 0.02  # how far a passage's vector may be from the stored one: another device or data type, but no other weights
ROUNDING = 1e-5  # more than FAISS's single precision can be wrong by, for unit vectors

Vector = np.ndarray[Any, Any]


def build_dense(passages: Sequence[Passage], folder: Path, encoder: str, dimension: int) -> int:
    """Encode and index `passages` into `folder`; returns the vectors' dimension, which `dimension` sets for `hashed-tfidf` alone."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [indexed_text(passage) for passage in passages]
    if encoder == HASHED_TFIDF:
        fitted = HashedTfidf.fit(texts, dimension)
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
        """Raises IndexMismatchError if the files cannot be read, or if corpus or encoder are not those that they were made with."""
        self.passages = passages
        try:
            self.index = faiss.read_index(str(folder / FILE))
        except RuntimeError as error:
            raise IndexMismatchError(f"{folder / FILE}: cannot be read ({str(error).splitlines()[0]}); run `dvc repro -f index`") from None
        if self.index.ntotal != len(passages):
            raise IndexMismatchError(
                f"{folder / FILE}: holds {self.index.ntotal} passages, the corpus {len(passages)}; run `dvc repro index`"
            )
        self.encoder: Encoder = HashedTfidf.load(folder) if encoder == HASHED_TFIDF else SentenceEncoder(encoder)
        again = self.encoder.encode([indexed_text(passages[0])], query=False)[0]
        if len(again) != self.index.d:
            raise IndexMismatchError(
                f"{folder / FILE}: has {self.index.d} dimensions, the encoder gives {len(again)}; run `dvc repro -f index`"
            )
        if not np.allclose(again, self.index.reconstruct(0), rtol=0, atol=SAME):
            raise IndexMismatchError(
                f"{folder / FILE}: '{encoder}' encodes the first passage otherwise than when this was built; run `dvc repro -f index`"
            )

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`; scores are cosines. A query that the encoder knows nothing of (a zero vector) finds nothing."""
        if not queries:
            return []
        vectors = self.encoder.encode(queries, query=True)
        scores, places = self.index.search(vectors, min(k + SPARE, len(self.passages)))
        return [self._rank(*row, k) if row[0].any() else [] for row in zip(vectors, scores, places, strict=True)]

    def _rank(self, vector: Vector, scores: Vector, places: Vector, k: int) -> list[Hit]:
        """The `k` best of FAISS's candidates by exact score, then by place.

        Of equal scores FAISS keeps any, and it rounds by how many queries it is given at once; so candidates are taken until the last is
        clearly worse than the k-th, and scored again one by one: a query finds the same whatever it is batched with.
        """
        while len(places) < len(self.passages) and scores[-1] >= scores[k - 1] - ROUNDING:
            found = self.index.search(vector[None], min(4 * len(places), len(self.passages)))
            scores, places = found[0][0], found[1][0]
        exact = (self.index.reconstruct_batch(places) * vector.astype(np.float64)).sum(axis=1)
        order = best(exact, k, places)
        return [Hit(self.passages[places[at]], float(exact[at])) for at in order]
