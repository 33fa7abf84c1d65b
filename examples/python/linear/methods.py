# SPDX-License-Identifier: Apache-2.0
"""The methods: each says how its layer makes q, k, v and gates of its input, and which call runs.

A method is a class with `mix(m, x)`: x (b, s, width) is the layer's normed input, and the result is
what the layer adds.  `m` is the layer: its weights are made where they are first used, by name.

    m.linear(name, x, n)    x times a matrix with n columns; bias: the start of one
    m.heads(name, x)        the same as (b, s, heads, d)
    m.conv(name, x)         a short causal convolution of each channel: x_conv1d
    m.gla, m.delta, m.gsa   x_gla, x_delta and x_gsa; fields have the names of the header
    m.norm(name, o)         a norm of each head, and a gate behind it: x_norm_gate
    m.out(o)                back to the width of the model"""
from __future__ import annotations

import math

import numpy as np

from linear.model import Layer
from training import tape
from training.tape import Var


class Method:
    name, paper, note = "", "", ""

    def mix(self, m: Layer, x: Var) -> Var:
        raise NotImplementedError


class LinearTransformer(Method):
    name, paper, note = "linear_transformer", "2006.16236", "elu + 1, normalised; no decay"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.heads(name, x) for name in "qkv")
        return m.out(m.gla(q, k, v, map_q="elu_plus_one", map_k="elu_plus_one", normalise=1,
                           scale=1.0))


class RetNet(Method):
    name, paper, note = "retnet", "2307.08621", "a constant decay a head; rope"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = m.rope(m.heads("q", x)), m.rope(m.heads("k", x)), m.heads("v", x)
        decay = np.log(1 - 2.0 ** (-5 - np.arange(m.head_count)))
        o = m.gla(q, k, v, gate_head=m.constant(decay, x))
        return m.out(m.norm("o", o, gate=m.open_gate(x), act="silu"))


class Lightning(Method):
    name, paper = "lightning", "2405.17381"
    note = "a constant decay a head, less in later layers; silu of q and k"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.heads(name, x) for name in "qkv")
        decay = -8 * np.arange(m.head_count) / m.head_count * (1 - m.index / m.layers)
        o = m.gla(q, k, v, gate_head=m.constant(decay, x), map_q="silu", map_k="silu")
        gate = m.split(m.linear("gate", x, m.inner), 1)
        return m.out(m.norm("o", m.split(o, 1), gate=gate, act="sigmoid"))


class SimpleGLA(Method):
    name, paper, note = "simple_gla", "2405.05254", "one gate a head"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.heads(name, x) for name in "qkv")
        gate = m.linear("gate_head", x, m.head_count, bias=0.0)
        o = m.gla(q, k, v, gate_head=gate, gate_map="log_sigmoid", gate_tau=16.0)
        return m.out(m.norm("o", o, gate=m.open_gate(x), act="silu"))


class GLA(Method):
    name, paper, note = "gla", "2312.06635", "a gate of each key channel, of rank 16"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.heads(name, x) for name in "qkv")
        gate = m.heads("gate_key", m.linear("gate_low", x, 16), bias=0.0)
        o = m.gla(q, k, v, gate_key=gate, gate_map="log_sigmoid", gate_tau=16.0)
        return m.out(m.norm("o", o, gate=m.open_gate(x), act="silu"))


class HGRN2(Method):
    name, paper = "hgrn2", "2404.07904"
    note = "k = 1 - decay; the least decay of layer l of L is l / (2 L), not learned"

    def mix(self, m: Layer, x: Var) -> Var:
        q, v = tape.silu(m.heads("q", x)), m.heads("v", x)
        least = m.index / (2 * m.layers)
        decay = tape.sigmoid(m.heads("gate_key", x, bias=2.0)) * (1 - least) + least
        o = m.gla(q, 1.0 - decay, v, gate_key=tape.log(decay), scale=1.0)
        return m.out(m.norm("o", o))


class GSA(Method):
    name, paper = "gsa", "2409.07146"
    note = "two passes over as many slots as a head is wide, a softmax between"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.heads(name, x) for name in "qkv")
        o = m.gsa(q, k, tape.silu(v), gate=m.heads("slot", x, bias=0.0), gate_map="log_sigmoid",
                  gate_tau=8.0, map_q="silu", map_k="silu")
        return m.out(m.norm("o", o))


