"""`make bench`, part 3: what a PPO update costs beside its bare forward and backward passes, and one sequence beside one sample a step.

    python -m benchmarks.ppo_update [--policy models/cold_start] [--trajectories 128]

Both sides work on the same rollouts, in this process, with the same number of threads; CPU seconds. An update is all that the training
loop does between two rollouts: reference and old values, credit, every optimizer step, diagnostics, without saving. Bare is the least that
such an update must compute: for each epoch a forward and a backward pass of policy and critic over the same tokens, and one forward pass
of the reference, in the same passes of like length, with logits where the policy wrote and nowhere else; no loop, no credit, no optimizer.
Needs what `make demo` leaves: the index, the questions and a policy.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from r3flow import params as parameters
from r3flow.environment import Environment
from r3flow.errors import R3FlowError
from r3flow.files import read_jsonl
from r3flow.params import PPO
from r3flow.policy import load_policy
from r3flow.progress import Silent
from r3flow.protocol import PROTOCOLS
from r3flow.retrieval.open import open_retriever
from r3flow.rewards import RewardBreakdown, relevance_by_gold, score
from r3flow.rollout import Rollout, generate_rollouts
from r3flow.training import losses
from r3flow.training.batch import Batch
from r3flow.training.critic import build_critic
from r3flow.training.forward import Positions
from r3flow.training.ppo import PPOTrainer
from r3flow.trajectory import Question, Trajectory

UPDATE_TARGET, STEP_TARGET = 1.3, 0.5
REPEATS = 3


class Stopwatch(PPOTrainer):
    """PPO over the same rollouts again and again; `spent` has the CPU seconds of each update."""

    spent: list[float]
    started = 0.0

    def stamp(self, found: list[Rollout]) -> list[Rollout]:
        self.started = time.process_time()
        return found

    def finish_iteration(self) -> bool:
        save = super().finish_iteration()
        self.spent.append(time.process_time() - self.started)
        return save


def update_seconds(model: Any, tokenizer: Any, settings: PPO, rollouts: Sequence[Rollout], scored: Sequence[RewardBreakdown]) -> float:
    """The median CPU seconds of one update; the first one, which warms up, is left out."""
    policy = copy.deepcopy(model)
    chosen = settings.model_copy(update={"iterations": REPEATS + 1, "eval_questions": 0, "save_every": REPEATS + 2})
    with tempfile.TemporaryDirectory() as folder:
        trainer = Stopwatch(
            policy,
            tokenizer,
            chosen,
            seed=0,
            questions=[rollout.trajectory.question for rollout in rollouts],
            dev_questions=[],
            rollouts=lambda *_: trainer.stamp(list(rollouts)),
            scores=lambda _: list(scored),
            folder=Path(folder),
            reporter=Silent(),
            critic=build_critic(settings.critic, policy),
        )
        trainer.spent = []
        trainer.train()
    return statistics.median(trainer.spent[1:])


def bare_seconds(model: Any, settings: PPO, batch: Batch) -> float:
    """The median CPU seconds of the bare passes of one update."""
    policy, reference = copy.deepcopy(model), copy.deepcopy(model).eval()
    critic = build_critic(settings.critic, policy)
    read, frozen = Positions(policy), Positions(reference)
    count = settings.prompts * settings.group // settings.minibatch
    device = next(policy.parameters()).device.type

    def passes() -> None:
        with torch.no_grad():
            for chunk in batch.chunks(range(len(batch)), device):
                losses.token_log_probs(frozen.read(chunk)[0], chunk.targets.to(device), settings.temperature)
        for epoch in range(settings.epochs):
            for rows in batch.minibatches(count, epoch):
                for chunk in batch.chunks(rows, device):
                    logits, hidden = read.read(chunk)
                    loss = losses.token_log_probs(logits, chunk.targets.to(device), settings.temperature).sum()
                    (loss + critic.values(chunk, hidden).sum()).backward()

    return median_seconds(passes)


def median_seconds(work: Callable[[], None]) -> float:
    """The median CPU seconds of a few runs after one that warms up."""
    work()
    spent = []
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return statistics.median(spent)


def step_samples(rollouts: Sequence[Rollout], rewards: Sequence[Sequence[float]]) -> tuple[list[Rollout], list[RewardBreakdown]]:
    """R3-RAG's way: each step a sample of its own, with everything before it as the prompt."""
    samples, scored = [], []
    for rollout, steps in zip(rollouts, rewards, strict=True):
        for end, step, reward in zip(rollout.step_ends, rollout.trajectory.steps, steps, strict=True):
            start = end
            while start > 0 and rollout.mask[start - 1]:
                start -= 1
            part = slice(start, end + 1)
            one = Trajectory(rollout.trajectory.question, (step,), rollout.trajectory.finish)
            prompt = rollout.prompt_ids + rollout.completion_ids[:start]
            samples.append(Rollout(one, prompt, rollout.completion_ids[part], rollout.mask[part], rollout.logprobs[part], [end - start]))
            scored.append(RewardBreakdown("wrong", 1.0, (reward,), (0.0,), (0.0,)))
    return samples, scored


