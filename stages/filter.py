"""filter: rejection sampling; of each question's attempts the first right and well-formed one is kept."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from r3flow.errors import DataError
from r3flow.files import read_jsonl, read_lines, write_json, write_jsonl
from r3flow.llm.endpoint import connect
from r3flow.llm.judge import Judge
from r3flow.llm.rejection import Tally, sift
from r3flow.llm.teacher import Attempt
from r3flow.protocol import PROTOCOLS
from stages._runner import StageRun, run

ATTEMPTS = "data/trajectories/attempts.jsonl"


def body(stage: StageRun) -> None:
    tally = Tally()
    write_jsonl("data/trajectories/accepted.jsonl", accepted(stage, tally))
    write_json("metrics/filter.json", tally.summary())


def accepted(stage: StageRun, tally: Tally) -> Iterator[dict[str, Any]]:
    """The JSON of each accepted trajectory; `tally` counts what passes. Raises DataError if none was accepted."""
    params = stage.params
    total = sum(1 for _ in read_lines(ATTEMPTS))
    with ExitStack() as stack:
        judge = None
        if params.filter.judge:
            client = stack.enter_context(connect(params, "judge"))
            stack.callback(lambda: stage.costs(client.counts.costs("judge")))
            judge = Judge(client)
        for item in sift(read_jsonl(ATTEMPTS, Attempt.from_json), PROTOCOLS[params.protocol.name], judge):
            tally.add(item)
            stage.reporter.progress(tally.attempts, total, f"accepted {tally.accepted}/{tally.questions}")
            if item.accepted is not None:
                yield item.accepted.to_json()
    if not tally.accepted:
        raise DataError(f"{ATTEMPTS}: no trajectory was accepted (mostly: {tally.worst()}); look at the teacher's steps in it")


if __name__ == "__main__":
    run("filter", body)
