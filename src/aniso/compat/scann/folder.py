"""A searcher as a folder: one file that holds all of it, and beside it the files that ScaNN would have written.

`searcher.aniso` (docs/format.md) is what load_searcher reads: written whole or not at all, checksummed, the same
wherever the folder goes. The other files are there for programs that look into such folders; nothing here reads them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aniso import format as file_format
from aniso.compat.scann.collection import Collection
from aniso.compat.scann.config_text import Word, write
from aniso.compat.scann.stanzas import ReorderType
from aniso.index import Index
from aniso.layout import unpack_blocks

__all__ = ["SEARCHER", "load", "save"]

SEARCHER = "searcher.aniso"
_ASSETS = {  # the names of ScaNN's files, and what its list of them calls each
    "ah_codebook.pb": "AH_CENTERS",
    "serialized_partitioner.pb": "PARTITIONER",
    "datapoint_to_token.npy": "TOKENIZATION_NPY",
    "hashed_dataset.npy": "AH_DATASET_NPY",
    "hashed_dataset_soar.npy": "AH_DATASET_SOAR_NPY",
    "int8_dataset.npy": "INT8_DATASET_NPY",
    "int8_multipliers.npy": "INT8_MULTIPLIERS_NPY",
    "dp_norms.npy": "INT8_NORMS_NPY",
    "bfloat16_dataset.npy": "BF16_DATASET_NPY",
    "dataset.npy": "DATASET_NPY",
}
_LISTS = ("scann_assets.pbtxt", "scann_config.pb")


def save(folder: str | os.PathLike[str], collection: Collection, *, scann_files: bool) -> None:
    """Write the searcher into a folder, which is made if it is not there."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    if (place / SEARCHER).exists():  # what an earlier searcher left may not belong to this one
        for name in (*_ASSETS, *_LISTS):
            (place / name).unlink(missing_ok=True)
    with collection.lock:
        if scann_files:
            written = _save_arrays(place, collection)
            assets = [{"asset_type": Word(_ASSETS[name]), "asset_path": name} for name in _ASSETS if name in written]
            (place / "scann_assets.pbtxt").write_text(write({"assets": assets}), "utf-8")
            (place / "scann_config.pb").write_text(write(collection.config), "utf-8")
        file_format.save(place / SEARCHER, *collection.parts())


def load(folder: str | os.PathLike[str]) -> Collection:
    """The searcher of a folder, every byte of it checked."""
    place = Path(folder)
    if not place.is_dir():
        raise ValueError(f"{place} is not a directory; needed: the folder that serialize() wrote")
    path = place / SEARCHER
    if not path.is_file():
        hint = "needed: a folder that serialize() wrote"
        if (place / "scann_config.pb").exists():
            hint = "it seems to be of Google's ScaNN: build a searcher from its points (dataset.npy) instead"
        raise ValueError(f"{place} has no file {SEARCHER}; {hint}")
    opened = file_format.open_file(path, verify=True)
    return Collection.restored(opened.header, opened.arrays, str(path))


def _save_arrays(place: Path, collection: Collection) -> set[str]:
    """Write the arrays that ScaNN's folders have, in the order of docids; the names of the files."""
    engine, settings = collection.engine, collection.settings
    if engine is None:
        return set()
    arrays: dict[str, NDArray[Any]] = {}
    trained: dict[str, dict[str, NDArray[Any]]] = {}
    index = engine.codes_from
    if index is not None and (settings.tree is not None or settings.hash is not None):
        tokens, codes = _entries(index)
        if settings.tree is not None:
            arrays["datapoint_to_token.npy"] = tokens.reshape(-1)
            partitions = index._store.encoder.partitions
            trained["serialized_partitioner.pb"] = {"centroids": partitions.centroids}
        if settings.hash is not None:
            books = index._store.encoder.books
            trained["ah_codebook.pb"] = {"codewords": books.codewords, "starts": books.starts}
            for name, part in zip(("hashed_dataset.npy", "hashed_dataset_soar.npy"), codes, strict=False):
                arrays[name] = _by_block(part, settings.blocks(index.d))
    if settings.keeps_points:
        arrays |= _points(engine.points(), settings.copy, settings.metric == "l2")
    for name, array in arrays.items():
        np.save(place / name, array, allow_pickle=False)
    for name, parts in trained.items():
        file_format.save(place / name, {"kind": name}, parts)
    return {*arrays, *trained}


def _entries(index: Index) -> tuple[NDArray[np.int32], list[NDArray[np.uint8]]]:
    """The leaves of every point, (n, 1 or 2), and its codes in each of them, in the order of index.ids."""
    store = index._store
    slots, chosen = store.filled()
    place = np.full(max(store.n, 1), -1, np.int64)
    place[store.rows] = np.arange(store.count)
    at = place[store.slot_rows.reshape(-1)[slots]]
    slots, chosen, at = slots[at >= 0], chosen[at >= 0], at[at >= 0]
    order = np.lexsort((chosen, at))
    copies = 2 if store.encoder.config.spill else 1
    m = len(store.encoder.books.codewords)
    codes = unpack_blocks(store.codes[: store.blocks], m)[slots[order]]
    return chosen[order].reshape(-1, copies), [codes[number::copies] for number in range(copies)]


def _by_block(codes: NDArray[np.uint8], blocks: int) -> NDArray[np.uint8]:
    """One byte for each block, which holds one code of 4 bits, or two where a block has 8 bits."""
    if codes.shape[1] <= blocks:
        return codes
    padded = np.zeros((len(codes), 2 * blocks), np.uint8)
    padded[:, : codes.shape[1]] = codes
    paired: NDArray[np.uint8] = np.bitwise_or(padded[:, 0::2] << 4, padded[:, 1::2])
    return paired


def _points(points: NDArray[np.float32], kind: ReorderType, l2: bool) -> dict[str, NDArray[Any]]:
    """The points as ScaNN's files hold them: float32, bits of bfloat16, or bytes with a factor for each dimension."""
    if kind == ReorderType.FLOAT32:
        return {"dataset.npy": points}
    if kind == ReorderType.BFLOAT16:
        bits = points.view(np.uint32)
        nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # ties to even
        return {"bfloat16_dataset.npy": nearest.astype(np.uint16).view(np.int16)}
    largest = np.abs(points).max(axis=0, initial=0)
    factors = np.divide(127, largest, out=np.ones_like(largest), where=largest > 0)
    norms = np.einsum("nd,nd->n", points, points) if l2 else np.empty(0, np.float32)
    bytes_ = np.rint(points * factors).astype(np.int8)
    return {"int8_dataset.npy": bytes_, "int8_multipliers.npy": factors, "dp_norms.npy": norms}
