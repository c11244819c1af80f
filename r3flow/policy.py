"""Loading a policy: any Hugging Face causal language model, by name or folder, with its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from r3flow.errors import ConfigError


def device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_policy(base: str | Path, *, trust_remote_code: bool) -> tuple[Any, Any]:
    """(model, tokenizer), in float32 on the best device, in evaluation mode; weights from safetensors only, never from pickle.

    Raises ConfigError for a name or folder that holds no such model, or a damaged one.
    """
    path = Path(base)
    if len(path.parts) > 1 and Path(path.parts[0]).is_dir() and not path.is_dir():
        # a name on the hub has two parts as well; but where the first is a folder here, a path was meant, and the hub is not asked
        raise ConfigError(f"policy: '{base}': no such folder")
    try:
        tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=trust_remote_code)
        model: Any = AutoModelForCausalLM.from_pretrained(
            base, trust_remote_code=trust_remote_code, dtype=torch.float32, use_safetensors=True
        )
    except SafetensorError as error:
        raise ConfigError(
            f"policy: the weights in '{base}' are damaged ({error}); make them anew: remove the folder, run dvc repro"
        ) from None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"policy: cannot load a causal language model from '{base}': {reason[:300]}") from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.to(device()).eval(), tokenizer
