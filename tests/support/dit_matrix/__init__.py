"""Diffusion transformers by families: what people add to each, once plainly and once with their blocks compiled.

`sampling` is one sampling that additions change, `weights`, `steering`, `around` and `inside` hold additions, `table`
says which family gets which and what is promised, `judge` runs a case and says what is wrong.
"""
