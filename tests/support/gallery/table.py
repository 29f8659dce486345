"""All families of the gallery."""

from __future__ import annotations

from .family import Family
from .images import IMAGES
from .newer import NEWER
from .others import OTHERS
from .videos import VIDEOS

FAMILIES: dict[str, Family] = {**IMAGES, **VIDEOS, **OTHERS, **NEWER}
# In `make test`: a list of references and a mask of the text, two latents and a mask of frames, sequences without
# sides, and a guider of two models.
SHORT = ("omnigen 2 edit", "ltx 2.3, first frame", "hunyuan3d 2", "ideogram 4")
