"""What makes two graphs interchangeable. The manifest stores every field; only equal fields are a hit."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from typing import Annotated, Any

from blake3 import blake3
from pydantic import StringConstraints

# Raised whenever the way modules are captured, compiled or bound changes, so that older graphs are no hits. The sixth:
# graphs of before may stand for blocks that write into containers, which get none, or have the sizes of one timestep.
FORMAT = 6
_Plain = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]  # which names folders
AT_LEAST = "at least"  # in place of a version in a target: which one, the manifest tells
_LARGE = ("architecture", "shapes")  # fields of which a difference tells no values


@dataclass(frozen=True)
class GraphKey:
    """The meaning of a graph. The model's hash is no part of it: graphs hold no weights.

    Attributes:
        component: what is compiled, e.g. `unet`.
        architecture: digest of the module's structure and configuration.
        shapes: the shape range as JSON.
        dtype: dtype of activations, without the `torch.` prefix.
        backend: name of the backend.
        target: what the machine code depends on, as the backend names it.
        format: `FORMAT` of the pack that compiled it.
    """

    component: _Plain
    architecture: str
    shapes: dict[str, Any]
    dtype: _Plain
    backend: _Plain
    target: dict[str, str]
    format: int = FORMAT

    def fields(self) -> dict[str, Any]:
        """Return every field, JSON-ready."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def alternatives(self) -> tuple[GraphKey, ...]:
        """This key, and that of graphs which were made for any machine of the kind; see `travelling`."""
        others = travelling(self.target)
        return (self,) if others in (None, self.target) else (self, dataclasses.replace(self, target=others))

    @functools.cached_property
    def digest(self) -> str:
        """The first 12 hex digits of the `key_digest`, which name the folder."""
        return key_digest(self.fields())[:12]


def travelling(target: dict[str, str]) -> dict[str, str] | None:
    """The target of graphs that serve any machine of the kind which a target tells of; None where none can.

    A library of AOTInductor calls torch by functions that are kept as they are, so that a newer torch runs it, and
    CUDA's runtime by those of one major version. Not the reverse: `Manifest.at_least` names the torch that compiled it.

    >>> travelling({"torch": "2.14.1+cu130", "platform": "linux", "cuda": "13.0", "capability": "9.0"})
    {'torch': 'at least', 'platform': 'linux', 'cuda': '13', 'capability': '9.0'}
    """
    if "torch" not in target:
        return None
    majors = {"cuda": target["cuda"].partition(".")[0]} if "cuda" in target else {}
    return {**target, "torch": AT_LEAST, **majors}


def key_digest(fields: dict[str, Any]) -> str:
    """Hash all fields of a key to 64 hex digits, which name it in remote stores."""
    digest: str = blake3(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    return digest


def difference(wanted: dict[str, Any], stored: dict[str, Any]) -> str:
    """Describe which fields of two keys differ; empty where none does.

    >>> difference({"dtype": "float16", "backend": "inductor"}, {"dtype": "float32", "backend": "inductor"})
    'dtype float32 instead of float16'
    >>> difference({"target": {"torch": "2.9", "cpu": "a"}}, {"target": {"torch": "2.8", "cpu": "a"}})
    'target (torch 2.8 instead of 2.9)'
    """
    clauses = []
    for name in sorted(set(wanted) | set(stored)):
        a, b = wanted.get(name), stored.get(name)
        if a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict) and name == "target":
            inner = [f"{k} {b.get(k)} instead of {a.get(k)}" for k in sorted(set(a) | set(b)) if a.get(k) != b.get(k)]
            clauses.append(f"target ({', '.join(inner)})")
        elif name in _LARGE:
            of_block = name == "shapes" and any(isinstance(one, dict) and "form" in one for one in (a, b))
            clauses.append("how blocks are called" if of_block else name)
        else:
            clauses.append(f"{name} {b} instead of {a}")
    return ", ".join(clauses)
