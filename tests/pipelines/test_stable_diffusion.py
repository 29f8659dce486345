"""A StableDiffusionPipeline: compiled, restored, saved and loaded; what is asked of it that no graph serves."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from support.models import pipes
from support.processes import second_pipe

from onegraph.pipelines import PipelineError, compile_pipe, load_pipe, save_pipe
from onegraph.runtime.obtain.registry import Registry


def test_the_image_is_eagers_at_all_sizes(registry: Registry) -> None:
    eager, pipe = pipes.sd(), compile_pipe(pipes.sd(), when_missing="eager")
    for height, width, tokens in ((64, 64, 77), (80, 72, 77), (128, 64, 154)):
        size = {"height": height, "width": width, "tokens": tokens}
        image = pipes.image(pipe, **size)
        assert pipes.distance(image, pipes.image(eager, **size)) <= 2, size
        assert pipes.distance(image, pipes.image(eager, seed=1, **size)) > 50
    report = pipe.onegraph.report()
    assert report["unet"].compiled_calls == 6 and not report["unet"].eager, str(report)
    assert report["vae.decoder"].compiled_calls == 3 and not report["vae.decoder"].eager, str(report)
    assert registry.counters.compiles == 0 and registry.counters.restores == 2


def test_another_checkpoint_takes_the_same_graphs(registry: Registry) -> None:
    pipe, eager = compile_pipe(pipes.sd(seed=5), when_missing="eager"), pipes.sd(seed=5)
    assert pipes.distance(pipes.image(pipe), pipes.image(eager)) <= 2
    assert pipe.onegraph.report()["unet"].compiled_calls == 2


def test_eight_images_at_once_are_split(registry: Registry) -> None:
    pipe, eager = compile_pipe(pipes.sd(), when_missing="eager"), pipes.sd()
    images = pipes.image(pipe, num_images_per_prompt=5)
    assert pipes.distance(images, pipes.image(eager, num_images_per_prompt=5)) <= 2
    assert not pipe.onegraph.report()["unet"].eager


def test_a_fresh_process_compiles_nothing(registry: Registry, home: Path, tmp_path: Path) -> None:
    """Nor does it where its user's folder has no graphs, only the key that they were signed with."""
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipes.image(pipe)
    save_pipe(pipe, tmp_path / "saved")
    told = second_pipe.told("sd", tmp_path / "saved", tmp_path / "home", home)
    assert told["compiles"] == 0 and told["restores"] == 2, told
    assert told["compiled_calls"] == 6 and told["eager_calls"] == 0, told
    assert max(told["distances"]) <= 2, told


def test_load_pipe_compiles_nothing(registry: Registry, tmp_path: Path) -> None:
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipes.image(pipe)
    save_pipe(pipe, tmp_path / "saved")
    loaded = load_pipe(pipes.sd(), tmp_path / "saved")
    image = pipes.image(loaded, height=96)
    assert pipes.distance(image, pipes.image(pipes.sd(), height=96)) <= 2
    assert loaded.onegraph.report().compiled_calls == 3 and registry.counters.compiles == 0


def test_second_save_overwrites_when_told(registry: Registry, tmp_path: Path) -> None:
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipes.image(pipe)
    save_pipe(pipe, tmp_path)
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(PipelineError, match="already holds 2 saved graphs"):
        save_pipe(pipe, tmp_path)
    with torch.no_grad():
        pipe.vae.encode(torch.rand(1, 3, 64, 64))
    save_pipe(pipe, tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine.txt",
        "unet.graphs",
        "vae.decoder.graphs",
        "vae.encoder.graphs",
    ]
    assert len(list(tmp_path.glob("*/*/*/*/manifest.json"))) == 3


def test_overwriting_leaves_graphs_of_checkpoints(registry: Registry, tmp_path: Path) -> None:
    """The folder may be one of checkpoints, whose graphs lie there too."""
    pipe = compile_pipe(pipes.sd())
    save_pipe(pipe, tmp_path)
    (tmp_path / "vae.decoder.graphs").rename(tmp_path / "photo.graphs")
    save_pipe(pipe, tmp_path, overwrite=True)
    assert {entry.folder.parents[2].name for entry in registry.store.saved(tmp_path)} >= {"photo.graphs", "unet.graphs"}


