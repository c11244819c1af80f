"""The user's own corpus and questions, read strictly: what is wrong is named by file and line before anything is written."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from r3flow.errors import DataError
from r3flow.files import read_jsonl
from r3flow.params import Files
from r3flow.trajectory import Passage, Question

T = TypeVar("T", Passage, Question)
SPLITS = ("train", "dev", "test")
REQUIRED, OPTIONAL = ("id", "question", "answers"), ("gold_ids", "type", "hops")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A corpus and the questions of each split."""

    passages: list[Passage]
    questions: dict[str, list[Question]]


def _unique(path: str, build: Callable[[dict[str, Any]], T], what: str) -> list[T]:
    """The records of a JSONL file. Raises DataError for a repeated id (with its line) and for a file without a record."""
    seen: set[str] = set()

    def checked(value: dict[str, Any]) -> T:
        record = build(value)
        if record.id in seen:
            raise ValueError(f"id '{record.id}' stands twice")
        seen.add(record.id)
        return record

    records = list(read_jsonl(path, checked))
    if not records:
        raise DataError(f"{path}: holds no {what}")
    return records


def _refuse_misspelt(value: dict[str, Any]) -> None:
    """Other fields are left alone, but a misspelt optional one would go unnoticed and turn a metric into null. Raises ValueError."""
    absent = [name for name in OPTIONAL if name not in value]
    for name in value:
        if name not in REQUIRED + OPTIONAL and (near := difflib.get_close_matches(name, absent, 1, 0.8)):
            raise ValueError(f"unknown field '{name}'; did you mean '{near[0]}'?")


def read_files(files: Files) -> Dataset:
    """Corpus lines `{"id", "title", "text"}`, question lines `{"id", "question", "answers"}` with optional `gold_ids`, `type`, `hops`.

    Other fields are left alone. Raises DataError for a malformed line, a misspelt field, a repeated id, a gold passage that the corpus
    lacks, a question in two splits (by id, or by its text but for case and white space) and an empty file.
    """
    passages = _unique(files.corpus, Passage.from_json, "passage")
    known = {passage.id for passage in passages}
    where: dict[tuple[str, str], str] = {}  # ("id" or "question", its value) -> split

    def of(split: str) -> Callable[[dict[str, Any]], Question]:
        def question(value: dict[str, Any]) -> Question:
            _refuse_misspelt(value)
            record = Question.from_json(value)
            if record.gold_ids == ():
                raise ValueError("field 'gold_ids' names no passage; leave it out where the gold passages are not known")
            unknown = [gold for gold in record.gold_ids or () if gold not in known]
            if unknown:
                raise ValueError(f"field 'gold_ids' names '{unknown[0]}', which is not in {files.corpus}")
            for key, text in (("id", record.id), ("question", " ".join(record.question.split()).casefold())):
                other = where.setdefault((key, text), split)
                if other != split:
                    raise ValueError(f"{key} '{getattr(record, key)}' stands in the {other} split too; splits must not overlap")
            return record

        return question

    return Dataset(passages, {split: _unique(getattr(files, split), of(split), "question") for split in SPLITS})
