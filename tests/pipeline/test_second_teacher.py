"""Synthesis with two simulated teachers, through DVC: the second one solves what the first gave up, and the filter says so."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.small_project import dvc, make_small

SECOND = """second_teacher:
  endpoint: simulated
  base_url: null
  api_key_env: ''
  model: simulated-second-teacher
  max_tokens: 256
  extra_body: {}
  concurrency: 64
  timeout_s: 120
  max_retries: 6
  budget_usd: null
  price_usd_per_million: {cached_input: 0.0, input: 0.0, output: 0.0}
  attempts: 2
  simulated: {partial_query: 0.0, vague_query: 0.0, needless_search: 0.0, early_answer: 0.0, fails_four_hops: 0.0}
"""


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_the_second_teacher_solves_the_long_questions_that_the_first_gave_up(tmp_path: Path) -> None:
    folder = make_small(tmp_path)
    path = folder / "params.yaml"
    text = path.read_text(encoding="utf-8").replace("fails_four_hops: 0.40", "fails_four_hops: 1.0")
    path.write_text(text, encoding="utf-8")
    assert (done := dvc(folder, "repro", "filter")).returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    before = json.loads((folder / "metrics/filter.json").read_text())
    attempts = (folder / "data/trajectories/attempts.jsonl").read_bytes()
    assert (folder / "data/trajectories/escalated.jsonl").read_bytes() == b"" and "by_teacher" not in before
    assert json.loads((folder / "metrics/escalate.json").read_text())["attempts"] == 0
    assert before["by_hops"]["4"]["accepted"] == 0 < before["by_hops"]["4"]["questions"]

    head, tail = text.split("second_teacher: null", 1)
    path.write_text(head + SECOND + tail.split("\n", 1)[1], encoding="utf-8")
    done = dvc(folder, "repro", "filter")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    ran = {line.split("'")[1] for line in done.stdout.splitlines() if line.startswith("Running stage")}
    assert ran == {"escalate", "filter"}  # a second teacher asks the first one nothing again
    assert (folder / "data/trajectories/attempts.jsonl").read_bytes() == attempts
    after, escalated = json.loads((folder / "metrics/filter.json").read_text()), lines(folder / "data/trajectories/escalated.jsonl")
    asked = before["questions"] - before["accepted"]
    shares = after["by_teacher"]
    assert len({line["trajectory"]["question"]["id"] for line in escalated}) == asked == shares["second"]["questions"]
    assert (shares["first"]["won"], shares["second"]["won"]) == (before["accepted"], after["accepted"] - before["accepted"])
    assert shares["first"]["by_hops"]["4"]["won"] == 0
    # it errs nowhere: what it does not solve, the retriever hides behind look-alikes
    long = shares["second"]["by_hops"]["4"]
    assert long["questions"] == before["by_hops"]["4"]["questions"] and long["won"] > long["questions"] / 2
    accepted = lines(folder / "data/trajectories/accepted.jsonl")
    teachers = Counter(line.get("teacher", "first") for line in accepted)
    assert teachers == {"first": shares["first"]["won"], "second": shares["second"]["won"]}
    ledger = Counter(line["model"] for line in lines(folder / ".work/ledger.jsonl"))
    assert set(ledger) == {"simulated-teacher", "simulated-second-teacher", "simulated-judge"}
    again = dvc(folder, "repro", "filter")
    assert again.returncode == 0 and "Running stage" not in again.stdout
