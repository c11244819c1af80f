"""Opening the configured retriever over a built index."""

from __future__ import annotations

from pathlib import Path

from r3flow.files import read_jsonl
from r3flow.params import Params
from r3flow.retrieval.base import Retriever
from r3flow.trajectory import Passage


def open_retriever(params: Params, index_dir: str | Path = "index", corpus: str | Path = "data/prepared/corpus.jsonl") -> Retriever:
    """The retriever of `params.retrieval`. Raises IndexMismatchError if the index was made of another corpus or with another encoder."""
    if params.retrieval.kind == "remote":
        from r3flow.retrieval.remote import RemoteRetriever

        assert params.retrieval.url is not None
        return RemoteRetriever(params.retrieval.url)
    from r3flow.retrieval.manifest import check_manifest

    folder, corpus = Path(index_dir), Path(corpus)
    passages = list(read_jsonl(corpus, Passage.from_json))
    check_manifest(folder, params.index, corpus, len(passages))
    if params.retrieval.kind == "bm25":
        from r3flow.retrieval.bm25 import BM25Retriever

        return BM25Retriever(passages, folder / "bm25", params.index.stopwords)
    from r3flow.retrieval.dense import DenseRetriever

    return DenseRetriever(passages, folder / "dense", params.index.encoder)
