"""The page's texts: the same keys in every language, and every key that the page asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCALES = ROOT / "locales"
LANGUAGES = ("en", "zh", "ja")
FILES = ("main.json", "settings.json", "commands.json")
SCRIPTS = sorted((ROOT / "web" / "js").glob("*.js"))
# Keys that the page puts together: what it asks for, and where the choices stand.
FAMILIES = (
    "actions", "badge", "bake", "components", "confirm", "detail", "done", "facts", "models.counts", "models.states",
    "graphRemedies", "reasons", "remedies", "sorts", "states", "totals", "view", "workflow.verdicts",
)  # fmt: skip
PLURAL = {"one", "other"}


def read(language: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((LOCALES / language / name).read_text(encoding="utf-8"))
    return found


def leaves(tree: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def placeholders(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_languages_have_the_same_keys_and_values_to_fill_in(language: str, name: str) -> None:
    english, other = dict(leaves(read("en", name))), dict(leaves(read(language, name)))
    assert other.keys() == english.keys()
    assert all(text.strip() for text in other.values())
    assert {key for key in english if placeholders(english[key]) != placeholders(other[key])} == set()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_can_be_read_by_the_front_end(language: str, name: str) -> None:
    """Its translations take `@` and `|` for signs of their own."""
    assert [text for _, text in leaves(read(language, name)) if set(text) & set("@|")] == []


def test_every_key_that_the_page_asks_for_has_a_text() -> None:
    known = {key for key, _ in leaves(read("en", "main.json")["onegraph"])}
    groups = {key.rpartition(".")[0] for key in known}
    used: set[str] = set()
    for script in SCRIPTS:
        code = script.read_text(encoding="utf-8")
        used |= set(re.findall(r"""\bt\(\s*"([\w.]+)\"""", code))
        for either in re.findall(r"""\bt\([^()`]*?\? "([\w.]+)" : "([\w.]+)\"""", code):
            used |= set(either)
    missing = {key for key in used if key not in known and not (key in groups and f"{key}.other" in known)}
    assert missing == set()
    plain = {key.removesuffix(".one").removesuffix(".other") for key in known}
    unused = {key for key in plain - used if not f"{key}.".startswith(tuple(f"{family}." for family in FAMILIES))}
    assert unused - {"title", "tooltip"} == set()  # these name the tab: the front end itself looks them up


def test_settings_and_commands_of_the_page_are_translated() -> None:
    code = "".join(script.read_text(encoding="utf-8") for script in SCRIPTS)
    ids = set(re.findall(r'"(OneGraph\.[\w.]+)"', code))
    translated = {*read("en", "settings.json"), *read("en", "commands.json")}
    assert {one.replace(".", "_") for one in ids} == translated


def test_only_one_module_names_the_front_end() -> None:
    for script in SCRIPTS:
        code = script.read_text(encoding="utf-8")
        touched = re.findall(r"scripts/\w+\.js|\bapp\.|\bapi\.|LiteGraph|LGraph\w*|extensionManager", code)
        assert not touched or script.name == "host.js", f"{script.name}: {touched}"


def test_no_text_is_taken_for_markup() -> None:
    for script in SCRIPTS:
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", script.read_text())
        assert found == [], script.name
