#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/recipes --check on this tree, and on copies of it that lack one thing each."""
import importlib.machinery
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOADER = importlib.machinery.SourceFileLoader("recipes", str(ROOT / "tools/recipes"))
recipes = importlib.util.module_from_spec(importlib.util.spec_from_loader("recipes", LOADER))
sys.dont_write_bytecode = True
LOADER.exec_module(recipes)
PARTS = ["tests/recipes.txt", "tests/oracle/recipes.h", "tests/cases/recipes.cpp", "tests/golden/recipe_moa_1.safetensors"]

# file, what is there, what is put there, the sentence
WRONG = [
    ("tests/recipes.txt", "\nmoa\n", "\n", "moa: tests/recipes.txt does not name it"),
    ("tests/recipes.txt", "\nmoa\n", "\nmoa  an operation\n", "moa: src/recipes.json has it, and tests/recipes.txt says that it waits for an operation"),
    ("tests/recipes.txt", "\nmoa\n", "\nmoa\nmoas\n", "moas: src/recipes.json has no row"),
    ("tests/oracle/recipes.h", "inline Attention moa(", "inline Attention moas(", "moa: tests/oracle/recipes*.h has no definition moa()"),
    ("tests/cases/recipes.cpp", 'recipe("moa")', 'recipe("moas")', 'moa: tests/cases/recipes*.cpp has no case of recipe("moa")'),
    ("tests/golden/recipe_moa_1.safetensors", '"recipe": "moa"', '"recipe": "mob"', "moa: no tests/golden/recipe_moa_*.safetensors: conformance --export tests/golden"),
]


class Check(unittest.TestCase):
    def test_this_tree(self):
        done = subprocess.run([sys.executable, ROOT / "tools/recipes", "--check"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        *left, count = done.stdout.splitlines()
        self.assertRegex(count, rf"^recipes: \d+ methods by name, {len(left)} open$")
        self.assertTrue(all(" open: " in line for line in left))

    def test_what_is_missing_is_said(self):
        rows = {"moa": {}}
        for file, there, put, sentence in WRONG:
            with self.subTest(sentence), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                for part in PARTS:
                    (folder / part).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / part, folder / part)
                others = {name for name, waits in recipes.wanted((folder / "tests/recipes.txt").read_text()).items() if not waits} - {"moa"}
                lines = (folder / "tests/recipes.txt").read_text().splitlines(keepends=True)
                (folder / "tests/recipes.txt").write_text("".join(line for line in lines if line.strip() not in others))
                self.assertEqual(recipes.missing(folder, rows)[0], [])
                whole = (folder / file).read_bytes()
                self.assertIn(there.encode(), whole)
                (folder / file).write_bytes(whole.replace(there.encode(), put.encode()))
                self.assertIn(sentence, recipes.missing(folder, rows)[0])


if __name__ == "__main__":
    unittest.main()
