"""`r3flow ask` answers with steps, and refuses in one line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from r3flow import cli
from r3flow.environment import Environment
from r3flow.params import Params, load
from r3flow.policy import load_policy
from r3flow.protocol import PROTOCOLS
from r3flow.trajectory import Hit, InvalidStep, Passage, Step, Trajectory
from tests.unit.evaluated import question, result

ROOT = Path(__file__).parents[2]


class Shelf:
    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        return [[Hit(Passage("p", "Red Harbor", "A film."), 1.0)] * k for _ in queries]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base model over a shelf of one passage, in place of policy and index; the list notes top-k."""
    seen: list[int] = []

    def load_both(params: object, model_path: str) -> tuple[object, object, Environment]:
        seen.append(params.retrieval.top_k)  # type: ignore[attr-defined]
        return (*load_policy(ROOT / "models/tiny-base", trust_remote_code=False), Environment(Shelf(), PROTOCOLS["r3rag"], load()))  # type: ignore[arg-type]

    monkeypatch.setattr(cli, "_load", load_both)
    monkeypatch.chdir(ROOT)
    return seen


def shown(*steps: Step | InvalidStep, finish: str = "answered") -> str:
    text = io.StringIO()
    screen = cli.Screen(Console(file=text, width=100, highlight=False), 40)
    screen.question("Who\x1b[31m?")
    for step in steps:
        screen.step(step)
    screen.result(Trajectory(question(), steps, finish))  # type: ignore[arg-type]
    return text.getvalue()


def test_steps_documents_and_answer_are_shown() -> None:
    text = shown(*result().trajectory.steps)
    assert "Red Harbor director" in text and "7.50" in text
    assert "Red Harbor is a film directed by Ann Lee" in text
    assert text.rstrip().endswith("Port Ashel")


def test_text_of_a_corpus_is_neither_markup_nor_a_control_sequence() -> None:
    nasty = "[bold]x[/bold]\x1b]0;title\x07 [red]"
    searched = Step(1, nasty, query=nasty, hits=(Hit(Passage("p", nasty, nasty), 1.0),))
    text = shown(searched, InvalidStep(2, nasty, "why"), finish="malformed")
    assert "[bold]x[/bold]" in text and "\x1b" not in text and "\x07" not in text
    assert "not a step: why" in text and "No answer. It wrote a step that does not parse" in text


def test_ask_ends_with_3_where_there_is_no_answer(loaded: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ask", "Who made Red Harbor?", "--model", "models/tiny-base", "--json", "--k", "2"]) == 3
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["question"]["question"] == "Who made Red Harbor?" and record["finish"] != "answered" and len(record["steps"]) >= 1
    assert "Who made Red Harbor?" in err and "with 2 it may do worse" in err
    assert loaded == [2]


def test_ask_without_a_policy_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    assert cli.main(["ask", "Who?"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: models/ppo: no trained policy") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("retriever", "wanted", "noted"),
    [
        ("bm25", ("bm25", None), False),
        ("dense", ("dense", None), True),
        ("http://127.0.0.1:8000/search", ("remote", "http://127.0.0.1:8000/search"), True),
    ],
)
def test_steps_and_retriever_of_one_question(
    retriever: str, wanted: tuple[str, str | None], noted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def load_both(params: Params, model_path: str) -> tuple[object, object, Environment]:
        seen.append(params)
        environment = Environment(Shelf(), PROTOCOLS["r3rag"], params)  # type: ignore[arg-type]
        return (*load_policy(ROOT / "models/tiny-base", trust_remote_code=False), environment)

    rolled = []
    monkeypatch.setattr(cli, "_load", load_both)
    monkeypatch.setattr("r3flow.rollout.generate_rollouts", lambda *given, **_: rolled.append(given[4]) or [Rolled()])
    monkeypatch.chdir(ROOT)
    assert cli.main(["ask", "Who?", "--model", "models/tiny-base", "--steps", "2", "--retriever", retriever]) == 3
    assert (seen[0].retrieval.kind, seen[0].retrieval.url) == wanted and rolled[0].max_steps == 2
    assert ("trained with the retriever bm25" in capsys.readouterr().err) == noted


class Rolled:
    trajectory = Trajectory(question(), (Step(1, "a", query="b"), Step(2, "a", query="b")), "budget")


@pytest.mark.parametrize(
    "arguments",
    [["ask", " "], ["ask", "Who?", "--params", "none.yaml"], ["ask", "Who?", "--retriever", "bm26"], ["ask", "Who?", "--retriever", ""]],
)
def test_bad_input_is_one_line(arguments: list[str], loaded: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*arguments, "--model", "models/tiny-base"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1


def test_wrong_flags_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["ask", "Who?", "--k", "0"], ["ask", "Who?", "--k", "many"], ["fly"], []):
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        assert stop.value.code == 2
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out.startswith("r3flow ")


def test_a_terminal_without_unicode_shows_question_marks_and_json_stays_json(loaded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    assert cli.main(["ask", "Wo liegt Köln?", "--model", "models/tiny-base", "--json"]) == 3
    out.flush(), err.flush()
    assert json.loads(out.buffer.getvalue())["question"]["question"] == "Wo liegt Köln?"  # type: ignore[attr-defined]
    assert b"Wo liegt K?ln?" in err.buffer.getvalue()  # type: ignore[attr-defined]


def test_a_long_question_is_not_shown_whole() -> None:
    text = io.StringIO()
    cli.Screen(Console(file=text, width=100), 40).question("why " * 5000)
    assert "..." in text.getvalue() and len(text.getvalue()) < 700
