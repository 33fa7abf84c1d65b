# SPDX-License-Identifier: Apache-2.0
"""bench/results/<device>.tsv: reading, appending, and the newest row of each case."""

import csv
import re

COLUMNS = (
    "date device op case kernel ms tflops_or_gbs peer peer_ms ratio commit driver torch".split()
)


def slug(device):
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def read(path):
    """Rows as dictionaries; what a row of an older table does not say is '-'."""
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", restval="-"))
    return [{column: row.get(column) or "-" for column in COLUMNS} for row in rows]


def append(path, rows):
    """Rows behind those that are there, which keep what they say under the columns of today."""
    path.parent.mkdir(exist_ok=True)
    kept = read(path) if path.exists() else []
    lines = ["\t".join(row[column] for column in COLUMNS) for row in (*kept, *rows)]
    path.write_text("\n".join(["\t".join(COLUMNS), *lines]) + "\n")


def newest(rows):
    """One row a case and peer, in the order in which the cases came."""
    found = {}
    for row in rows:
        key = row["op"], row["case"], row["peer"]
        if key not in found or row["date"] >= found[key]["date"]:
            found[key] = row
    return list(found.values())
