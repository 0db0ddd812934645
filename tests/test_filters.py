"""Conditions on metadata: what each one lets pass, and what is refused."""

import pytest

from aniso.integrations.filters import compile_filter


@pytest.mark.parametrize(
    ("conditions", "passing"),
    [
        ({"year": 2020}, "b"),
        ({"year": {"$eq": 2020}}, "b"),
        ({"year": {"$ne": 2020}}, "acd"),
        ({"year": {"$gt": 2010, "$lte": 2030}}, "bc"),
        ({"year": {"$gte": 2020, "$lt": 2030}}, "b"),
        ({"year": {"$in": [2010, 2030]}}, "ac"),
        ({"year": {"$nin": (2010, 2030)}}, "bd"),
        ({"year": {"$exists": False}}, "d"),
        ({"lang": {"$exists": True}, "year": {"$lt": 2025}}, "ab"),
        ({"year": {"$gt": "2010"}}, ""),
        ({"lang": {"$gte": "en"}}, "bc"),
        ({"$or": [{"year": 2010}, {"lang": "en"}]}, "ab"),
        ({"$and": [{"year": {"$gt": 2010}}, {"lang": "fr"}]}, "c"),
        ({"$not": {"lang": "en"}}, "acd"),
        ({"nested": {"a": 1}}, "d"),
        ({"nested": {"$eq": {"a": 1}}}, "d"),
        ({"nested": {}}, ""),
        ({}, "abcd"),
    ],
)
def test_conditions(conditions, passing):
    metadata = {
        "a": {"year": 2010, "lang": "de"},
        "b": {"year": 2020, "lang": "en"},
        "c": {"year": 2030, "lang": "fr"},
        "d": {"nested": {"a": 1}},
    }
    holds = compile_filter(conditions)
    assert "".join(name for name, each in metadata.items() if holds(each)) == passing


@pytest.mark.parametrize(
    ("conditions", "error", "message"),
    [
        ("lang", TypeError, "a filter is a str; needed: a dict"),
        ({"year": {"$near": 3}}, ValueError, r"operator '\$near'; needed: one of \$eq"),
        ({"year": {"$gt": 1, "lt": 2}}, ValueError, "operator 'lt'"),
        ({"$xor": []}, ValueError, "'\\$xor' stands where a key"),
        ({"$or": {"a": 1}}, TypeError, r"\$or is given a dict; needed: a list"),
        ({"lang": {"$in": "en"}}, TypeError, r"\$in of 'lang' is given 'en'; needed: a list"),
        ({"lang": {"$exists": 1}}, TypeError, "needed: True or False"),
    ],
)
def test_wrong_conditions_are_named_before_any_metadata_is_seen(conditions, error, message):
    with pytest.raises(error, match=message):
        compile_filter(conditions)
