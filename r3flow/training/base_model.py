"""`make base-model`: the tokenizer and the pre-training of `models/tiny-base`, from nothing, on two cores.

A stock LlamaForCausalLM of 1.3 million parameters, so that nothing in the pipeline is special to it. Any Hugging Face causal
language model takes its place through `policy.base`.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from r3flow.data.names import words
from r3flow.data.pretrain import Piece, last_sample, pretraining_sample
from r3flow.data.world import generate_world
from r3flow.files import read_json, replacing, write_json
from r3flow.params import World as WorldParams
from r3flow.policy import load_policy
from r3flow.protocol import r3rag
from r3flow.simulated.mind import phrases

STEPS, LAST_STEPS, TOKENS, SEED = 2200, 400, 6000, 20_261
MUON_LR, ADAM_LR, CLIP, WARMUP = 0.012, 1e-2, 1.0, 20
RECORD = "pretraining.json"
LAST_FACTOR = 0.25
"""Of the learning rates, for the last lesson."""
WIDTH, LAYERS, HEADS = 128, 4, 4


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Word level with bytes below it: a known word is one token, any other text falls back to bytes, and decoding is exact.

    The protocol's headings are ordinary (not special) added tokens, as a domain tokenizer would have them; they save steps.
    """
    rng = random.Random(SEED)
    texts = ["".join(text for text, _ in pretraining_sample(rng)) for _ in range(4000)]
    sample = generate_world(SEED, WorldParams(train_questions=2000, dev_questions=10, test_questions=10, passages=6000))
    # only wordings are learned from the sample: every name part is in the vocabulary anyway, whichever half it comes from
    texts += [f" {question.question}" for question in sample.questions["train"]] + phrases()
    pieces = {piece for text in texts for piece in re.findall(r" ?[A-Za-z]+| ?\d+| ?[^\sA-Za-z\d]+", text)}
    pieces |= {f" {word}" for word in words()} | {f" {year}" for year in range(1900, 2000)} | {str(digit) for digit in range(10)}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = sorted({piece.replace(" ", "\u0120") for piece in pieces} - set(alphabet))
    vocabulary = {token: place for place, token in enumerate(["<pad>", "<eos>", *alphabet, *known])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    headings = [f"\n{text}" for text in (r3rag.ANALYSIS, r3rag.QUERY, r3rag.DOCUMENTS, r3rag.ANSWER)] + [r3rag.QUESTION]
    headings += [f"Step {number}:" for number in range(1, 11)]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in headings])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", model_max_length=2048, clean_up_tokenization_spaces=False
    )


def build_model(vocabulary: int) -> LlamaForCausalLM:
    """The untrained model: a stock Llama whose attention begins near its goal (Trockman and Kolter 2023, "Mimetic initialization").

    The heads of the first layer look one to four tokens back, by their biases; the values of the other layers come back as what they are,
    scaled down. See docs/adr/0006.
    """
    size = WIDTH // 2
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, head_dim=size, attention_bias=True, max_position_embeddings=2048, tie_word_embeddings=True,
        pad_token_id=0, eos_token_id=1, bos_token_id=None, rms_norm_eps=1e-5, initializer_range=WIDTH**-0.5,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, 1)
        model.model.norm.weight.fill_(0.25)  # embeddings of length sqrt(d) would give too sure a first guess
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
            elif name.endswith(("q_proj.bias", "k_proj.bias")):
                weight.normal_(0, 0.3)
        first, *others = [layer.self_attn for layer in model.model.layers]
        for head in range(HEADS):
            rows = slice(head * size, (head + 1) * size)
            first.k_proj.bias[rows] = 1.0
            first.q_proj.bias[rows] = _turned(torch.ones(size), -(head + 1))
        torch.nn.init.orthogonal_(first.o_proj.weight).mul_(0.5)
        for attention in others:
            torch.nn.init.orthogonal_(attention.v_proj.weight)
            attention.o_proj.weight.copy_(0.5 * attention.v_proj.weight.T)
    return model


