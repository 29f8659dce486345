"""Graphs of the small models, compiled once in a run of the tests, by the layer that needs them first.

`tools/run_tests.py` names a folder that its layers share; a layer that runs alone has one of its own. A graph is
compiled as a user's is, by ComfyUI in this process, while other layers that need it wait. Each gets a copy, as if an
earlier process of the same user had compiled it. Tests of compiling itself keep their own stores.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from headless import host, models, standstill

from ..models import dits
from ..processes import warm_compiles
from . import controlnet

VARIABLE = "ONEGRAPH_TESTING_GRAPHS"  # names the folder
_COMPILED = "compiled"  # marks a graph that is whole
_SIDE = 16  # latent units


def _unet(path: Path, family: str, **options: Any) -> None:
    from onegraph.host.calls import model_hook

    model = model_hook.compile_model(host.load(path), model_hook.ModelNodeOptions(**options))[0]
    for cfg in (7.0, 1.0):
        host.sample(model, cfg=cfg, context_width=models.config(family)["context_dim"])


def _video(path: Path) -> None:
    from onegraph.host.calls import model_hook

    model = model_hook.compile_model(host.load(path), model_hook.ModelNodeOptions(backend="inductor"))[0]
    prompts = {name: host.conditioning(1, 1024, seed) for name, seed in (("positive", 11), ("negative", 12))}
    host.sample(model, batch=5, steps=1, height=64, width=80, **prompts)


def _conditioning(net: Path, family: str) -> Any:
    width = models.config(family)["context_dim"]
    given = host.conditioning(77, width, 11), host.conditioning(77, width, 12)
    return controlnet.steered(controlnet.load(net), given=given)


def _steered_unet(path: Path, family: str) -> None:
    """The UNet with residuals as further inputs; what makes them runs eager."""
    from onegraph.host.calls import model_hook

    net = controlnet.write_controlnet(family, path.with_name("net.safetensors"))
    model = model_hook.compile_model(host.load(path), model_hook.ModelNodeOptions(backend="inductor"))[0]
    controlnet.sample(model, _conditioning(net, family))


def _adapted_unet(path: Path, family: str) -> None:
    """The UNet with the residuals of a T2I adapter, of which some of its input blocks get one."""
    from onegraph.host.calls import model_hook

    model = model_hook.compile_model(host.load(path), model_hook.ModelNodeOptions(backend="inductor"))[0]
    controlnet.sample(model, controlnet.steered(controlnet.adapter(models.config(family)["model_channels"])))


def _net(path: Path, family: str) -> None:
    from onegraph.host.calls.controlnet_hook import compile_controlnet
    from onegraph.host.calls.model_hook import ModelNodeOptions

    net = controlnet.load(controlnet.write_controlnet(family, path.with_name("net.safetensors")))
    compiled = compile_controlnet(net, ModelNodeOptions(backend="inductor"))[0]
    controlnet.sample(host.load(path), controlnet.steered(compiled))


def _vae(path: Path, parts: str) -> None:
    import torch

    from onegraph.host.calls.vae import hook as vae_hook

    vae = vae_hook.compile_vae(host.load_vae(path), vae_hook.VaeNodeOptions(parts=parts))[0]
    with torch.inference_mode():
        if parts == "encoder":
            vae.encode(torch.rand(1, 8 * _SIDE, 8 * _SIDE, 3))
        else:
            vae.decode(torch.randn(1, 4, _SIDE, _SIDE))


def _dits(*names: str) -> Callable[[Path], None]:
    """Diffusion transformers whose blocks are alike; each kind of block is compiled when its first call is over."""

    def use(path: Path) -> None:
        from onegraph.host.calls import model_hook

        for name in names:
            model = model_hook.compile_model(dits.load(name), model_hook.ModelNodeOptions(backend="inductor"))[0]
            dits.sample(model, name)

    return use


def _calling_attention(family: str) -> Callable[[Path], None]:
    """A family with another attention than the host's, which graphs call."""

    def attention(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def use(path: Path) -> None:
        from onegraph.host.calls import model_hook

        model = model_hook.compile_model(dits.load(family), model_hook.ModelNodeOptions(backend="inductor"))[0]
        model.model_options["transformer_options"]["optimized_attention_override"] = attention
        dits.sample(model, family)

    return use


@dataclass(frozen=True)
class Kind:
    """What can be shared.

    Attributes:
        family: of `headless.models`; empty: there is no checkpoint.
        use: runs a checkpoint through its nodes.
        graphs: how many that compiles.
        vae: what the checkpoint has of a VAE.
    """

    family: str
    use: Callable[[Path], None]
    graphs: int = 1
    vae: str = "none"


# Families whose graphs are also made for other attention than the host's, and how many these are.
CALLING_ATTENTION = {
    "flux": 2, "z-image": 2, "qwen-image": 1, "wan 2.1 t2v": 1, "krea 2": 2, "minimax h3": 1, "ltx 2": 1, "sd 3.5": 3,
    "hunyuan video 1.5": 2,
}  # fmt: skip
KINDS: Mapping[str, Kind] = {
    "sdxl": Kind("tiny_sdxl", lambda path: _unet(path, "tiny_sdxl", backend="inductor")),
    "sd15": Kind("tiny_sd15", lambda path: _unet(path, "tiny_sd15", backend="inductor")),
    "refiner": Kind("tiny_refiner", lambda path: _unet(path, "tiny_refiner", backend="inductor")),
    "sdxl steered": Kind("tiny_sdxl", lambda path: _steered_unet(path, "tiny_sdxl")),
    "sd15 steered": Kind("tiny_sd15", lambda path: _steered_unet(path, "tiny_sd15")),
    "sdxl adapted": Kind("tiny_sdxl", lambda path: _adapted_unet(path, "tiny_sdxl")),
    "sdxl controlnet": Kind("tiny_sdxl", lambda path: _net(path, "tiny_sdxl")),
    "inpaint": Kind("tiny_inpaint", lambda path: _unet(path, "tiny_inpaint", backend="inductor")),
    "ip2p": Kind("tiny_ip2p", lambda path: _unet(path, "tiny_ip2p", backend="inductor")),
    "svd": Kind("tiny_svd", lambda path: _video(path)),
    # 128x128 with CFG, and one half of it alone.
    "sdxl by oneflow": Kind("tiny_sdxl", lambda path: _unet(path, "tiny_sdxl", backend="oneflow"), graphs=2),
    "decoder": Kind("tiny_sdxl", lambda path: _vae(path, "decoder"), vae="both"),
    "encoder": Kind("tiny_sdxl", lambda path: _vae(path, "encoder"), vae="both"),
    "dit flux": Kind("", _dits("flux"), graphs=2),
    "dit flux 2": Kind("", _dits("flux 2"), graphs=2),
    "dit z-image": Kind("", _dits("z-image"), graphs=2),
    "dit qwen-image": Kind("", _dits("qwen-image")),
    "dit qwen-image-edit 2511": Kind("", _dits("qwen-image-edit 2511")),
    "dit wan 2.1 t2v": Kind("", _dits("wan 2.1 t2v")),
    "dit wan 2.1 i2v": Kind("", _dits("wan 2.1 i2v")),
    "dit wan 2.1 i2v, clip vision": Kind("", _dits("wan 2.1 i2v, clip vision")),
    "dit krea 2": Kind("", _dits("krea 2"), graphs=2),
    "dit minimax h3": Kind("", _dits("minimax h3")),
    "dit minimax h3 i2v": Kind("", _dits("minimax h3 i2v")),
    "dit ltx 2": Kind("", _dits("ltx 2")),
    "dit anima": Kind("", _dits("anima")),
    "dit chroma": Kind("", _dits("chroma"), graphs=2),
    "dit hunyuan video 1.5": Kind("", _dits("hunyuan video 1.5"), graphs=2),
    "dit sd 3.5": Kind("", _dits("sd 3.5"), graphs=3),
    **{
        f"dit {family} calling attention": Kind("", _calling_attention(family), graphs)
        for family, graphs in CALLING_ATTENTION.items()
    },
}


_LIKE = {"flux schnell": "flux", "flux kontext": "flux", "flux fill": "flux", "wan 2.2 5B": "wan 2.1 t2v"}


def dit_graphs(family: str) -> tuple[str, ...]:
    """The kinds of graphs that a family of diffusion transformers needs; some have the same blocks."""
    if family == "flux":
        return ("dit flux", "dit flux calling attention")
    if family.startswith("qwen-image"):
        return ("dit qwen-image", "dit qwen-image-edit 2511")
    return (f"dit {_LIKE.get(family, family)}",)


class SharedGraphs:
    """The graphs of one run of the tests.

    Args:
        folder: shared by the run's layers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def adopt_user(self, home: Path) -> Path:
        """Give a user's graph folder the key that signs these graphs, before it has one of its own."""
        host.import_pack()
        from onegraph.graph_cache.trust.signing import KEY_FILE, Signer

        Signer(self._folder).key()
        if not (home / KEY_FILE).exists():
            home.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._folder / KEY_FILE, home / KEY_FILE)
        assert Signer(home).key() == Signer(self._folder).key(), f"{home} belongs to another user"
        return home

    def give(self, home: Path, file: Path | None, *kinds: str) -> None:
        """Put graphs into a user's folder and beside a model's file, as an earlier process would have left them.

        Args:
            home: that user's graph folder.
            file: None: no copy lies beside one.
            kinds: of `KINDS`; compiled here where no other layer has.
        """
        self.adopt_user(home)
        from onegraph.graph_cache import layout
        from onegraph.graph_cache.disk import marks
        from onegraph.graph_cache.model_hash import ModelSource, hash_file

        source = ModelSource(file, hash_file(file)) if file is not None else ModelSource(None, "shared")
        beside = layout.beside(source)
        (home / layout.GRAPHS_FOLDER).mkdir(mode=0o700, exist_ok=True)
        for kind in kinds:
            entries = self._compiled(kind)
            standstill.moved()
            for entry in entries:
                for location in (home / layout.GRAPHS_FOLDER, *([beside] if beside is not None else [])):
                    target = location / entry.parent.name / entry.name
                    if not target.exists():
                        shutil.copytree(entry, target)
                marks.note_use(home / layout.GRAPHS_FOLDER / entry.parent.name / entry.name, "compiled", source)

    def _compiled(self, name: str) -> list[Path]:
        """The entries of a kind, each in the folder of its component."""
        from filelock import FileLock

        folder = self._folder / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            if not (folder / _COMPILED).exists():
                self._compile(KINDS[name], folder)
                (folder / _COMPILED).touch()
        return [manifest.parent for manifest in folder.glob("home/graphs/*/*/manifest.json")]

    def _compile(self, kind: Kind, folder: Path) -> None:
        host.boot()
        from onegraph.graph_cache.store import Store
        from onegraph.runtime.obtain import registry as registry_module
        from onegraph.runtime.obtain.registry import Registry
        from onegraph.runtime.policy import ANY_SPEED

        shutil.rmtree(folder / "models", ignore_errors=True)  # of a layer that was ended meanwhile
        path = folder / "models" / f"{kind.family}.safetensors"
        if kind.family:
            models.write_checkpoint(kind.family, path, vae=kind.vae)
        registry = Registry(Store(self.adopt_user(folder / "home")), policy=ANY_SPEED)
        with registry_module.using(registry), pytest.MonkeyPatch.context() as patch:
            warm_compiles.copies(patch)
            kind.use(path)
        done = registry.counters
        assert done.compiles == kind.graphs, done.reasons
        assert not kind.family or not done.eager_calls, done.reasons
        registry.close()


def shared_by_layers(alone: Callable[[], Path]) -> SharedGraphs:
    """The graphs of this run. `alone` makes a folder for a layer that runs by itself."""
    given = os.environ.get(VARIABLE)
    return SharedGraphs(Path(given) if given else alone())
