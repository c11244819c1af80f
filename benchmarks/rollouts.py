"""`make bench`, parts 1 and 2: what batching gains in rollouts, and what the loop costs beside Hugging Face's own `generate`.

    python -m benchmarks.rollouts [--policy models/cold_start] [--questions 128]

Both sides of a ratio run in this process, with the same policy, questions, retriever and number of threads. CPU seconds are those of
this process and its children (the simulated judge is one). Needs what `make demo` leaves: the index, the questions and a policy.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch

from benchmarks.one_at_a_time import rollout_single
from r3flow import params as parameters
from r3flow.decoding import Decoder
from r3flow.environment import Environment
from r3flow.errors import R3FlowError
from r3flow.files import read_jsonl
from r3flow.llm.endpoint import connect
from r3flow.llm.judge import Judge
from r3flow.params import Params
from r3flow.policy import load_policy
from r3flow.protocol import PROTOCOLS
from r3flow.retrieval.open import open_retriever
from r3flow.rollout import Rollout, generate_rollouts
from r3flow.training.scoring import Scorer
from r3flow.trajectory import Question, Trajectory

T = TypeVar("T")

BATCHING_TARGET, GENERATE_TARGET = 10.0, 0.8
BATCHED_RUNS, REPEATS = 3, 5


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU (this process and its children) and of wall time."""

    cpu: float
    wall: float


def cpu_seconds() -> float:
    """Of this process and its living children."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return float(sum(spent.user + spent.system for spent in times))


def measured(work: Callable[[], T]) -> tuple[T, Cost]:
    """The result of `work` and what it cost."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    result = work()
    return result, Cost(cpu_seconds() - cpu, time.perf_counter() - wall)


@contextmanager
def cold_judge(params: Params) -> Iterator[Judge]:
    """A judge whose ledger is empty; its start is outside of what is measured."""
    with tempfile.TemporaryDirectory() as folder, connect(params, "judge", ledger=Path(folder) / "ledger.jsonl") as client:
        yield Judge(client)


@dataclass(frozen=True)
class Bench:
    """What both sides share."""

    params: Params
    model: Any
    tokenizer: Any
    environment: Environment
    questions: Sequence[Question]

    def batched(self, judge: Judge | None = None, count: int | None = None) -> list[Rollout]:
        found = generate_rollouts(
            self.model,
            self.tokenizer,
            self.environment,
            self.questions[:count],
            self.params.protocol,
            temperature=0.0,
            seed=self.params.seed,
        )
        if judge is not None:
            Scorer(self.params.reward, judge)([rollout.trajectory for rollout in found])
        return found

    def one_at_a_time(
        self, judge: Judge | None = None, *, keep_cache: bool = False, count: int | None = None
    ) -> list[tuple[list[int], Trajectory]]:
        roll = partial(rollout_single, self.model, self.tokenizer, self.environment)
        return [roll(question, self.params.protocol, judge, keep_cache=keep_cache) for question in self.questions[:count]]

    def compare_batching(self, title: str, *, judging: bool, keep_cache: bool = False, target: float | None = None) -> bool:
        """Part 1; prints its rows and returns whether the target is met. Ours is the median of a few runs, theirs is long enough."""
        costs = []
        for _ in range(BATCHED_RUNS):
            with cold_judge(self.params) if judging else nullcontext() as judge:
                ours, cost = measured(partial(self.batched, judge))
            costs.append(cost)
        cost = sorted(costs, key=lambda cost: cost.cpu)[BATCHED_RUNS // 2]
        with cold_judge(self.params) if judging else nullcontext() as judge:
            theirs, slow = measured(partial(self.one_at_a_time, judge, keep_cache=keep_cache))
        same = sum(one.completion_ids == ids for one, (ids, _) in zip(ours, theirs, strict=True))
        tokens, steps = sum(sum(rollout.mask) for rollout in ours), sum(len(rollout.trajectory.steps) for rollout in ours)
        row(title, "CPU s", cost.cpu, slow.cpu, slow.cpu / cost.cpu, target)
        row("", "wall s", cost.wall, slow.wall, slow.wall / cost.wall)
        row("", "tokens per CPU s", tokens / cost.cpu, tokens / slow.cpu)
        print(
            f"  {len(ours)} questions, {steps} steps, {tokens} generated tokens; token for token the same: {same} of {len(ours)}",
            flush=True,
        )
        return target is None or slow.cpu / cost.cpu >= target

    def compare_generate(self) -> bool:
        """Part 2: one turn behind the same contexts, which both sides encode from nothing; the sum over the turns that were taken."""
        rollouts = self.batched()
        ours, theirs, tokens, same, rows = 0.0, 0.0, 0, 0, 0
        for turn in range(self.params.protocol.max_steps):
            contexts = [stream for rollout in rollouts if (stream := context(rollout, turn))]
            limit = self.params.protocol.max_turn_tokens
            contexts = [stream for stream in contexts if len(stream) + limit <= self.params.protocol.max_context_tokens]
            if not contexts:
                continue
            mine: list[float] = []
            other: list[float] = []
            for _ in range(REPEATS):  # by turns, so that a busy neighbour hits both
                written, cost = measured(partial(self._turn, contexts, limit))
                mine.append(cost.cpu)
                reference, cost = measured(partial(self._generate, contexts, limit))
                other.append(cost.cpu)
            ours, theirs = ours + min(mine), theirs + min(other)
            tokens += sum(map(len, written))
            same += sum(one == two for one, two in zip(written, reference, strict=True))
            rows += len(contexts)
        row("one turn, prefill counted", "tokens per CPU s", tokens / ours, tokens / theirs, theirs / ours, GENERATE_TARGET)
        print(f"  {rows} turns, {tokens} generated tokens; token for token the same: {same} of {rows}; best of {REPEATS}")
        return theirs / ours >= GENERATE_TARGET

    @torch.no_grad()
    def _turn(self, contexts: Sequence[list[int]], limit: int) -> list[list[int]]:
        decoder = Decoder(self.model, self.tokenizer.eos_token_id, temperature=0.0)
        decoder.extend(dict(enumerate(contexts)), limit)
        turns = decoder.turn(dict.fromkeys(range(len(contexts)), limit))
        return [turns[place].ids for place in range(len(contexts))]

    def _generate(self, contexts: Sequence[list[int]], limit: int) -> list[list[int]]:
        eos, width = self.tokenizer.eos_token_id, max(map(len, contexts))
        ids = torch.tensor([[eos] * (width - len(stream)) + stream for stream in contexts], device=self.model.device)
        mask = torch.tensor([[0] * (width - len(stream)) + [1] * len(stream) for stream in contexts], device=self.model.device)
        out = self.model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=limit, eos_token_id=eos, pad_token_id=eos
        )
        rows = out[:, width:].tolist()
        return [ids[: ids.index(eos) + 1] if eos in ids else ids for ids in rows]


