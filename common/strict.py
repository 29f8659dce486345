"""The base of models that are read from files or requests, or told to programs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A model that never changes. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
