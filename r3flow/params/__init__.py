"""The typed `params.yaml`: unknown keys are refused with the nearest right one, and every bound is checked.

`sections` holds the whole file and the plain sections, `endpoints` and `rl` the large ones, `base` what they share; `reading` makes them
from a file. Imports no torch, so that a bad file is refused in a fraction of a second, before DVC starts.
"""

from r3flow.params.base import Section
from r3flow.params.endpoints import Endpoint, Price, SecondTeacher, Simulated, base_url_host
from r3flow.params.reading import load, missing, parse, read
from r3flow.params.rl import PPO, Guards, Reward
from r3flow.params.sections import (
    QUESTION_PLACE,
    SFT,
    Control,
    Evaluate,
    Files,
    Filter,
    Index,
    Params,
    Policy,
    Prepare,
    ProtocolParams,
    Report,
    Retrieval,
    Synthesize,
    World,
)  # fmt: skip

__all__ = [
    "PPO",
    "QUESTION_PLACE",
    "SFT",
    "Control",
    "Endpoint",
    "Evaluate",
    "Files",
    "Filter",
    "Guards",
    "Index",
    "Params",
    "Policy",
    "Prepare",
    "Price",
    "ProtocolParams",
    "Report",
    "Retrieval",
    "Reward",
    "SecondTeacher",
    "Section",
    "Simulated",
    "Synthesize",
    "World",
    "base_url_host",
    "load",
    "missing",
    "parse",
    "read",
]
