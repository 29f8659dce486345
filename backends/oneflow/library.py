"""OneFlow itself: whether it can be used here, its import, and every private name of it that the backend uses.

OneFlow has no public way to keep a built graph, so the backend goes through names that only hold for one version. They
are all in this file, behind the check of that version. Nothing here imports OneFlow before `load` is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ...common import reasons
from ...common.errors import LoadError, in_brief
from ...common.reasons import Reason

VERSION = "0.9.0"
INSTALL = "pip install -r requirements-oneflow.txt"
OLDEST_CAPABILITY, NEWEST_CAPABILITY = (6, 0), (8, 9)
# package -> (folder in site-packages, its libraries in the order in which they need each other)
_CUDA_LIBRARIES = {
    "nvidia-cublas-cu11": ("nvidia/cublas/lib", ("libcublasLt.so.11", "libcublas.so.11")),
    "nvidia-cudnn-cu11": (
        "nvidia/cudnn/lib",
        (
            "libcudnn.so.8",
            "libcudnn_ops_infer.so.8",
            "libcudnn_ops_train.so.8",
            "libcudnn_cnn_infer.so.8",
            "libcudnn_cnn_train.so.8",
        ),
    ),
}
_TOO_NEW = {"numpy": 2, "protobuf": 4}  # first major version that OneFlow 0.9.0 cannot be imported with
# What DLPack of OneFlow 0.9.0 can share, which leaves out bool and the 8-bit floats.
SHARED_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8")

_DTYPES = {  # of jobs -> torch's
    "kFloat": "float32", "kDouble": "float64", "kFloat16": "float16", "kBFloat16": "bfloat16", "kInt64": "int64",
    "kInt32": "int32", "kInt8": "int8", "kUInt8": "uint8", "kBool": "bool",
}  # fmt: skip

lock = threading.RLock()
"""Held while a job is traced or a runtime set up or taken down: two of these at once end the process."""


def installed(package: str) -> str | None:
    """Return the installed version of a package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _library_files(package: str) -> list[Path] | None:
    """The libraries of one of NVIDIA's packages, None when they are not all there."""
    folder, names = _CUDA_LIBRARIES[package]
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    files = [Path(str(distribution.locate_file(f"{folder}/{name}"))) for name in names]
    return files if all(file.is_file() for file in files) else None


def refused(device: torch.device) -> Reason | None:
    """Return why OneFlow cannot be used for a device here, judged from what is installed: nothing is imported."""
    installed_version = installed("oneflow")
    if installed_version is None:
        return reasons.MissingPackage("OneFlow", INSTALL)
    if installed_version.partition("+")[0] != VERSION:
        return reasons.OtherVersion("OneFlow", installed_version, VERSION, INSTALL)
    name = f"OneFlow {VERSION}"
    for package, limit in _TOO_NEW.items():
        version = installed(package)
        if version is not None and int(version.split(".")[0]) >= limit:
            return reasons.PackageTooNew(package, version, limit, name, INSTALL)
    for package in _CUDA_LIBRARIES:
        if _library_files(package) is None:
            return reasons.MissingPackage(package, INSTALL, name)
    return None if device.type == "cpu" else _without_kernels(device)


def _without_kernels(device: torch.device) -> Reason | None:
    """Why the installed OneFlow has nothing that runs on a device other than the CPU."""
    if device.type != "cuda":
        return reasons.WrongDeviceType("OneFlow", device.type)
    if torch.version.hip is not None or not torch.cuda.is_available():
        return reasons.NoGpu("OneFlow")
    capability = torch.cuda.get_device_capability(device)
    if not OLDEST_CAPABILITY <= capability <= NEWEST_CAPABILITY:
        return reasons.NoKernels(f"OneFlow {VERSION}", capability)
    return None


