"""An index's manifest: what it was built from and with, and its files. Written last, so that an index without one is unfinished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from r3flow.errors import DataError, IndexMismatchError
from r3flow.files import file_digest, read_json, write_json
from r3flow.params import Index
from r3flow.retrieval.bm25 import K1, METHOD, B
from r3flow.retrieval.encoders import HASHED_TFIDF

FORMAT = 3
NAME = "manifest.json"


def _made_from(params: Index, corpus_digest: str, count: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "corpus_sha256": corpus_digest,
        "count": count,
        "encoder": params.encoder,
        **({"dimension": params.dimension} if params.encoder == HASHED_TFIDF else {}),  # any other encoder has its own
        "metric": "cosine",
        "bm25.k1": K1,
        "bm25.b": B,
        "bm25.method": METHOD,
        "bm25.stopwords": params.stopwords,
    }


def _sum(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def write_manifest(folder: Path, params: Index, corpus: Path, count: int, dimension: int) -> dict[str, Any]:
    """Write and return the manifest of a finished index."""
    files = {path.relative_to(folder).as_posix(): _sum(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    manifest = {**_made_from(params, file_digest(corpus), count), "dimension": dimension, "files": files}
    write_json(folder / NAME, manifest)
    return manifest


def check_manifest(folder: Path, params: Index, corpus: Path, count: int) -> dict[str, Any]:
    """Read the manifest and compare it with params, corpus and files. Raises IndexMismatchError that names what differs."""
    if not (folder / NAME).exists():
        raise IndexMismatchError(f"{folder}: has no {NAME}, so it was not finished; run `dvc repro index`")
    try:
        manifest = read_json(folder / NAME)
    except DataError as error:
        raise IndexMismatchError(f"{error}; run `dvc repro -f index`") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise IndexMismatchError(f"{folder / NAME}: is no manifest of an index; run `dvc repro -f index`")
    for key, wanted in _made_from(params, file_digest(corpus), count).items():
        if manifest.get(key) != wanted:
            raise IndexMismatchError(f"{folder / NAME}: {key} is {manifest.get(key)!r}, expected {wanted!r}; run `dvc repro index`")
    for name, wanted in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise IndexMismatchError(f"{path}: is missing; run `dvc repro -f index`")
        if _sum(path) != wanted:
            raise IndexMismatchError(f"{path}: is not the file that was built, it was cut or changed; run `dvc repro -f index`")
    return manifest
