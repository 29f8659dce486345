"""Inputs that several nodes share. Names, choices and defaults are final."""

from __future__ import annotations

from comfy_api.latest import io

# What people type into the search for nodes who want this and do not know its name.
SEARCHED = ("onegraph", "faster", "speed up", "optimize", "torch compile", "tensorrt", "onediff", "aot")


def backend() -> io.Combo.Input:
    return io.Combo.Input(
        "backend",
        options=["auto", "inductor", "oneflow", "off"],
        default="auto",
        tooltip="auto picks the best backend that works here; off leaves everything as without this node.",
    )


def shapes() -> io.Combo.Input:
    return io.Combo.Input(
        "shapes",
        options=["any size", "exact"],
        default="any size",
        tooltip="any size: one graph for all image sizes, batches and prompt lengths. "
        "exact: one graph for each, a little faster per step.",
    )


def when_missing() -> io.Combo.Input:
    return io.Combo.Input(
        "when_missing",
        options=["wait", "background", "eager"],
        default="wait",
        tooltip="When no graph is cached yet. wait: compile now, once. background: this run is uncompiled, "
        "a later run uses the graph. eager: never compile.",
    )


def parts() -> io.Combo.Input:
    return io.Combo.Input(
        "parts",
        options=["decoder", "encoder", "both"],
        default="decoder",
        tooltip="What to compile: the decoder (latents to image), the encoder (image to latents), or both.",
    )


def texts() -> io.Combo.Input:
    return io.Combo.Input(
        "parts",
        options=["generation", "encoding", "both"],
        default="generation",
        tooltip="What to compile: the generation of texts, token by token; the encoding of prompts, which is one call "
        "for each; or both.",
    )


def dynamic_resolution() -> io.Combo.Input:
    return io.Combo.Input(
        "dynamic_resolution",
        options=["auto", "skip", "any size", "each size"],
        default="auto",
        tooltip="For workflows whose resolution changes. any size: one graph for all. each size: one graph per size, "
        "at most 8. skip: no graph while resolutions vary. auto: any size where the backend can, else careful.",
    )