def _turned(vector: torch.Tensor, places: int) -> torch.Tensor:
    """`vector` (d,) as rotary positions of base 10,000 turn it over `places` tokens."""
    half = len(vector) // 2
    angles = places * 10_000.0 ** (-torch.arange(half) / half)
    a, b = vector[:half], vector[half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()])


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates for matrices (Jordan et al. 2024), in fp32.

    torch.optim.Muon iterates in bfloat16, which costs as much as the whole forward and backward pass on processors without bf16 units.
    """

    def __init__(self, weights: list[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                average = self.state[weight].setdefault("average", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(average, group["momentum"])
                tall = update.size(0) > update.size(1)
                x = update.T if tall else update
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    gram = x @ x.T
                    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
                scale = max(1.0, weight.size(0) / weight.size(1)) ** 0.5
                weight.add_(x.T if tall else x, alpha=-group["lr"] * scale)


def batches(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, sample: Callable[[], list[Piece]]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """About ten batches of (ids, labels), both (B, T) with B x T at most TOKENS, of rows of like length; a label of -100 is not learned.

    `sample` draws a sequence, `rng` their order.
    """
    rows: list[tuple[list[int], list[int]]] = []
    while sum(len(ids) for ids, _ in rows) < 10 * TOKENS:
        ids: list[int] = []
        labels: list[int] = []
        for text, learned in sample():
            piece = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += piece
            labels += piece if learned else [-100] * len(piece)
        rows.append((ids, labels))
    rows.sort(key=lambda row: len(row[0]))
    result = []
    while rows:
        count = next(size for size in range(len(rows), 0, -1) if size == 1 or size * len(rows[size - 1][0]) <= TOKENS)
        part, rows = rows[:count], rows[count:]
        width = len(part[-1][0])
        padded = torch.tensor([row + [0] * (width - len(row)) for row, _ in part])
        wanted = torch.tensor([row + [-100] * (width - len(row)) for _, row in part])
        result.append((padded, wanted))
    rng.shuffle(result)
    return result


def train(out: Path, steps: int, last_steps: int, start: Path | None) -> None:
    """Pre-train and save, on one thread: sums of several come in another order. So the result depends on SEED and the machine's kind.

    `start` is a folder to take the model from, where it is to have the last lesson alone.
    """
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    if start is None:
        tokenizer, rng = build_tokenizer(), random.Random(SEED + 1)
        model, before = build_model(len(tokenizer)), dict[str, float]()
        learn(model, tokenizer, rng, lambda step: pretraining_sample(rng, step), steps, 1.0, before, out)
    else:
        model, tokenizer = load_policy(start, trust_remote_code=False)
        before = read_json(start / RECORD)
    rng = random.Random(SEED + 2)
    learn(model.train(), tokenizer, rng, lambda step: last_sample(rng), last_steps, LAST_FACTOR, before, out)


def learn(
    model: Any, tokenizer: Any, rng: random.Random, sample: Callable[[int], list[Piece]], steps: int, scale: float,
    record: dict[str, float], out: Path,
) -> None:  # fmt: skip
    """`steps` steps on sequences that `sample(step)` draws, the rates times `scale`; `record` grows, and is saved with the model."""
    if not steps:
        return
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=MUON_LR * scale),
        torch.optim.AdamW(others, lr=ADAM_LR * scale, betas=(0.9, 0.95), weight_decay=0.0),
    ]

    def factor(step: int) -> float:
        if step < WARMUP:
            return (step + 1) / WARMUP
        return 0.5 * (1 + torch.cos(torch.tensor(torch.pi * (step - WARMUP) / (steps - WARMUP))).item())

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, factor) for optimizer in optimizers]
    wall, cpu, tokens = time.time(), time.process_time(), 0
    losses: list[float] = []
    queue: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step in range(steps):
        queue = queue or batches(tokenizer, rng, partial(sample, step))
        ids, labels = queue.pop()
        # fp32: on processors without bf16 units autocast is ten times slower
        hidden = model.model(ids).last_hidden_state[:, :-1]
        wanted = labels[:, 1:] != -100
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[wanted]), labels[:, 1:][wanted])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        tokens += ids.numel()
        losses.append(loss.item())
        if (step + 1) % 50 == 0 or step + 1 == steps:
            mean = sum(losses[-50:]) / len(losses[-50:])
            spent = f"wall {time.time() - wall:.0f}s cpu {time.process_time() - cpu:.0f}s"
            print(f"step {step + 1}/{steps} loss {mean:.3f} tokens {tokens} {spent}", flush=True)
            if (step + 1) % 200 == 0 or step + 1 == steps:
                done = {"seed": SEED, "steps": record.get("steps", 0) + step + 1, "tokens": record.get("tokens", 0) + tokens}
                save(model, tokenizer, out, {**done, "loss": round(mean, 4)})
    record.update({**done, "loss": round(mean, 4)})


def save(model: Any, tokenizer: Any, out: Path, record: dict[str, float]) -> None:
    """Write the checkpoint folder, whole or not at all."""
    with replacing(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / RECORD, record)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("models/tiny-base"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--last-steps", type=int, default=LAST_STEPS)
    parser.add_argument("--start", type=Path, help="a base that gets the last lesson alone")
    arguments = parser.parse_args()
    train(arguments.out, arguments.steps, arguments.last_steps, arguments.start)
