"""Why something was refused: values that programs compare by `code` and that carry the sentence people read.

A reason is immutable and hashable, so that reports count by it. Facts are plain values: numbers, names, other reasons.
"""

from .base import Reason as Reason
from .base import classes as classes
from .blocks import *
from .calls import *
from .compiling import *
from .graphs import *
from .onediff import *
from .pipelines import *
from .remote import *
from .server import *
from .sharing import *
from .store import *
from .workflow import *
