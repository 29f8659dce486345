"""ComfyUI itself: what is used of it, its nodes, loaders and options, and where a model came from."""
