"""A number that changes whenever any module of this process gets a parameter, a buffer or a submodule.

Whoever replaces a weight or a part by assigning it, `register_parameter` or `load_state_dict(assign=True)` goes through
torch's hooks for registrations, from whatever thread and place in the code. So between two equal numbers nobody has. It
does not see writes into a module's own tables, into `tensor.data` or into a tensor.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

_numbers = itertools.count(1)
_last = 0


def _note(module: Any, name: str, value: Any) -> None:
    global _last
    _last = next(_numbers)  # never the same number twice, so that threads cannot hide each other's


@functools.cache
def _begin() -> None:
    for register in (
        register_module_parameter_registration_hook,
        register_module_buffer_registration_hook,
        register_module_module_registration_hook,
    ):
        register(_note)


def stamp() -> int:
    """The number as it is now. What was registered before the first call of this function is not in it."""
    _begin()
    return _last
