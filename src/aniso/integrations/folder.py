"""A folder that holds documents as JSON, and the index of their embeddings.

documents.json names the index file, and is put in place last and in one step: a save that is interrupted leaves what
was there before. Names are relative, so the folder may be moved. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aniso.config import check_metric
from aniso.errors import FormatError
from aniso.header import check_json
from aniso.index import Index, open_index
from aniso.tune import check_recall

__all__ = ["Folder", "read_folder", "write_folder"]

_DOCUMENTS = "documents.json"
_INDEX = re.compile(r"index-[0-9a-f]{16}\.aniso")
_VERSION = 1


@dataclass(frozen=True)
class Folder:
    """What a folder holds: the texts and metadata by id, and their index, which is None where there are none."""

    metric: str
    recall: float
    documents: dict[str, tuple[str, dict[str, Any]]]
    index: Index | None


def write_folder(path: str | os.PathLike[str], content: Folder) -> None:
    """Write the content into a folder, which is made if need be, in place of what it held."""
    for key, (_, metadata) in content.documents.items():
        check_json(metadata, f"the metadata of document {key!r}")
    target = Path(path)
    target.mkdir(parents=True, exist_ok=True)
    name = None if content.index is None else f"index-{secrets.token_hex(8)}.aniso"
    said = {
        "version": _VERSION,
        "metric": content.metric,
        "recall": content.recall,
        "index": name,
        "documents": [
            {"id": key, "text": text, "metadata": metadata} for key, (text, metadata) in content.documents.items()
        ],
    }
    try:
        if content.index is not None and name is not None:
            content.index.save(target / name)
        _replace(target / _DOCUMENTS, said)
    except BaseException:
        if name is not None:
            (target / name).unlink(missing_ok=True)
        raise
    for other in target.iterdir():
        if _INDEX.fullmatch(other.name) and other.name != name:
            try:
                other.unlink()
            except OSError:
                pass  # Windows keeps a file that is open; the next save tries again


def _replace(path: Path, said: dict[str, Any]) -> None:
    """Write JSON beside a file, then put it in its place."""
    temporary = path.with_name(f".aniso-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            json.dump(said, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_folder(path: str | os.PathLike[str], *, threads: int | None = None) -> Folder:
    """What `write_folder` wrote; FormatError says what is wrong with it."""
    file = Path(path) / _DOCUMENTS
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        version, name = said["version"], said["index"]
        metric, recall = check_metric(said["metric"]), check_recall(said["recall"])
        listed = [(each["id"], each["text"], each["metadata"]) for each in said["documents"]]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise FormatError(f"{file}: {type(error).__name__}: {error} (the file is damaged)") from None
    if version != _VERSION:
        raise FormatError(f"{file}: version is {version!r}; needed: {_VERSION} (a newer aniso may read it)")
    for each in listed:
        if [type(part) for part in each] != [str, str, dict]:
            raise FormatError(
                f"{file}: a document is {each!r:.60}; needed: id and text, both str, and a metadata object"
            )
    documents = {key: (text, metadata) for key, text, metadata in listed}
    if len(documents) < len(listed):
        raise FormatError(f"{file}: {len(listed)} documents have {len(documents)} ids; needed: one for each")
    return Folder(metric, recall, documents, _read_index(file, name, metric, documents, threads))


def _read_index(file: Path, name: Any, metric: str, documents: dict[str, Any], threads: int | None) -> Index | None:
    """The index that documents.json names, which is that of its documents."""
    if name is None and not documents:
        return None
    if not isinstance(name, str) or not _INDEX.fullmatch(name):
        raise FormatError(f"{file}: index is {name!r}; needed: a name such as index-0123456789abcdef.aniso")
    index = open_index(file.parent / name, threads=threads)
    if index.config.metric != metric or set(index.ids.tolist()) != documents.keys():
        raise FormatError(f"{file}: {name} is the index of other documents (were the files of two folders mixed?)")
    return index
