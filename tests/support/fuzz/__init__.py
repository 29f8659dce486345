"""Random workflows, run plainly and with OneGraph's nodes: the image must be the same.

`ingredients` and `transformers` are what a case can consist of, `cases` draws and simplifies cases, `judge` runs one
both ways and finds the smallest that fails alike, `report` adds them up.
"""

from . import ingredients, transformers

__all__ = ["ingredients", "transformers"]
