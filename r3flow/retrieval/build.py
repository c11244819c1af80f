"""Building the index of a corpus: BM25 and dense, then the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from r3flow.errors import DataError
from r3flow.files import read_jsonl, replacing
from r3flow.params import Params
from r3flow.progress import Reporter
from r3flow.retrieval.bm25 import build_bm25
from r3flow.retrieval.dense import build_dense
from r3flow.retrieval.manifest import write_manifest
from r3flow.trajectory import Passage


def build_index(params: Params, corpus: str | Path, out_dir: str | Path, reporter: Reporter) -> dict[str, Any]:
    """Index the passages of a corpus file, whole or not at all, and return the manifest.

    Raises DataError for a corpus without a passage or without a word.
    """
    passages = list(read_jsonl(corpus, Passage.from_json))
    if not passages:
        raise DataError(f"{corpus}: holds no passage; nothing can be indexed")
    with replacing(out_dir) as folder:
        folder.mkdir()
        reporter.progress(0, 2, "BM25")
        try:
            build_bm25(passages, folder / "bm25", params.index.stopwords)
        except DataError as error:
            raise DataError(f"{corpus}: {error}") from None
        reporter.progress(1, 2, f"dense ({params.index.encoder})")
        dimension = build_dense(passages, folder / "dense", params.index.encoder, params.index.dimension)
        manifest = write_manifest(folder, params.index, Path(corpus), len(passages), dimension)
        reporter.progress(2, 2, f"{len(passages)} passages")
    return manifest
