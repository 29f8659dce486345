"""`python -m onegraph.cli`, for a Python whose commands are not on PATH, as that of ComfyUI's portable builds."""

from . import main

main()
