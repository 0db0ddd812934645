"""Maximum-inner-product and nearest-neighbour search on a CPU by anisotropic vector quantization."""

from aniso.config import Config
from aniso.errors import FormatError
from aniso.exact import ExactIndex
from aniso.index import Index, build
from aniso.index import open_index as open
from aniso.results import Result
from aniso.tune import tune

__all__ = ["Config", "ExactIndex", "FormatError", "Index", "Result", "build", "open", "tune"]
