"""The libraries that aniso is compared with, by `aniso reproduce speed-recall` and by benchmarks/peers.py.

Every library is used as its documentation says: native cosine where it has one, else unit vectors with inner product
(`unit`). Knobs are set before the clock starts wherever the library lets them be set on the index. Grids are in series
of rising cost, so that a sweep can stop once a series has nothing left to find. A library is imported when it is used;
`pip install 'aniso[peers]'` installs them all.

What could not be used, with scann 1.4.2, faiss-cpu 1.15.1, hnswlib 0.8.0, usearch 2.26.6, ngt 2.8.0.post1, rabitqlib
0.7.1, scalable-vs 0.5.0, annoy 1.17.3, nmslib 2.1.2 and Python 3.11, is in MISSING and BASELINES_MISSING.
"""

from __future__ import annotations

from aniso.experiments.peers.graphs import Hnswlib, Ngt, Svs, SymphonyQG, Usearch
from aniso.experiments.peers.library import Knobs, Library, Series, Settings
from aniso.experiments.peers.older import Annoy, NmslibHnsw, NmslibSwGraph
from aniso.experiments.peers.partitioned import Aniso, FaissFastScan, FaissHnsw, Scann

__all__ = ["BASELINES_MISSING", "LIBRARIES", "MISSING", "Aniso", "Knobs", "Library", "Series", "Settings"]

LIBRARIES: dict[str, type[Library]] = {
    "aniso": Aniso,
    "scann": Scann,
    "faiss-ivf": FaissFastScan,
    "faiss-hnsw": FaissHnsw,
    "hnswlib": Hnswlib,
    "usearch": Usearch,
    "ngt": Ngt,
    "symphonyqg": SymphonyQG,
    "svs": Svs,
    "annoy": Annoy,
    "nmslib-hnsw": NmslibHnsw,
    "nmslib-sw": NmslibSwGraph,
}

MISSING = {
    "ngt QG": "the wheel has ngtpy alone; quantizing a graph needs the command line tool qbg, built from source",
    "scalable-vs LVQ": "its library ends the process on an AMD CPU, so that the grid has float32 and float16 alone; on "
    "an Intel CPU it was not tried",
}

# Of ann-benchmarks, and SPTAG, which the paper names beside them.
BASELINES_MISSING = {
    "SPTAG": "the wheel on PyPI (1.6.8) is linked with libpython3.9 and does not load in Python 3.11",
    "FLANN": "the package on PyPI (pyflann) is written for Python 2 and does not import",
    "KGraph": "source only on PyPI (kgraph), whose setup imports numpy without asking pip for it; pip cannot build it",
    "rpforest": "source only on PyPI, which does not compile with Python 3.11 (longintrepr.h)",
    "n2": "source only on PyPI; its compilation did not end within 15 minutes on a busy core",
    "MRPT": "source only on PyPI (mrpt); its compilation was stopped after 5 minutes on a busy core",
    "PUFFINN": "not on PyPI",
    "PyNNDescent": "installs, but compiles itself at its first use, for more than a minute of processor time",
}
