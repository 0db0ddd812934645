"""The documentation is true: its examples run, and what its table of the paper names exists."""

import ast
import contextlib
import doctest
import functools
import importlib
import io
import pkgutil
import re
import warnings
from pathlib import Path

import pytest

import aniso

ROOT = Path(__file__).resolve().parent.parent
ALGORITHM = ROOT / "docs" / "algorithm.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = ["aniso", *sorted(module.name for module in pkgutil.walk_packages(aniso.__path__, "aniso."))]


@contextlib.contextmanager
def strictly_and_silently():
    """Warnings are errors, and what is printed is not shown."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("error")
        yield


class Examples(doctest.DocTestRunner):
    """Keeps what failed, with file and line."""

    def __init__(self) -> None:
        super().__init__(verbose=False)
        self.failed: list[str] = []

    def note(self, test, example, what):
        self.failed.append(
            f"{test.filename}:{(test.lineno or 0) + example.lineno + 1}: {example.source.strip()}\n{what}"
        )

    def report_failure(self, out, test, example, got):
        self.note(test, example, f"expected {example.want.strip()}, got {got.strip()}")

    def report_unexpected_exception(self, out, test, example, exc_info):
        self.note(test, example, f"raised {exc_info[0].__name__}: {exc_info[1]}")


def doctests(name: str) -> list[doctest.DocTest]:
    module = importlib.import_module(name)
    return [test for test in doctest.DocTestFinder().find(module) if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_modules(name: str) -> None:
    runner = Examples()
    for test in doctests(name):
        with strictly_and_silently():
            runner.run(test, out=lambda text: None)
    assert not runner.failed, "\n".join(runner.failed)


def test_there_are_examples_in_modules() -> None:
    assert sum(len(test.examples) for name in MODULES for test in doctests(name)) >= 30


def blocks(page: Path) -> list[tuple[int, str]]:
    """The ```python blocks of a page: the number of their first line, and the code."""
    text = page.read_text()
    found = re.finditer(r"^```python[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in found]


def line_of(error: BaseException, page: Path) -> int | None:
    """The last line of the page that the error went through."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(page):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_pages(page: Path) -> None:
    """The blocks of a page run in their order, one after the other, in a namespace of their own."""
    namespace: dict[str, object] = {"__name__": page.name}
    for first, code in blocks(page):
        try:
            with strictly_and_silently():
                exec(compile("\n" * (first - 1) + code, str(page), "exec"), namespace)
        except Exception as error:
            line = error.lineno if isinstance(error, SyntaxError) else line_of(error, page)
            pytest.fail(f"{page}:{line or first}: {type(error).__name__}: {error}", pytrace=False)


def test_there_is_an_example_in_the_readme() -> None:
    assert blocks(ROOT / "README.md")


def table() -> list[tuple[int, list[str]]]:
    """The rows of docs/algorithm.md's tables: line number and cells (of the paper, the functions, the tests)."""
    rows = []
    for number, line in enumerate(ALGORITHM.read_text().splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|") and not line.startswith("|---") and cells[0] != "paper":
            rows.append((number, cells))
    return rows


def names(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", text)


def exists(name: str) -> bool:
    """Whether aniso.<name> can be reached: modules as far as there are any, then attributes."""
    parts, found = name.split("."), aniso
    for at, part in enumerate(parts):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(["aniso", *parts[: at + 1]]))
            except ModuleNotFoundError:
                return False
        found = getattr(found, part)
    return True


@functools.cache
def defined_in(file: str) -> set[str]:
    path = ROOT / "tests" / file
    if not path.is_file():
        return set()
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def is_test(name: str) -> bool:
    """Whether `file::test` is a test function of that file."""
    file, _, function = name.partition("::")
    return function.startswith("test_") and function in defined_in(file)


def test_every_function_and_test_of_the_table_exists() -> None:
    wrong = []
    for number, cells in table():
        where = f"{ALGORITHM}:{number}"
        if len(cells) != 3:
            wrong.append(f"{where}: {len(cells)} cells, not 3")
            continue
        functions, tests = names(cells[1]), names(cells[2])
        if not functions or not tests:
            wrong.append(f"{where}: no function or no test for {cells[0]}")
        wrong += [f"{where}: no aniso.{name}" for name in functions if not exists(name)]
        wrong += [f"{where}: no test {name}" for name in tests if not is_test(name)]
    assert not wrong, "\n".join(wrong)


def test_every_function_and_test_of_the_text_exists() -> None:
    modules = {name.split(".")[1] for name in MODULES if "." in name}
    wrong = []
    for number, line in enumerate(ALGORITHM.read_text().splitlines(), 1):
        for name in names(line):
            if "::" in name and not is_test(name):
                wrong.append(f"{ALGORITHM}:{number}: no test {name}")
            if name.startswith("tests/") and not (ROOT / name).is_file():
                wrong.append(f"{ALGORITHM}:{number}: no file {name}")
            path = name.partition("(")[0]
            if path.split(".")[0] in modules and not exists(path):
                wrong.append(f"{ALGORITHM}:{number}: no aniso.{path}")
    assert not wrong, "\n".join(wrong)


def test_the_table_has_everything_that_the_paper_numbers() -> None:
    first_cells = " ".join(cells[0] for _, cells in table())
    numbered = [*(f"({i})" for i in range(1, 9)), *(f"Definition {i}" for i in ("3.1", "4.1", "4.3")), "Lemma 7.1"]
    numbered += [f"Theorem {i}" for i in ("3.2", "3.3", "3.4", "4.2")]
    numbered += [f"{i}, step {step}" for i in ("4", "4.1") for step in range(1, 5)]
    numbered += [f"7.{i}" for i in range(1, 6)] + ["5.1", "5.2"]
    assert [name for name in numbered if name not in first_cells] == []
