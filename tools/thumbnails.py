"""example_workflows/<title>.jpg: pictures of the templates for ComfyUI's list of them: their titles and graphs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

FOLDER = Path(__file__).resolve().parents[1] / "example_workflows"
SIDE = 480  # of the picture: ComfyUI's cards are squares
FINER = 2  # drawn larger and made small, which smooths edges
MARGIN, TOP = 28, 176  # of the graph
PAPER, NODE, HEAD, OWN, INK, MUTED, SLOT = "#0d1b2a", "#2b394a", "#435369", "#3fb950", "#f0f6fc", "#b6c6d6", "#9aa4b2"
SKIES = {  # behind a title, by its first word
    "FLUX.1": "#7a3b1d",
    "LTX": "#7a1f4d",
    "Qwen-Image": "#4b2f8a",
    "SDXL": "#1d4f7a",
    "Wan": "#1f6b62",
    "Z-Image": "#76601b",
}
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


def box(node: dict[str, Any]) -> Box:
    """A node's place with its header, which ComfyUI draws above it."""
    (x, y), (width, height) = node["pos"], node["size"]
    return x, y - HEADER, x + width, y + height


class Drawing:
    """A picture with a title, and below it a workflow's own places."""

    def __init__(self, title: str, around: list[Box]) -> None:
        left, top = min(b[0] for b in around), min(b[1] for b in around)
        right, bottom = max(b[2] for b in around), max(b[3] for b in around)
        side, edge, above = SIDE * FINER, MARGIN * FINER, TOP * FINER
        self.scale = min((side - 2 * edge) / (right - left), (side - above - edge) / (bottom - top))
        self._x = (side - self.scale * (right - left)) / 2 - self.scale * left
        self._y = (side + above - edge - self.scale * (bottom - top)) / 2 - self.scale * top
        self.image = Image.new("RGB", (side, side), PAPER)
        sky = Image.new("RGB", self.image.size, SKIES[title.split()[0].rstrip(",")])
        self.image.paste(sky, mask=Image.linear_gradient("L").rotate(180).resize(self.image.size))
        self.draw = ImageDraw.Draw(self.image)
        model, _, task = title.partition(", ")
        for text, size, y, colour in ((model, 50, 66, INK), (task, 27, 122, MUTED)):
            font = ImageFont.load_default(size * FINER)
            font = ImageFont.load_default(size * FINER * min(1, (side - 2 * edge) / font.getlength(text)))
            self.draw.text((edge, y * FINER), text, fill=colour, font=font, anchor="lm")

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self._x + self.scale * x, self._y + self.scale * y

    def node(self, node: dict[str, Any]) -> None:
        x0, y0, x1, y1 = box(node)
        radius = 12 * self.scale
        self.draw.rounded_rectangle((*self.at(x0, y0), *self.at(x1, y1)), radius, fill=NODE)
        own = node["type"].startswith("OneGraph")
        bounds = (*self.at(x0, y0), *self.at(x1, y1 if own else y0 + HEADER))
        self.draw.rounded_rectangle(bounds, radius, fill=OWN if own else HEAD, corners=(True, True, own, own))

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


def thumbnail(file: Path) -> bytes:
    """The picture of a template, a JPEG."""
    workflow = json.loads(file.read_text())
    nodes = {node["id"]: node for node in workflow["nodes"]}
    drawing = Drawing(file.stem, [box(node) for node in nodes.values()])
    for node in nodes.values():
        drawing.node(node)
    for _, source, output, target, place, kind in workflow["links"]:
        drawing.link(slot(nodes[source], output, "output"), slot(nodes[target], place, "input"), kind)
    written = io.BytesIO()
    drawing.image.resize((SIDE, SIDE), Image.Resampling.LANCZOS).save(written, "jpeg", quality=88, optimize=True)
    return written.getvalue()


def main() -> None:
    for file in sorted(FOLDER.glob("*.json")):
        file.with_suffix(".jpg").write_bytes(thumbnail(file))


if __name__ == "__main__":
    main()
