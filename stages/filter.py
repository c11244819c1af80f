"""filter: rejection sampling; of each question's attempts, by either teacher, the first right and well-formed one is kept."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from r3flow.errors import DataError
from r3flow.files import read_jsonl, read_lines, write_json, write_jsonl
from r3flow.llm.endpoint import connect
from r3flow.llm.judge import Judge
from r3flow.llm.rejection import Tally, merged, sift
from r3flow.llm.teacher import Attempt
from r3flow.protocol import PROTOCOLS
from stages._runner import StageRun, run

ATTEMPTS = "data/trajectories/attempts.jsonl"
ESCALATED = "data/trajectories/escalated.jsonl"


def body(stage: StageRun) -> None:
    tally = Tally()
    write_jsonl("data/trajectories/accepted.jsonl", accepted(stage, tally))
    write_json("metrics/filter.json", tally.summary())


def accepted(stage: StageRun, tally: Tally) -> Iterator[dict[str, Any]]:
    """The JSON of each accepted trajectory; `tally` counts what passes. Raises DataError if none was accepted."""
    params = stage.params
    total = sum(1 for path in (ATTEMPTS, ESCALATED) for _ in read_lines(path))
    attempts = merged(*(read_jsonl(path, Attempt.from_json) for path in (ATTEMPTS, ESCALATED)))
    with ExitStack() as stack:
        for item in sift(attempts, PROTOCOLS[params.protocol.name], judge_of(stage, stack)):
            tally.add(item)
            stage.reporter.progress(tally.attempts, total, f"accepted {tally.accepted}/{tally.questions}")
            if item.winner is not None:
                yield item.winner.signed_trajectory()
    if not tally.accepted:
        raise DataError(f"{ATTEMPTS}: no trajectory was accepted (mostly: {tally.worst()}); look at the teacher's steps in it")


def judge_of(stage: StageRun, stack: ExitStack) -> Judge | None:
    """The judge that decides with the string match, open until `stack` closes; None with `filter.judge: false`."""
    if not stage.params.filter.judge:
        return None
    client = stack.enter_context(connect(stage.params, "judge"))
    stack.callback(lambda: stage.costs(client.counts.costs("judge")))
    return Judge(client)


if __name__ == "__main__":
    run("filter", body)
