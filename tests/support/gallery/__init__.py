"""The models that ComfyUI's templates sample, small, each with its template's own nodes on the model.

`family` is one such sampling, `nodes` what templates put around a model, `images`, `videos` and `others` are the
families, `table` has all of them, `judge` samples one uncompiled and compiled and says what is wrong.
"""
