"""Small models that need no ComfyUI: the toy module and diffusers pipelines."""
