"""How much memory training takes, part by part, as the code of today lays it out: float32, one process, one device, nothing recomputed.

With P parameters of the policy, R of its trunk (P without an output head of its own), four bytes a number (docs/PROFILES.md, "Memory"):

    weights            4 P        of each copy: the policy; the reference, if there is a KL
    gradients          4 P        from the backward pass to the update
    Adam's moments     8 P        from the first update on
    critic: model      4, 4 and 8 bytes times R + width + 1; critic: head times width + 1
    Adam's scratch     4 times the larger of policy and critic, while an update is made (torch's `foreach`, one parameter group at once)
    activations        4 n (L (6 d + 2 q + 2 k + 4 f + h + 2) + 2 d + 1) of n tokens: what autograd keeps of L layers of width d, MLP f,
                       query heads h of width q together, key heads of width k together (norm: input, scaled and output; attention:
                       q, k, v, output, h sums; MLP: gate, its SiLU, up and product). Measured equal to a percent on tiny models
    logits             4 n V times the copies that live at once (`LOGIT_COPIES`), V the vocabulary
    key-value cache    8 L k times rows times `protocol.max_context_tokens`; one layer more while it is laid out anew

A forward pass has n = CHUNK_TOKENS tokens, or one trajectory if that is longer; in SFT it is a whole batch. All are upper bounds: every
trajectory as long as it may be, every token the policy's. Not counted: the device's own context (about half a gigabyte on CUDA),
fragmentation, what a block forward holds of one layer, and attention kernels that store all pairs of tokens (torch's fused ones do not;
whether one takes float32 with grouped heads is the device's affair). Nothing of this was measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from r3flow.params import Params
from r3flow.planning.shapes import Shape

Device = Literal["cpu", "gpu"]

FLOAT = 4
"""Bytes of a number: `load_policy` and both trainers use float32."""
CHUNK_TOKENS: dict[Device, int] = {"cpu": 2560, "gpu": 16_384}
"""Padded tokens of a forward pass: those of `training.batch`, which would load torch. A test compares them."""
LOGIT_COPIES, LOGIT_COPIES_ENTROPY, LOGIT_COPIES_SFT = 5, 7, 3
"""Copies of (tokens, vocabulary) at the worst moment. An update of `trainer._compute_loss`: the logits, the log-softmax that the loss
keeps, and three of the entropy that is only looked at; an entropy bonus keeps two more. SFT: log-softmax, and two gradients."""


@dataclass(frozen=True, slots=True)
class Part:
    """One entry. `bytes` is None where the model's shape is not known."""

    name: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Phase:
    """What lies in memory at one time. `bytes` leaves out what is not known; `known` says whether anything was."""

    name: str
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes or 0 for part in self.parts)

    @property
    def known(self) -> bool:
        return all(part.bytes is not None for part in self.parts)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the formula needs of a model: its number of parameters, and its shape where that is known."""

    parameters: int
    shape: Shape | None

    @property
    def critic(self) -> int:
        """Parameters of a critic that is a model of its own; all of the policy's where the shape is not known (an upper bound)."""
        return self.parameters if self.shape is None else self.shape.trunk + self.shape.width + 1


def activations(shape: Shape, tokens: int) -> int:
    """Bytes that autograd keeps of one forward pass over so many tokens, without the output head."""
    layer = 6 * shape.width + 2 * shape.queries + 2 * shape.keys + 4 * shape.inner + shape.heads + 2
    return FLOAT * tokens * (shape.layers * layer + 2 * shape.width + 1)


def key_value_cache(shape: Shape, rows: int, tokens: int) -> int:
    """Bytes of the cache of `rows` streams with room for `tokens` each, one layer more included."""
    return FLOAT * (shape.layers + 1) * 2 * shape.keys * rows * tokens


