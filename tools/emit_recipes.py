# SPDX-License-Identifier: Apache-2.0
"""The methods by name: src/recipes.json, checked against the headers, as the library's table.

A row of "recipes", sorted by name:

    name       what callers write: a letter, then letters, digits and _
    title      as the paper writes it
    paper      its arXiv number; without a paper the model that has the method
    year       of the paper or the model
    operation  that runs it, a row of src/ops.inc
    numbers    fields of that operation and their values; values of an enum by name, "relu_weighted"
    needs      optional inputs of that operation that the caller must give, and numbers that are not 0
    backward   the operation that trains it; may be left out
    words      what it does here, and what it does not, in sentences of at most 25 words"""
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = "src/recipes.json"
KEYS = {"name": str, "title": str, "paper": str, "year": int, "operation": str, "numbers": dict, "needs": list, "words": str}
ARXIV = r"\d{4}\.\d{4,5}"
RANGES = {"i32": 2**31, "i64": 2**53}  # the table holds doubles


class Wrong(SystemExit):
    def __init__(self, row, why):
        super().__init__(f"api.py: {SOURCE}: {row}: {why}")


def fields_of(api, row, key):
    """Fields by name of the operation that row[key] names."""
    op = next((op for op in api["ops"] if op["name"] == row[key]), None)
    if not op:
        raise Wrong(row["name"], f"{key} is {row[key]!r}, wanted a row of src/ops.inc")
    struct = next(s for s in api["structs"] if s["name"] == op["params"])
    return op["first_size"], {f["name"]: f for f in struct["fields"]}


def names_of(api, enum):
    """name -> number: `relu_weighted` of FOVEA_X_SELECT_SCORE_RELU_WEIGHTED."""
    values = next(e for e in api["enums"] if e["name"] == enum)["values"]
    return {v["name"].removeprefix(enum.upper() + "_").removeprefix("FOVEA_").lower(): v["value"] for v in values}


def number_of(api, name, field, value):
    """The value of a number as the library writes it."""
    if isinstance(value, str):
        if "enum" not in field:
            raise Wrong(name, f"{field['name']} is {value!r}, wanted a number: it is no enum")
        names = names_of(api, field["enum"])
        if value not in names:
            raise Wrong(name, f"{field['name']} is {value!r}, wanted one of {', '.join(names)}")
        return names[value]
    if "enum" in field:
        raise Wrong(name, f"{field['name']} is {value!r}, wanted one of {', '.join(names_of(api, field['enum']))}, by name")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Wrong(name, f"{field['name']} is {value!r}, wanted a number")
    if field["kind"] in RANGES and not (isinstance(value, int) and abs(value) < RANGES[field["kind"]]):
        raise Wrong(name, f"{field['name']} is {value!r}, wanted an integer that {field['type']} holds")
    if not value:
        raise Wrong(name, f"{field['name']} is 0, which it is anyway")
    return value


