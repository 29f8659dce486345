"""Plans of models for absent GPUs: what is fetched of a model's file, what is refused, and the gallery's plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.fleet.servers import FileServer, free_port, http_server, ranges
from support.store.command import onegraph

from onegraph.backends.inductor import absent_gpu
from onegraph.cli import headers, plans
from onegraph.cli.headers import HeaderNotFetchedError
from onegraph.graph_cache.store import Store
from onegraph.host.weights import weightless

ROOT = Path(__file__).parents[3]
DESCRIPTION = torch.tensor([*b'{"format": "float8_e4m3fn"}'], dtype=torch.uint8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file with a large tensor, and small ones that describe it or do not."""
    pytest.importorskip("numpy")  # by which safetensors writes
    path = tmp_path / "hub" / "model.safetensors"
    path.parent.mkdir()
    tensors = {
        "a.weight": torch.ones(4 << 20, dtype=torch.bfloat16),
        "a.bias": torch.ones(8, dtype=torch.float32),
        "a.weight_scale": torch.tensor(0.25),
        "a.comfy_quant": DESCRIPTION,
    }
    save_file(tensors, path, {"format": "pt"})
    return path


@pytest.fixture
def served(model: Path) -> Iterator[FileServer]:
    with http_server(model.parent) as server:
        server.fault = ranges
        yield server


def test_what_is_fetched_tells_what_the_file_tells(served: FileServer, model: Path, tmp_path: Path) -> None:
    fetched, digest = headers.fetch(f"{served.url}/model.safetensors", tmp_path / "headers", dtype="BF16")
    assert len(served.asked) == 4  # the length, the header, the scale and the description
    whole, read = weightless.read_header(model), weightless.read_header(fetched)
    assert read.metadata == whole.metadata == {"format": "pt"}
    assert read.formats() == whole.formats() == ("float8_e4m3fn", "bfloat16")
    assert {name: (one.shape, one.dtype, one.is_meta) for name, one in read.tensors.items()} == {
        name: (one.shape, one.dtype, one.is_meta) for name, one in whole.tensors.items()
    }
    for name in ("a.weight_scale", "a.comfy_quant"):
        assert torch.equal(read.tensors[name], whole.tensors[name])
    assert fetched.name == "model.safetensors" and fetched.stat().st_size == model.stat().st_size
    assert fetched.stat().st_blocks * 512 < 64 << 10  # of 8 MB
    assert headers.fetch(f"{served.url}/model.safetensors", tmp_path / "headers")[1] == digest


def test_a_pin_is_checked_once_and_then_needs_no_network(served: FileServer, model: Path, tmp_path: Path) -> None:
    url, folder = f"{served.url}/model.safetensors", tmp_path / "headers"
    _, digest = headers.fetch(url, tmp_path / "other")
    pinned, _ = headers.fetch(url, folder, digest)
    served.asked.clear()
    assert headers.fetch(url, folder, digest) == (pinned, digest) and served.asked == []
    with pytest.raises(HeaderNotFetchedError, match=f"another file than the plan pins: its digest is {digest}"):
        headers.fetch(url, folder, 64 * "0")
    pinned.unlink()
    with pytest.raises(HeaderNotFetchedError, match="holds BF16 and not F8_E4M3"):
        headers.fetch(url, folder, digest, "F8_E4M3")
    assert [*folder.rglob("*.safetensors")] == []


def changed(model: Path, old: bytes, new: bytes) -> None:
    data = model.read_bytes()
    assert old in data and len(old) == len(new)
    model.write_bytes(data.replace(old, new, 1))


def test_a_pin_covers_what_describes_the_weights(served: FileServer, model: Path, tmp_path: Path) -> None:
    url = f"{served.url}/model.safetensors"
    _, digest = headers.fetch(url, tmp_path / "headers")
    changed(model, b"float8_e4m3fn", b"float8_e5m2fn")
    with pytest.raises(HeaderNotFetchedError, match="another file"):
        headers.fetch(url, tmp_path / "headers", digest)


