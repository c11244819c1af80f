"""evaluate: one system answers the held-out questions, greedily; `--system` names it."""

from r3flow.errors import ConfigError
from r3flow.evaluation.answering import Answering, answer_all, judge_all
from r3flow.evaluation.metrics import summarise
from r3flow.evaluation.results import write_results
from r3flow.evaluation.systems import SYSTEMS, choose
from r3flow.files import read_jsonl, write_json
from r3flow.llm.endpoint import connect
from r3flow.llm.judge import Judge
from r3flow.retrieval.open import open_retriever
from r3flow.trajectory import Question
from r3flow.turns import possible_faults
from stages._runner import StageRun, run


def body(stage: StageRun) -> None:
    if stage.system is None:
        raise ConfigError(f"evaluate: name a system with --system; known are {', '.join(SYSTEMS)}")
    params, settings = stage.params, stage.params.evaluate
    questions = choose(read_jsonl("data/prepared/test.jsonl", Question.from_json), settings.questions, params.seed)
    answering = Answering(params, stage.system, open_retriever(params))
    results = answer_all(answering, questions, settings.batch_size, stage.work, stage.reporter)
    if settings.judge:
        with connect(params, "judge") as client:
            try:
                results = judge_all(Judge(client), results)
            finally:
                stage.costs(client.counts.costs("judge"))
    summary = summarise(
        results, resamples=settings.bootstrap, seed=params.seed, judged=settings.judge, max_steps=params.protocol.max_steps,
        faults=possible_faults(params.protocol),
    )  # fmt: skip
    write_results(f"data/evaluation/{stage.system}.jsonl", results)
    write_json(f"metrics/evaluate/{stage.system}.json", summary)


if __name__ == "__main__":
    run("evaluate", body)
