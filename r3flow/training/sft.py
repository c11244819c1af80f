"""The cold start: supervised fine-tuning on accepted trajectories (R3-RAG section 3.2), by TRL's SFTTrainer.

A sample is a whole trajectory, one append-only stream; the loss falls on policy tokens alone. R3-RAG's code trains each step as a
sample of its own, which encodes the first step as often as there are steps; the targets are the same.

The control uses the same code: the cold start, trained on for as many tokens as PPO used.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from r3flow.errors import DataError
from r3flow.files import read_json, write_json, write_text
from r3flow.params import Params
from r3flow.policy import load_policy
from r3flow.progress import Reporter
from r3flow.protocol import PROTOCOLS
from r3flow.tokens import Encoded, TokenStream
from r3flow.training.checkpoints import complete, last_whole, save_policy
from r3flow.training.forward import Positions
from r3flow.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the cold start and the control may set differently. `tokens` ends the training early; None is all epochs."""

    epochs: int
    batch_size: int
    learning_rate: float
    warmup_ratio: float
    final_factor: float
    weight_decay: float
    max_grad_norm: float
    save_steps: int
    tokens: int | None = None


class PolicyTokenTrainer(SFTTrainer):
    """SFTTrainer whose loss takes logits where the policy wrote, and nowhere else: the same loss, less work."""

    def __init__(self, model: Any, **settings: Any) -> None:
        super().__init__(model=model, **settings)
        self.positions = Positions(model)

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        labels = inputs["labels"][:, 1:]
        wanted = labels != -100
        # padded on the right: no mask, which would cost the fast attention kernel
        logits, _ = self.positions.read_at(inputs["input_ids"][:, :-1], wanted.reshape(-1).nonzero().squeeze(-1))
        total = torch.nn.functional.cross_entropy(logits.float(), labels[wanted], reduction="sum")
        count = wanted.sum() if num_items_in_batch is None else num_items_in_batch
        loss = total / count
        return (loss, {"logits": logits}) if return_outputs else loss


def planned_order(lengths: Sequence[int], schedule: Schedule, seed: int) -> list[int]:
    """The sample of every place of the whole training, drawn beforehand, so that a resumed run meets the same samples.

    Each epoch is a permutation; within windows of 16 batches samples of like length share a batch, to spare padding. An epoch's
    remainder that fills no batch is left to the epoch's end, never duplicated.
    """
    rng = random.Random(seed)
    order: list[int] = []
    budget = schedule.tokens
    for _ in range(schedule.epochs):
        places = list(range(len(lengths)))
        rng.shuffle(places)
        batches: list[list[int]] = []
        window = 16 * schedule.batch_size
        for start in range(0, len(places), window):
            part = sorted(places[start : start + window], key=lambda place: (lengths[place], place))
            batches += [part[at : at + schedule.batch_size] for at in range(0, len(part), schedule.batch_size)]
        short = [batch for batch in batches if len(batch) < schedule.batch_size]
        batches = [batch for batch in batches if len(batch) == schedule.batch_size]
        rng.shuffle(batches)
        for batch in batches + short:
            if budget is not None:
                if budget <= 0:
                    return order
                budget -= sum(lengths[place] for place in batch)
            order += batch
    return order


