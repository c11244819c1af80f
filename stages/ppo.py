"""ppo: the cold start, trained on its own rollouts with outcome, process and format rewards."""

from contextlib import ExitStack

from r3flow.environment import Environment
from r3flow.files import read_jsonl, write_json, write_text
from r3flow.llm.endpoint import connect
from r3flow.llm.judge import Judge
from r3flow.protocol import PROTOCOLS
from r3flow.retrieval.open import open_retriever
from r3flow.training.run import train_ppo
from r3flow.trajectory import Question
from stages._runner import StageRun, run


def body(stage: StageRun) -> None:
    params = stage.params
    train, dev = (list(read_jsonl(f"data/prepared/{split}.jsonl", Question.from_json)) for split in ("train", "dev"))
    environment = Environment(open_retriever(params), PROTOCOLS[params.protocol.name], params)
    with ExitStack() as stack:
        judge = None
        if params.reward.judge_needed:
            client = stack.enter_context(connect(params, "judge"))
            stack.callback(lambda: stage.costs(client.counts.costs("judge")))
            judge = Judge(client, params.protocol.max_document_characters)
        metrics, curve = train_ppo(params, train, dev, environment, judge, "models/ppo", stage.work, stage.reporter)
    write_text("plots/ppo.csv", curve)
    write_json("metrics/ppo.json", metrics)


if __name__ == "__main__":
    run("ppo", body)
