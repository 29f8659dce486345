"""Giving and taking trust in publishers, which only commands do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ...common import reasons
from ...common.reasons import Reason
from ..files import replace_text, set_mode
from ..layout import settings_file
from . import ed25519
from .publishers import NAME, PUBLIC_KEY, TRUSTED_FILE, Publishers, TrustedPublishers


def add(publishers: Publishers, name: str, key: str) -> Reason | None:
    """Trust a publisher from now on, under a name of this user's choice.

    Args:
        publishers: whose list.
        name: 1 to 64 letters, digits, dots, dashes and underscores.
        key: the public key, 64 hex digits.

    Returns:
        Why the list stays as it is, or None.

    Raises:
        OSError: the list cannot be read or written.
    """
    key = key.lower()
    if not re.fullmatch(NAME, name):
        return reasons.BadPublisherName(name[:100])
    if not re.fullmatch(PUBLIC_KEY, key):
        return reasons.BadPublisherKey()
    if ed25519.is_weak(key):
        return reasons.WeakPublisherKey()
    trusted = publishers.trusted()
    if isinstance(trusted, reasons.PublisherListRefused):
        return trusted
    if trusted.get(name, key) != key:
        return reasons.OtherPublisherKey(name)
    _write(publishers, {**trusted, name: key})
    return None


def remove(publishers: Publishers, name: str) -> reasons.PublisherListRefused | bool:
    """Trust a publisher no longer; whether it was trusted. Raises OSError as `add` does."""
    trusted = publishers.trusted()
    if isinstance(trusted, reasons.PublisherListRefused):
        return trusted
    if name in trusted:
        _write(publishers, {other: key for other, key in trusted.items() if other != name})
    return name in trusted


def _write(publishers: Publishers, trusted: Mapping[str, str]) -> None:
    publishers.home.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = publishers.home / TRUSTED_FILE
    _write_closed(path, trusted)
    other = settings_file(TRUSTED_FILE)
    if publishers.trusted() == reasons.PublisherListRefused("open") and other is not None:  # on a drive without modes
        other.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_closed(other, trusted)


def _write_closed(path: Path, trusted: Mapping[str, str]) -> None:
    replace_text(path, TrustedPublishers(publishers=dict(trusted)).model_dump_json(indent=1))
    set_mode(path, 0o600)
