"""The committed stub of the core says what the compiled core says: names, argument names, element types, defaults."""

import ast
from pathlib import Path

import nanobind.stubgen

from aniso import _core

STUB = Path(__file__).parents[1] / "src/aniso/_core.pyi"


def element_type(annotation: ast.expr) -> str:
    """The part of an annotation that matters here: `numpy.float32` of NDArray[...], or the name of a plain type."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("NDArray"):
            return ast.unparse(node.slice).replace("np.", "numpy.")
    return ast.unparse(annotation)


def signatures(source: str) -> dict[str, list[str]]:
    found = {}
    nodes = [("", node) for node in ast.parse(source).body]
    for prefix, node in nodes:
        if isinstance(node, ast.ClassDef):
            found[node.name] = []
            nodes += [(f"{node.name}.", inner) for inner in node.body]
        if isinstance(node, ast.AnnAssign):
            found[prefix + ast.unparse(node.target)] = [element_type(node.annotation)]
        if isinstance(node, ast.FunctionDef):
            arguments = node.args.args + node.args.kwonlyargs
            name = prefix + node.name
            found[name] = [f"{a.arg}: {element_type(a.annotation)}" for a in arguments if a.annotation]
            found[name] += [ast.unparse(value) if value else "required" for value in node.args.kw_defaults]
    return found


def test_the_stub_is_the_compiled_core():
    generator = nanobind.stubgen.StubGen(module=_core)
    generator.put(_core)
    compiled = signatures(generator.get())
    assert compiled == signatures(STUB.read_text())
    names = {name for name in compiled if "." not in name}
    assert names == {name for name in dir(_core) if not name.startswith("_")}