def row(name: str, ours: float, theirs: float, target: float) -> bool:
    """Print one comparison; returns whether the target is met."""
    ratio = ours / theirs
    print(f"{name:<52} {ours:>8.2f} {theirs:>8.2f} {ratio:>7.2f}   at most {target}: {'met' if ratio <= target else 'MISSED'}", flush=True)
    return ratio <= target


def main() -> int:
    """Print the table; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", default="models/cold_start")
    parser.add_argument("--trajectories", type=int, default=128, help="of one update")
    arguments = parser.parse_args()
    params = parameters.load()
    count = arguments.trajectories
    settings = params.ppo.model_copy(update={"algorithm": "ppo", "prompts": count, "group": 1, "minibatch": count // 2})
    model, tokenizer = load_policy(arguments.policy, trust_remote_code=params.policy.trust_remote_code)
    environment = Environment(open_retriever(params), PROTOCOLS[params.protocol.name], params)
    questions = list(read_jsonl("data/prepared/train.jsonl", Question.from_json))[: 2 * (count // 2)]
    rollouts = generate_rollouts(
        model, tokenizer, environment, questions, params.protocol, temperature=settings.temperature, seed=params.seed
    )
    preset, outcome = params.reward.preset, "match" if params.reward.verdict_needed else params.reward.outcome  # no judge is asked
    scored = [
        score(item.trajectory, relevance=list(relevance_by_gold(item.trajectory)), preset=preset, outcome=outcome)
        if item.trajectory.question.gold_ids is not None
        else score(item.trajectory, relevance=[0.0] * len(item.trajectory.steps), preset=preset, outcome=outcome)
        for item in rollouts
    ]
    rewards = [[value for value in item.steps if value is not None] for item in scored]
    batch = Batch(rollouts, rewards, list(range(len(rollouts))), mask_retrieved=settings.mask_retrieved)
    samples, step_scores = step_samples(rollouts, rewards)
    single = Batch(samples, [[1.0]] * len(samples), list(range(len(samples))), mask_retrieved=True)
    print(
        f"{len(rollouts)} trajectories, {len(samples)} steps, {batch.tokens} tokens ({batch.offsets[-1]} learned), "
        f"{settings.epochs} epochs, {torch.get_num_threads()} threads; as one sample a step {single.tokens} tokens\n"
    )
    print(f"{'':<52} {'ours':>8} {'other':>8} {'ratio':>7}")
    met = []
    for critic in ("head", "model"):
        chosen = settings.model_copy(update={"critic": critic})
        ours, bare = update_seconds(model, tokenizer, chosen, rollouts, scored), bare_seconds(model, chosen, batch)
        met.append(row(f"a PPO update beside bare passes, critic: {critic}", ours, bare, UPDATE_TARGET))
    chosen = settings.model_copy(update={"credit": "step"})
    together = update_seconds(model, tokenizer, chosen, rollouts, scored)
    apart = update_seconds(model, tokenizer, chosen, samples, step_scores)
    met.append(row("credit: step in one sequence beside a sample a step", together, apart, STEP_TARGET))
    return 0 if all(met) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except R3FlowError as error:
        sys.exit(f"error: {error}")
