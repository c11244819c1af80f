"""The sizes of a Llama or Qwen2 decoder, and how many parameters they make: from a config.json, or from a small dated table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3flow.errors import DataError
from r3flow.files import read_json

FAMILIES = ("llama", "qwen2")
"""Values of `model_type` whose formula is known here."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with gated MLP, RMSNorm and grouped key-value heads. Biases are whether the projections have one."""

    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    key_value_heads: int
    head: int
    """Width of one head."""
    tied: bool
    """Whether the output head is the embedding."""
    query_bias: bool
    """Of the projections to queries, keys and values."""
    output_bias: bool
    """Of attention's output projection."""
    mlp_bias: bool
    positions: int

    @property
    def queries(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        """Width of all key heads; that of all value heads is the same."""
        return self.key_value_heads * self.head

    @property
    def embedding(self) -> int:
        """Parameters of the embedding; an output head of its own has as many."""
        return self.vocabulary * self.width

    @property
    def trunk(self) -> int:
        """Parameters without the output head: what a critic of its own copies (`ModelCritic`)."""
        attention = self.width * (self.queries + 2 * self.keys) + self.queries * self.width
        attention += self.query_bias * (self.queries + 2 * self.keys) + self.output_bias * self.width
        mlp = 3 * self.width * self.inner + self.mlp_bias * (2 * self.inner + self.width)
        return self.embedding + self.layers * (attention + mlp + 2 * self.width) + self.width

    @property
    def parameters(self) -> int:
        """All parameters; tied ones count once."""
        return self.trunk + (0 if self.tied else self.embedding)


def _llama_3_1_8b() -> Shape:
    return Shape(128256, 4096, 14336, 32, 32, 8, 128, False, False, False, False, 131072)


def _qwen_2_5(width: int, inner: int, layers: int, heads: int, key_value_heads: int, vocabulary: int, tied: bool, positions: int) -> Shape:
    return Shape(vocabulary, width, inner, layers, heads, key_value_heads, 128, tied, True, False, False, positions)


TABLE: Mapping[str, Shape] = {
    "meta-llama/Llama-3.1-8B": _llama_3_1_8b(),
    "Qwen/Qwen2.5-7B": _qwen_2_5(3584, 18944, 28, 28, 4, 152064, False, 131072),
    "Qwen/Qwen2.5-7B-Instruct": _qwen_2_5(3584, 18944, 28, 28, 4, 152064, False, 32768),
    "Qwen/Qwen2.5-3B": _qwen_2_5(2048, 11008, 36, 16, 2, 151936, True, 32768),
    "Qwen/Qwen2.5-3B-Instruct": _qwen_2_5(2048, 11008, 36, 16, 2, 151936, True, 32768),
}
"""The models that the profiles name, by their config.json on the hub as known in 2026. The formula gives the totals that the hub
publishes for them (8,030,261,248, 7,615,616,512 and 3,085,938,688); a config.json on this machine goes before the table."""

ENCODERS: Mapping[str, tuple[int, int]] = {"intfloat/e5-base-v2": (109_482_240, 768)}
"""(parameters, dimension) of the encoders that the profiles name; this one is BERT base, uncased, with its pooler (2026)."""


def shape_from(config: Mapping[str, Any], where: str | Path) -> Shape | None:
    """The shape of a config.json's values; None for a kind of model whose formula is not known here.

    Raises DataError if a size is missing or is no whole number from 1. `where` names the file in it.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        return None

    def size(name: str, default: int | None = None) -> int:
        value = config.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"{where}: {name} is {value!r}, expected a whole number from 1; get the model's config.json again")
        return value

    width, heads = size("hidden_size"), size("num_attention_heads")
    qwen = kind == "qwen2"
    biased = bool(config.get("attention_bias", False))
    return Shape(
        size("vocab_size"), width, size("intermediate_size"), size("num_hidden_layers"), heads, size("num_key_value_heads", heads),
        size("head_dim", width // heads), bool(config.get("tie_word_embeddings", False)), qwen or biased, not qwen and biased,
        not qwen and bool(config.get("mlp_bias", False)), size("max_position_embeddings"),
    )  # fmt: skip


def local_folder(name: str, root: str | Path = ".") -> Path | None:
    """Where the model `name` lies on this machine: a folder below `root`, or the newest snapshot in Hugging Face's cache, or None."""
    folder = Path(root) / name
    if (folder / "config.json").is_file():
        return folder
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    found = sorted(cache.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else None


def shape_of(name: str, root: str | Path = ".") -> tuple[Shape | None, str]:
    """(the shape of the model `name`, where it is from); (None, why not) if it cannot be told. Raises DataError as `shape_from` does."""
    folder = local_folder(name, root)
    if folder is not None:
        path = folder / "config.json"
        config = read_json(path)
        if not isinstance(config, dict):
            raise DataError(f"{path}: expected an object; get the model's config.json again")
        shape = shape_from(config, path)
        return shape, str(path) if shape else f"{path} is of kind {config.get('model_type')!r}, whose formula is not known"
    if name in TABLE:
        return TABLE[name], "the table in r3flow/planning/shapes.py"
    return None, "it is neither on this machine nor in the table"
