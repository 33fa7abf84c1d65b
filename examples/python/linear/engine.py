# SPDX-License-Identifier: Apache-2.0
"""The operations that a layer is made of: by fovea, and by the recurrence in NumPy.

Both have five functions: `gla`, `delta`, `gsa`, `conv` and `norm`.  Fields have the names of the header.
fovea's gradients are those of its backward calls.  `Recurrence` runs token by token in float32 on
the tape, which differentiates it: no formula of a gradient is written there."""
from __future__ import annotations

from typing import Any

import numpy as np

from training import tape
from training.calls import Calls, There
from training.tape import Var

States = dict[str, There]  # of one layer, by name
Shapes = dict[str, tuple[int, ...]]


class Engine:
    """Inputs are Vars by the name of their field, numbers are the call's.  With `states` the call
    goes on from the states of that name, and writes the new ones over them."""

    def gla(self, name: str, states: States | None, inputs: dict[str, Var], **numbers: Any) -> Var:
        raise NotImplementedError

    def delta(self, name: str, states: States | None, inputs: dict[str, Var],
              **numbers: Any) -> Var:
        raise NotImplementedError

    def gsa(self, name: str, states: States | None, inputs: dict[str, Var], **numbers: Any) -> Var:
        raise NotImplementedError

    def conv(self, name: str, states: States | None, inputs: dict[str, Var],
             **numbers: Any) -> Var:
        raise NotImplementedError

    def norm(self, inputs: dict[str, Var], **numbers: Any) -> Var:
        raise NotImplementedError


class Fovea(Calls, Engine):
    def gla(self, name: str, states: States | None, inputs: dict[str, Var], **numbers: Any) -> Var:
        q, v = inputs["q"], inputs["v"]
        heads = max(inputs["k"].shape[2], v.shape[2])
        kept: Shapes = {"state": (1, heads, q.shape[3], v.shape[3])}
        if numbers.get("normalise"):
            kept["z"] = (1, heads, q.shape[3])
        out = (*q.shape[:2], max(q.shape[2], heads), v.shape[3])
        return self.run("gla", "o", out, inputs, numbers, self.carry(name, states, kept))

    def delta(self, name: str, states: States | None, inputs: dict[str, Var],
              **numbers: Any) -> Var:
        q, v = inputs["q"], inputs["v"]
        heads = max(inputs["k"].shape[2], v.shape[2])
        out = (*q.shape[:2], max(q.shape[2], heads), v.shape[3])
        kept: Shapes = {"state": (1, heads, q.shape[3], v.shape[3])}
        return self.run("delta", "o", out, inputs, numbers, self.carry(name, states, kept))

    def gsa(self, name: str, states: States | None, inputs: dict[str, Var], **numbers: Any) -> Var:
        q, v = inputs["q"], inputs["v"]
        heads, slots = inputs["gate"].shape[2:]
        out = (*q.shape[:2], max(q.shape[2], heads), v.shape[3])
        kept: Shapes = {"state_k": (1, heads, q.shape[3], slots),
                        "state_v": (1, heads, slots, v.shape[3])}
        return self.run("gsa", "o", out, inputs, numbers, self.carry(name, states, kept))

    def conv(self, name: str, states: States | None, inputs: dict[str, Var],
             **numbers: Any) -> Var:
        channels, taps = inputs["weight"].shape
        kept: Shapes = {"state": (1, channels, taps - 1)}
        return self.run("conv1d", "y", inputs["x"].shape, inputs, numbers,
                        self.carry(name, states, kept))

    def carry(self, name: str, states: States | None, kept: Shapes) -> dict[str, There]:
        """state_in and state_out are one array.  It begins as zeros."""
        if states is None:
            return {}
        for kind, shape in kept.items():
            if f"{name} {kind}" not in states:
                states[f"{name} {kind}"] = self.there(np.zeros(shape, np.float32))
        return {f"{kind}_{way}": states[f"{name} {kind}"] for kind in kept for way in ("in", "out")}


