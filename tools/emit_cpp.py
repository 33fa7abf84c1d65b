# SPDX-License-Identifier: Apache-2.0
"""bindings/api.json for people and programs."""
import json


def rows(items, indent):
    pad = " " * indent
    return ",\n".join(pad + json.dumps(x, ensure_ascii=False) for x in items)


def api_json(api):
    """Valid JSON, one enum value, field, op or function a line, in the order of the headers."""
    quote = lambda x: json.dumps(x, ensure_ascii=False)
    out = [f'{{\n  "version": {quote(api["version"])},']
    out.append(f'  "constants": [\n{rows(api["constants"], 4)}\n  ],')
    for key, inner in (("enums", "values"), ("structs", "fields")):
        blocks = []
        for x in api[key]:
            head = ", ".join(f"{quote(k)}: {quote(v)}" for k, v in x.items() if k != inner)
            blocks.append(f"    {{{head}, {quote(inner)}: [\n{rows(x[inner], 6)}\n    ]}}")
        out.append(f'  "{key}": [\n' + ",\n".join(blocks) + "\n  ],")
    out.append(f'  "opaque": [\n{rows(api["opaque"], 4)}\n  ],')
    out.append(f'  "ops": [\n{rows(api["ops"], 4)}\n  ],')
    out.append(f'  "functions": [\n{rows(api["functions"], 4)}\n  ]\n}}')
    return "\n".join(out) + "\n"


def emit(api):
    return {"bindings/api.json": api_json(api)}