def rollout_rows(params: Params) -> int:
    """Streams that lie in the cache at once in the `ppo` stage: a whole batch of rollouts, or all questions of the dev evaluation."""
    return max(params.ppo.prompts * params.ppo.group, params.ppo.eval_questions)


def critic_parameters(params: Params, sizes: Sizes) -> int | None:
    """Parameters of the critic; 0 without one, None if it cannot be told."""
    if params.ppo.algorithm != "ppo":
        return 0
    if params.ppo.critic == "model":
        return sizes.critic
    return None if sizes.shape is None else sizes.shape.width + 1


def phases(params: Params, sizes: Sizes, device: Device, encoder: int | None = 0) -> list[Phase]:
    """Every phase of training and evaluation, in the pipeline's order. `encoder`: parameters of a dense retriever's, None if not known.

    The phase with the most bytes is what the device must hold.
    """
    return [Phase(name, tuple(parts)) for name, parts in _phases(params, sizes, device, encoder)]


def _phases(params: Params, sizes: Sizes, device: Device, encoder: int | None) -> Iterator[tuple[str, list[Part]]]:
    shape, ppo, context = sizes.shape, params.ppo, params.protocol.max_context_tokens
    weights = FLOAT * sizes.parameters

    def of(value: int | None, times: int = FLOAT) -> int | None:
        return None if value is None else times * value

    policy = [Part("policy weights", weights), Part("policy Adam moments", 2 * weights)]
    gradients = Part("policy gradients", weights)
    retriever = [Part("encoder weights", of(encoder))] if params.retrieval.kind == "dense" and encoder != 0 else []
    batch = params.sft.batch_size * context
    yield (
        "sft: forward and backward",
        [*policy, gradients, *_pass(shape, batch, LOGIT_COPIES_SFT)],
    )
    yield "sft: update", [*policy, gradients, Part("Adam's scratch", weights)]
    reference = [] if ppo.kl == "none" else [Part("reference weights", weights)]
    count = critic_parameters(params, sizes)
    critic = [] if count == 0 else [Part("critic weights", of(count)), Part("critic Adam moments", of(count, 2 * FLOAT))]
    critic_gradients = [] if count == 0 else [Part("critic gradients", of(count))]
    standing = [*policy, *reference, *critic, *retriever]
    rows = rollout_rows(params)
    yield "ppo: rollouts", [*standing, *_generation(shape, rows, context)]
    tokens = max(CHUNK_TOKENS[device], context)
    copies = LOGIT_COPIES if ppo.entropy_coefficient == 0 else LOGIT_COPIES_ENTROPY
    passes = _pass(shape, tokens, copies)
    if ppo.algorithm == "ppo" and ppo.critic == "model":
        passes.append(Part("critic activations", None if shape is None else activations(shape, tokens)))
    yield "ppo: forward and backward", [*standing, gradients, *critic_gradients, *passes]
    larger = max(weights, of(count) or 0)
    yield "ppo: update", [*standing, gradients, *critic_gradients, Part("Adam's scratch", larger)]
    yield "evaluate", [Part("policy weights", weights), *retriever, *_generation(shape, params.evaluate.batch_size, context)]


def _pass(shape: Shape | None, tokens: int, copies: int) -> list[Part]:
    """A forward and backward pass over so many tokens, all of them learned."""
    return [
        Part("activations", None if shape is None else activations(shape, tokens)),
        Part("logits", None if shape is None else FLOAT * tokens * shape.vocabulary * copies),
    ]


def _generation(shape: Shape | None, rows: int, tokens: int) -> list[Part]:
    """The cache of `rows` streams, and their next token's logits, probabilities and sums (three copies)."""
    return [
        Part("key-value cache", None if shape is None else key_value_cache(shape, rows, tokens)),
        Part("next-token logits", None if shape is None else 3 * FLOAT * rows * shape.vocabulary),
    ]


def peak(found: list[Phase]) -> Phase:
    """The phase that needs the most."""
    return max(found, key=lambda phase: phase.bytes)
