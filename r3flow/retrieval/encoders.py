"""Text -> vectors for dense retrieval. `hashed-tfidf` is fitted on the corpus and needs no download; any other name is an encoder's."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array

from r3flow.errors import ConfigError, DataError, IndexMismatchError
from r3flow.files import read_json, write_json
from r3flow.retrieval.text import words

HASHED_TFIDF = "hashed-tfidf"
WORDS = "words.json"
BLOCK = 512  # texts encoded at a time: the directions of their words lie in memory


class Encoder(Protocol):
    """`encode` gives float32 (N, dimension), rows of length 1 (or 0 for a text of which nothing is known)."""

    def encode(self, texts: Sequence[str], *, query: bool) -> np.ndarray[Any, Any]: ...


def _unit(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.ascontiguousarray(rows / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)


class HashedTfidf:
    """TF-IDF of words under a random projection (Achlioptas 2003): a word's direction is a vector of signs, which its hash gives.

    The cosine of two texts is that of their TF-IDF vectors, give or take 1 / sqrt(dimension). Nothing is learnt but how many texts hold
    each word; a word that no text holds has no weight, since it could only add noise.
    """

    def __init__(self, dimension: int, texts: int, holders: Mapping[str, int]) -> None:
        """`holders` says how many of the corpus's `texts` hold each word."""
        self.dimension, self.texts, self.holders = dimension, texts, holders

    @classmethod
    def fit(cls, texts: Sequence[str], dimension: int) -> HashedTfidf:
        """Count the words of the corpus."""
        counts = Counter(word for text in texts for word in set(words(text, None)))
        return cls(dimension, len(texts), dict(sorted(counts.items())))

    def encode(self, texts: Sequence[str], *, query: bool) -> np.ndarray[Any, Any]:
        blocks = [self._encode(texts[start : start + BLOCK]) for start in range(0, len(texts), BLOCK)]
        return np.concatenate([np.zeros((0, self.dimension), np.float32), *blocks])

    def _encode(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        weights = [self._weights(text) for text in texts]
        place = {word: at for at, word in enumerate(sorted({word for row in weights for word in row}))}
        if not place:
            return np.zeros((len(texts), self.dimension), np.float32)
        values = [value for row in weights for value in row.values()]
        columns = [place[word] for row in weights for word in row]
        starts = np.cumsum([0, *map(len, weights)])
        signs = np.stack([self._signs(word) for word in place])
        return _unit(csr_array((values, columns, starts), shape=(len(texts), len(place))) @ signs)

    def _weights(self, text: str) -> dict[str, float]:
        """(1 + ln tf) * (1 + ln((1 + N) / (1 + n))) of each known word, sorted: a sum is the same in any batch and process."""
        counts = Counter(word for word in words(text, None) if word in self.holders)
        return {word: (1 + math.log(counts[word])) * (1 + math.log((1 + self.texts) / (1 + self.holders[word]))) for word in sorted(counts)}

    def _signs(self, word: str) -> np.ndarray[Any, Any]:
        """The word's direction (dimension,), of -1 and 1: the bits of SHAKE-128, the same on every machine and with any numpy."""
        bits = np.frombuffer(hashlib.shake_128(word.encode()).digest(-(-self.dimension // 8)), np.uint8)
        return 2.0 * np.unpackbits(bits, count=self.dimension) - 1.0

    def save(self, folder: Path) -> None:
        write_json(folder / WORDS, {"dimension": self.dimension, "texts": self.texts, "holders": self.holders})

    @classmethod
    def load(cls, folder: Path) -> HashedTfidf:
        """Raises IndexMismatchError if the file is missing or torn."""
        try:
            value = read_json(folder / WORDS)
            return cls(int(value["dimension"]), int(value["texts"]), {word: int(count) for word, count in dict(value["holders"]).items()})
        except (DataError, LookupError, TypeError, ValueError) as error:
            raise IndexMismatchError(f"{folder / WORDS}: the encoder cannot be read ({error}); run `dvc repro -f index`") from None


class SentenceEncoder:
    """A sentence-transformers model by name or path. E5 models get their "query: " and "passage: "."""

    def __init__(self, name: str) -> None:
        """Raises ConfigError if the package or the model is missing."""
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise ConfigError(
                f"params.yaml: index.encoder: '{name}' needs sentence-transformers: "
                f"pip install sentence-transformers, or use {HASHED_TFIDF}"
            ) from None
        try:
            self.model = SentenceTransformer(name, trust_remote_code=False, model_kwargs={"use_safetensors": True})
        except (OSError, ValueError) as error:
            raise ConfigError(f"params.yaml: index.encoder: '{name}' cannot be loaded: {str(error).splitlines()[0]}") from None
        self.prefixes = ("query: ", "passage: ") if "e5" in Path(name).name.lower() else ("", "")

    def encode(self, texts: Sequence[str], *, query: bool) -> np.ndarray[Any, Any]:
        prefix = self.prefixes[0 if query else 1]
        rows = self.model.encode([prefix + text for text in texts], batch_size=64, show_progress_bar=False, convert_to_numpy=True)
        return _unit(rows)
