"""What people wire, each once plainly and once with OneGraph's nodes: the same image, and calls compiled as promised.

`case` says what a case is, `weights`, `patches`, `conditioning`, `sampling` and `series` hold the table of them,
`parts` the wiring that random workflows do not have, `judge` runs a case and says what is wrong.
"""

from .. import fuzz
from . import parts

__all__ = ["fuzz", "parts"]
