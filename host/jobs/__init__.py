"""Work in a process of its own with the whole ComfyUI: explain, bench, workflows that are run to compile."""
