# SPDX-License-Identifier: Apache-2.0
"""trace.npz, trace.json and trace.csv.

    trace.npz   edge (E, 4) i32 as fovea's: layer, head, row block, key block; edge_weight (E) f32;
                retained (layers, heads, row blocks) f32; row_text, key_text; about: JSON text
    trace.json  a node-link graph, as networkx.node_link_graph(..., edges="links") and circuit
                viewers read it: nodes "q7" and "k3" are blocks, links go from a query to what it
                attends to, with weight, layer and head
    trace.csv   layer,head,q_block,k_block,weight"""
import json

import numpy as np

STEP = 20000  # edges between two words of progress
FIELDS = ("layer", "head", "q_block", "k_block", "weight")


def write_npz(trace, path):
    edge = np.stack([trace.edges[name] for name in FIELDS[:4]], 1)
    np.savez_compressed(
        path, edge=edge, edge_weight=trace.edges["weight"], retained=trace.retained,
        row_text=np.array(trace.row_text, str), key_text=np.array(trace.key_text, str),
        about=np.array(json.dumps(trace.about)))


def rows(trace, progress):
    """Tuples of an edge; the weight as the shortest text that reads back as the same f32."""
    for begin in range(0, len(trace.edges), STEP):
        progress(begin, len(trace.edges))
        part = trace.edges[begin:begin + STEP]
        weights = ("%.9g" % w for w in part["weight"].tolist())
        yield from zip(*(part[name].tolist() for name in FIELDS[:4]), weights)


def write_csv(trace, path, progress=lambda done, total: None):
    with open(path, "w", newline="\n") as file:
        file.write(",".join(FIELDS) + "\n")
        file.writelines("%d,%d,%d,%d,%s\n" % row for row in rows(trace, progress))


def write_json(trace, path, progress=lambda done, total: None):
    with open(path, "w") as file:
        file.write('{"directed": true, "multigraph": true,\n"graph": ')
        json.dump(trace.about, file)
        file.write(',\n"nodes": [\n')
        file.write(",\n".join(json.dumps(node) for node in nodes(trace)))
        file.write('\n],\n"links": [')
        before = "\n"
        for layer, head, q, k, weight in rows(trace, progress):
            # JSON has no infinity, and a score can be -inf.
            weight = "null" if weight in ("-inf", "inf", "nan") else weight
            file.write(f'{before}{{"source": "q{q}", "target": "k{k}", "weight": {weight}, '
                       f'"layer": {layer}, "head": {head}}}')
            before = ",\n"
        file.write("\n]}\n")


def nodes(trace):
    for kind, letter, texts, block in (
            ("query", "q", trace.row_text, trace.about["block_rows"]),
            ("key", "k", trace.key_text, trace.about["block_keys"])):
        for i, text in enumerate(texts):
            last = min((i + 1) * block, trace.about["tokens"]) - 1
            yield {"id": f"{letter}{i}", "kind": kind, "block": i, "first_token": i * block,
                   "last_token": last, "text": text}
