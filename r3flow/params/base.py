"""What every section of `params.yaml` is made of: the strict class, and the bounds that many keys share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Rate = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(min_length=1)]
NonNegative = Annotated[float, Field(ge=0)]
Attempts = Annotated[int, Field(ge=1, le=64)]


class Section(BaseModel):
    """Strict and frozen; a key that is not named here is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())
