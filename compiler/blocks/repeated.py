"""The blocks of a model: the outermost modules that stand in a list with others of their class."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..code.fingerprint import Rules, digest


def repeated_blocks(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the repeated blocks of a model by their names, in order.

    A block has weights and submodules. Lists of single layers are none, and blocks within blocks are parts of them.
    """
    return dict(_blocks(model, ""))


def _blocks(module: torch.nn.Module, path: str) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, child in module.named_children():
        here = f"{path}{name}"
        if not isinstance(child, torch.nn.ModuleList):
            yield from _blocks(child, f"{here}.")
            continue
        classes = [type(one) for one in child]
        for number, one in child.named_children():
            if classes.count(type(one)) > 1 and _is_block(one):
                yield f"{here}.{number}", one
            else:
                yield from _blocks(one, f"{here}.{number}.")


def _is_block(module: torch.nn.Module) -> bool:
    has_weights = next(module.parameters(), None) is not None
    return has_weights and next(module.children(), None) is not None


def structures(blocks: dict[str, torch.nn.Module], rules: Rules) -> dict[str, list[str]]:
    """Return the names of blocks by their architecture digests: those of one digest share their graphs."""
    by_digest: dict[str, list[str]] = {}
    for name, block in blocks.items():
        by_digest.setdefault(digest(block, rules), []).append(name)
    return by_digest
