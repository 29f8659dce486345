"""Capturing, compiling, loading and checking graphs. Knows torch and the backends, not ComfyUI."""