def context(rollout: Rollout, turn: int) -> list[int]:
    """The stream before the policy's turn number `turn` (from 0); empty if there is none."""
    if turn >= len(rollout.step_ends):
        return []
    start = rollout.step_ends[turn - 1] + 1 if turn else 0
    start += rollout.mask[start:].index(1)
    return rollout.prompt_ids + rollout.completion_ids[:start]


def row(title: str, unit: str, ours: float, theirs: float, ratio: float | None = None, target: float | None = None) -> None:
    """One printed line."""
    shown = "" if ratio is None else f"{ratio:8.2f}"
    if ratio is not None and target is not None:
        shown += f"  (wanted {target:g}: {'met' if ratio >= target else 'MISSED'})"
    print(f"{title:32}{unit:18}{ours:12.2f}{theirs:16.2f}{shown}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="rollouts: batched against one at a time, and against generate")
    parser.add_argument("--params", default="params.yaml")
    parser.add_argument("--policy", default="models/cold_start")
    parser.add_argument("--questions", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    params = parameters.load(arguments.params)
    model, tokenizer = load_policy(arguments.policy, trust_remote_code=params.policy.trust_remote_code)
    questions = list(read_jsonl("data/prepared/test.jsonl", Question.from_json))[: arguments.questions]
    environment = Environment(open_retriever(params), PROTOCOLS[params.protocol.name], params)
    bench = Bench(params, model, tokenizer, environment, questions)
    bench.batched(count=4)
    bench.one_at_a_time(count=2)
    print(f"{arguments.policy}, greedy, {arguments.threads} thread(s); retrieval and an empty judge's ledger on both sides")
    print(f"{'':50}{'batched':>12}{'one at a time':>16}{'ratio':>8}", flush=True)
    met = [
        bench.compare_batching("rollouts", judging=False, target=BATCHING_TARGET),
        bench.compare_batching("rollouts and judge", judging=True, target=BATCHING_TARGET),
    ]
    # for comparison: the fastest loop for one question at a time that we could think of
    bench.compare_batching("rollouts and judge, cache kept", judging=True, keep_cache=True)
    print(f"{'':50}{'r3flow':>12}{'generate':>16}{'ratio':>8}", flush=True)
    met.append(bench.compare_generate())
    return 0 if all(met) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except R3FlowError as error:
        sys.exit(f"error: {error}")