def check(api, row):
    """A row with what the headers say of its fields."""
    name = row.get("name")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", str(name)):
        raise Wrong(name, "wanted a name of letters, digits and _")
    for key, kind in KEYS.items():
        if not isinstance(row.get(key), kind):
            raise Wrong(name, f"{key} is {row.get(key)!r}, wanted a {kind.__name__}")
    if stray := set(row) - set(KEYS) - {"backward"}:
        raise Wrong(name, f"there is no key {', '.join(sorted(stray))}, wanted {', '.join(KEYS)} and backward")
    if not re.fullmatch(ARXIV, row["paper"]) and not re.fullmatch(r"[A-Z][\w.-]+", row["paper"]):
        raise Wrong(name, f"paper is {row['paper']!r}, wanted an arXiv number such as 2309.17453 or a model's name")
    for sentence in re.split(r"(?<=\.) ", row["words"]):
        if len(sentence.split()) > 25 or not sentence.endswith("."):
            raise Wrong(name, f"wanted sentences of at most 25 words: {sentence!r}")
    first, fields = fields_of(api, row, "operation")
    first_back, back = fields_of(api, row, "backward") if "backward" in row else (0, {})
    numbers, needs = [], []
    for field, value in row["numbers"].items():
        if field not in fields or fields[field]["kind"] not in ("i64", "f32", "i32"):
            raise Wrong(name, f"{row['operation']} has no number {field}")
        numbers.append((fields[field], back.get(field), number_of(api, name, fields[field], value)))
    for field in row["needs"]:
        found = fields.get(field, {"kind": None})
        given = found["kind"] == "tensor" and found["optional"] and found["direction"] != "out"
        if not (given or found["kind"] in ("i64", "i32")) or field in row["numbers"]:
            raise Wrong(name, f"{row['operation']} has no optional input or number {field} that numbers lacks")
        needs.append((found, back.get(field)))
    # What a caller's struct must hold at least.
    bytes_of = lambda least, used: max([least, *(f["offset"] + f["size"] for f in used if f)])
    used = [(a, b) for a, b, *_ in numbers + needs]
    return {**row, "backward": row.get("backward", ""), "rows": numbers, "tensors": needs,
            "bytes": bytes_of(first, [a for a, _ in used]), "bytes_back": bytes_of(first_back, [b for _, b in used])}


def recipes(api, path=ROOT / SOURCE):
    """Every row, checked."""
    try:
        found = [check(api, row) for row in json.loads(path.read_text())["recipes"]]
    except (json.JSONDecodeError, KeyError) as why:
        raise Wrong("the file", why) from None
    names = [row["name"] for row in found]
    if names != sorted(set(names)):
        raise Wrong(next(a for a, b in zip(names, sorted(set(names)) + [""]) if a != b), "wanted rows sorted by name, each once")
    return found


def numbers_text(row):
    return " ".join(f"{field}={value}" for field, value in row["numbers"].items())


def recipes_inc(rows):
    """The table of src/core/recipe.cpp."""
    quote = lambda text: json.dumps(text, ensure_ascii=False)
    at = lambda field: field["offset"] if field else 0
    numbers, needs, out = [], [], []
    for row in rows:
        texts = [row["name"], row["title"], row["paper"], row["operation"], row["backward"], numbers_text(row), " ".join(row["needs"]), row["words"]]
        told = ", ".join(["sizeof(fovea_x_recipe)", *map(quote, texts), str(row["year"])])
        spans = f"{len(numbers)}, {len(row['rows'])}, {len(needs)}, {len(row['tensors'])}"
        out.append(f"  {{{{{told}}}, {row['bytes']}, {row['bytes_back']}, {spans}}},")
        numbers += [f"  {{Kind::{a['kind']}, {value}, {at(a)}, {at(b)}}},  // {row['name']}: {a['name']}" for a, b, value in row["rows"]]
        for a, b in row["tensors"]:
            wanted = a["doc"].split(";")[0]
            if a["kind"] == "tensor":
                dtypes = " or ".join(filter(None, [a["dtype_as"] and f"as {a['dtype_as']}", " ".join(a["dtypes"])]))
                wanted = f"({', '.join(a['dims'])}) {dtypes}"
            needs.append(f"  {{Kind::{a['kind']}, {quote(a['name'])}, {quote(wanted)}, {at(a)}, {at(b)}}},  // {row['name']}")
    head = "// SPDX-License-Identifier: Apache-2.0\n// Generated by tools/api.py from src/recipes.json: edit that.\n// clang-format off\n"
    tables = (("Number kNumbers", numbers), ("Need kNeeds", needs), ("Recipe kRecipes", out))
    return head + "".join(f"constexpr {name}[] = {{\n" + "\n".join(lines) + "\n};\n" for name, lines in tables)


def emit(api):
    return {"src/core/recipes.inc": recipes_inc(recipes(api))}
