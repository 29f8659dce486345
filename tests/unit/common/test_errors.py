"""What foreign errors say, as users are to read it."""

from __future__ import annotations

import pytest

from onegraph.common.errors import disk_is_full, in_brief, without_paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[Errno 28] No space left: '/home/me/My Models/x.graphs'", "[Errno 28] No space left: 'x.graphs'"),
        ("Error in dlopen: /home/u/.cache/a/b.so: undefined symbol: f", "Error in dlopen: b.so: undefined symbol: f"),
        ("API call failed at /pytorch/torch/csrc/runner.cpp, line 147", "API call failed at runner.cpp, line 147"),
        ('File "/usr/lib/python 3/foo.py", line 3', 'File "foo.py", line 3'),
        ("(/a/b/c.so) and /a/b/c.py:33", "(c.so) and c.py:33"),
        # The name of a custom node's module is its folder's path.
        ("Can't pickle <class '/home/u/ComfyUI/custom_nodes/pack.nodes.Foo'>", "Can't pickle <class 'pack.nodes.Foo'>"),
        ("<function f at /home/u/x.py>, path=/home/u/y.py", "<function f at x.py>, path=y.py"),
        (r"C:\Users\me\a.py failed, 'D:\My Models\b.py' too", "a.py failed, 'b.py' too"),
        (r"\\server\share\x.bin is gone, ~/models/y too", "x.bin is gone, y too"),
        ("file:///home/u/a.txt", "a.txt"),
        ("/home/u/folder/ is no file", "folder is no file"),
    ],
)  # fmt: skip
def test_absolute_paths_lose_their_folders(text: str, expected: str) -> None:
    assert without_paths(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "see https://pytorch.org/docs/stable/x.html",
        "3 and/or 1/2, a/b/c, x / y, 30 steps/s",
        "use POST /free",
        "don't, it's 'quoted' and \"quoted\"",
        "size mismatch for diffusion_model.out.2.weight: [4, 320] vs [4, 640]",
    ],
)
def test_what_is_no_absolute_path_stays(text: str) -> None:
    assert without_paths(text) == text


def test_a_reason_is_the_first_line_of_an_error() -> None:
    assert in_brief(ValueError("\n  first /home/u/x.py  \nsecond")) == "first x.py"
    assert in_brief(ValueError("y" * 500)) == "y" * 200
    assert in_brief(ValueError("y" * 500), 120) == "y" * 120
    assert in_brief(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(in_brief(ValueError("/home" * 60 + " failed"))) < 20  # a path is never cut in two


def caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(28, "whatever"), True),
        (OSError(5, "Input/output error"), False),
        (RuntimeError("x.cpp:1: fatal error: error writing to /tmp/ccX.s: No space left on device"), True),
        (caused(RuntimeError("could not compile"), RuntimeError("as: Disk quota exceeded")), True),
        (caused(RuntimeError("could not compile"), RuntimeError("undefined symbol")), False),
    ],
    ids=str,
)
def test_a_full_disk_is_recognised(error: Exception, full: bool) -> None:
    assert disk_is_full(error) == full
