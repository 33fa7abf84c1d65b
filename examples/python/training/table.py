# SPDX-License-Identifier: Apache-2.0
"""Tables as text for people and for programs: a row is a dataclass.  Names in plots."""
from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def names(command: str, option: str, wanted: str, there: Iterable[str]) -> list[str]:
    """Those of an option: with commas between, or all."""
    found = list(there)
    chosen = found if wanted == "all" else [name.strip() for name in wanted.split(",")]
    for name in chosen:
        if name not in found:
            raise SystemExit(f"{command}: --{option} has {name or 'an empty name'}, "
                             f"wanted some of {', '.join(found)}, or all")
    return list(dict.fromkeys(chosen))


def fields(rows: Sequence[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(rows[0])]


def write_md(rows: Sequence[Any], about: str, path: pathlib.Path, heads: Mapping[str, str],
             forms: Mapping[str, str]) -> None:
    """heads and forms: of columns, where they are not their name and {}."""
    shown = fields(rows)
    lines = [[heads.get(name, name) for name in shown], ["---"] * len(shown)]
    lines += [[forms.get(name, "{}").format(getattr(row, name)) for name in shown] for row in rows]
    path.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{about}.\n")


def write_tsv(rows: Sequence[Any], path: pathlib.Path) -> None:
    shown = fields(rows)
    lines = [shown, *([str(getattr(row, name)) for name in shown] for row in rows)]
    path.write_text("".join("\t".join(line) + "\n" for line in lines))


def read_tsv(path: pathlib.Path) -> list[dict[str, str]]:
    shown, *lines = (line.split("\t") for line in path.read_text().splitlines())
    return [dict(zip(shown, line)) for line in lines]


def label(axes: Any, named: Sequence[tuple[str, tuple[Any, Any]]]) -> None:
    """Names beside their points, from the lowest up; one that would lie on another goes higher."""
    taken = list[tuple[float, float]]()
    places = [(*axes.transData.transform(point), name, point) for name, point in named]
    for x, y, name, point in sorted(places, key=lambda place: place[1]):
        at = y
        while any(abs(x - other[0]) < 85 and abs(at - other[1]) < 11 for other in taken):
            at += 1
        taken.append((x, at))
        axes.annotate(name, point, xytext=(9, at - y), textcoords="offset pixels", fontsize=7.5,
                      va="center")
