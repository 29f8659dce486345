"""A custom node pack of the form that ComfyUI-GGUF has, for tests that run without it."""
