"""A save that is killed or interrupted, at any moment, leaves the old file or the new one, whole."""

import os
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from aniso import format as file_format
from aniso.format import open_file, save

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked and killed")

# Both scripts are processes of their own: to fork one that may run threads, as pytest's may, is not safe.
SHARED = """
import os, signal, sys, time
import numpy as np
from aniso import format as file_format
from aniso.format import open_file, save

path = sys.argv[1]

def content(number):
    return {"number": number}, {"x": np.full(40_000, number), "y": np.full((100, 7), number, np.float32)}

def saved():
    opened = open_file(path, verify=True)
    for array in opened.arrays.values():
        assert (array == opened.header["number"]).all()
    return opened.header["number"]

save(path, *content(0))
"""

# A child saves again and again and is killed after a random time.
RANDOM_KILLS = """
rng, last, changed = np.random.default_rng(5), 0, 0
for kill in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        number = last
        while True:
            number += 1
            save(path, *content(number))
    time.sleep(rng.uniform(0.0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert saved() >= last
    changed += saved() > last
    last = saved()
print(changed, last)
"""

# A child saves once and kills itself before the given line of format.py, counted as they run.
KILLS_AT_LINES = """
def kill_at(line):
    left = line
    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename != file_format.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    return trace

line, outcomes = 0, []
while True:
    line += 1
    before = saved()
    child = os.fork()
    if child == 0:
        sys.settrace(kill_at(line))
        save(path, *content(line))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert saved() in (before, line)
    outcomes.append(saved() == line)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
print(line, sum(outcomes))
"""


def run(script: str, *arguments: str) -> list[int]:
    command = [sys.executable, "-c", SHARED + script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def assert_leftovers_do_no_harm(path: Path) -> None:
    assert list(path.parent.glob(".aniso-*.tmp"))  # some were killed in the midst of writing
    save(path, {"after": True}, {"x": np.arange(5)})
    assert open_file(path, verify=True).header == {"after": True}


def test_killed_at_random_moments(tmp_path: Path) -> None:
    path = tmp_path / "a"
    changed, last = run(RANDOM_KILLS, str(path), "300")
    assert last > 0
    assert changed < 300  # some were killed before their first save was done
    assert_leftovers_do_no_harm(path)


def test_killed_at_every_line(tmp_path: Path) -> None:
    path = tmp_path / "a"
    lines, new = run(KILLS_AT_LINES, str(path))
    assert lines > 50
    assert 2 < new < lines / 2  # the new file is there for the last lines alone, which sync the folder
    assert_leftovers_do_no_harm(path)


# An interrupt between the end of a with-block and the call that closes its file leaves that to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_interrupted_at_every_line(tmp_path: Path, error: type[BaseException]) -> None:
    """Unlike a killed process, an interrupted one also removes what it had begun to write."""
    path, line, done = tmp_path / "a", 0, False
    arrays = {"x": np.full(40_000, 1), "y": np.full(3, 1, np.uint8)}
    save(path, {"line": 0}, arrays)
    while not done:
        line += 1
        before, left = open_file(path).header, line

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename != file_format.__file__:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    raise error("planted")
            return trace

        outer = sys.gettrace()
        try:
            sys.settrace(trace)
            save(path, {"line": line}, arrays)
            done = True
        except error:
            pass
        finally:
            sys.settrace(outer)
        assert open_file(path, verify=True).header in (before, {"line": line})
        assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert line > 50