def test_save_before_the_first_run(registry: Registry, tmp_path: Path) -> None:
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    save_pipe(pipe, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["unet.graphs", "vae.decoder.graphs"]


def test_nothing_to_save_says_what_to_do(fresh: Registry, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="call compile_pipe"):
        save_pipe(pipes.sd(), tmp_path / "saved")
    with pytest.raises(PipelineError, match="Run it once"):
        save_pipe(compile_pipe(pipes.sd(), when_missing="eager"), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_load_pipe_refuses_an_empty_folder(fresh: Registry, tmp_path: Path) -> None:
    pipe = pipes.sd()
    with pytest.raises(PipelineError, match="holds no saved graphs"):
        load_pipe(pipe, tmp_path)


def test_graphs_of_another_user_are_refused(registry: Registry, tmp_path: Path) -> None:
    """Another installation's key is another user."""
    from onegraph.graph_cache.store import Store
    from onegraph.runtime.obtain.registry import using

    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipes.image(pipe)
    save_pipe(pipe, tmp_path / "saved")
    with using(Registry(Store(tmp_path / "other"))) as other:
        with pytest.raises(PipelineError, match="signed with a key that is not here"):
            load_pipe(pipes.sd(), tmp_path / "saved")
        assert other is not None and other.counters.restores == 0


def test_graphs_of_a_publisher_need_trust(registry: Registry, tmp_path: Path) -> None:
    """What another machine exported: refused without `trust`, or where the publisher is not known; then imported."""
    from onegraph.graph_cache.sources import exporting
    from onegraph.graph_cache.store import Store
    from onegraph.graph_cache.trust import ed25519, trust_list
    from onegraph.graph_cache.trust.publishers import Publishers
    from onegraph.runtime.obtain.registry import using

    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    image = pipes.image(pipe)
    save_pipe(pipe, tmp_path / "saved")
    private = bytes(range(32))
    assert all(
        one.reason is None
        for one in exporting.export(
            registry.store, exporting.find(tmp_path / "saved"), tmp_path / "bundle.tar", private
        )
    )
    with using(Registry(Store(tmp_path / "other"), policy=registry.policy)) as other:
        assert other is not None
        for trust, said in ((None, "pass trust="), ("alice", "alice")):
            with pytest.raises(PipelineError, match=said):
                load_pipe(pipes.sd(), tmp_path / "bundle.tar", trust=trust)
        assert other.counters.restores == 0 and not list((tmp_path / "other").glob("*/*/*"))
        assert trust_list.add(Publishers(tmp_path / "other"), "alice", ed25519.public_key(private)) is None
        loaded = load_pipe(pipes.sd(), tmp_path / "bundle.tar", trust="alice")
        assert pipes.distance(pipes.image(loaded), image) <= 2
        assert loaded.onegraph.report().compiled_calls == 3 and other.counters.compiles == 0


def test_ignores_takes_dotted_names(registry: Registry) -> None:
    pipe = compile_pipe(pipes.sd(), ignores="vae", when_missing="eager")
    pipes.image(pipe)
    report = pipe.onegraph.report()
    assert report["unet"].compiled_calls == 2
    assert report["vae.decoder"].codes == {"ignored": 0} and report["vae.encoder"].codes == {"ignored": 0}
    compile_pipe(pipe, ignores=("vae.encoder",), when_missing="eager")
    pipes.image(pipe)
    assert pipe.onegraph.report()["vae.decoder"].compiled_calls == 1
    with pytest.raises(PipelineError, match=r"no component 'vea' to ignore; it has unet, vae, vae\.decoder"):
        compile_pipe(pipe, ignores="vea")


def test_choices_are_checked() -> None:
    with pytest.raises(PipelineError, match="choose one of auto, inductor"):
        compile_pipe(pipes.sd(), backend="tensorrt")


def test_remove_leaves_the_modules_as_they_were(registry: Registry) -> None:
    pipe = pipes.sd()
    before = dict(vars(pipe.unet)), dict(vars(pipe.vae.decoder))
    compile_pipe(pipe, when_missing="eager").onegraph.remove()
    assert (dict(vars(pipe.unet)), dict(vars(pipe.vae.decoder))) == before


def test_a_copy_of_the_unet_has_its_own_weights(registry: Registry) -> None:
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    copied = copy.deepcopy(pipe.unet)
    with torch.no_grad():
        copied.conv_out.weight.zero_()
        copied.conv_out.bias.zero_()
        given = torch.ones(1, 4, 8, 8), 5, torch.ones(1, 77, 32)
        assert not copied(*given).sample.any()
        assert pipe.unet(*given).sample.any()


def test_a_shallow_copy_of_the_unet_runs_its_own_layers(registry: Registry) -> None:
    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    copied, plain = copy.copy(pipe.unet), copy.copy(pipes.sd().unet)
    given = torch.ones(1, 4, 8, 8), 5, torch.ones(1, 77, 32)
    with torch.no_grad():
        for one in (copied, plain):
            one._modules = dict(one._modules)
            one.conv_in = copy.deepcopy(one.conv_in)
            one.conv_in.weight.mul_(-3)
        before = pipe.unet(*given).sample
        assert torch.equal(copied(*given).sample, plain(*given).sample)
        assert torch.equal(pipe.unet(*given).sample, before)
    assert registry.counters.compiled_calls == 2


def test_the_model_is_freed_with_its_pipeline(registry: Registry) -> None:
    import gc
    import weakref

    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipes.image(pipe)
    weight = weakref.ref(pipe.unet.conv_in.weight)
    gc.disable()
    try:
        del pipe
        assert weight() is None
    finally:
        gc.enable()


def test_a_saved_checkpoint_has_nothing_of_ours(registry: Registry, tmp_path: Path) -> None:
    from diffusers import UNet2DConditionModel

    pipe = compile_pipe(pipes.sd(), when_missing="eager")
    pipe.unet.save_pretrained(tmp_path)
    again = UNet2DConditionModel.from_pretrained(tmp_path)
    other = pipes.sd(unet=again)
    image = pipes.image(compile_pipe(other, when_missing="eager"))
    assert other.onegraph.report()["unet"].compiled_calls == 2, str(other.onegraph.report())
    assert pipes.distance(image, pipes.image(pipes.sd())) <= 2
