"""Quantizers: one file per family, one protocol, each trained with the plain or the score-aware loss."""

from aniso.quantizers.additive import AdditiveQuantizer
from aniso.quantizers.binary import BinaryQuantizer
from aniso.quantizers.opq import RotatedQuantizer
from aniso.quantizers.product import ProductQuantizer
from aniso.quantizers.protocol import Quantizer
from aniso.quantizers.quips import QuipsQuantizer
from aniso.quantizers.vector import VectorQuantizer

__all__ = [
    "AdditiveQuantizer",
    "BinaryQuantizer",
    "ProductQuantizer",
    "Quantizer",
    "QuipsQuantizer",
    "RotatedQuantizer",
    "VectorQuantizer",
]
