# SPDX-License-Identifier: Apache-2.0
"""The kinds of attention: how each makes q, k and v in training, and what its pages hold.

A kind has `mix(m, x)`: x (b, s, width) is the layer's normed input, and the result is what the
layer adds.  `m` is the layer.  Where m.pages is None a whole text is read, on the tape.  Else x is
what follows the tokens of the pages.

    m.heads(name, x, n, d)        x times a matrix, as (b, s, n, d)
    m.maps(name, n, d, e)         a weight of n heads, for m.project: x_project
    m.turn(x)                     rope at the tokens' places
    m.attend(recipe, q, k, v)     both ways for kinds that cache k and v: q and k are then turned
    m.read(recipe, q, k, v)       attention on the tape by the method's name
    m.append(k, v), m.paged(...)  cache_append, and attention over the pages by the method's name"""
from __future__ import annotations

from compact.model import Layer
from training import tape
from training.tape import Var


class Kind:
    """hidden: columns of each token's own network; it makes up for what attention's weights lack,
    so that all kinds have as many weights as mha, to 1 %."""

    name, paper, note = "", "", ""
    hidden = 0

    def mix(self, m: Layer, x: Var) -> Var:
        raise NotImplementedError


class Grouped(Kind):
    """8 heads of width 32 on fewer key heads."""

    heads, key_heads, width = 8, 8, 32

    def mix(self, m: Layer, x: Var) -> Var:
        q, k, v = (m.heads(name, x, n, self.width) for name, n in (
            ("q", self.heads), ("k", self.key_heads), ("v", self.key_heads)))
        return m.out(m.attend(self.name, q, k, v))


class MHA(Grouped):
    name, paper, note = "mha", "1706.03762", "8 heads of 32"
    hidden = 512


class GQA(Grouped):
    name, paper, note = "gqa", "2305.13245", "8 heads of 32 on 2 key heads"
    key_heads, hidden = 2, 640


class MQA(Grouped):
    name, paper, note = "mqa", "1911.02150", "8 heads of 32 on 1 key head"
    key_heads, hidden = 1, 661


class MLA(Kind):
    """A token's latent makes keys and values of all heads.  Pages hold it, and the part of the key
    that is turned: absorbed, the latent is key and value of one head."""

    name, paper = "mla", "2405.04434"
    note = "8 heads of 32 + 16 turned; a latent of 128"
    hidden = 506
    heads, plain, turned, width, rank = 8, 32, 16, 32, 128

    def mix(self, m: Layer, x: Var) -> Var:
        q = m.heads("q", x, self.heads, self.plain + self.turned)
        latent, key = m.heads("latent", x, 1, self.rank), m.heads("key", x, 1, self.turned)
        up_k = m.maps("up_k", self.heads, self.rank, self.plain)
        up_v = m.maps("up_v", self.heads, self.rank, self.width)
        q_plain, q_turned = q[..., :self.plain], m.turn(q[..., self.plain:])
        if m.pages is None:
            latent = m.norm("latent", latent, eps=m.eps)
            shared = m.turn(key).broadcast(*q.shape[:3], self.turned)
            k = tape.concat([m.project(latent, up_k), shared])
            return m.out(m.read("mla", tape.concat([q_plain, q_turned]), k,
                                m.project(latent, up_v)))
        m.append(k=tape.concat([latent, key]), norm_weight=m.norm_weight("latent", self.rank),
                 rope_begin=self.rank)
        absorbed = m.project(q_plain, Var(up_k.value.swapaxes(1, 2)))
        o = m.paged("mla_absorbed", {"q": tape.concat([absorbed, q_turned])}, self.rank,
                    scale=(self.plain + self.turned)**-0.5)
        return m.out(m.project(o, up_v))


class MFA(Kind):
    """Queries of many wide heads are of low rank; all read one head of keys and values."""

    name, paper = "mfa", "2412.19255"
    note = "8 heads of 64 on 1 key head; q of rank 128"
    hidden = 512
    heads, width, rank = 8, 64, 128

    def queries(self, m: Layer, x: Var) -> Var:
        low = m.norm("q_low", m.heads("q_low", x, 1, self.rank))
        return m.project(low, m.maps("q_up", self.heads, self.rank, self.width))

    def mix(self, m: Layer, x: Var) -> Var:
        k, v = m.heads("k", x, 1, self.width), m.heads("v", x, 1, self.width)
        return m.out(m.attend("mfa", self.queries(m, x), k, v))


class MFAKR(MFA):
    """v = k + (alpha k) N, k before it is turned.  Pages hold k alone; the sum of what attention
    reads goes through the same map."""

    name, note = "mfa_kr", "mfa whose values are a map of the keys"
    hidden = 528

    def mix(self, m: Layer, x: Var) -> Var:
        q, k = m.turn(self.queries(m, x)), m.heads("k", x, 1, self.width)
        if m.pages is None:
            return m.out(m.read("mfa", q, m.turn(k), self.reuse(m, k)))
        m.append(k=k, turned=False)
        return m.out(self.reuse(m, m.paged("mfa_kr", {"q": q}, self.width, turned=False)))

    def reuse(self, m: Layer, k: Var) -> Var:
        alpha = m.weight("reuse_alpha", (self.width,), 0.0)
        return k + m.linear("reuse", k * alpha, self.width)


class TPA(Kind):
    """Heads are sums of outer products a b, a mean of 6 for a query, of 2 for a key and a value.
    Pages hold the factors."""

    name, paper = "tpa", "2501.06425"
    note = "8 heads of 32 as sums of 6, 2 and 2 outer products"
    hidden = 634
    heads, width = 8, 32
    ranks = dict(q=6, k=2, v=2)

    def mix(self, m: Layer, x: Var) -> Var:
        a, b = ({name: m.heads(f"{part}_{name}", x, rank, width) for name, rank in
                 self.ranks.items()} for part, width in (("a", self.heads), ("b", self.width)))
        queries = dict(a_q=a["q"], b_q=m.turn(b["q"]))
        if m.pages is None:
            return m.out(m.factored(a_k=a["k"], b_k=m.turn(b["k"]), a_v=a["v"], b_v=b["v"],
                                    **queries))
        m.append(k=a["k"], v=a["v"], part="a_", turned=False)
        m.append(k=b["k"], v=b["v"], part="b_")
        return m.out(m.paged("tpa", queries))


KINDS: dict[str, Kind] = {kind.name: kind for kind in (
    MHA(), GQA(), MQA(), MLA(), MFA(), MFAKR(), TPA())}
