"""Binary codes by stochastic generative hashing (SGH): bits h = [x W + b > 0], and a linear decoder y = h U + c.

n points, d dimensions, l bits. Encoder and decoder are learnt together by stochastic gradients (Adam): in training a
bit is drawn with the probability z = sigmoid(x W + b), and the gradient passes through the draw as z (1 - z) times that
of the bit. The score-aware loss changes one line: the gradient with respect to y is that of
|r|^2 + (eta - 1) <r, u>^2, r = x - y and u = x / |x|, instead of that of |r|^2.

Four bits have 16 values, each with its own sum of rows of U: to the search these are additive codes of l / 4 codebooks.
The local search of such codes can therefore improve the encoder's bits (restarts).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aniso import _core
from aniso.errors import NotFittedError, check_count, check_seed, check_threads, check_vectors
from aniso.exact import multiply
from aniso.kmeans import directions
from aniso.loss import Loss, Weights, check_loss
from aniso.progress import Progress, silent
from aniso.quantizers.additive_codebooks import decode_sum, gram
from aniso.quantizers.protocol import score_decoded

__all__ = ["BinaryQuantizer"]

_BATCH = 500
_RATE = 3e-2  # of Adam at the start; falls to zero along a line
_ROWS = 8192  # points encoded in one call into the core
_SWEEPS = 20  # most sweeps of one local search
_KICKS = 4  # groups of four bits replaced at random before a new search

F32 = NDArray[np.float32]
Bits = NDArray[np.uint8]


class BinaryQuantizer:
    """Codes of `length` bits per point.

    length      l, a multiple of 8
    loss        Reconstruction() (default) or a score-aware loss from aniso.loss
    steps       stochastic gradients, each of 500 points
    restarts    None takes the encoder's bits as they are (SGH); a number searches on from them, with as many restarts
    sample      most points used in training, chosen by the seed

    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(2000, 10)).astype(np.float32)
    >>> quantizer = BinaryQuantizer(16, steps=200).fit(points)
    >>> codes = quantizer.encode(points)
    >>> codes.shape, quantizer.bits
    ((2000, 2), 16)

    After fit: encoder (d, l), threshold (l,), decoder (l, d), shift (d,), and losses: the mean loss of each tenth of
    the steps, with drawn bits. They fall, but as with any stochastic gradient not at every step.
    """

    encoder: F32
    threshold: F32
    decoder: F32
    shift: F32
    losses: list[float]

    def __init__(
        self,
        length: int,
        *,
        loss: Loss | None = None,
        steps: int = 5000,
        restarts: int | None = None,
        sample: int = 100_000,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.length = check_count(length, "length")
        if self.length % 8:
            raise ValueError(f"length is {self.length}; needed: a multiple of 8")
        self.loss = check_loss(loss)
        self.steps = check_count(steps, "steps", least=0)
        self.restarts = None if restarts is None else check_count(restarts, "restarts", least=0, most=10_000)
        self.sample = check_count(sample, "sample")
        self.seed = check_seed(seed)
        self.threads = check_threads(threads)

    @property
    def bits(self) -> int:
        """Bits that the code of one point takes."""
        return self.length

    def fit(self, points: ArrayLike, *, progress: Progress = silent) -> BinaryQuantizer:
        """Learn encoder and decoder from points (n, d), or from a sample of them."""
        x = check_vectors(points, "points", rows=1)
        rng = np.random.default_rng(self.seed)
        if len(x) > self.sample:
            x = x[np.sort(rng.choice(len(x), self.sample, replace=False))]
        n, d = x.shape
        weights, units = self._weights(x), directions(x)
        pull, importance = (weights.eta - 1.0).astype(np.float32), weights.importance.astype(np.float32)
        mean = x.mean(axis=0, dtype=np.float64).astype(np.float32)
        spread = float(np.sqrt(np.mean((x - mean).astype(np.float64) ** 2))) or 1.0
        # Learnt on (x - mean) / spread, whose entries are near 1 whatever the data, so that one rate suits all.
        model = _Adam(
            encoder=rng.normal(size=(d, self.length)) / np.sqrt(d),
            threshold=np.zeros(self.length),
            decoder=rng.normal(size=(self.length, d)) / np.sqrt(self.length),
            shift=np.zeros(d),
        )
        model["shift"] -= model["decoder"].sum(axis=0) / 2  # a bit is on half of the time: y starts at the mean
        losses: list[float] = []
        for step in range(self.steps):
            progress("binary codes", step, self.steps)
            rows = rng.integers(0, n, min(_BATCH, n))
            inputs = (x[rows] - mean) / np.float32(spread)
            chances = _sigmoid(multiply(inputs, model["encoder"], threads=self.threads) + model["threshold"])
            drawn = (rng.random(chances.shape, np.float32) < chances).astype(np.float32)
            errors = inputs - multiply(drawn, model["decoder"], threads=self.threads) - model["shift"]
            along = np.einsum("nd,nd->n", errors, units[rows])
            # The one line that the score-aware loss changes.
            weighed = importance[rows, None] * (errors + (pull[rows] * along)[:, None] * units[rows])
            losses.append(float(np.sum(weighed * errors, dtype=np.float64)) * spread**2 / len(rows))
            by_output = weighed * np.float32(-2 / len(rows))
            by_bit = multiply(by_output, model["decoder"].T, threads=self.threads)
            by_input = by_bit * chances * (1 - chances)
            model.step(
                _RATE * (1 - step / self.steps),
                encoder=multiply(np.ascontiguousarray(inputs.T), by_input, threads=self.threads),
                threshold=by_input.sum(axis=0),
                decoder=multiply(np.ascontiguousarray(drawn.T), by_output, threads=self.threads),
                shift=by_output.sum(axis=0),
            )
        progress("binary codes", self.steps, self.steps)
        self.encoder = model["encoder"] / np.float32(spread)
        self.threshold = model["threshold"] - multiply(mean[None], self.encoder)[0]
        self.decoder, self.shift = model["decoder"] * np.float32(spread), model["shift"] * np.float32(spread) + mean
        self.losses = [float(np.mean(part)) for part in np.array_split(losses, 10) if len(part)]
        return self

    def encode(self, points: ArrayLike, *, progress: Progress = silent) -> Bits:
        """The codes of points: (n, length / 8) bytes, the first bit the highest of the first byte."""
        self._fitted()
        x = check_vectors(points, "points", d=len(self.encoder))
        codes = np.empty((len(x), self.length // 8), np.uint8)
        words = None if self.restarts is None else self._words()
        products = None if words is None else gram(words)
        for first in range(0, len(x), _ROWS):
            progress("encode", first, len(x))
            part = x[first : first + _ROWS]
            bits = multiply(part, self.encoder, threads=self.threads) + self.threshold > 0
            packed = np.packbits(bits, axis=1)
            if words is not None and products is not None:
                packed = self._search(part, words, products, packed)
            codes[first : first + _ROWS] = packed
        progress("encode", len(x), len(x))
        return codes

    def decode(self, codes: NDArray[Any]) -> F32:
        """The points that the codes stand for, (n, d)."""
        self._fitted()
        names = np.asarray(codes)
        if names.ndim != 2 or names.shape[1] != self.length // 8 or names.dtype != np.uint8:
            needed = f"(n, {self.length // 8}) of uint8"
            raise ValueError(f"codes have shape {names.shape} and dtype {names.dtype}; needed: {needed}")
        return decode_sum(self._words(), _groups(names))

    def score(self, queries: ArrayLike, codes: NDArray[Any]) -> F32:
        """Inner products of queries (q, d) with the decoded points, (q, n)."""
        return score_decoded(self, queries, codes)

    def _fitted(self) -> None:
        if not hasattr(self, "losses"):
            raise NotFittedError("this BinaryQuantizer has no encoder yet: call fit(points) first")

    def _weights(self, x: F32) -> Weights:
        return self.loss.weights(np.linalg.norm(x.astype(np.float64), axis=1), x.shape[1])

    def _words(self) -> F32:
        """The sums of every four rows of the decoder: (l / 4, 16, d), those of the first four with the shift."""
        rows = self.decoder.reshape(-1, 4, self.decoder.shape[1])
        names = np.arange(16)
        words = np.zeros((len(rows), 16, rows.shape[2]), np.float32)
        for bit in range(4):
            on = (names >> (3 - bit) & 1).astype(np.float32)
            words += on[None, :, None] * rows[:, bit, None]
        words[0] += self.shift
        return words

    def _search(self, x: F32, words: F32, products: F32, packed: Bits) -> Bits:
        """Bits of less loss, found from those given."""
        groups = _groups(packed)
        _core.encode_additive(
            x,
            (self._weights(x).eta - 1.0).astype(np.float32),
            words,
            products,
            groups,
            scaled=False,
            warm=True,
            sweeps=_SWEEPS,
            restarts=self.restarts or 0,
            kicks=_KICKS,
            seed=self.seed % 2**64,
            threads=self.threads,
        )
        return (groups[:, 0::2] << 4 | groups[:, 1::2]).astype(np.uint8)


class _Adam(dict[str, F32]):
    """Named parameters, and the running means of their gradients and squared gradients."""

    def __init__(self, **parameters: NDArray[np.floating]) -> None:
        super().__init__({name: np.asarray(value, np.float32) for name, value in parameters.items()})
        self._first = {name: np.zeros_like(value) for name, value in self.items()}
        self._second = {name: np.zeros_like(value) for name, value in self.items()}
        self._steps = 0

    def step(self, rate: float, **gradients: F32) -> None:
        """Move every parameter against its gradient."""
        self._steps += 1
        for name, gradient in gradients.items():
            first, second = self._first[name], self._second[name]
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient * gradient - second)
            size = np.sqrt(second / (1 - 0.999**self._steps)) + 1e-8
            self[name] -= np.float32(rate / (1 - 0.9**self._steps)) * first / size


def _sigmoid(x: F32) -> F32:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), np.float32)


def _groups(packed: Bits) -> Bits:
    """Bytes as pairs of four bits: (n, 2 bytes)."""
    groups = np.empty((len(packed), 2 * packed.shape[1]), np.uint8)
    groups[:, 0::2], groups[:, 1::2] = packed >> 4, packed & 15
    return groups
