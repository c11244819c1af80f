"""synthesize: the teacher writes trajectories over the real retriever. Killed and run again, it goes on from the ledger of paid calls."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from r3flow.environment import Environment
from r3flow.errors import DataError
from r3flow.files import read_jsonl, write_json, write_jsonl
from r3flow.llm.endpoint import connect
from r3flow.llm.teacher import FORM, Attempt, synthesize
from r3flow.protocol import PROTOCOLS
from r3flow.retrieval.open import open_retriever
from r3flow.trajectory import Question
from stages._runner import StageRun, run


def body(stage: StageRun) -> None:
    params = stage.params
    questions = list(islice(read_jsonl("data/prepared/train.jsonl", Question.from_json), params.synthesize.questions))
    if not questions:
        raise DataError("data/prepared/train.jsonl holds no question")
    environment = Environment(open_retriever(params), PROTOCOLS[FORM], params)
    counts: Counter[str] = Counter()
    with connect(params, "teacher") as client:
        try:
            attempts = synthesize(params, questions, environment, client, stage.reporter)
            write_jsonl("data/trajectories/attempts.jsonl", counted(attempts, counts))
        finally:
            stage.costs(client.counts.costs("teacher"))
    write_json("metrics/synthesize.json", summary(len(questions), counts))


def counted(attempts: Iterable[Attempt], counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """The JSON of each attempt; `counts` grows while they pass."""
    for attempt in attempts:
        trajectory = attempt.trajectory
        counts.update({"attempts": 1, f"finish/{trajectory.finish}": 1, "matched": attempt.matched})
        counts.update({"steps": len(trajectory.steps), "searches": trajectory.searches})
        yield attempt.to_json()


def summary(questions: int, counts: Counter[str]) -> dict[str, Any]:
    """What metrics/synthesize.json holds, and that of `escalate`; results only. Means over no attempt are null."""

    def mean(name: str) -> float | None:
        return counts[name] / counts["attempts"] if counts["attempts"] else None

    return {
        "questions": questions,
        "attempts": counts["attempts"],
        "matched": counts["matched"],
        "finish": {name: counts[f"finish/{name}"] for name in ("answered", "budget", "malformed")},
        "steps_per_attempt": mean("steps"),
        "searches_per_attempt": mean("searches"),
    }


if __name__ == "__main__":
    run("synthesize", body)
