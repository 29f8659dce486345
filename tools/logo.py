"""docs/pictures/icon.png and banner.png, for ComfyUI's registry: three models that share one graph."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
FINER = 4  # drawn larger and made small, which smooths edges
PAPER, INK, MUTED = "#0d1b2a", "#f0f6fc", "#9fb3c8"
MODELS = ("#4493f8", "#d29922", "#f778ba")
GRAPH = "#3fb950"


def mark(drawn: ImageDraw.ImageDraw, left: float, top: float, side: float) -> None:
    """Draw the mark into a square: a dot for each model, lines to one ring."""

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * side, top + y * side

    def dot(x: float, y: float, radius: float, colour: str) -> None:
        (x0, y0), (x1, y1) = at(x - radius, y - radius), at(x + radius, y + radius)
        drawn.ellipse((x0, y0, x1, y1), fill=colour)

    places = [(0.2, 0.24), (0.2, 0.5), (0.2, 0.76)]
    for (x, y), colour in zip(places, MODELS, strict=True):
        drawn.line([at(x, y), at(0.45, y), at(0.64, 0.5)], fill=colour, width=round(0.035 * side), joint="curve")
    for (x, y), colour in zip(places, MODELS, strict=True):
        dot(x, y, 0.075, colour)
    dot(0.68, 0.5, 0.19, GRAPH)
    dot(0.68, 0.5, 0.115, PAPER)
    dot(0.68, 0.5, 0.055, GRAPH)


def icon() -> Image.Image:
    """400x400 pixels, as large as the registry takes."""
    side = 400 * FINER
    image = Image.new("RGBA", (side, side), "#00000000")
    drawn = ImageDraw.Draw(image)
    drawn.rounded_rectangle((0, 0, side - 1, side - 1), radius=side // 6, fill=PAPER)
    mark(drawn, 0, 0, side)
    return image.resize((400, 400), Image.Resampling.LANCZOS)


def banner() -> Image.Image:
    """1260x540 pixels: 21 to 9."""
    width, height = 1260 * FINER, 540 * FINER
    image = Image.new("RGB", (width, height), PAPER)
    drawn = ImageDraw.Draw(image)
    mark(drawn, 0.02 * width, (height - 0.36 * width) / 2, 0.36 * width)
    left = 0.40 * width
    drawn.text((left, 0.29 * height), "OneGraph", fill=INK, font=ImageFont.load_default(110 * FINER))
    for row, line in enumerate(("Diffusion models compiled once,", "restored in a second by every later start")):
        place = (left, (0.575 + 0.095 * row) * height)
        drawn.text(place, line, fill=MUTED, font=ImageFont.load_default(36 * FINER))
    return image.resize((1260, 540), Image.Resampling.LANCZOS)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    icon().save(FOLDER / "icon.png", optimize=True)
    banner().quantize(128, dither=Image.Dither.NONE).save(FOLDER / "banner.png", optimize=True)


if __name__ == "__main__":
    main()
