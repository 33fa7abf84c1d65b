# SPDX-License-Identifier: Apache-2.0
"""What is seen of a layer: the edges of its queries and keys, the attention that they hold, and on
request the weights of single tokens.

    session.trace       the blocks that matter, their edges to the sink; its lse is that of those
    lse                 of all keys, from attention_forward or trace_forward's lse_dense

exp(lse of the kept blocks - lse of all) is the part of a query's attention that the edges show."""
from collections.abc import Callable, Sequence
from typing import Any

import fovea
import numpy as np
from numpy.typing import NDArray

from fovea_trace import record
from fovea_trace.record import About, Floats
from fovea_trace.tokens import token_weights
from smollm.model import Config
from smollm.paged import There, numpy_dtype

Progress = Callable[[int, int], object]  # is told (layer, edges so far) before each layer


class Watcher:
    """Traces layers with a ctx, and makes the Trace of them.  `fields` are trace_forward's;
    tokens_of: the row block whose single tokens are weighed, or None."""

    def __init__(self, ctx: fovea.Context, layers: list[int], tokens_of: int | None = None,
                 progress: Progress = lambda layer, edges: None, **fields: Any) -> None:
        self.ctx, self.layers, self.tokens_of, self.progress = ctx, layers, tokens_of, progress
        self.fields = dict(fields, causal=fields.get("causal", True))
        self.edges, self.kernels = bytearray(), dict[str, None]()
        self.retained: list[Floats] = []
        self.tokens: list[tuple[NDArray[np.int32], Floats]] = []
        self.session = fovea.TraceSession(ctx, **self.fields)

    def begin(self) -> fovea.TraceSession:
        return self.session.begin(self.edges.extend)

    def see(self, layer: int, q: Any, k: Any, lse: Any = None, scale: float | None = None) -> None:
        """q (1, s, h, d) and k (1, t, g, d) after rope; lse: of all keys, if it is known."""
        self.progress(layer, len(self.edges) // record.RECORD.itemsize)
        if layer not in self.layers:
            return
        scaled = {} if scale is None or np.isclose(scale, q.shape[3] ** -0.5) else {"scale": scale}
        if lse is None:
            kept, lse = self.session.trace(q, k, layer=layer, lse=True, lse_dense=True, **scaled)
        else:
            kept = self.session.trace(q, k, layer=layer, lse=True, **scaled)
        self.kernels[self.ctx.last_kernel] = None  # in order of first use
        if self.tokens_of is not None:
            self.tokens.append(token_weights(
                numbers(q)[0], numbers(k)[0], self.tokens_of, self.fields["block_rows"],
                scale or q.shape[3] ** -0.5, self.fields["causal"]))
        self.retained.append(np.exp(np.minimum(numbers(kept) - numbers(lse), 0))[0])

    def trace(self, about: About, token_text: Sequence[str]) -> record.Trace:
        """The layers that were seen whole; token_text: the text of each token."""
        done = self.layers[:len(self.retained)]
        edges = np.frombuffer(bytes(self.edges), record.RECORD)
        edges = edges[edges["layer"] <= done[-1]]
        rows, keys = self.fields["block_rows"], self.fields["block_keys"]
        retained = record.block_mean(np.stack(self.retained), rows)
        about = dict(
            about, tokens=len(token_text), layers=done, heads=retained.shape[1], **self.fields,
            backend=repr(self.ctx), fovea=fovea.__version__)
        weights = None
        if self.tokens_of is not None:
            key, weight = (np.stack(x) for x in zip(*self.tokens[:len(done)]))
            weights = record.TokenWeights(self.tokens_of, list(token_text), key, weight)
        row_text, key_text = (["".join(token_text[i:i + n]) for i in range(0, len(token_text), n)]
                              for n in (rows, keys))
        return record.Trace(about, edges, retained, row_text, key_text, weights)


def numbers(x: Any) -> NDArray[Any]:
    """A result of fovea, or a torch tensor, as a NumPy array."""
    if isinstance(x, np.ndarray):
        return x
    made: NDArray[Any] = (x.detach().float().cpu() if hasattr(x, "detach") else x).numpy()
    return made


class WatchedAttention:
    """Attention of the decoder in smollm/model.py, watched: the model attends to everything as
    ever, and each layer's queries and keys are traced on the way."""

    def __init__(self, config: Config, watcher: Watcher, dtype: str = "f32") -> None:
        self.config, self.watcher, self.ctx = config, watcher, watcher.ctx
        self.dtype, self.kernels = numpy_dtype(dtype), watcher.kernels

    def extend(self, n: int) -> None:
        """The whole text is one step, so there is no cache."""
        table = (n, self.config.head_dim // 2)
        cos, sin = self.ctx.empty(table, "f32"), self.ctx.empty(table, "f32")
        fovea.rope_table_get(self.ctx, cos=cos, sin=sin, base=self.config.rope_base)
        # GGUF stores the rows of Wq and Wk so that column pairs are (2i, 2i + 1).
        self.rope = dict(cos=cos, sin=sin, rope_interleaved=1,
                         position=self.there(np.arange(n, dtype=np.int32)[None]))

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        inputs = [self.there(x[None].astype(self.dtype)) for x in (q, k, v)]
        turned_q, turned_k = (self.run(fovea.rope_forward, x=x, **self.rope) for x in inputs[:2])
        o, lse = self.run(fovea.attention_forward, q=turned_q, k=turned_k, v=inputs[2],
                          causal=1, lse=True)
        self.watcher.see(layer, turned_q, turned_k, lse)
        out: Floats = numbers(o)[0].astype(np.float32)
        return out

    def run(self, operation: Callable[..., Any], **fields: Any) -> Any:
        result = operation(self.ctx, **fields)
        self.kernels[self.ctx.last_kernel] = None
        return result

    def there(self, x: NDArray[Any]) -> There:
        """A NumPy array where fovea computes."""
        x = np.ascontiguousarray(x)
        return x if self.ctx.backend == "host" else self.ctx.array(x)
