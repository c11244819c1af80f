"""Text -> vectors for dense retrieval. `tfidf-svd` is fitted on the corpus and needs no download; any other name is an encoder's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from r3flow.errors import ConfigError, DataError, IndexMismatchError
from r3flow.files import read_json, write_json
from r3flow.retrieval.text import words

TFIDF_SVD = "tfidf-svd"


class Encoder(Protocol):
    """`encode` gives float32 (N, dimension), rows of length 1 (or 0 for a text of which nothing is known)."""

    def encode(self, texts: Sequence[str], *, query: bool) -> np.ndarray[Any, Any]: ...


def _unit(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.ascontiguousarray(rows / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)


class TfidfSvd:
    """TF-IDF of words, projected on the corpus's leading singular directions (latent semantic analysis)."""

    def __init__(self, vocabulary: list[str], idf: np.ndarray[Any, Any], components: np.ndarray[Any, Any]) -> None:
        """`idf` (V,), `components` (V, dimension)."""
        self.vocabulary, self.idf, self.components = vocabulary, idf, components
        self._place = {word: place for place, word in enumerate(vocabulary)}

    def _weights(self, texts: Sequence[str]) -> Any:
        from scipy.sparse import csr_matrix

        rows, columns, values = [], [], []
        for row, text in enumerate(texts):
            counts: dict[int, int] = {}
            for word in words(text, None):
                if (place := self._place.get(word)) is not None:
                    counts[place] = counts.get(place, 0) + 1
            rows += [row] * len(counts)
            columns += list(counts)
            values += [(1 + np.log(count)) * self.idf[place] for place, count in counts.items()]
        return csr_matrix((np.asarray(values, np.float32), (rows, columns)), shape=(len(texts), len(self.vocabulary)))

    @classmethod
    def fit(cls, texts: Sequence[str], dimension: int, seed: int) -> TfidfSvd:
        """Fit on the corpus. The dimension is smaller where there are fewer texts or words."""
        from sklearn.preprocessing import normalize
        from sklearn.utils.extmath import randomized_svd
        from threadpoolctl import threadpool_limits

        seen: dict[str, int] = {}
        for text in texts:
            for word in set(words(text, None)):
                seen[word] = seen.get(word, 0) + 1
        vocabulary = sorted(seen) or [""]
        idf = np.asarray([np.log((1 + len(texts)) / (1 + seen.get(word, 0))) + 1 for word in vocabulary], np.float32)
        encoder = cls(vocabulary, idf, np.zeros((len(vocabulary), 0), np.float32))
        size = max(1, min(dimension, len(texts) - 1, len(vocabulary) - 1))
        with threadpool_limits(1):  # sums of several threads come in another order, and the index would depend on the machine
            _, _, directions = randomized_svd(normalize(encoder._weights(texts)), n_components=size, n_iter=4, random_state=seed)
        encoder.components = np.ascontiguousarray(directions.T, dtype=np.float32)
        return encoder

    def encode(self, texts: Sequence[str], *, query: bool) -> np.ndarray[Any, Any]:
        return _unit(self._weights(texts) @ self.components)

    def save(self, folder: Path) -> None:
        write_json(folder / "vocabulary.json", self.vocabulary)
        np.save(folder / "idf.npy", self.idf, allow_pickle=False)
        np.save(folder / "components.npy", self.components, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> TfidfSvd:
        """Raises IndexMismatchError if a file is missing or torn."""
        try:
            vocabulary = read_json(folder / "vocabulary.json")
            idf, components = (np.load(folder / name, allow_pickle=False) for name in ("idf.npy", "components.npy"))
        except (DataError, OSError, ValueError, EOFError) as error:
            raise IndexMismatchError(f"{folder}: the encoder's files cannot be read ({error}); run `dvc repro -f index`") from None
        if not isinstance(vocabulary, list) or not len(vocabulary) == len(idf) == len(components):
            raise IndexMismatchError(f"{folder}: the encoder's files do not fit each other; run `dvc repro -f index`")
        return cls(vocabulary, idf, components)


class SentenceEncoder:
    """A sentence-transformers model by name or path. E5 models get their "query: " and "passage: "."""

    def __init__(self, name: str) -> None:
        """Raises ConfigError if the package or the model is missing."""
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise ConfigError(
                f"params.yaml: index.encoder: '{name}' needs sentence-transformers: pip install sentence-transformers, or use {TFIDF_SVD}"
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
