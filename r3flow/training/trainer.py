"""The trainer that PPO and GRPO share: rollouts, rewards, minibatches and diagnostics inside TRL's GRPOTrainer.

One iteration is one batch of rollouts and then `epochs x minibatches` optimizer steps over it. From GRPOTrainer and the Trainer below it
come the loop, the prompts' data loader, accelerate, clipping of the policy, saving and resuming. Generation, scoring and the loss are
replaced as wholes. An algorithm is a subclass with two methods: `assign_credit` and, if it has a critic, `value_loss`.

TRL's private seams that are used here have a contract test each (tests/unit/test_trl_contract.py).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOTrainer

from r3flow.errors import ConfigError, TooManyUnknownError
from r3flow.params import PPO
from r3flow.progress import Reporter
from r3flow.rewards import RewardBreakdown
from r3flow.rollout import Rollout
from r3flow.training import losses
from r3flow.training.batch import Batch, Chunk
from r3flow.training.checkpoints import complete, save_policy
from r3flow.training.critic import Critic
from r3flow.training.diagnostics import Curve, Sums, rollout_metrics
from r3flow.training.forward import Positions
from r3flow.training.guards import best_row, reason_to_stop
from r3flow.training.plan import build_config, prompt_order, schedule_factor, seed_of
from r3flow.trajectory import Question, Trajectory

Rollouts = Callable[[Sequence[Question], float, int], list[Rollout]]
"""(questions, temperature, seed) -> one rollout a question, by the policy in training."""
Scores = Callable[[Sequence[Trajectory]], list[RewardBreakdown]]


def _scored_in_rollout(**_: Any) -> list[float | None]:
    raise AssertionError("rewards are given where rollouts are made, never by TRL")


class SearchRolloutTrainer(GRPOTrainer):
    """See the module. `rollouts` and `scores` are called once an iteration, `rollouts` also for the greedy dev evaluation.

    Raises ConfigError for more than one process and for a loss that is not finite, TooManyUnknownError if more rewards are unknown than
    `max_unknown` allows.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: PPO,
        *,
        seed: int,
        questions: Sequence[Question],
        dev_questions: Sequence[Question],
        rollouts: Rollouts,
        scores: Scores,
        folder: Path,
        reporter: Reporter,
        critic: Critic | None = None,
        faults: Sequence[str] = (),
    ) -> None:
        self.settings, self.run_seed, self.questions, self.dev_questions, self.faults = settings, seed, questions, dev_questions, faults
        self.policy = model
        self.make_rollouts, self.scores, self.reporter, self.critic = rollouts, scores, reporter, critic
        self.folder = folder
        self.stopped: str | None = None
        """Why training ended before its last iteration."""
        self.curve = Curve()
        self.sums = Sums()
        self.batch: Batch | None = None
        self.plan: list[list[int]] = []
        self.kl_estimate = losses.ESTIMATORS[settings.estimator]
        self.minibatches = settings.prompts * settings.group // settings.minibatch
        self.updates = settings.epochs * self.minibatches
        """Optimizer steps an iteration."""
        # a copy of the cold start, made before anything patches or trains the model; TRL would load it again by its path
        self.reference = None if settings.kl == "none" else copy.deepcopy(model).eval().requires_grad_(False)
        order = prompt_order(len(questions), settings.iterations * settings.prompts, seed_of(seed, "prompts"))
        dataset = Dataset.from_dict({"prompt": [questions[place].question for place in order], "place": order})
        super().__init__(
            model=model, reward_funcs=_scored_in_rollout, args=build_config(settings, seed, folder), train_dataset=dataset,
            processing_class=tokenizer, callbacks=[_Iterations(self)],
        )  # fmt: skip
        for present in list(self.callback_handler.callbacks):
            if type(present).__name__ in ("PrinterCallback", "ProgressCallback"):
                self.remove_callback(present)
        if self.accelerator.num_processes > 1 or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ConfigError("ppo runs in one process, its critic and rollouts are not shared out: start it without accelerate's launcher")
        self.positions = Positions(model)
        self.reference_positions = None if self.reference is None else Positions(self.reference)
        self._clock: dict[str, float] = {}

    # the Trainer's public seams

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Adam with a group for the policy and one for the critic, each with its learning rate."""
        if self.optimizer is None:
            groups: list[dict[str, Any]] = [
                {"params": [weight for weight in self.policy.parameters() if weight.requires_grad], "lr": self.settings.learning_rate}
            ]
            if self.critic is not None:
                groups.append({"params": list(self.critic.parameters()), "lr": self.settings.critic_learning_rate})
            self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.95), eps=1e-8)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Warm-up over `warmup_iterations`, then linear decay, over the real number of updates; the same factor for both groups."""
        settings = self.settings
        total, warmup = settings.iterations * self.updates, settings.warmup_iterations * self.updates
        assert num_training_steps == total, f"the loop plans {num_training_steps} updates, not {total}"
        factor = partial(schedule_factor, total=total, warmup=warmup, final=settings.final_lr_factor)
        chosen = self.optimizer if optimizer is None else optimizer
        assert chosen is not None, "the loop makes the optimizer first"
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(chosen, factor)
        return self.lr_scheduler

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One optimizer step's gradients. The first step of an iteration makes the rollouts of its prompts, `inputs`."""
        place = self.state.global_step % self.updates
        if place == 0:
            self._begin_iteration([self.questions[row["place"]] for row in inputs])
        assert self.batch is not None, "resumed inside an iteration"
        started = time.perf_counter()
        model.train()
        rows = self.plan[place]
        counts = self.batch.counts
        total = sum(counts[row] for row in rows)
        loss = torch.zeros((), device=self.args.device)
        for chunk in self.batch.chunks(rows, self.args.device.type):
            part = self._compute_loss(model, chunk) / total
            self.accelerator.backward(part)
            loss += part.detach()
        self._clock["seconds/update"] += time.perf_counter() - started
        return loss

    def _compute_loss(self, model: Any, inputs: Chunk) -> torch.Tensor:
        """Sum over the chunk's learned tokens; the caller divides by the minibatch's count, so that chunks do not change the gradient."""
        batch, settings, chunk = self.batch, self.settings, inputs
        assert batch is not None
        logits, hidden = self.positions.read(chunk)
        new = losses.token_log_probs(logits, chunk.targets.to(logits.device), settings.temperature)
        old, advantages = self._of(batch.old, chunk, new), self._of(batch.advantages, chunk, new)
        policy = losses.clipped_policy_loss(new, old, advantages, settings.clip)
        loss = policy.sum()
        if settings.kl == "loss":
            loss = loss + settings.kl_coefficient * self.kl_estimate(new, self._of(batch.reference, chunk, new)).sum()
        if settings.entropy_coefficient != 0:
            entropy = losses.token_entropy(logits, settings.temperature)
            loss = loss - settings.entropy_coefficient * entropy.sum()
        if self.critic is not None:
            value = self.value_loss(batch, chunk, hidden)
            loss = loss + settings.value_coefficient * value
            self.sums.add("value_loss", value.detach())
        with torch.no_grad():
            log_ratio = new - old
            self.sums.add("policy_loss", policy.sum())
            self.sums.add("approx_kl", losses.k3(old, new).sum())
            self.sums.add("clip_fraction", ((log_ratio.exp() - 1).abs() > settings.clip).sum())
            self.sums.count(len(new))
            if self.state.global_step % self.updates < self.minibatches:
                # once a token is enough, and it costs a pass over the vocabulary
                self.sums.add("entropy", losses.token_entropy(logits, settings.temperature).sum())
                self.sums.count(len(new), "entropy")
        return loss

    # what an algorithm fills in

    def assign_credit(self, batch: Batch) -> dict[str, float]:
        """Set `batch.advantages`, and what `value_loss` needs; returns diagnostics."""
        raise NotImplementedError

    def value_loss(self, batch: Batch, chunk: Chunk, hidden: torch.Tensor) -> torch.Tensor:
        """Sum over the chunk's learned tokens; only called with a critic."""
        raise NotImplementedError

    # an iteration

    @property
    def iteration(self) -> int:
        """The iteration under way, from 1."""
        return int(self.state.global_step // self.updates) + 1

    def _begin_iteration(self, questions: Sequence[Question]) -> None:
        iteration, settings = self.iteration, self.settings
        clock = [time.perf_counter()]
        rollouts = self.make_rollouts(questions, settings.temperature, seed_of(self.run_seed, "rollouts", iteration))
        clock.append(time.perf_counter())
        scored = self.scores([rollout.trajectory for rollout in rollouts])
        clock.append(time.perf_counter())
        known = [place for place, item in enumerate(scored) if item.known]
        self.sums = Sums()
        self.curve.begin(rollout_metrics(rollouts, scored, self.faults))
        self._check_known(len(known), len(rollouts), iteration)
        rewards = [[value for value in scored[place].steps if value is not None] for place in known]
        # a group is the prompt's place in the batch: two prompts with one text stay two groups
        groups = [place // settings.group for place in known]
        batch = Batch([rollouts[place] for place in known], rewards, groups, mask_retrieved=settings.mask_retrieved)
        self._read_models(batch)
        self.curve.add({**self.assign_credit(batch), "learning_rate": self._get_learning_rate()})
        self.batch = batch
        seeds = [seed_of(self.run_seed, "minibatches", iteration, epoch) for epoch in range(settings.epochs)]
        self.plan = [rows for seed in seeds for rows in batch.minibatches(self.minibatches, seed)]
        self.curve.counts["train_tokens"] += batch.tokens * settings.epochs
        clock.append(time.perf_counter())
        spans = [end - start for start, end in pairwise(clock)]
        self._clock = dict(zip(("seconds/rollouts", "seconds/scores", "seconds/update"), spans, strict=True))

    def _check_known(self, known: int, total: int, iteration: int) -> None:
        unknown = total - known
        if unknown > self.settings.max_unknown * total or known < self.minibatches:
            raise TooManyUnknownError(
                f"ppo: {unknown} of {total} rewards are unknown in iteration {iteration} (ppo.max_unknown: {self.settings.max_unknown}): "
                "the judge or the retriever fails; see that it answers and run again, finished iterations are kept"
            )

    def _read_models(self, batch: Batch) -> None:
        """Reference log-probabilities and old values, in one walk over the batch; old log-probabilities come from the rollout."""
        fresh_old = not self.settings.mask_retrieved  # the rollout has none for the environment's tokens
        self.policy.eval()
        reference, values, old = (torch.zeros_like(batch.old) for _ in range(3))
        with torch.no_grad():
            for chunk in batch.chunks(range(len(batch)), self.args.device.type):
                if self.reference_positions is not None:
                    logits, _ = self.reference_positions.read(chunk)
                    reference[chunk.flat] = losses.token_log_probs(logits, chunk.targets.to(logits.device), self.settings.temperature).cpu()
                hidden = None
                if fresh_old or (self.critic is not None and self.critic.on_trunk):
                    logits, hidden = self.positions.read(chunk, logits=fresh_old)
                    if fresh_old:
                        old[chunk.flat] = losses.token_log_probs(logits, chunk.targets.to(logits.device), self.settings.temperature).cpu()
                if self.critic is not None:
                    values[chunk.flat] = self.critic.values(chunk, hidden).cpu()
        batch.reference, batch.values = reference, values
        if fresh_old:
            batch.old = torch.where(batch.own, batch.old, old)
        if self.reference is not None:
            self.curve.add({"kl": float(losses.k1(batch.old, reference).mean())})

    def finish_iteration(self) -> bool:
        """Diagnostics, dev evaluation and report of the iteration that has just ended; returns whether to save."""
        iteration, settings = self.iteration - 1, self.settings
        row = {**self.curve.open, **self.sums.means()}
        if not all(value == value and abs(value) != float("inf") for value in row.values()):
            raise ConfigError(f"ppo: the loss is not finite in iteration {iteration}; lower ppo.learning_rate, or raise ppo.kl_coefficient")
        last = iteration == settings.iterations
        if self.dev_questions and (last or iteration % settings.eval_every == 0):
            row["dev_em"] = self.evaluate_dev()
        self.curve.finish(iteration, row)
        if "dev_em" in row:
            self.keep_best()
        self.stopped = None if last else reason_to_stop(settings, self.curve.rows)
        calls = getattr(self.scores, "calls", 0)
        self.reporter.metrics({**row, **self._clock, "judge_calls": float(calls - self.curve.counts["judge_calls"])}, iteration)
        self.curve.counts["judge_calls"] = calls
        dev = self.curve.last("dev_em")
        note = f"reward {row['reward']:.2f} em {row['em']:.2f}" + ("" if dev is None else f" dev {dev:.3f}")
        self.reporter.progress(iteration, settings.iterations, note if self.stopped is None else f"{note}; stops: {self.stopped}")
        self.batch = None
        return last or self.stopped is not None or iteration % settings.save_every == 0

    @property
    def best(self) -> Path:
        """The folder of the best policy so far, with `ppo.keep: best`."""
        return self.folder / "best"

    def keep_best(self) -> None:
        """With `ppo.keep: best`, write the policy down if the curve's last row is its best."""
        if self.settings.keep == "best" and best_row(self.curve.rows) is self.curve.rows[-1]:
            save_policy(self.policy, self.processing_class, self.best, self.critic)

    def evaluate_dev(self) -> float:
        """Exact match of greedy rollouts on the dev questions. Draws from no generator that training uses."""
        return rollout_metrics(self.make_rollouts(self.dev_questions, 0.0, 0))["em"]

    def _of(self, flat: torch.Tensor, chunk: Chunk, like: torch.Tensor) -> torch.Tensor:
        return flat[chunk.flat].to(like.device)

    def _send_telemetry(self) -> None:
        """TRL would call home here."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """TRL would write a README about GRPO into the checkpoints' folder at every save."""


class _Iterations(TrainerCallback):
    """Clips and zeroes the critic, which the loop does for the policy alone; ends iterations; completes checkpoints."""

    def __init__(self, trainer: SearchRolloutTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer = self.trainer
        if state.global_step == 0 and trainer.dev_questions:
            start = {"dev_em": trainer.evaluate_dev()}
            trainer.curve.finish(0, start)
            trainer.keep_best()
            trainer.reporter.metrics(start, 0)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trainer.critic is not None:
            torch.nn.utils.clip_grad_norm_(self.trainer.critic.parameters(), self.trainer.settings.max_grad_norm)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trainer.critic is not None:
            self.trainer.critic.zero_grad()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.trainer.updates == 0:
            control.should_save = self.trainer.finish_iteration()
            control.should_training_stop = control.should_training_stop or self.trainer.stopped is not None

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.trainer.critic is not None:
            self.trainer.critic.save(folder / "critic")
        complete(folder, self.trainer.curve.state())
