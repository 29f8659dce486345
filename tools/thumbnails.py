"""example_workflows/<name>.jpg: pictures of the templates for ComfyUI's list of them, drawn from their graphs."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

FOLDER = Path(__file__).resolve().parents[1] / "example_workflows"
SIZE = (640, 360)
FINER = 2  # drawn larger and made small, which smooths edges
MARGIN = 24
PAPER, NODE, HEAD, OWN, INK, SLOT = "#1b1e24", "#343a44", "#272c35", "#1f6f3d", "#e6edf3", "#9aa4b2"
COLOURS = {
    "MODEL": "#b39ddb",
    "CLIP": "#ffd500",
    "VAE": "#ff6e6e",
    "CONDITIONING": "#ffa931",
    "LATENT": "#ff9cf9",
    "IMAGE": "#64b5f6",
    "CONTROL_NET": "#6ee7b7",
}
HEADER, ROW = 30, 20  # in the units of a workflow's own places

Box = tuple[float, float, float, float]


def title(node: dict[str, Any]) -> str:
    """A node's title as the page shows it, or its class in words."""
    if "title" in node:
        return str(node["title"])
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", node["type"])
    return words.removeprefix("One Graph ")


def box(node: dict[str, Any]) -> Box:
    """A node's place with its header, which ComfyUI draws above it."""
    (x, y), (width, height) = node["pos"], node["size"]
    return x, y - HEADER, x + width, y + height


class Drawing:
    """A picture with a workflow's own places."""

    def __init__(self, around: list[Box]) -> None:
        left, top = min(b[0] for b in around), min(b[1] for b in around)
        right, bottom = max(b[2] for b in around), max(b[3] for b in around)
        width, height = SIZE[0] * FINER, SIZE[1] * FINER
        edge = MARGIN * FINER
        self.scale = min((width - 2 * edge) / (right - left), (height - 2 * edge) / (bottom - top))
        self._x = (width - self.scale * (right - left)) / 2 - self.scale * left
        self._y = (height - self.scale * (bottom - top)) / 2 - self.scale * top
        self.image = Image.new("RGB", (width, height), PAPER)
        self.draw = ImageDraw.Draw(self.image)

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self._x + self.scale * x, self._y + self.scale * y

    def node(self, node: dict[str, Any]) -> None:
        x0, y0, x1, y1 = box(node)
        radius = 8 * self.scale
        corners = (*self.at(x0, y0), *self.at(x1, y1))
        self.draw.rounded_rectangle(corners, radius, fill=NODE)
        head = OWN if node["type"].startswith("OneGraph") else HEAD
        bounds = (*self.at(x0, y0), *self.at(x1, y0 + HEADER))
        self.draw.rounded_rectangle(bounds, radius, fill=head, corners=(True, True, False, False))
        font = ImageFont.load_default(max(8.0, 17 * self.scale))
        text = title(node)
        while text and font.getlength(text) > self.scale * (x1 - x0 - 20):
            text = text[:-1]
        self.draw.text(self.at(x0 + 10, y0 + HEADER / 2), text, fill=INK, font=font, anchor="lm")
        for i, _ in enumerate(node.get("widgets_values") or ()):
            y = y0 + HEADER + 14 + ROW * (len(node["inputs"]) + i)
            if y + 14 < y1:
                bar = (*self.at(x0 + 12, y), *self.at(x1 - 12, y + 13))
                self.draw.rounded_rectangle(bar, 5 * self.scale, fill=HEAD)

    def link(self, start: tuple[float, float], end: tuple[float, float], kind: str) -> None:
        """A curve from an output to an input, as ComfyUI bends them."""
        (ax, ay), (bx, by) = self.at(*start), self.at(*end)
        reach = max(abs(bx - ax) / 2, 40 * self.scale)
        points = []
        for i in range(33):
            t = i / 32
            p, q, r, s = (1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t * t, t**3
            x = p * ax + q * (ax + reach) + r * (bx - reach) + s * bx
            points.append((x, p * ay + q * ay + r * by + s * by))
        colour = COLOURS.get(kind, SLOT)
        self.draw.line(points, fill=colour, width=max(2, round(3 * self.scale)), joint="curve")
        for x, y in (points[0], points[-1]):
            radius = 5 * self.scale
            self.draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def slot(node: dict[str, Any], place: int, side: str) -> tuple[float, float]:
    x0, y0, x1, _ = box(node)
    return (x0 if side == "input" else x1), y0 + HEADER + 10 + ROW * place


def thumbnail(workflow: dict[str, Any]) -> bytes:
    """The picture of a workflow as ComfyUI saves it, a JPEG."""
    nodes = {node["id"]: node for node in workflow["nodes"]}
    drawing = Drawing([box(node) for node in nodes.values()])
    for node in nodes.values():
        drawing.node(node)
    for _, source, output, target, place, kind in workflow["links"]:
        drawing.link(slot(nodes[source], output, "output"), slot(nodes[target], place, "input"), kind)
    written = io.BytesIO()
    drawing.image.resize(SIZE, Image.Resampling.LANCZOS).save(written, "jpeg", quality=88, optimize=True)
    return written.getvalue()


def main() -> None:
    for file in sorted(FOLDER.glob("*.json")):
        file.with_suffix(".jpg").write_bytes(thumbnail(json.loads(file.read_text())))


if __name__ == "__main__":
    main()
