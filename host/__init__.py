"""Everything that touches ComfyUI: hooks, weights, checkpoints, progress. The only place that imports `comfy`."""