@pytest.mark.parametrize("fault", ["no ranges", "missing", "nobody", "no header", "half"])
def test_what_cannot_be_fetched_is_told(fault: str, served: FileServer, model: Path, tmp_path: Path) -> None:
    url = f"{served.url}/model.safetensors"
    if fault == "no ranges":
        served.fault = None
    elif fault == "missing":
        model.unlink()
    elif fault == "nobody":
        url = f"http://127.0.0.1:{free_port()}/model.safetensors"
    elif fault == "no header":
        model.write_bytes(b"<html>Not found</html>")
    else:
        model.write_bytes(model.read_bytes()[:100])
    with pytest.raises(HeaderNotFetchedError, match=r"put the file beside the plan\.$"):
        headers.fetch(url, tmp_path / "headers")
    assert not (tmp_path / "headers").exists()


def plan_of(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text)
    return path


ABSENT = '[absent]\narchitectures = ["sm_86"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'{ABSENT}[[bake]]\nmodel = "a"\nworkflow = "b"', "either a workflow, a call or a model"),
        ('[[bake]]\nmodel = "a"', "has [absent]"),
        (f'store = "x"\n{ABSENT}[[bake]]\nmodel = "a"\n[[bake]]\nworkflow = "b"', "in a plan of their own"),
        (f'{ABSENT}[[bake]]\nworkflow = "b"', "in a plan of their own"),
        ('[[bake]]\nworkflow = "b"', "names no store"),
        ('[absent]\narchitectures = []\n[[bake]]\nmodel = "a"', "absent.architectures"),
        (f'{ABSENT}[[bake]]\nmodel = "a"\nsha256 = "?"', "bake.0.sha256"),
    ],
)
def test_a_plan_that_is_none_says_why(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(plans.PlanError) as error:
        plans.read(plan_of(tmp_path, text))
    assert said in str(error.value)


def test_a_plan_whose_models_are_not_there_ends_with_3(served: FileServer, store: Store, tmp_path: Path) -> None:
    (tmp_path / "comfyui").mkdir()
    (tmp_path / "comfyui" / "main.py").touch()
    path = plan_of(
        tmp_path,
        f'{ABSENT}[[bake]]\nname = "A"\nmodel = "{served.url}/none.safetensors"\n[[bake]]\nmodel = "b.safetensors"\n',
    )
    command = ["bake", path, "--comfyui", tmp_path / "comfyui"]
    done = onegraph(store, *command, "--json")
    rows = json.loads(done.stdout)["graphs"]
    assert (done.exit_code, [(row["event"], row["model"], row["name"]) for row in rows]) == (
        3, [("failed", "none.safetensors", "A"), ("failed", "b.safetensors", "")],
    )  # fmt: skip
    assert "404" in rows[0]["text"] and "does not exist" in rows[1]["text"]
    assert onegraph(store, *command, "--dry-run").exit_code == 2
    fleet = plan_of(tmp_path, 'store = "file:///x"\n[[bake]]\nworkflow = "b"')
    assert onegraph(store, "bake", fleet, "--target", "sm_86", "--comfyui", tmp_path / "comfyui").exit_code == 2


def test_the_gallerys_plan_names_files_of_templates() -> None:
    plan = plans.read(ROOT / "plans" / "gallery.toml")
    assert plan.absent is not None and {*plan.absent.architectures} <= {*absent_gpu.GPUS}
    models = [bake.model for bake in plan.bake]
    assert len({*models}) == len(models) == 14
    assert all(headers.url_of(model).endswith(".safetensors") for model in models)
    templates = json.loads((ROOT / "docs" / "gallery.json").read_text())["templates"]
    sampled = {one["file"] for template in templates for one in template["sampled"]}
    untemplated = {model.rpartition("/")[2] for model in models} - sampled  # a VAE, and files of the same repositories
    assert untemplated == {
        "ae.safetensors",
        "qwen_image_bf16.safetensors", "wan2.1_t2v_14B_fp16.safetensors",
        "wan2.2_t2v_high_noise_14B_fp16.safetensors", "wan2.2_i2v_high_noise_14B_fp16.safetensors",
    }  # fmt: skip
