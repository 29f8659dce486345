"""The function that turns a reason into its sentence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..plain_text import plain
from ..reasons import Reason


@functools.singledispatch
def _sentence(reason: Reason) -> str:
    raise TypeError(f"no message for {type(reason).__name__}")


class _Text:
    """Sentences by the class of a reason. Names in them may be anybody's: none reaches a terminal as it is."""

    register: Callable[..., Any] = staticmethod(_sentence.register)
    dispatch: Callable[..., Any] = staticmethod(_sentence.dispatch)

    def __call__(self, reason: Reason) -> str:
        """Describe a reason in one clause without a full stop, as it follows "eager: " on a node.

        Args:
            reason: any reason.

        Raises:
            TypeError: no sentence is registered for its class.
        """
        return plain(_sentence(reason))


text = _Text()
