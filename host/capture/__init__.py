"""What is rewritten in the compiling process, where ComfyUI's code is one that no capture can follow."""
