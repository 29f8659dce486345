"""ComfyUI shows web/docs/<node id>/<language>.md beside a node, else <node id>.md: its inputs and their choices."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any

import pytest
from comfy_api.latest import io
from headless import host

from onegraph import nodes as pack

PAGES = host.ROOT / "web" / "docs"
HEADS = {
    "en": "| input | choices | meaning |\n",
    "ja": "| 入力 | 選択肢 | 意味 |\n",
    "zh": "| 输入 | 选项 | 含义 |\n",
}
FILES = {"ckpt_name"}  # inputs whose choices are a user's files


@dataclass(frozen=True)
class Row:
    """What a page says of an input."""

    choices: list[str]
    meaning: str


def schemas() -> dict[str, io.Schema]:
    """Of the nodes that ComfyUI is given, by node id, without OneDiff's, whose descriptions name what to use."""
    found = [node.define_schema() for node in asyncio.run(pack.OneGraphExtension().get_node_list())]
    assert len({schema.node_id for schema in found}) == len(found) > 4
    return {schema.node_id: schema for schema in found if not schema.is_deprecated}


def page(node_id: str, language: str = "en") -> str:
    name = f"{node_id}.md" if language == "en" else f"{node_id}/{language}.md"
    return (PAGES / name).read_text(encoding="utf-8")


def rows(node_id: str, language: str = "en") -> dict[str, Row]:
    """A page's table of inputs; one row may be about several."""
    table = page(node_id, language).split(HEADS[language])[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[1:]:
        names, choices, meaning = (cell.strip() for cell in line.strip("|").split("|"))
        found |= {name: Row(re.findall("`([^`]+)`", choices), meaning) for name in re.findall(r"`(\w+)`", names)}
    return found


def choices(schema: io.Schema) -> dict[str, list[Any]]:
    """Of a node's inputs; none where there is nothing to choose, or the user's files."""
    inputs = [given for given in schema.inputs if given.id not in FILES]
    return {given.id: [*given.options] for given in inputs if isinstance(given, io.Combo.Input) and given.options}


def test_every_node_has_a_help_page_and_every_page_a_node() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*schemas()}


def test_pages_list_all_inputs_in_their_order() -> None:
    for node_id, schema in schemas().items():
        assert [*rows(node_id)] == [given.id for given in schema.inputs], node_id


def test_pages_list_all_choices_or_name_the_node_whose_page_does() -> None:
    known = schemas()
    pages = {schema.display_name: node_id for node_id, schema in known.items()}
    for node_id, schema in known.items():
        for name, row in rows(node_id).items():
            options = choices(schema).get(name, [])
            if row.choices or not options:
                assert row.choices == options, (node_id, name)
                continue
            (other,) = (page for title, page in pages.items() if title and title in row.meaning)
            assert rows(other)[name].choices == options, (node_id, name)


@pytest.mark.parametrize("language", ["ja", "zh"])
def test_pages_in_other_languages_say_the_same(language: str) -> None:
    """The same inputs, choices, titles, tables, and texts in backticks, which are those of nodes and files."""
    assert {file.parent.name for file in PAGES.glob(f"*/{language}.md")} == {*schemas()}
    names = json.loads((host.ROOT / "locales" / language / "nodeDefs.json").read_text(encoding="utf-8"))
    for node_id in schemas():
        english, other = page(node_id), page(node_id, language)
        assert {name: row.choices for name, row in rows(node_id, language).items()} == {
            name: row.choices for name, row in rows(node_id).items()
        }
        labels = {name: given["name"] for name, given in names[node_id]["inputs"].items()}
        for name in ("backend", "shapes", "when_missing", "parts"):  # as the node shows them
            assert name not in labels or f"`{name}`（{labels[name]}）" in other
        assert other.splitlines()[0] == f"# {names[node_id]['display_name']}"
        assert sorted(re.findall("`[^`]+`", other)) == sorted(re.findall("`[^`]+`", english)), node_id
        assert other.count("\n|") == english.count("\n|") and other.count("\n\n") == english.count("\n\n")
