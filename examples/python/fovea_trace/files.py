# SPDX-License-Identifier: Apache-2.0
"""trace.npz, trace.json and trace.csv.

    trace.npz   edge (E, 4) i32 as fovea's: layer, head, row block, key block; edge_weight (E) f32;
                edge_share (E) f32; retained (layers, heads, row blocks) f32; row_text, key_text;
                about: JSON text; of single tokens token_block, token_text, and token_key and
                token_weight (layers, heads, rows of the block, 16), heaviest first
    trace.json  a node-link graph, as networkx.node_link_graph(..., edges="links") and circuit
                viewers read it: nodes "q7" and "k3" are blocks, links go from a query to what it
                attends to, with weight, share, layer and head
    trace.csv   layer,head,q_block,k_block,weight,share

A weight of kind mass is a sum over the rows of the block: a block of 64 rows has 64 to give.  The
share is its mean over these rows, 0 to 1.  Scores and logits have no share."""
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fovea_trace.record import Trace

Progress = Callable[[int, int], object]  # is told (edges done, edges in all)
STEP = 20000  # edges between two words of progress
FIELDS = ("layer", "head", "q_block", "k_block", "weight", "share")  # no share without mass


def write_npz(trace: Trace, path: pathlib.Path) -> None:
    edge = np.stack([trace.edges[name] for name in FIELDS[:4]], 1)
    more: dict[str, Any] = {"edge_share": trace.share(trace.edges)} if has_share(trace) else {}
    if trace.tokens:
        more |= dict(token_block=np.int32(trace.tokens.block), token_key=trace.tokens.key,
                     token_text=np.array(trace.tokens.text, str),
                     token_weight=trace.tokens.weight)
    with open(path, "wb") as file:  # savez would add .npz to the name
        np.savez_compressed(
            file, edge=edge, edge_weight=trace.edges["weight"], retained=trace.retained,
            row_text=np.array(trace.row_text, str), key_text=np.array(trace.key_text, str),
            about=np.array(json.dumps(trace.about)), **more)


def has_share(trace: Trace) -> bool:
    return bool(trace.about["edge_kind"] == "mass")


def rows(trace: Trace, progress: Progress) -> Iterator[tuple[Any, ...]]:
    """Tuples of an edge; weight and share as the shortest text that reads back as the same f32."""
    for begin in range(0, len(trace.edges), STEP):
        progress(begin, len(trace.edges))
        part = trace.edges[begin:begin + STEP]
        columns = [part["weight"], trace.share(part)] if has_share(trace) else [part["weight"]]
        texts = (["%.9g" % x for x in column.tolist()] for column in columns)
        yield from zip(*(part[name].tolist() for name in FIELDS[:4]), *texts)


def write_csv(trace: Trace, path: pathlib.Path,
              progress: Progress = lambda done, total: None) -> None:
    fields = FIELDS if has_share(trace) else FIELDS[:-1]
    with open(path, "w", newline="\n") as file:
        file.write(",".join(fields) + "\n")
        line = ",".join(["%d"] * 4 + ["%s"] * (len(fields) - 4)) + "\n"
        file.writelines(line % row for row in rows(trace, progress))


def write_json(trace: Trace, path: pathlib.Path,
               progress: Progress = lambda done, total: None) -> None:
    about = dict(trace.about)
    if has_share(trace):
        about["weight_is"] = "attention mass, summed over the rows of the query block"
        about["share_is"] = "weight divided by these rows: their mean"
    with open(path, "w") as file:
        file.write('{"directed": true, "multigraph": true,\n"graph": ')
        json.dump(about, file)
        file.write(',\n"nodes": [\n')
        file.write(",\n".join(json.dumps(node) for node in nodes(trace)))
        file.write('\n],\n"links": [')
        before = "\n"
        for layer, head, q, k, weight, *share in rows(trace, progress):
            # JSON has no infinity, and a score can be -inf.
            weight, *share = ("null" if x[-3:] in ("inf", "nan") else x for x in (weight, *share))
            shared = f'"share": {share[0]}, ' if share else ""
            file.write(f'{before}{{"source": "q{q}", "target": "k{k}", "weight": {weight}, '
                       f'{shared}"layer": {layer}, "head": {head}}}')
            before = ",\n"
        file.write("\n]}\n")


def nodes(trace: Trace) -> Iterator[dict[str, Any]]:
    for kind, letter, texts, block in (
            ("query", "q", trace.row_text, trace.about["block_rows"]),
            ("key", "k", trace.key_text, trace.about["block_keys"])):
        for i, text in enumerate(texts):
            last = min((i + 1) * block, trace.about["tokens"]) - 1
            yield {"id": f"{letter}{i}", "kind": kind, "block": i, "first_token": i * block,
                   "last_token": last, "text": text}
