"""The typed `params.yaml`: unknown keys are refused with the nearest right one, and every bound is checked.

`sections` holds the classes, `reading` what makes them from a file. Imports no torch, so that a bad file is refused in a fraction of a
second, before DVC starts.
"""

from r3flow.params.reading import load, missing, parse, read
from r3flow.params.sections import (
    PPO,
    QUESTION_PLACE,
    SFT,
    Control,
    Endpoint,
    Evaluate,
    Files,
    Filter,
    Guards,
    Index,
    Params,
    Policy,
    Prepare,
    Price,
    ProtocolParams,
    Report,
    Retrieval,
    Reward,
    SecondTeacher,
    Section,
    Simulated,
    Synthesize,
    World,
    base_url_host,
)

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
