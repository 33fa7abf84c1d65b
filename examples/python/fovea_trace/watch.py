# SPDX-License-Identifier: Apache-2.0
"""Attention of the decoder in smollm/model.py, watched: the model attends to everything as ever,
and each layer's queries and keys are traced on the way.

    rope_forward        turns queries and keys
    attention_forward   what the model goes on with; its lse is that of all keys
    session.trace       the blocks that matter, their edges to the sink; its lse is that of those

exp(lse of the kept blocks - lse of all) is the part of a query's attention that the edges show."""
import fovea
import numpy as np

from smollm.paged import numpy_dtype


class WatchedAttention:
    def __init__(self, config, ctx, session, layers, dtype="f32", progress=lambda layer: None):
        self.config, self.ctx, self.session, self.layers = config, ctx, session, layers
        self.dtype, self.progress = numpy_dtype(dtype), progress
        self.retained = []  # of each traced layer, (heads, tokens)
        self.kernels = {}

    def extend(self, n):
        """The whole text is one step, so there is no cache."""
        table = (n, self.config.head_dim // 2)
        cos, sin = self.ctx.empty(table, "f32"), self.ctx.empty(table, "f32")
        fovea.rope_table_get(self.ctx, cos=cos, sin=sin, base=self.config.rope_base)
        # GGUF stores the rows of Wq and Wk so that column pairs are (2i, 2i + 1).
        self.rope = dict(cos=cos, sin=sin, rope_interleaved=1,
                         position=self.there(np.arange(n, dtype=np.int32)[None]))

    def attend(self, layer, q, k, v):
        self.progress(layer)
        q, k, v = (self.there(x[None].astype(self.dtype)) for x in (q, k, v))
        q = self.run(fovea.rope_forward, x=q, **self.rope)
        k = self.run(fovea.rope_forward, x=k, **self.rope)
        o, lse = self.run(fovea.attention_forward, q=q, k=k, v=v, causal=1, lse=True)
        if layer in self.layers:
            kept = self.session.trace(q, k, layer=layer, lse=True)
            self.kernels[self.ctx.last_kernel] = None
            self.retained.append(np.exp(np.minimum(self.here(kept) - self.here(lse), 0))[0])
        return self.here(o)[0].astype(np.float32)

    def run(self, operation, **fields):
        result = operation(self.ctx, **fields)
        self.kernels[self.ctx.last_kernel] = None  # in order of first use
        return result

    def there(self, x):
        """A NumPy array where fovea computes."""
        x = np.ascontiguousarray(x)
        return x if self.ctx.backend == "host" else self.ctx.array(x)

    def here(self, x):
        return x if self.ctx.backend == "host" else x.numpy()
