"""The user's own files: read as they are, and every kind of bad input named by file and line, before anything is written."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path

import pytest

from r3flow.data.readers import Dataset, read_files
from r3flow.errors import DataError
from r3flow.files import write_jsonl
from r3flow.params import Files
from r3flow.trajectory import Passage, Question

DATA = Path(os.environ.get("R3FLOW_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
CORPUS = [{"id": "p1", "title": "Fox", "text": "A fox is red."}, {"id": "p2", "title": "", "text": "Hens lay eggs."}]
TRAIN = [{"id": "q1", "question": "What colour is a fox?", "answers": ["red"], "gold_ids": ["p1"], "type": "chain", "hops": 1}]
DEV = [{"id": "q2", "question": "What do hens lay?", "answers": ["eggs", "an egg"]}]
TEST = [{"id": "q3", "question": "Who is red?", "answers": ["a fox"], "gold_ids": None, "source": "an unknown field is left alone"}]


def write(folder: Path, **contents: object) -> Files:
    """Four files; each of `contents` is a list of objects, or the bytes or text itself."""
    for name, content in {"corpus": CORPUS, "train": TRAIN, "dev": DEV, "test": TEST, **contents}.items():
        if isinstance(content, list):
            content = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in content)
        (folder / f"{name}.jsonl").write_bytes(content.encode() if isinstance(content, str) else content)
    return Files(**{name: str(folder / f"{name}.jsonl") for name in ("corpus", "train", "dev", "test")})


def refused(folder: Path, said: str, **contents: object) -> None:
    """`said` is the whole line, with the folder left out."""
    files = write(folder, **contents)
    before = sorted(folder.iterdir())
    with pytest.raises(DataError) as caught:
        read_files(files)
    assert str(caught.value).replace(f"{folder}/", "") == said
    assert sorted(folder.iterdir()) == before and caught.value.kind == "data"


def test_good_files_are_read_as_they_are(tmp_path):
    assert read_files(write(tmp_path)) == Dataset(
        [Passage("p1", "Fox", "A fox is red."), Passage("p2", "", "Hens lay eggs.")],
        {
            "train": [Question("q1", "What colour is a fox?", ("red",), ("p1",), "chain", 1)],
            "dev": [Question("q2", "What do hens lay?", ("eggs", "an egg"))],
            "test": [Question("q3", "Who is red?", ("a fox",))],
        },
    )


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_are_no_harm(tmp_path):
    lines = "\r\n\r\n".join(json.dumps(item) for item in CORPUS)
    files = write(tmp_path, corpus=b"\xef\xbb\xbf" + lines.encode() + b"\r\n\n  \n")
    assert len(read_files(files).passages) == 2


def line(**changes: object) -> dict:
    """A passage with some fields changed; a field of None is left out."""
    return {key: value for key, value in {"id": "p3", "title": "Owl", "text": "Wise.", **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("third", "said"),
    [
        ("{id: p3}", "not valid JSON: Expecting property name enclosed in double quotes"),
        ('{"id": "p3", "title": "Ow', "not valid JSON: Unterminated string starting at"),
        ("p3,Owl,Wise.", "not valid JSON: Expecting value"),
        ('["p3", "Owl", "Wise."]', "expected a JSON object, got list; one object a line is wanted, not an array: jq -c '.[]' FILE"),
        ("[", "not valid JSON: Expecting value; one object a line is wanted, not an array: jq -c '.[]' FILE"),
        ('{"id": "p3", "title": "Owl", "text": "\\u200b \\u00a0\\u2060"}', "field 'text' is empty"),
        ("null", "expected a JSON object, got NoneType"),
        (line(id=None), "missing field 'id'"),
        (line(title=None), "missing field 'title'"),
        (line(text=None), "missing field 'text'"),
        (line(text=""), "field 'text' is empty"),
        (line(text=" \n\t"), "field 'text' is empty"),
        (line(id=" "), "field 'id' is empty"),
        (line(id=3), "field 'id' must be text, got int"),
        (line(title=["Owl"]), "field 'title' must be text, got list"),
        (line(text={"en": "Wise."}), "field 'text' must be text, got dict"),
        ('{"id": "p3", "title": null, "text": "Wise."}', "field 'title' must be text, got NoneType"),
        (line(id="p1"), "id 'p1' stands twice"),
        (b'{"id": "p3", "title": "Ow\xe9l", "text": "Wise."}', "not valid UTF-8; convert the file to UTF-8"),
        ('{"id": "p3", "title": "Owl", "text": "\\ud83e wise"}', "holds half a surrogate pair, which is no character; write it as UTF-8"),
    ],
)
def test_a_bad_passage_is_named_by_file_and_line(tmp_path, third, said):
    raw = third if isinstance(third, bytes) else (third if isinstance(third, str) else json.dumps(third)).encode()
    head = "".join(json.dumps(item) + "\n" for item in CORPUS).encode()
    refused(tmp_path, f"corpus.jsonl:4: {said}", corpus=head + b"\n" + raw + b"\n" + json.dumps(line(id="p4")).encode())


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_file_is_named_as_one(tmp_path, pack):
    with pytest.raises(DataError, match=r"corpus.jsonl: is packed .*unpack it first"):
        read_files(write(tmp_path, corpus=pack(json.dumps(CORPUS[0]).encode())))


def test_json_that_python_cannot_hold_is_named_too(tmp_path):
    for raw in ('{"id": ' + "9" * 5000 + "}", "[" * 200_000):
        with pytest.raises(DataError, match=r"corpus.jsonl:1: not valid JSON: "):
            read_files(write(tmp_path, corpus=raw))


def test_a_whole_surrogate_pair_is_a_character(tmp_path):
    files = write(tmp_path, corpus=json.dumps({**CORPUS[0], "text": "wise \U0001f989"}) + "\n")
    assert "\\ud83e" in Path(files.corpus).read_text() and read_files(files).passages[0].text == "wise \U0001f989"


def question(**changes: object) -> dict:
    """A question with some fields changed; a field of None is left out."""
    given = {"id": "q9", "question": "Who is wise?", "answers": ["the owl"], **changes}
    return {key: value for key, value in given.items() if value is not None}


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize(
    ("second", "said"),
    [
        (question(gold_id=["p1"]), "unknown field 'gold_id'; did you mean 'gold_ids'?"),
        (question(question=None), "missing field 'question'"),
        (question(answers=None), "missing field 'answers'"),
        (question(id=None), "missing field 'id'"),
        (question(question="  "), "field 'question' is empty"),
        (question(answers=[]), "field 'answers' holds no answer"),
        (question(answers=["the owl", ""]), "field 'answers' is empty"),
        (question(answers="the owl"), "field 'answers' must be a list of texts, got str"),
        (question(answers=[1921]), "field 'answers' must be text, got int"),
        (question(question=7), "field 'question' must be text, got int"),
        (question(hops=0), "field 'hops' must be a whole number from 1, got 0"),
        (question(hops=True), "field 'hops' must be a whole number from 1, got True"),
        (question(hops="2"), "field 'hops' must be a whole number from 1, got '2'"),
        (question(type=3), "field 'type' must be text, got int"),
        (question(gold_ids="p1"), "field 'gold_ids' must be a list of texts, got str"),
        (question(gold_ids=[1]), "field 'gold_ids' must be text, got int"),
        (question(gold_ids=[]), "field 'gold_ids' names no passage; leave it out where the gold passages are not known"),
        (question(gold_ids=["p1", "p7"]), "field 'gold_ids' names 'p7', which is not in corpus.jsonl"),
    ],
)
def test_a_bad_question_is_named_by_file_and_line(tmp_path, split, second, said):
    first = {"train": TRAIN, "dev": DEV, "test": TEST}[split]
    refused(tmp_path, f"{split}.jsonl:2: {said}", **{split: [*first, second]})


def test_an_id_that_stands_twice_is_refused(tmp_path):
    refused(tmp_path, "dev.jsonl:2: id 'q2' stands twice", dev=[*DEV, question(id="q2")])


@pytest.mark.parametrize(("name", "what"), [("corpus", "passage"), ("train", "question"), ("dev", "question"), ("test", "question")])
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path, name, what, content):
    refused(tmp_path, f"{name}.jsonl: holds no {what}", **{name: content})


@pytest.mark.parametrize(("later", "earlier", "taken"), [("dev", "train", TRAIN), ("test", "train", TRAIN), ("test", "dev", DEV)])
def test_splits_that_overlap_are_refused(tmp_path, later, earlier, taken):
    own = {"dev": DEV, "test": TEST}[later]
    tail = f"stands in the {earlier} split too; splits must not overlap"
    same_id = question(id=taken[0]["id"])
    refused(tmp_path, f"{later}.jsonl:2: id '{same_id['id']}' {tail}", **{later: [*own, same_id]})
    same_text = question(question=f" {taken[0]['question'].upper()}".replace(" ", "  "))
    refused(tmp_path, f"{later}.jsonl:2: question '{same_text['question']}' {tail}", **{later: [*own, same_text]})


def test_one_file_for_two_splits_is_refused(tmp_path):
    refused(tmp_path, "test.jsonl:1: id 'q2' stands in the dev split too; splits must not overlap", test=DEV)


@pytest.mark.parametrize("name", ["corpus", "train", "dev", "test"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    files = write(tmp_path)
    path = tmp_path / f"{name}.jsonl"
    path.unlink()
    with pytest.raises(DataError, match=rf"^{path}: no such file$"):
        read_files(files)
    path.mkdir()
    with pytest.raises(DataError, match=rf"^{path}: cannot be read: Is a directory$"):
        read_files(files)


@pytest.mark.parametrize("name", ["hotpotqa", "2wikimultihopqa", "musique"])
def test_real_questions_and_passages(tmp_path, name):
    source = DATA / name
    if not source.is_dir():
        pytest.skip(f"the sample of real data is not at {source}")
    corpus = [json.loads(text) for text in (source / "corpus.jsonl").read_text("utf-8").splitlines()]
    asked = [json.loads(text) for text in (source / "questions.jsonl").read_text("utf-8").splitlines()]
    by_title: dict[str, list[str]] = {}
    for passage in corpus:
        by_title.setdefault(passage["title"], []).append(passage["id"])
    rows: dict[str, list[dict]] = {"train": [], "dev": [], "test": []}
    for place, item in enumerate(asked):
        gold = [str(number) for number in item["gold_ids"]] if "gold_ids" in item else [by_title[title][0] for title in item["gold_titles"]]
        split = "train" if item["split"] == "train" else ("dev", "test")[place % 2]
        rows[split].append({**{key: item[key] for key in ("id", "question", "answers", "type")}, "gold_ids": gold})
    data = read_files(write(tmp_path, corpus=(source / "corpus.jsonl").read_bytes(), **rows))
    assert (len(data.passages), sum(map(len, data.questions.values()))) == (len(corpus), len(asked))
    write_jsonl(tmp_path / "again.jsonl", (passage.to_json() for passage in data.passages))
    assert (tmp_path / "again.jsonl").read_text("utf-8").splitlines() == [json.dumps(item, ensure_ascii=False) for item in corpus]
    for split, expected in rows.items():
        assert json.loads(json.dumps([item.to_json() for item in data.questions[split]])) == expected