class Recurrence(Engine):
    """The formulas of the header, token by token.  It has no states: it is for training alone."""

    def gla(self, name: str, states: States | None, inputs: dict[str, Var], **numbers: Any) -> Var:
        q, k, v = (inputs[field] for field in "qkv")
        heads = max(k.shape[2], v.shape[2])
        scale = numbers.get("scale") or q.shape[3] ** -0.5
        q = repeat(feature(q, numbers.get("map_q")), heads)
        k = repeat(feature(k, numbers.get("map_k")), heads)
        v = repeat(v, heads)
        if "select" in inputs:
            k = k * column(inputs["select"])
        decay = decays(inputs, numbers)
        o = list[Var]()
        h: Var | None = None
        z: Var | None = None
        for t in range(q.shape[1]):
            # rows as columns of H (b, h, d, e)
            q_t, k_t, v_t = column(q[:, t]), column(k[:, t]), row(v[:, t])
            before = h
            if h is not None:
                for gate in decay:
                    h = h * gate[:, t]
            h = k_t * v_t if h is None else h + k_t * v_t
            if not numbers.get("read_before"):
                y = (q_t * h).sum(2) * scale
            elif before is not None:
                y = (q_t * before).sum(2) * scale
            else:
                y = v_t * 0.0
            if numbers.get("normalise"):
                z = k_t if z is None else z + k_t  # gates go without a normaliser here
                y = y * ((q_t * z).sum(2) * scale + (numbers.get("eps") or 1e-6)) ** -1
            if "bonus" in inputs:
                own = (q_t * column(inputs["bonus"]) * k_t).sum(2) * scale * v_t
                y = y + (tape.sigmoid(own) if numbers.get("bonus_sigmoid") else own)
            if "skip" in inputs:
                y = y + row(inputs["skip"]) * v_t
            o.append(y.reshape(*v[:, t].shape))
        return tape.stack(o, 1)

    def delta(self, name: str, states: States | None, inputs: dict[str, Var],
              **numbers: Any) -> Var:
        q, k, v = (inputs[field] for field in "qkv")
        heads = max(k.shape[2], v.shape[2])
        scale = numbers.get("scale") or q.shape[3] ** -0.5
        if numbers.get("l2_norm"):
            eps = numbers.get("eps") or 1e-6
            q, k = (x * ((x * x).sum() + eps) ** -0.5 for x in (q, k))
        q, k, v = repeat(q, heads), repeat(k, heads), repeat(v, heads)
        beta = inputs.get("beta")
        if beta is not None:
            half = {"sigmoid": 1.0, "two_sigmoid": 2.0}.get(numbers.get("beta_map", ""))
            beta = column(beta if half is None else tape.sigmoid(beta) * half)
        erase = inputs.get("erase", k if beta is None else k * beta)
        value = v if beta is None else v * beta
        decay = decays(inputs, numbers)
        o = list[Var]()
        h: Var | None = None
        for t in range(q.shape[1]):
            k_t = column(k[:, t])
            if h is None:
                h = k_t * row((v if "low_a" in inputs else value)[:, t])
            else:
                kept = h
                for gate in decay:
                    kept = kept * gate[:, t]
                if "low_a" in inputs:
                    low = (column(inputs["low_a"][:, t]) * h).sum(2)
                    h = kept + column(inputs["low_b"][:, t]) * low + k_t * row(v[:, t])
                else:
                    u = row(value[:, t]) - (column(erase[:, t]) * kept).sum(2)
                    h = kept + k_t * u
            o.append(((column(q[:, t]) * h).sum(2) * scale).reshape(*v[:, t].shape))
        return tape.stack(o, 1)

    def gsa(self, name: str, states: States | None, inputs: dict[str, Var], **numbers: Any) -> Var:
        q, k, v, gate = (inputs[field] for field in ("q", "k", "v", "gate"))
        heads = gate.shape[2]
        scale = numbers.get("scale") or q.shape[3] ** -0.5
        q = repeat(feature(q, numbers.get("map_q")), heads)
        k, v = repeat(feature(k, numbers.get("map_k")), heads), repeat(v, heads)
        decay = decays({"gate_key": gate}, numbers)[0].reshape(*gate.shape)
        rest = 1.0 - decay
        o = list[Var]()
        keys: Var | None = None
        values: Var | None = None
        for t in range(q.shape[1]):
            # (b, h, slots, d) and (b, h, slots, e)
            a, new = column(decay[:, t]), column(rest[:, t])
            key, value = new * row(k[:, t]), new * row(v[:, t])
            keys = key if keys is None else keys * a + key
            values = value if values is None else values * a + value
            p = tape.softmax((keys * row(q[:, t])).sum(3).reshape(*rest[:, t].shape) * scale)
            o.append((column(p) * values).sum(2).reshape(*v[:, t].shape))
        return tape.stack(o, 1)

    def conv(self, name: str, states: States | None, inputs: dict[str, Var],
             **numbers: Any) -> Var:
        x, weight = inputs["x"], inputs["weight"]
        b, s, f = x.shape
        taps = weight.shape[1]
        padded = tape.concat([Var(np.zeros((b, taps - 1, f), np.float32)), x], axis=1)
        y = padded[:, :s] * weight[:, 0]
        for u in range(1, taps):
            y = y + padded[:, u:u + s] * weight[:, u]
        if "bias" in inputs:
            y = y + inputs["bias"]
        return tape.silu(y) if numbers.get("activation") == "silu" else y

    def norm(self, inputs: dict[str, Var], **numbers: Any) -> Var:
        x, kind, eps = inputs["x"], numbers.get("norm", "rms"), numbers.get("eps") or 1e-5
        a = None
        if "gate" in inputs:
            act = {"silu": tape.silu, "sigmoid": tape.sigmoid}.get(numbers.get("act", ""))
            a = act(inputs["gate"]) if act else inputs["gate"]
        if a is not None and numbers.get("gate_first"):
            x, a = x * a, None
        if kind == "layer":
            x = x - x.sum() * (1 / x.shape[-1])
        squares = (x * x).sum() * (1.0 if kind == "l2" else 1 / x.shape[-1])
        y = x * (squares + eps) ** -0.5
        if "weight" in inputs:
            y = y * inputs["weight"]
        if "bias" in inputs:
            y = y + inputs["bias"]
        return y if a is None else y * a


