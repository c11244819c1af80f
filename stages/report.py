"""report: all systems in one metrics file, and one page to look at them."""

from r3flow.evaluation.curves import read_columns
from r3flow.evaluation.metrics import compare
from r3flow.evaluation.report import Inputs, build
from r3flow.evaluation.results import read_results
from r3flow.evaluation.systems import SYSTEMS
from r3flow.files import read_json, write_json, write_text
from stages._runner import StageRun, run

AGAINST = ("cold_start", "control")
"""What the trained policy is compared with, question by question."""


def body(stage: StageRun) -> None:
    params = stage.params
    results = {system: read_results(f"data/evaluation/{system}.jsonl") for system in SYSTEMS}
    metrics = {system: read_json(f"metrics/evaluate/{system}.json") for system in SYSTEMS}
    metrics["ppo"]["versus"] = {
        other: compare(results["ppo"], results[other], resamples=params.evaluate.bootstrap, seed=params.seed) for other in AGAINST
    }
    page = build(
        Inputs(
            params=params,
            metrics=metrics,
            results=results,
            curves={name: read_columns(f"plots/{name}.csv") for name in ("sft", "ppo", "control")},
            prepared=read_json("metrics/prepare.json"),
            synthesized=read_json("metrics/synthesize.json"),
            filtered=read_json("metrics/filter.json"),
        )
    )
    write_text("report/index.html", page)
    write_json("metrics/evaluate.json", metrics)


if __name__ == "__main__":
    run("report", body)
