"""Models whose repeated blocks are compiled one by one, inside the forward that ComfyUI wrote."""
