"""Conditions on the metadata of documents, written as dicts.

    {"lang": "en"}                                        the value is equal
    {"year": {"$gte": 2020, "$lt": 2025}}                 all of the operators hold
    {"lang": {"$in": ["en", "de"]}, "draft": {"$ne": True}}   all of the keys hold
    {"$or": [{"lang": "en"}, {"year": 2024}]}             also "$and" and "$not"

A key that a document does not have fulfils "$ne", "$nin" and "$exists": False alone. Values that cannot be compared,
such as a str with an int, are neither less nor greater.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["compile_filter"]

Condition = Callable[[Mapping[str, Any]], bool]

_MISSING = object()


def _ordered(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare(value: Any, other: Any) -> bool:
        try:
            return value is not _MISSING and bool(holds(value, other))
        except TypeError:
            return False

    return compare


def _contained(value: Any, others: Any) -> bool:
    return value is not _MISSING and any(value == other for other in others)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda value, other: value is not _MISSING and bool(value == other),
    "$ne": lambda value, other: value is _MISSING or bool(value != other),
    "$gt": _ordered(operator.gt),
    "$gte": _ordered(operator.ge),
    "$lt": _ordered(operator.lt),
    "$lte": _ordered(operator.le),
    "$in": _contained,
    "$nin": lambda value, others: not _contained(value, others),
    "$exists": lambda value, wanted: (value is not _MISSING) == wanted,
}
_JOINED = ("$and", "$or", "$not")


def compile_filter(conditions: Any) -> Condition:
    """What a dict of conditions says of metadata, as a function.

    >>> recent = compile_filter({"lang": "en", "year": {"$gte": 2020}})
    >>> recent({"lang": "en", "year": 2024}), recent({"lang": "en"})
    (True, False)
    """
    if not isinstance(conditions, Mapping):
        raise TypeError(
            f"a filter is a {type(conditions).__name__}; needed: a dict such as {{'lang': 'en'}}, or a function"
        )
    parts = [_condition(key, wanted) for key, wanted in conditions.items()]
    return parts[0] if len(parts) == 1 else lambda metadata: all(part(metadata) for part in parts)


def _condition(key: Any, wanted: Any) -> Condition:
    if key in ("$and", "$or"):
        if not isinstance(wanted, (list, tuple)):
            raise TypeError(f"{key} is given a {type(wanted).__name__}; needed: a list of filters")
        parts = [compile_filter(part) for part in wanted]
        if key == "$and":
            return lambda metadata: all(part(metadata) for part in parts)
        return lambda metadata: any(part(metadata) for part in parts)
    if key == "$not":
        part = compile_filter(wanted)
        return lambda metadata: not part(metadata)
    if isinstance(key, str) and key.startswith("$"):
        raise ValueError(f"{key!r} stands where a key of the metadata is needed, or one of {', '.join(_JOINED)}")
    if not isinstance(wanted, Mapping) or not any(isinstance(name, str) and name.startswith("$") for name in wanted):
        return lambda metadata: bool(metadata.get(key, _MISSING) == wanted)
    tests = [_test(key, name, other) for name, other in wanted.items()]

    def holds(metadata: Mapping[str, Any]) -> bool:
        value = metadata.get(key, _MISSING)
        return all(test(value, other) for test, other in tests)

    return holds


def _test(key: Any, name: Any, other: Any) -> tuple[Callable[[Any, Any], bool], Any]:
    """An operator and what it is given."""
    if name not in _OPERATORS:
        raise ValueError(f"the filter of {key!r} has the operator {name!r}; needed: one of {', '.join(_OPERATORS)}")
    if name in ("$in", "$nin"):
        if isinstance(other, (str, bytes)) or not hasattr(other, "__iter__"):
            raise TypeError(f"{name} of {key!r} is given {other!r}; needed: a list of values")
        other = list(other)
    if name == "$exists" and not isinstance(other, bool):
        raise TypeError(f"$exists of {key!r} is given {other!r}; needed: True or False")
    return _OPERATORS[name], other
