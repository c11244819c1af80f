"""escalate: the questions that the first teacher failed go to the second; without one nobody is asked, and the file is empty.

Whether a question was solved is decided as `filter` decides it, which meets the judge's answers in the ledger again. Killed and run again,
it goes on from there.
"""

from collections import Counter
from contextlib import ExitStack

from r3flow.environment import Environment
from r3flow.files import read_jsonl, write_json, write_jsonl
from r3flow.llm.endpoint import connect
from r3flow.llm.rejection import unsolved
from r3flow.llm.teacher import FORM, Attempt, synthesize
from r3flow.protocol import PROTOCOLS
from r3flow.retrieval.open import open_retriever
from r3flow.trajectory import Question
from stages._runner import StageRun, run
from stages.filter import ATTEMPTS, ESCALATED, judge_of
from stages.synthesize import counted, summary


def body(stage: StageRun) -> None:
    counts: Counter[str] = Counter()
    questions = [] if stage.params.second_teacher is None else failed(stage)
    if questions:
        ask(stage, questions, counts)
    else:
        write_jsonl(ESCALATED, [])
    write_json("metrics/escalate.json", summary(len(questions), counts))


def failed(stage: StageRun) -> list[Question]:
    """The questions that the first teacher did not solve."""
    with ExitStack() as stack:
        attempts = read_jsonl(ATTEMPTS, Attempt.from_json)
        return unsolved(attempts, PROTOCOLS[stage.params.protocol.name], judge_of(stage, stack))


def ask(stage: StageRun, questions: list[Question], counts: Counter[str]) -> None:
    """Write the second teacher's attempts; `counts` grows with them."""
    params = stage.params
    environment = Environment(open_retriever(params), PROTOCOLS[FORM], params)
    with connect(params, "second_teacher") as client:
        try:
            attempts = synthesize(params, questions, environment, client, stage.reporter, "second")
            write_jsonl(ESCALATED, counted(attempts, counts))
        finally:
            stage.costs(client.counts.costs("second_teacher"))


if __name__ == "__main__":
    run("escalate", body)
