"""The first two stages: what they write, that they write it again to the byte, and that bad input leaves what was there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from r3flow.errors import DataError
from r3flow.files import read_jsonl
from r3flow.params import load
from r3flow.progress import Silent
from r3flow.retrieval.open import open_retriever
from r3flow.trajectory import Passage, Question
from stages import index, prepare

ROOT = Path(__file__).parents[2]
PARAMS = load(ROOT / "params.yaml")
SMALL = {"train_questions": 60, "dev_questions": 20, "test_questions": 30, "passages": 300}


def stage(source: str = "world") -> SimpleNamespace:
    chosen = PARAMS.prepare.model_copy(update={"source": source, "world": PARAMS.prepare.world.model_copy(update=SMALL)})
    small = PARAMS.index.model_copy(update={"dimension": 16})
    return SimpleNamespace(params=PARAMS.model_copy(update={"prepare": chosen, "index": small}), reporter=Silent())


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "data" / "example", tmp_path / "data" / "example")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_world_is_prepared_and_indexed_the_same_twice(workspace):
    def make() -> dict[str, bytes]:
        prepare.body(stage())
        index.body(stage())
        return written(workspace)

    first = make()
    assert make() == first
    metrics = json.loads(first["metrics/prepare.json"])
    assert [metrics[split]["questions"] for split in ("train", "dev", "test")] == [60, 20, 30]
    passages = list(read_jsonl("data/prepared/corpus.jsonl", Passage.from_json))
    assert len(passages) == metrics["passages"] == json.loads(first["metrics/index.json"])["count"]
    for split in ("train", "dev", "test"):
        questions = list(read_jsonl(f"data/prepared/{split}.jsonl", Question.from_json))
        assert sum(metrics[split]["by_type_and_hops"].values()) == metrics[split]["questions"] == len(questions)
        assert {gold for item in questions for gold in item.gold_ids} <= {passage.id for passage in passages}
        assert all(item.question in json.loads(first["data/world.json"]) for item in questions)
    assert open_retriever(stage().params).search([passages[7].title], 1)[0][0].passage == passages[7]


def test_the_shipped_example_is_read_and_the_simulated_endpoint_learns_nothing_of_it(workspace):
    prepare.body(stage("files"))
    index.body(stage())
    assert Path("data/world.json").read_text() == "null\n"
    for name in ("corpus", "train", "dev", "test"):
        prepared, given = (Path(f"data/{folder}/{name}.jsonl").read_text("utf-8").splitlines() for folder in ("prepared", "example"))
        assert list(map(json.loads, prepared)) == list(map(json.loads, given))


def test_bad_input_leaves_what_was_prepared_before(workspace):
    prepare.body(stage("files"))
    with open("data/example/test.jsonl", "a") as file:
        file.write('{"id": "e9", "question": "Why?", "answers": []}\n')
    before = written(workspace)
    with pytest.raises(DataError, match=r"^data/example/test.jsonl:3: field 'answers' holds no answer$"):
        prepare.body(stage("files"))
    assert written(workspace) == before


def test_an_index_does_not_depend_on_the_process_or_its_threads(workspace):
    """Sets of words come in another order in another process, and sums of several threads in another order than those of one."""
    prepare.body(stage())
    code = (
        "import sys; from r3flow.params import load; from r3flow.progress import Silent; from r3flow.retrieval.build import build_index; "
        f"build_index(load({str(ROOT / 'params.yaml')!r}), 'data/prepared/corpus.jsonl', sys.argv[1], Silent())"
    )
    for number in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": number, "OMP_NUM_THREADS": number}
        subprocess.run([sys.executable, "-c", code, f"index{number}"], env=environment, check=True, timeout=300)
    one, two = written(workspace / "index1"), written(workspace / "index2")
    assert one.keys() == two.keys() and [name for name in one if one[name] != two[name]] == []
