"""What is refused, and in which words, before OneFlow is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from onegraph.backends.oneflow import OneFlowBackend, library
from onegraph.signature.declared import Dim, ShapeRange, TensorSpec

CPU = torch.device("cpu")
PACKAGES = {"oneflow": "0.9.0", "numpy": "1.26.4", "protobuf": "3.20.3"}


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with everything that OneFlow needs, whatever this one has."""
    found = dict(PACKAGES)
    monkeypatch.setattr(library, "installed", found.get)
    monkeypatch.setattr(library, "_library_files", lambda package: [])
    return found


def reason(device: str = "cpu") -> str:
    refused = OneFlowBackend().can_run(torch.device(device))
    assert not refused.ok
    assert OneFlowBackend().can_compile(torch.device(device)) == refused
    return refused.text


def test_a_complete_installation_is_offered_for_cpu(packages: dict[str, str]) -> None:
    assert OneFlowBackend().can_run(CPU).ok


def test_without_oneflow_the_way_to_install_is_named(packages: dict[str, str]) -> None:
    del packages["oneflow"]
    assert "pip install -r requirements-oneflow.txt" in reason()


@pytest.mark.parametrize("version", ["0.8.0", "1.0.0.dev20240101", "0.9.1"])
def test_another_version_is_refused_by_its_number(version: str, packages: dict[str, str]) -> None:
    packages["oneflow"] = version
    assert f"OneFlow {version} is installed, graphs need 0.9.0 exactly" in reason()


@pytest.mark.parametrize(("package", "version"), [("numpy", "2.1.0"), ("protobuf", "6.33.0")])
def test_packages_too_new_for_it_are_named(package: str, version: str, packages: dict[str, str]) -> None:
    packages[package] = version
    assert f"needs {package} below" in reason()
    assert version in reason()


@pytest.mark.parametrize("package", ["nvidia-cublas-cu11", "nvidia-cudnn-cu11"])
def test_missing_cuda_libraries_are_named(
    package: str, packages: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_library_files", lambda name: None if name == package else [])
    assert package in reason()


@pytest.mark.parametrize(
    ("capability", "runs"), [((5, 2), False), ((6, 0), True), ((8, 6), True), ((8, 9), True), ((9, 0), False)]
)
def test_only_gpus_with_kernels_are_offered(
    capability: tuple[int, int], runs: bool, packages: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert OneFlowBackend().can_run(torch.device("cuda")).ok == runs
    if not runs:
        assert f"no kernels for sm_{capability[0]}{capability[1]} (it has sm_60 to sm_86" in reason("cuda")


@pytest.mark.parametrize("device", ["mps", "xpu"])
def test_other_devices_are_refused(device: str, packages: dict[str, str]) -> None:
    assert device in reason(device)


def test_only_exact_shapes_are_supported() -> None:
    def spec(high: int) -> ShapeRange:
        return ShapeRange((Dim("batch", 1, high),), (TensorSpec("x", ("batch", 4), "float32"),))

    assert OneFlowBackend().supports(spec(1))
    assert not OneFlowBackend().supports(spec(2))


def test_the_target_names_what_a_job_depends_on() -> None:
    assert set(OneFlowBackend().target(CPU)) == {"oneflow", "lowering", "platform", "machine", "device"}


def test_asking_imports_nothing() -> None:
    script = """
import sys, torch
from onegraph.backends.oneflow import OneFlowBackend
backend = OneFlowBackend()
backend.can_run(torch.device("cpu")), backend.can_compile(torch.device("cpu")), backend.target(torch.device("cpu"))
assert "oneflow" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
