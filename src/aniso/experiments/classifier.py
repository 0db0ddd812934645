"""A classifier of very many classes: one hidden layer, trained by sampled softmax in NumPy.

The rows of its last layer are points, the hidden activations of inputs are queries, and the class with the largest
logit is the point of largest inner product: there is no bias.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aniso.progress import Progress, silent

__all__ = ["Classifier"]

F32 = NDArray[np.float32]

_BATCH = 512
_RATE = 1e-3  # of Adam for the hidden layer
_START = np.float32(0.1)  # norm of a row of the last layer before training
_RATE_LAST = 0.3  # of Adagrad for the last layer, whose rows are touched only when drawn


class Classifier:
    """Logits relu(x W + b) @ last.T."""

    def __init__(self, d: int, hidden: int, classes: int, *, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self.weights = (self._rng.normal(size=(d, hidden)) * np.sqrt(2 / d)).astype(np.float32)
        self.bias = np.zeros(hidden, np.float32)
        self.last = np.zeros((classes, hidden), np.float32)

    def hidden(self, x: F32) -> F32:
        """The activations of the hidden layer."""
        return np.asarray(np.maximum(x @ self.weights + self.bias, 0))

    def fit(self, x: F32, *, epochs: int, negatives: int, noise: float, progress: Progress = silent) -> list[float]:
        """Learn that input i is of class i, from noisy copies; returns the mean loss of each epoch.

        Every class starts at a short step along the centred direction of its own input's activations, which saves the
        many passes that one example per class would need to get there. The softmax of a batch runs over the classes of
        the batch and over others drawn at random, each corrected for how likely it was to be drawn.
        """
        classes, batches = len(self.last), -(-len(x) // _BATCH)
        self.last = self.hidden(x)
        self.last -= self.last.mean(axis=0)
        self.last *= _START / np.linalg.norm(self.last, axis=1, keepdims=True)
        squares = np.full(classes, 1e-3, np.float32)
        means: list[F32] = [np.zeros_like(part) for part in (self.weights, self.bias)]
        moments: list[F32] = [np.zeros_like(part) for part in (self.weights, self.bias)]
        losses, step = [], 0
        for epoch in range(epochs):
            order, total = self._rng.permutation(len(x)), 0.0
            for batch in range(batches):
                progress(f"classifier, epoch {epoch + 1} of {epochs}", batch, batches)
                step += 1
                rows = order[batch * _BATCH : (batch + 1) * _BATCH]
                inputs = x[rows] + noise * self._rng.standard_normal((len(rows), x.shape[1]), np.float32)
                others = self._rng.choice(classes, min(negatives, classes), replace=False)
                drawn = np.concatenate([rows, np.setdiff1d(others, rows)])
                loss, by_hidden, hidden = self._last_step(inputs, drawn, squares)
                total += loss
                by_input = np.where(hidden > 0, by_hidden, 0)
                rate = _RATE * (1 - step / (epochs * batches + 1))
                parts = (self.weights, self.bias)
                for i, gradient in enumerate((inputs.T @ by_input, by_input.sum(axis=0))):
                    means[i] += 0.1 * (gradient - means[i])
                    moments[i] += 0.001 * (gradient**2 - moments[i])
                    size = np.sqrt(moments[i] / (1 - 0.999**step)) + 1e-8
                    np.subtract(parts[i], rate / (1 - 0.9**step) * means[i] / size, out=parts[i])
            losses.append(total / batches)
        progress("classifier", batches, batches)
        return losses

    def _last_step(self, inputs: F32, drawn: NDArray[np.int64], squares: F32) -> tuple[float, F32, F32]:
        """One step of the last layer; the loss, its gradient by the hidden activations, and these."""
        count = len(inputs)
        hidden, last = self.hidden(inputs), self.last[drawn]
        logits = hidden @ last.T
        # A negative stands for all classes that were not drawn.
        if len(drawn) > count:
            logits[:, count:] += np.log((len(self.last) - count) / (len(drawn) - count))
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        own = np.arange(count)
        loss = float(-np.mean(np.log(np.maximum(chances[own, own], 1e-20))))
        chances[own, own] -= 1
        chances /= count
        by_hidden, by_last = chances @ last, chances.T @ hidden
        squares[drawn] += np.einsum("nd,nd->n", by_last, by_last)
        self.last[drawn] -= (_RATE_LAST / np.sqrt(squares[drawn]))[:, None] * by_last
        return loss, np.asarray(by_hidden), hidden
