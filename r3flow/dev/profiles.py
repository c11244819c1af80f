"""Write the papers' profiles in `params/` from one template a system: `python -m r3flow.dev.profiles [--check | --write]`.

The twelve files differ in a handful of values; written by hand they would drift apart. A template (`templates/*.txt`) is a params file
with slots: `<<name>>` is a value of `PROFILES`, and `<<name>>` alone on a line is a block of `templates/common.txt`. A test compares
the files with what this writes, and others compare them with figures written out by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
FOLDER = "params"

_SLOT = re.compile(r"<<([a-z_]+)>>")
_BLOCK = re.compile(r"^== ([a-z_]+) ==\n", re.MULTILINE)

_NO_CHAT = (
    "plain\n  # not yet: protocol.template: C uses the chat template on base models too; prompt: chat refuses one whose turns do not end\n"
    "  #          with the end-of-text token"
)
_CHAT = "chat                # C: the model's own template"


def _search_r1(size: str, kind: str, algorithm: str) -> dict[str, str]:
    ppo = algorithm == "ppo"
    model = f"Qwen/Qwen2.5-{size.upper()}" + ("-Instruct" if kind == "instruct" else "")
    return {
        "template": "search_r1",
        "model": model,
        "title": algorithm.upper(),
        "prompt_note": _NO_CHAT if kind == "base" else _CHAT,
        "gpus": "8",
        "algorithm": algorithm,
        "group": "1   " if ppo else "5   ",
        "group_note": "# C" if ppo else "# P, C: n_agent 5",
        "minibatch_note": "# C: mini-batch" if ppo else "# C: mini-batch; counted in trajectories there too, so 10 updates an iteration",
        "critic": "model" if ppo else "head ",
        "critic_note": "# C: a model of its own that begins as the policy" if ppo else "# of ppo only",
        "critic_warmup": "\n  # not yet: ppo.critic_warmup_ratio: 0.015 (C); ours warms up with the policy" if ppo else "; of ppo only",
        "kl": "reward" if ppo else "loss  ",
        "kl_estimator": "k1" if ppo else "k3",
    }


def _all() -> dict[str, dict[str, str]]:
    llama = {
        "template": "r3rag", "model": "meta-llama/Llama-3.1-8B", "title": "Llama-3.1-8B", "sft_rate": "1.0e-5", "sft_batch": "8 ",
        "sft_effective": "64", "sft_rate_note": "# C", "model_note": "# P, C; its weights are given out after its licence is accepted",
        "chat_note": "LLaMA-Factory's llama3 template without a system message", "gpus": "8",
    }  # fmt: skip
    qwen = {
        "template": "r3rag", "model": "Qwen/Qwen2.5-7B", "title": "Qwen2.5-7B", "sft_rate": "7.0e-6", "sft_batch": "16",
        "sft_effective": "128", "model_note": "# P, C",
        "sft_rate_note": "# C: 7e-7 did not converge, 2e-6 was slow, 7e-6 exploded once",
        "chat_note": "LLaMA-Factory's qwen template and Qwen's own system message", "gpus": "8",
    }  # fmt: skip
    research = {"template": "research", "gpus": "64"}
    return {
        "paper-llama": llama,
        "paper-qwen": qwen,
        **{
            f"search-r1-qwen2.5-{size}-{kind}-{algorithm}": _search_r1(size, kind, algorithm)
            for size in ("3b", "7b")
            for kind in ("base", "instruct")
            for algorithm in ("ppo", "grpo")
        },
        "research-qwen2.5-7b": {**research, "model": "Qwen/Qwen2.5-7B", "prompt_note": "plain               # C: a plain template"},
        "research-qwen2.5-7b-instruct": {
            **research, "model": "Qwen/Qwen2.5-7B-Instruct",
            "prompt_note": f"{_CHAT}\n  # not yet: protocol.instructions_in: system; C has them in the system message, ours in the user's",
        },
    }  # fmt: skip


PROFILES: Mapping[str, Mapping[str, str]] = _all()
"""The slots of each profile by its name, the file's without `.yaml`."""


def _blocks(text: str) -> dict[str, str]:
    """The blocks of `common.txt`: `== name ==` and then the block's lines."""
    parts = _BLOCK.split(text)
    return {name: body.strip("\n") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def render(name: str) -> str:
    """The text of a profile. Raises KeyError for a name or slot that does not exist."""
    values = {"name": name, **PROFILES[name]}
    blocks = _blocks((TEMPLATES / "common.txt").read_text(encoding="utf-8"))
    text = (TEMPLATES / f"{values['template']}.txt").read_text(encoding="utf-8")
    for _ in range(2):  # a block has slots of its own
        text = _SLOT.sub(lambda match: {**blocks, **values}[match.group(1)], text)
    return text


def main(arguments: list[str]) -> int:
    """`--check` (the default) exits with 1 and names the first file that differs, `--write` writes all. Run it in the project's folder."""
    if arguments not in ([], ["--check"], ["--write"]):
        print("usage: python -m r3flow.dev.profiles [--check | --write]", file=sys.stderr)
        return 2
    for name in PROFILES:
        path = Path(FOLDER) / f"{name}.yaml"
        if arguments == ["--write"]:
            path.write_text(render(name), encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != render(name):
            print(f"error: {path}: is not what its template gives; run: python -m r3flow.dev.profiles --write", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
