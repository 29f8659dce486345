"""Text models: a text generated eager, by block graphs and by torch.compile of each block.

`python -m benchmarks.gpu.texts --model "qwen 3 4b" --out FILE`, in an environment with ComfyUI (`COMFYUI_PATH`), on a
GPU if there is one. Weights are seeded random numbers, in bfloat16 on a GPU; each text has 512 tokens after a prompt of
300. Each way is a process of its own; that of graphs makes texts in turns with the same model's eager ones. Then the
logits of a given text are compared: 16 bits by how far they are from `float32`, which is to be the first way. One table
and one JSON file.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from benchmarks.gpu.ways import ROOT, Benchmark, Row, about_graphs, result_of

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

PROMPT, TOKENS, COMPARED = 300, 512, 48
WAYS = ("float32", "eager", "ours", "ours, restored", "torch.compile by block")
_LLAMA = "comfy.text_encoders.llama"
SIZES: dict[str, Any] = {  # by model: its class, and what differs from the class's own configuration
    "small": (
        f"{_LLAMA}:Qwen3_4B",
        {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12}
        | {"num_attention_heads": 8, "num_key_value_heads": 4},
    ),
    "qwen 3 0.6b": (f"{_LLAMA}:Qwen3_06B", {}),
    "qwen 3 4b": (f"{_LLAMA}:Qwen3_4B", {}),
    "gemma 3 12b": (f"{_LLAMA}:Gemma3_12B", {}),
}


def measure(name: str, way: str, repeats: int) -> Row:
    """Generate texts in this process: seconds of the first and of later ones, peak bytes, what ran."""
    import torch
    from headless import host

    cuda = torch.cuda.is_available()
    host.boot(cpu=not cuda)
    host.import_pack()
    from support.comfyui import texts

    dtype = torch.bfloat16 if cuda and way != "float32" else torch.float32
    with torch.inference_mode():
        clip = texts.loaded(texts.SmallText(*SIZES[name]), dtype)
    prompt = texts.tokens(PROMPT)
    if way == "float32":
        import comfy.model_management

        comfy.model_management.should_use_bf16 = lambda *args, **kwargs: False  # in which texts are computed otherwise
        torch.save(logits(clip, prompt), result_of(name, way))
        return {"way": way}
    chosen = clip
    if way.startswith("ours"):
        from onegraph.host.calls.clip_hook import ClipNodeOptions, compile_clip

        chosen = compile_clip(clip, ClipNodeOptions(backend="inductor"), "7")[0]
    elif way != "eager":
        from onegraph.host.families.text_blocks import text_models

        for module in text_models(clip.cond_stage_model).values():
            for block in module.layers:
                block.compile(dynamic=True)

    def seconds(which: Any, length: int = TOKENS) -> tuple[float, list[int]]:
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.inference_mode():
            found = which.generate(prompt, max_length=length, do_sample=True, top_k=64, seed=1)
        return time.perf_counter() - began, found

    first, found = seconds(chosen)
    second, _ = seconds(chosen)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    pairs = [(seconds(chosen)[0], seconds(clip)[0]) for _ in range(repeats)]
    row: Row = {"way": way, "tokens": len(found), "first_s": round(first, 2), "second_s": round(second, 2)}
    row["text_s"] = round(statistics.median(own for own, _ in pairs), 3)
    row["token_ms"] = round(1e3 * row["text_s"] / len(found), 2)
    row["first_token_s"] = round(statistics.median(seconds(chosen, 1)[0] for _ in range(repeats)), 3)
    if chosen is not clip:
        row["of_eager_in_turns"] = round(statistics.median(eager / own for own, eager in pairs), 2)
    if cuda:
        row["peak_mib"] = round((torch.cuda.max_memory_allocated() - held) / 2**20)
    computed = logits(chosen, prompt)
    torch.save(computed, result_of(name, way))
    if result_of(name, "float32").is_file():
        row["logits_from_float32"] = _apart(computed, torch.load(result_of(name, "float32")))
    return row | (about_graphs("7:generation") if way.startswith("ours") else {})


def logits(clip: Any, prompt: Any) -> Any:
    """The logits [tokens, vocabulary] of a text whose tokens are given, as each step of a generation computes them."""
    import torch

    model = getattr(clip.cond_stage_model, clip.cond_stage_model.clip).transformer
    given = torch.randint(2, 500, (COMPARED,), generator=torch.Generator().manual_seed(2))
    found: list[Any] = []

    def next_token(logits: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(logits[0].float().cpu())
        return given[None, len(found) - 1 : len(found)].to(logits.device)

    model.sample_token = next_token
    with torch.inference_mode():
        clip.generate(prompt, max_length=COMPARED, do_sample=False)
    del model.sample_token
    return torch.stack(found)


def _apart(found: Any, wanted: Any) -> float:
    return float((found - wanted).norm() / wanted.norm())


def compared(found: Any, eager: Any) -> Row:
    """How far logits are from eager's, and how often the likeliest token is the same one."""
    same = (found.argmax(-1) == eager.argmax(-1)).float().mean()
    return {"logits_from_eager": _apart(found, eager), "same_likeliest": round(float(same), 3)}


if __name__ == "__main__":
    Benchmark("benchmarks.gpu.texts", SIZES, measure, compared).main(str(__doc__), WAYS)
