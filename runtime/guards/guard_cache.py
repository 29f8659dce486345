"""The guards of modules that somebody looks after."""

from __future__ import annotations

import threading
import weakref

import torch

from ...compiler.code.fingerprint import Rules
from .module_guard import ModuleGuard


class GuardCache:
    """The guards of whoever looks after some modules, one each.

    It must not outlive its owner: a child that refers back to the module, as a patched one may, keeps it alive here.
    A copy of it is empty.
    """

    def __init__(self) -> None:
        self._guards: weakref.WeakKeyDictionary[torch.nn.Module, ModuleGuard] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[GuardCache], tuple[()]]:
        return GuardCache, ()

    def of(self, module: torch.nn.Module, rules: Rules) -> ModuleGuard:
        """The guard on a module, refreshed in full."""
        with self._lock:
            guard = self._guards.get(module)
            if guard is None:
                guard = self._guards[module] = ModuleGuard(module, rules)
            guard.refresh(module)
            return guard
