"""`make base-model`: the tokenizer and the pre-training of `models/tiny-base`, from nothing, on two cores.

A stock LlamaForCausalLM of about a million parameters, so that nothing in the pipeline is special to it. Any Hugging Face causal
language model takes its place through `policy.base`.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from r3flow.data.names import words
from r3flow.data.pretrain import pretraining_sample
from r3flow.data.world import generate_world
from r3flow.files import replacing, write_json
from r3flow.params import World as WorldParams
from r3flow.protocol import r3rag
from r3flow.simulated.mind import phrases

STEPS, BATCH, EASY_STEPS, SEED = 2000, 48, 60, 20_261
MUON_LR, ADAM_LR, CLIP, WARMUP = 0.02, 2e-3, 1.0, 0.05


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Word level with bytes below it: a known word is one token, any other text falls back to bytes, and decoding is exact.

    The protocol's headings are ordinary (not special) added tokens, as a domain tokenizer would have them; they save steps.
    """
    rng = random.Random(SEED)
    texts = [part for _ in range(4000) for part in pretraining_sample(rng)]
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
    """The untrained model: embeddings of standard deviation d^-0.5, zero output projections."""
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=2048, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=None, rms_norm_eps=1e-5,
        initializer_range=128**-0.5,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
    return model


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


def batches(tokenizer: PreTrainedTokenizerFast, rng: random.Random, easy: bool, count: int = 10) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """`count` batches of (ids, labels), both (B, T), of rows of like length; labels are -100 on contexts and padding."""
    rows = []
    for _ in range(count * BATCH):
        context, statements = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in pretraining_sample(rng, easy=easy))
        rows.append((context + statements + [1], [-100] * len(context) + statements + [1]))
    rows.sort(key=lambda row: len(row[0]))
    result = []
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        width = len(part[-1][0])
        ids = torch.tensor([row + [0] * (width - len(row)) for row, _ in part])
        labels = torch.tensor([row + [-100] * (width - len(row)) for _, row in part])
        result.append((ids, labels))
    rng.shuffle(result)
    return result


def train(out: Path, steps: int) -> None:
    """Pre-train and save. The result depends on SEED, the machine's kind and the number of threads alone."""
    torch.manual_seed(SEED)
    rng, tokenizer = random.Random(SEED + 1), build_tokenizer()
    model = build_model(len(tokenizer))
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=MUON_LR),
        torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    warmup = max(1, int(WARMUP * steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + torch.cos(torch.tensor(torch.pi * (step - warmup) / (steps - warmup))).item())

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, factor) for optimizer in optimizers]
    wall, cpu, tokens = time.time(), time.process_time(), 0
    losses: list[float] = []
    queue: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step in range(steps):
        queue = queue or batches(tokenizer, rng, step < EASY_STEPS)
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
        if (step + 1) % 50 == 0:
            mean = sum(losses[-50:]) / 50
            spent = f"wall {time.time() - wall:.0f}s cpu {time.process_time() - cpu:.0f}s"
            print(f"step {step + 1}/{steps} loss {mean:.3f} tokens {tokens} {spent}", flush=True)
            if (step + 1) % 200 == 0:
                save(model, tokenizer, out, step + 1, tokens, mean)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path, steps: int, tokens: int, loss: float) -> None:
    """Write the checkpoint folder, whole or not at all."""
    with replacing(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / "pretraining.json", {"seed": SEED, "steps": steps, "batch": BATCH, "tokens": tokens, "loss": round(loss, 4)})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("models/tiny-base"))
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    train(arguments.out, arguments.steps)
