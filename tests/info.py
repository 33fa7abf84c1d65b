#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program fovea_info as people call it: its report, its help, and what it says to words that make
no call.  tests/info.cpp holds the calls that it plans to the contract's.

    tests/info.py <fovea_info>      FOVEA_LIBRARY names the library for `python -m fovea`"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
OPERATIONS = [op["name"] for op in json.loads((ROOT / "bindings/api.json").read_text())["ops"]]
CALL = "attention_forward b=2 s=4 t=6 h=4 g=2 d=16"


def run(words="", env=None):
    done = subprocess.run([PROGRAM, *words.split()], capture_output=True, text=True, env=env, cwd="/", timeout=60)
    return done.returncode, done.stdout, done.stderr


def rows(text):
    return dict(line.split("  ", 1) for line in text.splitlines())


class Report(unittest.TestCase):
    def test_its_rows_are_those_of_python(self):
        status, out, err = run(env={**os.environ, "FOVEA_OF_THIS_TEST": "told = so"})
        self.assertEqual((status, err), (0, ""))
        mine = {name: fact.strip() for name, fact in rows(out).items()}
        self.assertEqual(mine.pop("FOVEA_OF_THIS_TEST"), "told = so")
        env = {**os.environ, "PYTHONPATH": str(ROOT / "bindings/python")}
        text = subprocess.run([sys.executable, "-m", "fovea"], capture_output=True, text=True, env=env, check=True).stdout
        theirs = {name: fact.strip() for name, fact in rows(text).items()}
        self.assertEqual(list(mine)[:11], list(theirs)[:11])
        still = lambda fact: fact.split(" GiB")[0].rsplit(",", 1)[0]  # memory moves between the two
        for name, fact in mine.items():
            if name.startswith(("host", "cuda:")):
                self.assertEqual(still(fact), still(theirs[name]))
                self.assertEqual(fact.split("free")[1:], theirs[name].split("free")[1:])
            elif name != "library":
                self.assertEqual(fact, theirs[name], name)
        version, path = mine["library"].split(", ", 1)
        self.assertTrue(theirs["library"].startswith(version + ", ") and os.path.isfile(path), mine["library"])

    def test_an_empty_environment(self):
        status, out, err = run(env={})
        self.assertEqual((status, err), (0, ""))
        self.assertNotIn("FOVEA_", out)


class Help(unittest.TestCase):
    def test_of_the_program_lists_every_operation(self):
        for word in "--help", "-h":
            status, out, err = run(word)
            self.assertEqual((status, err), (0, ""))
            listed = out[out.index("Operations:\n") :].split()[1:]
            self.assertEqual(listed, OPERATIONS)
        self.assertLess(max(map(len, out.splitlines())), 100)

    def test_its_examples_run(self):
        words = run("--help")[1].replace("\\\n", "")
        examples = [line.strip() for line in words.splitlines() if line.startswith("  fovea_info ")]
        self.assertEqual(len(examples), 2)
        for example in examples:
            self.assertEqual(run(example.removeprefix("fovea_info "))[0], 0, example)

    def test_of_an_operation_lists_its_fields(self):
        fields = {s["name"]: s["fields"] for s in json.loads((ROOT / "bindings/api.json").read_text())["structs"]}
        for name in OPERATIONS:
            status, out, err = run(f"{name} --help")
            self.assertEqual((status, err), (0, ""))
            words = {line.split()[0] for line in out.splitlines() if line.startswith("  ")}
            wanted = {f["name"] for f in fields[f"fovea_{name}_params"] if f["kind"] not in ("size", "reserved")}
            self.assertLessEqual(wanted, words)


class Recipes(unittest.TestCase):
    def test_they_are_those_of_python(self):
        status, out, err = run("--recipes")
        self.assertEqual((status, err), (0, ""))
        env = {**os.environ, "PYTHONPATH": str(ROOT / "bindings/python")}
        done = subprocess.run([sys.executable, "-m", "fovea", "recipes"], capture_output=True, text=True, env=env, check=True)
        self.assertEqual(out, done.stdout)
        for row in json.loads((ROOT / "src/recipes.json").read_text())["recipes"]:
            for text in (row["name"], row["title"], row["paper"], row["operation"], row["words"], *row["needs"], *row["numbers"]):
                self.assertIn(text, out)

    def test_words_that_python_does_not_know(self):
        env = {**os.environ, "PYTHONPATH": str(ROOT / "bindings/python")}
        done = subprocess.run([sys.executable, "-m", "fovea", "recipe"], capture_output=True, text=True, env=env)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("[recipes]", done.stderr)


