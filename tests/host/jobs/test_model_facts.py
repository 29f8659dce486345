"""What is told of a model by its file's header is what is told of it once it is loaded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host
from support.models import dit_files

from onegraph.compiler.blocks.repeated import repeated_blocks
from onegraph.host.jobs.explain import model_findings
from onegraph.host.jobs.model_facts import facts
from onegraph.host.jobs.sampled_models import SampledModel
from onegraph.host.weights import eligibility, weightless
from onegraph.runtime.guards.guard_cache import GuardCache

DIT_FILES = [(name, layers) for name in dit_files.SIZES for layers in ("", "fp8 scaled", "int8 convrot")]


@pytest.fixture(scope="module")
def dit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import folder_paths

    folder = tmp_path_factory.mktemp("dits")
    folder_paths.folder_names_and_paths["diffusion_models"][0].insert(0, str(folder))
    return folder


def architectures(patcher: Any) -> dict[str, str]:
    """The digests of a model's repeated blocks, by which their graphs are looked up."""
    guards, rules = GuardCache(), eligibility.rules()
    module = patcher.model.diffusion_model
    return {name: guards.of(block, rules).architecture(block) for name, block in repeated_blocks(module).items()}


@pytest.mark.parametrize("name", ["tiny_sdxl", "tiny_sd15"])
def test_the_keys_of_a_checkpoint(name: str, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint(name)
    patcher = weightless.load(weightless.read_header(path), checkpoint=True)
    wanted = [*model_findings(host.load(path), path, "inductor")]
    assert [*model_findings(patcher, path, "inductor")] == wanted
    assert wanted[0].fields
    assert all(one.is_meta for one in patcher.model.diffusion_model.parameters())


@pytest.mark.parametrize(("name", "layers"), DIT_FILES)
def test_the_keys_of_a_transformers_blocks(name: str, layers: str, dit_folder: Path) -> None:
    import comfy.sd

    model = dit_folder / f"{name} {layers}.safetensors"
    dit_files.write(name, model, dit_folder / "lora.safetensors", layers)
    loaded = comfy.sd.load_diffusion_model(str(model))
    wanted = architectures(loaded)
    header = weightless.read_header(model)
    patcher = weightless.load(header, checkpoint=False)
    assert wanted and architectures(patcher) == wanted
    format_name = {"": "float32", "fp8 scaled": "float8_e4m3fn", "int8 convrot": "int8_tensorwise"}[layers]
    assert header.formats()[0] == format_name
    told = facts(SampledModel("1", "UNETLoader", model.name, "diffusion_models", backend="auto"))
    assert (told.family, told.verdict, told.graphs) == (type(loaded.model.model_config).__name__, "recorded", 0)


def test_a_file_of_many_gigabytes_is_not_read(dit_folder: Path) -> None:
    """A header of full size, with no byte of weights behind it: neither memory nor time goes there."""
    small, large = dit_folder / "small.safetensors", dit_folder / "large.safetensors"
    dit_files.write("flux", small, dit_folder / "lora.safetensors")
    rows = {name: [*one.shape] for name, one in weightless.read_header(small).tensors.items()}
    offset, header = 0, {}
    for name, shape in rows.items():
        size = 4 * torch.Size(shape).numel()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    header["extra"] = {"dtype": "F32", "shape": [1 << 33], "data_offsets": [offset, offset + (1 << 35)]}
    text = json.dumps(header).encode()
    with large.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset + (1 << 35))
    told = facts(SampledModel("1", "UNETLoader", large.name, "diffusion_models", backend="auto"))
    assert (told.family, told.verdict) == ("Flux", "recorded"), told
    large.unlink()


def test_other_threads_are_left_alone(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What another thread allocates while a model is made without weights is what it asks for."""
    import comfy.sd

    seen: list[torch.device] = []
    load = comfy.sd.load_state_dict_guess_config

    def loading(*args: Any, **more: Any) -> Any:
        other = threading.Thread(target=lambda: seen.append(torch.empty(2).device))
        other.start()
        other.join()
        return load(*args, **more)

    monkeypatch.setattr(comfy.sd, "load_state_dict_guess_config", loading)
    weightless.load(weightless.read_header(checkpoint("tiny_sdxl")), checkpoint=True)
    assert seen == [torch.device("cpu")]