class _Watch(TrainerCallback):
    """Reports the loss, and marks checkpoints that are whole."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.note = ""  # the loss of a step is known only after the step has been reported

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.note = f"loss {logs['loss']:.3f}"
            values = {"loss": logs["loss"], "grad_norm": float(logs["grad_norm"]), "learning_rate": logs["learning_rate"]}
            self.reporter.metrics(values, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.reporter.progress(state.global_step, state.max_steps, self.note)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        complete(Path(args.output_dir) / f"checkpoint-{state.global_step}", {"step": state.global_step})


def encode_all(trajectories: Sequence[Trajectory], tokenizer: Any, params: Params) -> list[Encoded]:
    """Token streams of trajectories that fit the context; raises DataError if none does."""
    if not trajectories:
        raise DataError("data/trajectories/accepted.jsonl holds no trajectory; run the filter stage again")
    stream = TokenStream(tokenizer, PROTOCOLS[params.protocol.name], params.protocol)
    encoded = [stream.encode(item) for item in trajectories]
    fitting = [item for item in encoded if len(item.prompt_ids) + len(item.completion_ids) <= params.protocol.max_context_tokens]
    if not fitting:
        raise DataError(
            f"sft: none of {len(encoded)} trajectories fits protocol.max_context_tokens ({params.protocol.max_context_tokens}); "
            "raise it, or look into data/trajectories/accepted.jsonl"
        )
    return fitting


def sample_of(item: Encoded) -> dict[str, list[int]]:
    """`input_ids` and `labels` of one trajectory; -100 on prompt and retrieved tokens."""
    labels = [token if own else -100 for token, own in zip(item.completion_ids, item.mask, strict=True)]
    return {"input_ids": item.prompt_ids + item.completion_ids, "labels": [-100] * len(item.prompt_ids) + labels}


def train_sft(
    params: Params,
    base: str | Path,
    trajectories: Sequence[Trajectory],
    schedule: Schedule,
    out_dir: str | Path,
    work_dir: Path,
    reporter: Reporter,
) -> tuple[dict[str, Any], str]:
    """Fine-tune `base` and write a standard Hugging Face folder to `out_dir`.

    Checkpoints lie in `work_dir`; killed at any moment and called again, the result is the same to the bit.
    Returns (metrics, the loss curve as CSV text). Raises DataError without a usable trajectory, ConfigError without a model.
    """
    model, tokenizer = load_policy(base, trust_remote_code=params.policy.trust_remote_code)
    encoded = encode_all(trajectories, tokenizer, params)
    samples = [sample_of(item) for item in encoded]
    lengths = [len(sample["input_ids"]) for sample in samples]
    order = planned_order(lengths, schedule, params.seed)
    steps = math.ceil(len(order) / schedule.batch_size)
    # the loss is logged at every step: a mean over several would restart at a resume and give another curve
    config = SFTConfig(
        output_dir=str(work_dir / "checkpoints"), num_train_epochs=1, max_steps=steps, per_device_train_batch_size=schedule.batch_size,
        learning_rate=schedule.learning_rate, lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": schedule.final_factor},
        warmup_steps=max(1, round(schedule.warmup_ratio * steps)), weight_decay=schedule.weight_decay,
        max_grad_norm=schedule.max_grad_norm, adam_beta2=0.95, optim="adamw_torch", train_sampling_strategy="sequential",
        save_strategy="steps", save_steps=schedule.save_steps, save_total_limit=2, logging_steps=1, report_to=[], disable_tqdm=True,
        bf16=False, gradient_checkpointing=False, dataloader_num_workers=0, dataloader_pin_memory=False, seed=params.seed, max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True}, remove_unused_columns=False, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    watch = _Watch(reporter)
    dataset = Dataset.from_list([samples[place] for place in order])
    trainer = PolicyTokenTrainer(model=model, args=config, train_dataset=dataset, processing_class=tokenizer, callbacks=[watch])
    for callback in ("PrinterCallback", "ProgressCallback"):
        for present in [item for item in trainer.callback_handler.callbacks if type(item).__name__ == callback]:
            trainer.remove_callback(present)
    found = last_whole(work_dir / "checkpoints")
    trainer.train(resume_from_checkpoint=None if found is None else str(found[0]))
    save_policy(trainer.model, tokenizer, out_dir)
    rows = [entry for entry in trainer.state.log_history if "loss" in entry]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", "loss", "learning_rate"])
    writer.writerows([entry["step"], round(entry["loss"], 5), entry["learning_rate"]] for entry in rows)
    tail = [entry["loss"] for entry in rows[-max(1, len(rows) // 10) :]]
    metrics = {
        "trajectories": len(encoded), "left_out_too_long": len(trajectories) - len(encoded), "steps": steps, "samples": len(order),
        "train_tokens": sum(lengths[place] for place in order), "loss_first": round(rows[0]["loss"], 5),
        "loss": round(sum(tail) / len(tail), 5),
    }  # fmt: skip
    return metrics, text.getvalue()


def write_outputs(name: str, metrics: dict[str, Any], curve: str) -> None:
    """`metrics/NAME.json` and `plots/NAME.csv`."""
    write_text(f"plots/{name}.csv", curve)
    write_json(f"metrics/{name}.json", metrics)


def cold_start_schedule(params: Params) -> Schedule:
    """The `sft` section."""
    s = params.sft
    return Schedule(s.epochs, s.batch_size, s.learning_rate, s.warmup_ratio, 0.02, s.weight_decay, s.max_grad_norm, s.save_steps)


def control_schedule(params: Params, tokens: int) -> Schedule:
    """The `control` section over at most `tokens` training tokens (what PPO used); as many epochs as that takes."""
    s = params.sft
    return Schedule(
        1000, s.batch_size, params.control.learning_rate, s.warmup_ratio, 0.02, s.weight_decay, s.max_grad_norm, s.save_steps, tokens
    )


def ppo_tokens(path: str | Path = "metrics/ppo.json") -> int:
    """How many tokens PPO trained on. Raises DataError."""
    value = read_json(path).get("train_tokens")
    if not isinstance(value, int) or value < 1:
        raise DataError(f"{path}: train_tokens is {json.dumps(value)}, expected a whole number from 1; run the ppo stage again")
    return value
