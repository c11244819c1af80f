"""The `ppo` stage's work: load the cold start, train it by rollouts with PPO or GRPO, write the policy."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from r3flow.environment import Environment
from r3flow.errors import DataError
from r3flow.files import replacing
from r3flow.params import Params
from r3flow.policy import load_policy
from r3flow.progress import Reporter
from r3flow.rollout import Rollout, generate_rollouts
from r3flow.training.checkpoints import last_whole, save_policy
from r3flow.training.critic import build_critic
from r3flow.training.grpo import GroupTrainer
from r3flow.training.guards import best_row, reason_to_stop
from r3flow.training.ppo import PPOTrainer
from r3flow.training.scoring import Judging, Scorer
from r3flow.training.trainer import SearchRolloutTrainer
from r3flow.trajectory import Question
from r3flow.turns import possible_faults


def train_ppo(
    params: Params,
    questions: Sequence[Question],
    dev_questions: Sequence[Question],
    environment: Environment,
    judge: Judging | None,
    out_dir: str | Path,
    work_dir: Path,
    reporter: Reporter,
    base_dir: str | Path = "models/cold_start",
) -> tuple[dict[str, Any], str]:
    """Train the policy in `base_dir` as the `ppo` section says and write it to `out_dir` (the critic to `out_dir`/critic).

    Checkpoints lie in `work_dir`; killed at any moment and called again, policy, critic and optimizer are the same to the bit.
    Returns (metrics, the curve as CSV text). Raises DataError without a question, TooManyUnknownError, ConfigError and what the judge and
    the retriever raise.
    """
    if not questions:
        raise DataError("data/prepared/train.jsonl holds no question")
    logging.disable_progress_bar()  # of every checkpoint; the stage has a progress of its own
    model, tokenizer = load_policy(base_dir, trust_remote_code=params.policy.trust_remote_code)

    def rollouts(asked: Sequence[Question], temperature: float, seed: int) -> list[Rollout]:
        return generate_rollouts(model, tokenizer, environment, asked, params.protocol, temperature=temperature, seed=seed)

    settings = params.ppo
    algorithm: type[SearchRolloutTrainer] = PPOTrainer if settings.algorithm == "ppo" else GroupTrainer
    trainer = algorithm(
        model, tokenizer, settings, seed=params.seed, questions=questions, dev_questions=dev_questions[: settings.eval_questions],
        rollouts=rollouts, scores=Scorer(params.reward, judge, retriever=params.retrieval.kind), folder=work_dir / "checkpoints",
        reporter=reporter, faults=possible_faults(params.protocol),
        critic=build_critic(settings.critic, model) if settings.algorithm == "ppo" else None,
    )  # fmt: skip
    resume_and_train(trainer)
    write_policy(trainer, out_dir)
    return summary(trainer), trainer.curve.csv()


def resume_and_train(trainer: SearchRolloutTrainer) -> None:
    """Go on from the newest whole checkpoint of the trainer's folder, or begin."""
    found = last_whole(trainer.folder)
    if found is not None:
        checkpoint, state = found
        trainer.curve.restore(state)
        if trainer.critic is not None:
            trainer.critic.load(checkpoint / "critic")
        last = int(trainer.curve.rows[-1]["step"])
        trainer.stopped = reason_to_stop(trainer.settings, trainer.curve.rows) if last < trainer.settings.iterations else None
        if trainer.stopped is not None:
            # killed between its stop and the end: the loop would make another update before it looks
            trainer._load_from_checkpoint(str(checkpoint))
            return
    trainer.train(resume_from_checkpoint=None if found is None else str(found[0]))


def write_policy(trainer: SearchRolloutTrainer, out_dir: str | Path) -> None:
    """The last policy, or with `ppo.keep: best` the one with the best dev score, in `out_dir`, whole or not at all."""
    if trainer.settings.keep == "last":
        save_policy(trainer.model, trainer.processing_class, out_dir, trainer.critic)
        return
    with replacing(out_dir) as folder:
        shutil.copytree(trainer.best, folder)


def summary(trainer: SearchRolloutTrainer) -> dict[str, Any]:
    """What metrics/ppo.json holds: results only. Values are the last iteration's. `stopped` stands there where training ended early, and
    `kept_iteration` with `ppo.keep: best`.
    """
    curve, settings = trainer.curve, trainer.settings
    row = curve.rows[-1]
    start = curve.rows[0].get("dev_em") if curve.rows[0]["step"] == 0 else None
    shown = ["reward", "reward_outcome", "reward_process", "reward_format", "em", "answer_rate", "malformed_rate", "searches", "tokens"]
    shown += ["invalid_turns", "untidy_turns"]
    iterations = int(row["step"])
    best = best_row(curve.rows) if settings.keep == "best" else None
    return {
        **({} if trainer.stopped is None else {"stopped": trainer.stopped}),
        **({} if best is None else {"kept_iteration": int(best["step"])}),
        "algorithm": settings.algorithm,
        "iterations": iterations,
        "updates": iterations * trainer.updates,
        "trajectories": iterations * settings.prompts * settings.group,
        "unknown": curve.counts["unknown"],
        "train_tokens": curve.counts["train_tokens"],
        "dev_em_start": start,
        "dev_em": curve.last("dev_em"),
        **{name: round(row[name], 6) for name in [*shown, "kl", "entropy"] if name in row},
    }
