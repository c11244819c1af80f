"""What is fixed before the first rollout: seeds, the order of prompts, the learning rate's course, TRL's configuration."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig

from r3flow.files import digest
from r3flow.params import PPO


def seed_of(*parts: Any) -> int:
    """A seed below 2**31 that depends on `parts` alone."""
    return int(digest(list(parts))[:8], 16) >> 1


def prompt_order(questions: int, needed: int, seed: int) -> list[int]:
    """`needed` places of questions: one permutation after another, drawn before the training begins, so that a resume meets the same."""
    rng, order = random.Random(seed), list[int]()
    while len(order) < needed:
        places = list(range(questions))
        rng.shuffle(places)
        order += places
    return order[:needed]


def schedule_factor(update: int, *, total: int, warmup: int, final: float) -> float:
    """Factor of the learning rate at optimizer step `update` (from 0): linear warm-up, then linear decay to `final` at the last step."""
    if update < warmup:
        return (update + 1) / (warmup + 1)
    return 1 - (1 - final) * min(1.0, (update - warmup) / max(1, total - 1 - warmup))


def build_config(settings: PPO, seed: int, folder: Path) -> GRPOConfig:
    """GRPOConfig for our loop. What generation, rewards and the optimizer would read of it is set by us elsewhere."""
    steps = settings.prompts * settings.group // settings.minibatch
    config = GRPOConfig(
        # two generations a prompt are enforced when the config is built, and only then; the real numbers follow below
        output_dir=str(folder), per_device_train_batch_size=settings.minibatch, steps_per_generation=2 * steps, num_generations=2,
        num_iterations=settings.epochs, num_train_epochs=1, max_grad_norm=settings.max_grad_norm, beta=0.0,
        shuffle_dataset=False, disable_dropout=True, seed=seed, data_seed=seed, bf16=False, activation_checkpointing=False,
        save_strategy="no", save_total_limit=2, logging_strategy="no", logging_nan_inf_filter=False, eval_strategy="no", report_to=[],
        disable_tqdm=True, remove_unused_columns=False, dataloader_num_workers=0, dataloader_pin_memory=False,
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    config.num_generations = settings.group
    config.steps_per_generation = steps
    config.generation_batch_size = settings.prompts * settings.group
    return config