def column(x: Var) -> Var:
    return x.reshape(*x.shape, 1)


def row(x: Var) -> Var:
    return x.reshape(*x.shape[:-1], 1, x.shape[-1])


def repeat(x: Var, heads: int) -> Var:
    """Head n of `heads` reads head n / (heads / h)."""
    b, s, h, d = x.shape
    if h == heads:
        return x
    return x.reshape(b, s, h, 1, d).broadcast(b, s, h, heads // h, d).reshape(b, s, heads, d)


def feature(x: Var, kind: str | None) -> Var:
    maps = {"silu": tape.silu, "elu_plus_one": tape.elu_plus_one}
    return maps[kind](x) if kind else x


def decays(inputs: dict[str, Var], numbers: dict[str, Any]) -> list[Var]:
    """Factors of H, each (b, s, h, d or 1, e or 1)."""
    found = list[Var]()
    kind = numbers.get("gate_map")
    for field in ("gate_head", "gate_key", "gate_value"):
        if field not in inputs:
            continue
        x = inputs[field]
        if field == "gate_head":
            x = column(x)
        if "gate_rate" in inputs:
            rate = tape.exp(column(inputs["gate_rate"]))
        else:
            rate = Var(1.0)
        if kind == "softplus":
            x = rate * tape.softplus(x) * -1.0
        elif kind == "bounded":
            x = tape.sigmoid(rate * x) * -numbers["gate_bound"]
        elif kind == "log_sigmoid":
            x = tape.softplus(x * -1.0) * (-1 / (numbers.get("gate_tau") or 1))
        elif kind == "exp":
            x = tape.exp(x) * -1.0
        found.append(tape.exp(row(x) if field == "gate_value" else column(x)))
    return found
