"""Checkpoints that are whole or do not count, and the policy's folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from r3flow.files import read_json, replacing, write_json

COMPLETE = "complete.json"
"""Written last into a checkpoint; one without it was cut off while it was being written."""


def complete(checkpoint: Path, state: dict[str, Any]) -> None:
    """Mark a checkpoint as whole and keep `state` with it. Call it when everything else is written."""
    write_json(checkpoint / COMPLETE, state)


def last_whole(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole `checkpoint-N` under `folder` with its state; those that are not whole are removed."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]))
    whole = [path for path in found if (path / COMPLETE).exists()]
    for path in found:
        if path not in whole:
            shutil.rmtree(path)
    return (whole[-1], read_json(whole[-1] / COMPLETE)) if whole else None


def save_policy(model: Any, tokenizer: Any, out_dir: str | Path, critic: Any = None) -> None:
    """Write a standard Hugging Face folder (safetensors and tokenizer), and the critic in `critic/`, whole or not at all."""
    with replacing(out_dir) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if critic is not None:
            critic.save(folder / "critic")
