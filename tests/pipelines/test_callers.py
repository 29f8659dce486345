"""Whether a user's own code can run in a denoising loop: who calls, and what its parts are made of."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import pipes

from onegraph.pipelines import callers, compile_pipe
from onegraph.pipelines.callers import Caller


def runs_foreign_code(pipe: Any, **given: Any) -> bool:
    return Caller(pipe, {"self": pipe, **given}, ("self", "prompt"), True).runs_foreign_code(pipe.unet)


@pytest.mark.parametrize("made", [pipes.sd, pipes.sdxl, lambda: compile_pipe(pipes.controlnet(pipes.sd(), 2))])
def test_plain_pipelines_are_libraries(made: Callable[[], Any]) -> None:
    pipe = made()
    assert not runs_foreign_code(pipe, prompt="a lighthouse", latents=torch.zeros(1))
    pipe.enable_model_cpu_offload(device="cpu")
    assert not runs_foreign_code(pipe)


def _on_the_instance(pipe: Any, patch: pytest.MonkeyPatch) -> None:
    own = pipe.scheduler.step
    pipe.scheduler.step = lambda *args, **kwargs: own(*args, **kwargs)


def _on_the_class(pipe: Any, patch: pytest.MonkeyPatch) -> None:
    cls = type(pipe.scheduler)
    own = cls.step
    patch.setattr(cls, "step", torch.no_grad()(lambda self, *args, **kwargs: own(self, *args, **kwargs)))


def _a_partial_on_the_class(pipe: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(pipe.scheduler), "scale_model_input", functools.partial(lambda x, *args: x))


def _evaluated(pipe: Any, patch: pytest.MonkeyPatch) -> None:
    space: dict[str, Any] = {}
    exec("def step(self, *args): return args", space)  # noqa: S102
    patch.setattr(type(pipe.scheduler), "step", space["step"])


def _of_a_class_that_derives(pipe: Any, patch: pytest.MonkeyPatch) -> None:
    class Mine(type(pipe.scheduler)):  # type: ignore[misc]
        def step(self, *args: Any, **kwargs: Any) -> Any:
            return super().step(*args, **kwargs)

    Mine.__module__ = type(pipe.scheduler).__module__
    pipe.scheduler = Mine.from_config(pipe.scheduler.config)


def _a_pipelines_method(pipe: Any, patch: pytest.MonkeyPatch) -> None:
    pipe.progress_bar = lambda *args, **kwargs: None


def _a_hook_of_a_controlnet(pipe: Any, patch: pytest.MonkeyPatch) -> None:
    pipe.controlnet.mid_block.register_forward_hook(lambda *given: None)


def _a_forward_of_a_controlnet(pipe: Any, patch: pytest.MonkeyPatch) -> None:
    own = pipe.controlnet.forward
    pipe.controlnet.forward = lambda *args, **kwargs: own(*args, **kwargs)


FOREIGN = [
    _on_the_instance,
    _on_the_class,
    _a_partial_on_the_class,
    _evaluated,
    _of_a_class_that_derives,
    _a_pipelines_method,
    _a_hook_of_a_controlnet,
    _a_forward_of_a_controlnet,
]


@pytest.mark.parametrize("change", FOREIGN)
def test_code_of_the_users_own_is_seen(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = pipes.controlnet(pipes.sd())
    assert not runs_foreign_code(pipe)
    change(pipe, monkeypatch)
    assert runs_foreign_code(pipe)


def test_whatever_can_be_called_is_a_callback() -> None:
    pipe = pipes.sd()
    assert runs_foreign_code(pipe, prompt=print)
    assert runs_foreign_code(pipe, callback_on_step_end=print)
    assert runs_foreign_code(pipe, prompt={"callback": print})


def test_a_folder_of_a_similar_name_is_no_library(tmp_path: Path) -> None:
    import diffusers

    folder = Path(diffusers.__file__).parent
    assert callers._is_library_file(str(folder / "schedulers" / "any.py"))
    assert not callers._is_library_file(f"{folder}_mine/any.py")
    assert not callers._is_pipelines_file(str(tmp_path / "diffusers" / "pipelines" / "any.py"))
    for own in (Path(callers.__file__).parents[1] / "custom.py", Path(__file__), Path("<string>")):
        assert not callers._is_library_file(str(own))


def test_equal_code_of_two_files_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code objects are equal whatever file they are of."""
    from diffusers import DDIMScheduler

    own = DDIMScheduler.step
    assert callers._is_library_value(own)
    elsewhere = own.__code__.replace(co_filename="/home/mine/scheduling.py")
    assert elsewhere == own.__code__
    assert not callers._is_library_value(types.FunctionType(elsewhere, own.__globals__))
