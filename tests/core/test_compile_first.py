"""What compiles loops before tests: it ends, and does nothing that would be lost."""

import os
import subprocess
import sys
from pathlib import Path

import compile_first

HANGS = """
import time
import compile_first
from specsim.core import compiled

compile_first.LIMIT_S = 1
compiled.loops_of = lambda module: time.sleep(3600)
compile_first.compile_all(["json", "csv", "gzip"])
print("ended")
"""


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(compile_first.__file__).parent), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def test_a_compiler_that_hangs_is_ended() -> None:
    assert python("-c", HANGS).stdout == "ended\n"


def test_nothing_is_compiled_that_no_cache_would_keep(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = python(
        compile_first.__file__, *compile_first.ALWAYS, SPECSIM_CACHE_DIR=str(tmp_path / "file/in")
    )
    assert "nothing is compiled" in done.stdout
    assert "compiling" not in done.stderr


def test_what_is_compiled_is_kept(tmp_path: Path) -> None:
    python(compile_first.__file__, "specsim.policies.parts.times", SPECSIM_CACHE_DIR=str(tmp_path))
    assert len(list(tmp_path.glob("policies-times-*.code"))) == 1
