"""Building and opening an index: the same twice, whole or not at all, and refused by name when it does not fit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from r3flow.errors import DataError, IndexMismatchError
from r3flow.files import write_jsonl
from r3flow.params import Params, load
from r3flow.progress import Silent
from r3flow.retrieval.build import build_index
from r3flow.retrieval.open import open_retriever
from r3flow.retrieval.remote import RemoteRetriever
from r3flow.trajectory import Passage
from tests.unit.test_retrieval import passages, queries

PARAMS = load(Path(__file__).parents[2] / "params.yaml")


def params(kind: str = "bm25", **index: object) -> Params:
    return PARAMS.model_copy(
        update={
            "index": PARAMS.index.model_copy(update={"dimension": 16, **index}),
            "retrieval": PARAMS.retrieval.model_copy(update={"kind": kind}),
        }
    )


@pytest.fixture
def built(tmp_path):
    """(index folder, corpus file) of a small index."""
    write_jsonl(tmp_path / "corpus.jsonl", (passage.to_json() for passage in passages(80)))
    build_index(params(), tmp_path / "corpus.jsonl", tmp_path / "index", Silent())
    return tmp_path / "index", tmp_path / "corpus.jsonl"


def test_the_manifest_says_what_the_index_was_made_of(built):
    index, corpus = built
    manifest = json.loads((index / "manifest.json").read_text())
    assert {key: manifest[key] for key in ("count", "encoder", "dimension", "metric")} == {
        "count": 80, "encoder": "hashed-tfidf", "dimension": 16, "metric": "cosine",
    }  # fmt: skip
    assert [manifest[f"bm25.{key}"] for key in ("k1", "b", "method", "stopwords")] == [1.5, 0.75, "lucene", "en"]
    on_disk = {path.relative_to(index).as_posix(): path.read_bytes() for path in index.rglob("*") if path.is_file()}
    del on_disk["manifest.json"]
    assert manifest["files"] == {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()[:32]} for name, content in on_disk.items()
    }


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_building_twice_gives_the_same_bytes_and_the_same_hits(built, tmp_path, kind):
    index, corpus = built
    build_index(params(), corpus, tmp_path / "again", Silent())
    names = sorted(path.relative_to(index) for path in index.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("*") if path.is_file())
    assert [name for name in names if (index / name).read_bytes() != (tmp_path / "again" / name).read_bytes()] == []
    first, second = (open_retriever(params(kind), folder, corpus) for folder in (index, tmp_path / "again"))
    assert first.search(queries(30), 7) == second.search(queries(30), 7)


def test_building_replaces_an_older_index_and_a_failure_leaves_it(built, tmp_path, monkeypatch):
    index, corpus = built
    (index / "stale").write_text("left over")
    build_index(params(), corpus, index, Silent())
    assert not (index / "stale").exists()
    before = (index / "manifest.json").read_bytes()
    monkeypatch.setattr("r3flow.retrieval.build.build_dense", lambda *_: (_ for _ in ()).throw(DataError("no room")))
    with pytest.raises(DataError, match="no room"):
        build_index(params(), corpus, index, Silent())
    assert (index / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"], "nothing half-written stays"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"encoder": "someone/e5"}, r"encoder is 'hashed-tfidf', expected 'someone/e5'"),
        ({"stopwords": None}, r"bm25.stopwords is 'en', expected None"),
        ({"dimension": 8}, r"dimension is 16, expected 8"),
    ],
)
@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_an_index_made_with_other_params_is_refused(built, kind, change, said):
    index, corpus = built
    with pytest.raises(IndexMismatchError, match=rf"^{index}/manifest.json: {said}; run `dvc repro index`$"):
        open_retriever(params(kind, **change), index, corpus)


def _set(index: Path, **changes: object) -> None:
    manifest = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def _cut(path: Path, count: int = 10) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def _shorten(index: Path, corpus: Path) -> None:
    corpus.write_text("".join(corpus.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda index, corpus: (index / "manifest.json").unlink(), r"index: has no manifest.json, so it was not finished"),
        (lambda index, corpus: _cut(index / "manifest.json"), r"manifest.json:\d+: not valid JSON"),
        (lambda index, corpus: (index / "manifest.json").write_text("[]"), r"manifest.json: is no manifest"),
        (lambda index, corpus: (index / "manifest.json").write_text("{}"), r"manifest.json: is no manifest"),
        (lambda index, corpus: _set(index, format=0), r"manifest.json: format is 0, expected 3"),
        (lambda index, corpus: _set(index, metric="l2"), r"manifest.json: metric is 'l2', expected 'cosine'"),
        (lambda index, corpus: _set(index, count=81), r"manifest.json: count is 81, expected 80"),
        (_shorten, r"manifest.json: corpus_sha256 is '\w{32}', expected '\w{32}'"),
        (lambda index, corpus: corpus.write_text(corpus.read_text().replace("word1", "word2", 1)), r"manifest.json: corpus_sha256 is"),
        (lambda index, corpus: _cut(index / "bm25" / "data.csc.index.npy"), r"bm25/data.csc.index.npy: is not the file that was built"),
        (lambda index, corpus: _cut(index / "dense" / "vectors.faiss"), r"dense/vectors.faiss: is not the file that was built"),
        (lambda index, corpus: (index / "dense" / "words.json").unlink(), r"dense/words.json: is missing"),
        (lambda index, corpus: corpus.unlink(), r"corpus.jsonl: no such file"),
    ],
)
def test_a_damaged_index_is_refused(built, damage, said):
    damage(*built)
    with pytest.raises(DataError, match=said) as caught:
        open_retriever(params(), *built)
    assert "corpus.jsonl: no such" in said or (caught.value.kind == "index" and "run `dvc repro" in str(caught.value))


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("bm25", "bm25/data.csc.index.npy", "bm25: cannot be read"),
        ("bm25", "bm25/vocab.index.json", "bm25: cannot be read"),
        ("dense", "dense/vectors.faiss", "vectors.faiss: cannot be read"),
        ("dense", "dense/words.json", "dense/words.json: the encoder cannot be read"),
    ],
)
def test_a_file_of_the_right_size_and_wrong_content_is_refused(built, kind, name, said):
    path = built[0] / name
    path.write_bytes(b"\x80" * path.stat().st_size)
    with pytest.raises(IndexMismatchError, match=f"{name}: is not the file that was built, it was cut or changed; run `dvc repro"):
        open_retriever(params(kind), *built)
    _set(built[0], files={})  # and its reader does not crash on it either
    with pytest.raises(IndexMismatchError, match=said):
        open_retriever(params(kind), *built)


def test_vectors_of_another_dimension_or_number_are_refused(built, tmp_path):
    index, corpus = built
    for changed, kind, said in (
        ({"dimension": 12}, "dense", "has 12 dimensions, the encoder gives 16"),
        ({}, "dense", "holds 79 passages, the corpus 80"),
        ({}, "bm25", "holds 79 passages, the corpus 80"),
    ):
        other = tmp_path / "other.jsonl"
        write_jsonl(other, (passage.to_json() for passage in passages(80 if changed else 79)))
        assert build_index(params(**changed), other, tmp_path / "other", Silent())["count"] == (80 if changed else 79)
        build_index(params(), corpus, index, Silent())
        for path in [index / "dense" / "vectors.faiss", *(index / "bm25").iterdir()]:
            path.write_bytes((tmp_path / "other" / path.relative_to(index)).read_bytes())
        _set(index, files={})
        with pytest.raises(IndexMismatchError, match=said):
            open_retriever(params(kind), index, corpus)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", r"corpus.jsonl: holds no passage"),
        ('{"id": "0", "title": "", "text": "!"}\n', r"corpus.jsonl: no passage of the corpus holds a word"),
        ('{"id": "0", "title": "", "text": "fine"}\n{"id": "1"}\n', r"corpus.jsonl:2: missing field 'title'"),
    ],
)
def test_a_corpus_that_cannot_be_indexed_leaves_no_index(tmp_path, lines, said):
    (tmp_path / "corpus.jsonl").write_text(lines)
    with pytest.raises(DataError, match=said):
        build_index(params(), tmp_path / "corpus.jsonl", tmp_path / "index", Silent())
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_a_remote_retriever_needs_no_index(tmp_path):
    remote = PARAMS.model_copy(
        update={"retrieval": PARAMS.retrieval.model_copy(update={"kind": "remote", "url": "http://127.0.0.1:9/search"})}
    )
    assert isinstance(open_retriever(remote, tmp_path / "none", tmp_path / "none.jsonl"), RemoteRetriever)


def test_passages_come_back_as_they_were(built):
    index, corpus = built
    known = {passage.id: passage for passage in passages(80)}
    found = open_retriever(params(), index, corpus).search(["word1 word2 word3"], 20)[0]
    assert len(found) == 20 and all(isinstance(hit.passage, Passage) and known[hit.passage.id] == hit.passage for hit in found)
