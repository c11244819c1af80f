"""A policy on the dev split, greedily: what every setting is tuned by. The held-out questions are for the stage `evaluate` alone.

`python -m benchmarks.dev --folder WORKSPACE --policy models/cold_start` reads the workspace's own params.yaml, questions and index and
prints one JSON line: EM with its 95% interval, searches, tokens, recall of gold passages, format validity, and EM by type and hops.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from r3flow.environment import Environment
from r3flow.evaluation.metrics import summarise
from r3flow.evaluation.results import Result, write_results
from r3flow.files import read_jsonl
from r3flow.params import load
from r3flow.policy import load_policy
from r3flow.protocol import PROTOCOLS
from r3flow.retrieval.open import open_retriever
from r3flow.rollout import generate_rollouts
from r3flow.trajectory import Question


def main() -> None:
    """Print the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--policy", default="models/cold_start", help="relative to the folder")
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--split", choices=("dev", "train"), default="dev")
    parser.add_argument("--out", type=Path, help="JSONL file for the trajectories")
    arguments = parser.parse_args()
    out = arguments.out and arguments.out.resolve()
    os.chdir(arguments.folder)
    params = load()
    questions = list(read_jsonl(f"data/prepared/{arguments.split}.jsonl", Question.from_json))[: arguments.questions]
    environment = Environment(open_retriever(params), PROTOCOLS[params.protocol.name], params)
    model, tokenizer = load_policy(arguments.policy, trust_remote_code=params.policy.trust_remote_code)
    rollouts = generate_rollouts(model, tokenizer, environment, questions, params.protocol, temperature=0.0, seed=params.seed)
    results = [Result(rollout.trajectory, sum(rollout.mask)) for rollout in rollouts]
    if out:
        write_results(out, results)
    summary = summarise(results, resamples=params.evaluate.bootstrap, seed=params.seed, judged=False, max_steps=params.protocol.max_steps)
    shown = {name: summary[name] for name in ("n", "em", "em_ci95", "searches", "tokens", "gold_recall", "format_valid")}
    groups = {**summary["by_type"], **{f"{hops} hops": part for hops, part in summary["by_hops"].items()}}
    print(json.dumps({"policy": str(arguments.policy), **shown, "by": {name: part["em"] for name, part in groups.items()}}))


if __name__ == "__main__":
    main()
