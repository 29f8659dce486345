"""GET and POST /onegraph/settings: the disk budget."""

from __future__ import annotations

from ...common import reasons
from ...common.errors import in_brief
from ...graph_cache.disk import budget
from ...runtime.obtain.registry import registry
from .answers import Refusal
from .models import ChangedSettings, NoFields, Settings


def read(fields: NoFields) -> Settings:
    """GET settings."""
    allowance = registry().store.disk.allowance
    return Settings(disk_budget_bytes=allowance.bytes, disk_budget_from=allowance.origin)


def change(fields: ChangedSettings) -> Settings | Refusal:
    """POST settings. What the environment says stays in force. Nothing is removed before the next graph comes."""
    try:
        budget.change(registry().store.home, fields.disk_budget_bytes)
    except OSError as error:
        return Refusal(500, reasons.SettingsNotSaved(error.strerror or in_brief(error)))
    return read(NoFields())