class MetaLA(Method):
    name, paper = "metala", "2411.10741"
    note = "k = 1 - decay, and the token's own share"

    def mix(self, m: Layer, x: Var) -> Var:
        x = m.conv("x", x)
        q, v = m.heads("q", x), m.heads("v", x)
        gate = tape.softplus(m.heads("gate_key", x, bias=0.0) * -1.0) * (-1 / 16)
        bonus = m.weight("bonus", (m.head_count, m.width), 0.1) * math.sqrt(m.width)
        o = m.gla(q, 1.0 - tape.exp(gate), v, gate_key=gate, bonus=bonus, bonus_sigmoid=1)
        return m.out(m.norm("o", o, "layer", gate=m.open_gate(x), act="silu"))


class RWKV5(Method):
    name, paper = "rwkv5", "2404.05892"
    note = "a learned constant decay a channel; reads before it adds"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v, gate = (m.heads(name, m.shift(name, x)) for name in ("q", "k", "v", "gate"))
        decay = self.decay(m, x)
        o = m.gla(q, k, v, gate_key=decay, gate_map="exp", read_before=1, scale=1.0,
                  bonus=m.weight("bonus", (m.head_count, m.width), 0.3))
        return m.out(m.norm("o", o, "layer", bias=True, eps=64e-5, gate=gate, act="silu"))

    def start(self, m: Layer) -> Var:
        """Channels from long to short memory."""
        at = np.linspace(-5, 0, m.width, dtype=np.float32)
        return m.weight("decay", (m.head_count, m.width), at)

    def decay(self, m: Layer, x: Var) -> Var:
        return self.start(m).broadcast(*x.shape[:2], m.head_count, m.width)


class RWKV6(RWKV5):
    name, paper, note = "rwkv6", "2404.05892", "rwkv5 with a decay of each token"

    def decay(self, m: Layer, x: Var) -> Var:
        low = tape.tanh(m.linear("decay_low", m.shift("decay", x), 16))
        return m.heads("decay_high", low) + self.start(m)


class Mamba2(Method):
    name, paper = "mamba2", "2405.21060"
    note = "one q and k for all heads; the step size gates and selects"

    def mix(self, m: Layer, x: Var) -> Var:
        n, inner = m.width, m.head_count * m.width
        mixed = m.conv("vkq", m.linear("vkq", x, inner + 2 * n))
        v = m.split(mixed[:, :, :inner])
        k, q = m.split(mixed[:, :, inner:inner + n], 1), m.split(mixed[:, :, inner + n:], 1)
        raw = m.linear("step", x, m.head_count, bias=m.steps())
        o = m.gla(q, k, v, gate_head=raw, gate_map="softplus", gate_rate=m.rates(),
                  select=tape.softplus(raw), scale=1.0,
                  skip=m.weight("skip", (m.head_count, 1), 1.0).broadcast(m.head_count, n))
        gate = m.split(m.open_gate(x), 1)
        return m.out(m.norm("o", m.split(o, 1), gate=gate, act="silu", gate_first=1))


class DeltaNet(Method):
    name, paper, note = "deltanet", "2406.06484", "corrects; no decay"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.split(m.conv(name, m.linear(name, x, m.inner))) for name in "qkv")
        o = m.delta(q, k, v, beta=m.linear("beta", x, m.head_count), beta_map="sigmoid", l2_norm=1)
        return m.out(m.norm("o", o))


class GatedDeltaNet(Method):
    name, paper, note = "gated_deltanet", "2412.06464", "deltanet with one decay a head"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.split(m.conv(name, m.linear(name, x, m.inner))) for name in "qkv")
        o = m.delta(q, k, v, beta=m.linear("beta", x, m.head_count), beta_map="sigmoid", l2_norm=1,
                    gate_head=m.linear("gate_head", x, m.head_count, bias=m.steps()),
                    gate_map="softplus", gate_rate=m.rates())
        return m.out(m.norm("o", o, gate=m.open_gate(x), act="silu"))