class Calls(unittest.TestCase):
    def test_a_call(self):
        status, out, err = run(f"{CALL} dtype=bf16 causal=1 bias=f16 scale=0.5 --host")
        self.assertEqual((status, err), (0, ""))
        got = {name: fact.strip() for name, fact in rows(out).items()}
        self.assertEqual(got["q"], "(2, 4, 4, 16) bf16")
        self.assertEqual(got["v"], "(2, 6, 2, 16) bf16")  # e is d
        self.assertEqual(got["bias"], "(2, 4, 4, 6) f16")
        self.assertEqual((got["causal"], got["scale"]), ("1", "0.5"))
        self.assertRegex(got["kernel"], r"^attention_forward\.host\.\w+(\.amx)?\.bf16\.d16$")
        self.assertRegex(got["workspace"], r"^\d+ bytes$")
        self.assertEqual(got["why"], "the host has one kernel")
        self.assertIn("kernels " + got["kernel"].split(".")[2], got["on"])

    def test_gradients_are_outputs_unless_they_are_left_out(self):
        words = "attention_backward b=1 s=4 t=4 h=2 g=2 d=8 --host"
        self.assertLessEqual({"dq", "dk", "dv"}, set(rows(run(words)[1])))
        self.assertNotIn("dk", rows(run(words + " dk=0")[1]))
        self.assertIn("dbias", rows(run(words + " bias=1")[1]))

    def test_what_the_library_refuses_is_1(self):
        status, out, err = run(CALL.replace("g=2", "g=3") + " --host")
        self.assertEqual((status, out), (1, ""))
        self.assertEqual(err, "FOVEA_INVALID_ARGUMENT: attention_forward: k.shape[2] (g) is 3, wanted a divisor of q's 4 heads: (b, s, h, d), not SDPA's order\n")
        status, out, err = run(CALL.replace("d=16", "d=4096") + " --host")
        self.assertEqual((status, out, err.split(":")[0]), (1, "", "FOVEA_UNSUPPORTED"))
        self.assertEqual(run(f"{CALL} --cuda=999")[0], 1)

    def test_words_that_make_no_call_are_2(self):
        for words, sentence in (
            ("nothing", "there is no operation 'nothing', wanted one of attention_forward, "),
            ("--nothing", "there is no option --nothing; --help lists them"),
            ("--host", "--host and --cuda go with an operation"),
            ("--recipes --host", "--recipes stands alone"),
            (f"{CALL} --host --cuda", "one of --host and --cuda, once"),
            (f"{CALL} --cudas", "'--cudas', wanted --cuda or --cuda=0, with the number of a device"),
            (f"{CALL} --cuda=x", "'--cuda=x', wanted --cuda or --cuda=0, with the number of a device"),
            (f"{CALL} causal", "attention_forward: 'causal' is no name=value"),
            (f"{CALL} casual=1", "attention_forward: there is no 'casual'; it has the extents b, s, h, d, "),
            (f"{CALL} struct_size=1", "attention_forward: there is no 'struct_size'; it has the extents b, "),
            (f"{CALL} s=4", "attention_forward: s is given twice"),
            (f"{CALL} causal=yes", "attention_forward: causal is 'yes', wanted a whole number\n"),
            (f"{CALL} causal=4294967296", "attention_forward: causal is '4294967296', wanted one that fits 32 bits\n"),
            (f"{CALL} scale=half", "attention_forward: scale is 'half', wanted a number\n"),
            (f"{CALL} dtype=double", "attention_forward: dtype is 'double', wanted one of f32, f16, bf16, "),
            (f"{CALL} dtype=e4m3", "attention_forward: dtype is e4m3, which no tensor of this call takes\n"),
            (f"{CALL} mask=yes", "attention_forward: mask is 'yes', wanted 1 (given), 0 (not), or a dtype: f32, "),
            (f"{CALL} q=0", "attention_forward: q cannot be left out\n"),
            (f"{CALL} page=4", "attention_forward: page is given, but no tensor of this call has it, wanted one of page_table, "),
            (f"{CALL} r=4", "attention_forward: r is given, but no tensor of this call has it, wanted one of query_start, key_start, "),
            (f"{CALL} cos=1 half=8", "attention_forward: an extent is missing: positions (rows of cos and sin)\n"),
            ("attention_forward b=2 t=6 h=4 d=16", "attention_forward: extents are missing: s (query rows of a sequence; "),
            (f"{CALL} s=-1".replace("s=4 ", ""), "attention_forward: s is '-1', wanted a whole number of at least 0\n"),
            ("trace_forward", "trace_forward: no output is given, wanted one or more of selected, score, o, "),
            ("rope_table_get positions=4 half=4 scaling=yarm", "rope_table_get: scaling is 'yarm', wanted one of none, linear, llama3, yarn\n"),
        ):
            status, out, err = run(words)
            self.assertEqual((status, out), (2, ""), words)
            self.assertTrue(err.startswith("fovea_info: " + sentence) and err.count("\n") == 1, f"{words}: {err}")

    def test_a_name_of_an_enum_is_its_number(self):
        words = "rope_table_get positions=4 half=4 --host scaling="
        self.assertEqual(run(words + "yarn"), run(words + "3"))


if __name__ == "__main__":
    unittest.main()
