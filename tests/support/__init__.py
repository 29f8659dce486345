"""What the tests and the demo share: tiny models, a real ComfyUI in process, a real headless server."""