class KDA(Method):
    name, paper = "kda", "2510.26692"
    note = "deltanet with a decay of each key channel, of rank 16"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.split(m.conv(name, m.linear(name, x, m.inner))) for name in "qkv")
        gate = m.heads("gate_key", m.linear("gate_low", x, 16), bias=m.steps())
        o = m.delta(q, k, v, beta=m.linear("beta", x, m.head_count), beta_map="sigmoid", l2_norm=1,
                    gate_key=gate, gate_map="softplus", gate_rate=m.rates())
        return m.out(m.norm("o", o, gate=m.heads("gate", x), act="sigmoid"))


class Comba(Method):
    name, paper = "comba", "2506.02475"
    note = "erases a learned share of what it writes; q is corrected by k"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.split(m.conv(name, m.linear(name, x, m.inner))) for name in "qkv")
        q, k = m.unit(q), m.unit(k)
        beta = tape.sigmoid(m.linear("beta", x, m.head_count))
        share = tape.sigmoid(m.weight("share", (m.head_count, 1), 2.0))
        q = q - k * m.weight("correction", (m.head_count, 1), 0.02)
        o = m.delta(q, k, v, beta=beta, erase=k * beta.reshape(*beta.shape, 1) * share,
                    gate_head=m.linear("gate_head", x, m.head_count, bias=m.steps()),
                    gate_map="softplus", gate_rate=m.rates())
        return m.out(m.norm("o", o, gate=m.open_gate(x), act="silu"))


class GDN2(Method):
    name, paper = "gdn2", "2605.22791"
    note = "erases and writes by a strength of each channel"

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.split(m.conv(name, m.linear(name, x, m.inner))) for name in "qkv")
        q, k = m.unit(q), m.unit(k)
        erase, write = (tape.sigmoid(m.heads(name, x)) for name in ("erase", "write"))
        gate = m.heads("gate_key", m.linear("gate_low", x, 16), bias=m.steps())
        o = m.delta(q, k, v * write, erase=k * erase, gate_key=gate, gate_map="softplus",
                    gate_rate=m.rates())
        return m.out(m.norm("o", o, gate=m.open_gate(x), act="silu"))


class RWKV7(Method):
    name, paper = "rwkv7", "2503.14456"
    note = "decay and correction by channel; without the values of the first layer"

    def mix(self, m: Layer, x: Var) -> Var:
        # The paper starts q, k and v small, k most of all, and channels from long to short memory.
        q, k, v = (m.heads(name, m.shift(name, x), size=size)
                   for name, size in (("q", 0.29), ("k", 0.029), ("v", 0.29)))
        low = tape.tanh(m.linear("decay_low", m.shift("decay", x), 16))
        memory = np.linspace(-6.5, -1.5, m.inner, dtype=np.float32).reshape(m.head_count, -1)
        decay = m.heads("decay_high", low, bias=memory)
        a = tape.sigmoid(m.heads("a_high", m.linear("a_low", m.shift("a", x), 16), bias=0.0))
        shape = (m.head_count, m.width)
        removed = m.unit(k * m.weight("removed", shape, 1.0))
        k = k * ((a - 1.0) * m.weight("kept", shape, 1.0) + 1.0)
        o = m.delta(q, k, v, gate_key=decay, gate_map="bounded", gate_bound=math.exp(-0.5),
                    low_a=removed * -1.0, low_b=removed * a, scale=1.0)
        o = m.norm("o", o, "layer", bias=True, eps=m.width * 1e-5)
        own = (q * k * m.weight("bonus", shape, -0.04)).sum() * v
        gate = m.heads("gate_high", tape.sigmoid(m.linear("gate_low", m.shift("gate", x), 32)))
        return m.out((o + own) * gate)


METHODS: dict[str, Method] = {method.name: method for method in (
    LinearTransformer(), RetNet(), Lightning(), SimpleGLA(), GLA(), HGRN2(), GSA(), MetaLA(),
    Mamba2(), RWKV5(), RWKV6(), DeltaNet(), GatedDeltaNet(), KDA(), Comba(), GDN2(), RWKV7())}
CORRECTING = ("deltanet", "gated_deltanet", "kda", "comba", "gdn2", "rwkv7")