@contextlib.contextmanager
def _interrupt_kept() -> Iterator[None]:
    """Leave SIGINT as it was: importing OneFlow makes Ctrl-C end the process without a KeyboardInterrupt.

    `signal.signal` works in the main thread only and ComfyUI runs its queue in another, so the handler is read and
    set below Python, where any thread may; Python's own table of handlers is not touched by OneFlow.
    """
    api = ctypes.pythonapi
    read = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(("PyOS_getsig", api))
    write = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(("PyOS_setsig", api))
    before = read(signal.SIGINT)
    try:
        yield
    finally:
        write(signal.SIGINT, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without OneFlow's two log lines about a missing GPU, which it writes at every start on a machine without one."""
    name = "GLOG_minloglevel"
    if name in os.environ:
        yield
        return
    os.environ[name] = "3"
    try:
        yield
    finally:
        del os.environ[name]


@functools.cache
def _import() -> Library:
    for package in _CUDA_LIBRARIES:
        for file in _library_files(package) or ():
            ctypes.CDLL(str(file))
    return Library()


def load() -> Library:
    """OneFlow, imported at the first call.

    Raises:
        LoadError: it is not there, is another version, or cannot be imported.
    """
    refusal = refused(torch.device("cpu"))
    if refusal is not None:
        raise LoadError(f"OneFlow cannot be used: {refusal.text}.")
    with lock, _interrupt_kept(), _quiet():
        try:
            return _import()
        except (ImportError, AttributeError, OSError, TypeError) as error:
            raise LoadError(
                f"OneFlow {VERSION} could not be imported ({in_brief(error)}); install it again ({INSTALL})."
            ) from error


class Library:
    """OneFlow 0.9.0 as the backend sees it. Tensors are OneFlow's unless torch's are named."""

    def __init__(self) -> None:
        import oneflow
        import oneflow.core.common.data_type_pb2 as data_types
        import oneflow.core.job.job_conf_pb2 as job_conf
        import oneflow.core.job.job_pb2 as job
        import oneflow.framework.graph_build_util as graph_build
        import oneflow.framework.session_context as session_context
        from oneflow.framework import c_api_util

        self.flow = oneflow
        self.functional = oneflow._C
        self._internal = oneflow._oneflow_internal
        self._job = job
        self._job_conf = job_conf
        self._build = graph_build
        self._c_api = c_api_util
        self._decode_error = importlib.import_module("google.protobuf.message").DecodeError
        self.tensor_type = oneflow.Tensor
        self._tuple = self._internal.TensorTuple
        self._session = session_context.GetDefaultSession()
        self._session.TryInit()
        self._names = {getattr(data_types, proto): name for proto, name in _DTYPES.items()}

    # Tensors ------------------------------------------------------------------------------------------------

    def dtype(self, name: str) -> Any:
        """OneFlow's dtype of torch's name. Raises KeyError for one it does not have."""
        if name not in self._names.values():
            raise KeyError(name)
        return getattr(self.flow, name)

    def empty(self, shape: Sequence[int], dtype: str, device: str) -> Any:
        return self.flow.empty(tuple(shape), dtype=self.dtype(dtype), device=device)

    def share(self, tensor: torch.Tensor) -> Any:
        """Share a torch tensor (contiguous, a dtype of `SHARED_DTYPES`) with OneFlow, on the same memory."""
        return self.flow.from_dlpack(torch.utils.dlpack.to_dlpack(tensor.detach()))

    def to_torch(self, tensor: Any) -> torch.Tensor:
        """Copy a tensor's values to torch; waits for whatever still computes them."""
        shared: torch.Tensor = torch.from_dlpack(self.flow.to_dlpack(tensor))
        return shared.clone()

    def sync(self) -> None:
        """Wait until nothing is under way: until then OneFlow may still read what it was given."""
        self._internal.eager.Sync()

    def alone(self) -> bool:
        """Tell whether no other code of this process has made OneFlow graphs."""
        return not self.flow.nn.Graph._child_init_cnt

    def give_back(self) -> None:
        """Free what all jobs so far allocated, which takes them down; OneFlow keeps it until its session ends."""
        self._session.Reset()
        self.trim()

    def trim(self) -> None:
        """Return what building a job took to the system: about 100 MB that the C library would keep for itself."""
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)

    # Tracing ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def tracing(self, name: str) -> Iterator[None]:
        """Operations on tensors from `feed_input` and `feed_weight` build the job `name` instead of running."""
        conf = self._job_conf.JobConfigProto()
        conf.predict_conf.SetInParent()
        conf.job_name = name
        failure: BaseException | None = None
        # OneFlow's own context managers swallow exceptions unless each is told of one.
        with self._build.graph_build_context(conf, self._session):
            try:
                yield
            except BaseException as error:
                failure = error
        if failure is not None:
            raise failure

    def feed_input(self, op: str, example: Any) -> Any:
        return self._build.build_graph_input_arg(op, example)

    def feed_weight(self, op: str, example: Any) -> Any:
        return self._build.build_graph_state(op, example, None)

    def fetch_output(self, op: str, tensor: Any) -> None:
        self._build.build_graph_output(op, tensor)

    def finished_job(self, weights: dict[str, Any]) -> Any:
        """Return the job being traced after OneFlow's own passes, which look at the weights by op name."""
        self._internal.FillVariableTensorMgr(list(weights), self._tuple(list(weights.values())))
        try:
            self._internal.CurJobBuildAndInferCtx_Complete()
        finally:
            self._internal.ResetVariableTensorMgr()
        return self._c_api.GetCurrentJob()

    # Jobs ---------------------------------------------------------------------------------------------------

    def parse_job(self, data: bytes) -> Any:
        """Parse a job. Raises LoadError where the bytes are none."""
        job = self._job.Job()
        try:
            job.ParseFromString(data)
        except self._decode_error as error:
            raise LoadError("The graph's job cannot be read; it runs uncompiled instead.") from error
        return job

    def job_tensors(self, job: Any, kind: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """Op name -> (shape, dtype) of a job's `input`, `output` or `variable` ops, in the job's order."""
        tensors = {}
        for op in job.net.op:
            if op.HasField(f"{kind}_conf"):
                conf = getattr(op, f"{kind}_conf")
                described = conf if kind == "variable" else conf.blob_conf
                tensors[op.name] = (tuple(described.shape.dim), self._names.get(described.data_type, "unknown"))
        return tensors

    def dtype_name(self, data_type: int) -> str:
        """torch's name of a data type in a job."""
        return self._names.get(data_type, "unknown")

    def prepare(self, job: Any, name: str) -> Any:
        """Prepare a job that another process built to run here, under a name new to this process.

        Symbol ids in a job belong to the process that wrote it, so every op is moved into a scope of this one.
        """
        job.job_conf.job_name = name
        conf = self._job_conf.JobConfigProto()
        conf.CopyFrom(job.job_conf)
        with self._build.graph_build_context(conf, self._session):
            job_id = self._internal.JobBuildAndInferCtx_GetCurrentJobId()
            scope = self._internal.GetCurrentScope().symbol_id
        for op in job.net.op:
            op.scope_symbol_id = scope
        return self._internal.nn.graph.CNNGraph(name, job.SerializeToString(), job_id, self._session._session_ctx)

    def register(
        self, graph: Any, inputs: dict[str, Any], outputs: dict[str, Any], weights: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Tell a prepared job its tensors by op name; the (output, weight) tuples that `run` takes."""
        output_tuple, weight_tuple = self._tuple(list(outputs.values())), self._tuple(list(weights.values()))
        self._internal.nn.graph.SoftSyncNNGraphBuffers(output_tuple, graph)
        graph.register_input_op_names_and_tensors(list(inputs), self._tuple(list(inputs.values())))
        graph.register_output_op_names_and_tensors(list(outputs), output_tuple)
        graph.register_variable_op_names_and_tensors(list(weights), weight_tuple)
        return output_tuple, weight_tuple

    def initialise(self, graph: Any) -> None:
        """Plan the job and allocate everything it will ever hold; the weights' addresses are fixed from here on."""
        self.sync()
        graph.complie_and_init_runtime()

    def run(self, graph: Any, inputs: Sequence[Any], outputs: Any, weights: Any) -> list[Any]:
        """One call; the outputs, in memory that no later call writes to."""
        self._internal.nn.graph.RunLazyNNGraph(self._tuple(list(inputs)), outputs, weights, graph)
        results = [output.to(copy=True) for output in outputs]
        # Without this the next call would not wait for the copies above.
        self._internal.nn.graph.SoftSyncNNGraphBuffers(outputs, graph)
        return results
