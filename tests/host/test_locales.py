"""locales/<language>/nodeDefs.json: the texts of the nodes in every language that the pack speaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import node_texts
import pytest
from headless import host

LOCALES = host.ROOT / "locales"
LANGUAGES = ("en", "ja", "zh")
SYNTAX = set("@{}|")  # vue-i18n, which the page uses, reads these as links, places and plurals


def texts(language: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((LOCALES / language / "nodeDefs.json").read_text(encoding="utf-8"))
    return found


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """All texts with the way to them, in order."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def test_english_is_what_the_classes_say() -> None:
    """After a change, tools/node_texts.py writes it again, and the other languages need the same change."""
    assert texts("en") == node_texts.texts()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_there_in_every_language(language: str) -> None:
    found, english = dict(leaves(texts(language))), dict(leaves(texts("en")))
    assert [*found] == [*english]
    assert all(text.strip() == text and text for text in found.values())
    assert not [text for text in found.values() if SYNTAX & {*text}]


@pytest.mark.parametrize("language", ["ja", "zh"])
def test_descriptions_are_translated_and_name_the_same_choices(language: str) -> None:
    found, english = dict(leaves(texts(language))), dict(leaves(texts("en")))
    for way, text in found.items():
        if way[-1] in ("description", "tooltip"):
            assert text != english[way] and any(ord(letter) > 0x3000 for letter in text), way
            for choice in ("any size", "each size", "background", "auto", "SDXL", "TAESD", "ControlLora"):
                assert (choice in english[way]) <= (choice in text), (way, choice)


def test_comfyui_gives_them_to_the_page(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import folder_paths
    from app.custom_node_manager import CustomNodeManager

    (tmp_path / "ComfyUI-OneGraph").symlink_to(host.ROOT)
    kinds = folder_paths.folder_names_and_paths["custom_nodes"][1]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "custom_nodes", ([str(tmp_path)], kinds))
    given = CustomNodeManager().build_translations()
    for language in LANGUAGES:
        assert given[language]["nodeDefs"] == texts(language)
