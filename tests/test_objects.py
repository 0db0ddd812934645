"""The kernel objects: what one instruction set compiles must not leak into another's (docs/design.md, the ODR trap)."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OBJECTS = [
    path
    for path in sorted(ROOT.glob("build/*/CMakeFiles/kernels_*.dir/cpp/kernels.cpp.o"))
    if path.parents[3].name != "sanitized"  # whose objects hold symbols of the sanitizers
]
WEAK = {"W", "V", "u", "w", "v"}


def symbols(path: Path) -> list[tuple[str, str]]:
    """(type, name) of every symbol, as nm has them; an undefined one has the type U (or w, v if it is weak)."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed (binutils)")
    lines = subprocess.run([nm, str(path)], capture_output=True, text=True, check=True).stdout.splitlines()
    return [(line.split()[-2], line.split()[-1]) for line in lines if line.split()]


def test_objects_are_there_for_the_tests_below() -> None:
    if not OBJECTS:
        pytest.skip(f"no kernel objects under {ROOT / 'build'}: the package was not built in this folder")
    builds = {path.parents[3] for path in OBJECTS}
    for build in builds:
        names = {path.parents[1].name for path in OBJECTS if path.parents[3] == build}
        assert "kernels_portable.dir" in names
        assert len(names) > 1, "only the portable kernels were compiled"


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: f"{path.parents[3].name}-{path.parents[1].name}")
def test_one_global_symbol_and_none_weak(path: Path) -> None:
    found = symbols(path)
    isa = path.parents[1].name.removeprefix("kernels_").removesuffix(".dir")
    assert [name for kind, name in found if kind in WEAK] == []
    defined = [name for kind, name in found if kind.isupper() and kind != "U"]
    assert len(defined) == 1, f"global symbols of {path}: {defined}"
    assert isa in defined[0]
    assert "kernels" in defined[0]
