"""The UNets and the VAE's halves of `benchmarks/gpu`."""

from __future__ import annotations

import functools
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from . import sampling
from .common import Bench, synchronize
from .component import Call, Component

TOKENS = 77
BATCHES = (1, 2, 4)
SIZES = ((512, 512), (768, 768), (1024, 1024), (1152, 896), (1536, 1536))
VAE_SIZES = ((1024, 1024), (2048, 2048))


class Unet(Component):
    def __init__(self, bench: Bench, model: str) -> None:
        import comfy.model_management
        from headless import host, models

        from onegraph.host.calls import model_hook as hook
        from onegraph.host.calls import run

        started = time.perf_counter()
        self.patcher = host.load(bench.checkpoint(model))
        comfy.model_management.load_models_gpu([self.patcher], force_full_load=True)
        synchronize()
        self.dtype = self.patcher.model.get_dtype_inference()
        self.config = models.config(model)
        side = bench.side
        sizes = tuple((w * side // 1024, h * side // 1024) for w, h in SIZES)
        grid = tuple(Call(w, h, batch, TOKENS) for w, h in sizes for batch in BATCHES)
        if model == bench.model:
            grid = (*grid, Call(side, side, 2, 2 * TOKENS))
        unet = self.patcher.model.diffusion_model
        super().__init__(bench, model, bench.unet_key(model), unet, Call(side, side, 2, TOKENS), grid)
        weight = next(unet.parameters())
        bench.say(f"{model} in {weight.dtype} on {weight.device}, loaded in {time.perf_counter() - started:.1f} s")
        self.settings = {"height": side, "width": side, "context_width": self.config["context_dim"]}
        run = run.start_run(self.patcher, unet, "diffusion_model.")
        self.put(refusal=run.refusal, weights=str(weight.dtype), inputs=str(self.dtype))
        for name, shapes in (("any_size", "any size"), ("exact", "exact")):
            node = f"ask-{name}"
            hooked = hook.compile_model(self.patcher, hook.ModelNodeOptions(shapes=shapes), node)[0]  # type: ignore[arg-type]
            self.ask(name, functools.partial(host.sample, hooked, steps=1, **self.settings), node)

    def inputs(self, call: Call) -> list[Any]:
        """x, timesteps, context and y."""
        import torch

        device = self.bench.device
        generator = torch.Generator(device).manual_seed(call.width + call.height + call.tokens + call.batch)

        def randn(*shape: int) -> Any:
            return torch.randn(shape, generator=generator, device=device).to(self.dtype)

        return [
            randn(call.batch, 4, call.height // 8, call.width // 8),
            torch.full((call.batch,), 500.0, device=device),
            randn(call.batch, call.tokens, self.config["context_dim"]),
            randn(call.batch, self.config["adm_in_channels"]),
        ]

    def sizes(self, call: Call) -> dict[str, int]:
        return {"batch": call.batch, "height": call.height // 8, "width": call.width // 8, "context": call.tokens}

    def run(self, module: Any, given: list[Any]) -> Any:
        return module(*given, control=None, transformer_options={})

    def in_comfyui(self) -> None:
        sampling.compare(self, self.patcher, self.settings)


class Vae(Component):
    """Either half of the VAE. The encoder only with a graph for any size, which is what its node takes by default."""

    part: str

    def __init__(self, bench: Bench) -> None:
        import comfy.model_management
        from headless import host

        from onegraph.host.calls.run import start_run
        from onegraph.host.calls.vae import hook

        self.vae = host.load_vae(bench.checkpoint(bench.model))
        comfy.model_management.load_models_gpu([self.vae.patcher], force_full_load=True)
        self.device = bench.device
        side = bench.side
        grid = tuple(Call(w * side // 1024, h * side // 1024) for w, h in VAE_SIZES)
        module, key = self.vae.first_stage_model, bench.vae_key(self.part)
        super().__init__(bench, f"vae_{self.part}", key, module, Call(side, side), grid)
        run = start_run(self.vae.patcher, module, "")
        self.put(refusal=run.refusal, dtype=str(self.vae.vae_dtype))
        self.component = f"{self.part}r"
        rules = {"any_size": "any size", "exact": "each size"} if self.part == "decode" else {"any_size": "any size"}
        for name, rule in rules.items():
            options = hook.VaeNodeOptions(parts="both", dynamic_resolution=rule)  # type: ignore[arg-type]
            hooked = hook.compile_vae(self.vae, options, "ask")[0]
            self.ask(name, functools.partial(self.whole, hooked), f"ask:{self.component}")

    @abstractmethod
    def whole(self, vae: Any) -> Any:
        """The main call through ComfyUI's VAE object."""

    def randn(self, *shape: int) -> Any:
        import torch

        generator = torch.Generator(self.device).manual_seed(5)
        return torch.randn(shape, generator=generator, device=self.device)

    def after(self) -> None:
        super().after()
        section = self.bench.result[self.key]
        if "any_size_ms" in section:
            self.put(compiled_ms=section["any_size_ms"])

    def in_comfyui(self) -> None:
        """Pixels or latents compared."""
        import torch

        from onegraph.host.calls.vae import hook
        from onegraph.host.show import status

        options = hook.VaeNodeOptions(parts="both", when_missing="eager")
        compiled, said = hook.compile_vae(self.vae, options, "bench_vae")
        torch.manual_seed(0)  # an encoder draws its latents
        plain = self.whole(self.vae)
        torch.manual_seed(0)
        result = self.whole(compiled)
        report = status.last_runs[f"bench_vae:{self.component}"].to_json()
        found: dict[str, Any] = {"node_said": said, "report": report}
        found |= {"rel_l2_to_eager": self.relative_l2(result, plain)}
        if self.part == "decode":
            difference = (255 * (result - plain).abs()).float()
            found["largest_difference_of_255"] = round(float(difference.max()), 2)
            found["mean_difference_of_255"] = round(float(difference.mean()), 4)
        self.bench.say(f"{self.part}: {found}")
        self.put(in_comfyui=found)


class Decoder(Vae):
    part = "decode"

    def inputs(self, call: Call) -> list[Any]:
        return [self.randn(call.batch, 4, call.height // 8, call.width // 8).to(self.vae.vae_dtype)]

    def sizes(self, call: Call) -> dict[str, int]:
        return {"height": call.height // 8, "width": call.width // 8}

    def run(self, module: Any, given: list[Any]) -> Any:
        return module.decode(given[0])

    def whole(self, vae: Any) -> Any:
        return vae.decode(self.given[0].float())


class Encoder(Vae):
    part = "encode"

    def inputs(self, call: Call) -> list[Any]:
        return [self.randn(call.batch, 3, call.height, call.width).clamp(-1, 1).to(self.vae.vae_dtype)]

    def sizes(self, call: Call) -> dict[str, int]:
        return {"height": call.height, "width": call.width}

    def run(self, module: Any, given: list[Any]) -> Any:
        from onegraph.host.families import ENCODER

        return ENCODER.run(module, {"x": given[0]})

    def whole(self, vae: Any) -> Any:
        pixels = self.given[0].float().movedim(1, -1) / 2 + 0.5
        return vae.encode(pixels)


def components(bench: Bench, wanted: list[str]) -> list[Component]:
    """The components of the wanted sections, weights on the device."""
    kinds: dict[str, tuple[Callable[[], Component], ...]] = {
        "unet": (lambda: Unet(bench, bench.model),),
        "refiner": (lambda: Unet(bench, bench.refiner),),
        "vae": (lambda: Decoder(bench), lambda: Encoder(bench)),
    }
    return [make() for section, makers in kinds.items() if section in wanted for make in makers]
