"""Maximum-inner-product and nearest-neighbour search on a CPU by anisotropic vector quantization."""

from aniso.config import Config
from aniso.exact import ExactIndex
from aniso.index import Index, build
from aniso.results import Result

__all__ = ["Config", "ExactIndex", "Index", "Result", "build"]
