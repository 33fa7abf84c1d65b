#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds .github to its form: every file is YAML that GitHub takes, every action is pinned to a commit,
and every script of the tree that a workflow runs is there."""

import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")
SCRIPT = re.compile(r"(?<![\w./-])((?:tools|tests|bench)/[\w./-]+)")


def workflow(path, text):
    """What is wrong with a workflow.  YAML 1.1 reads the key `on` as true."""
    jobs = text.get("jobs") or {}
    found = [] if True in text and jobs else [f"{path.name} has no triggers or no jobs"]
    if text.get("permissions") != {"contents": "read"}:
        found.append(f"{path.name}: wanted permissions of contents: read alone")
    for step in (step for job in jobs.values() for step in job["steps"]):
        if "uses" in step and not PINNED.fullmatch(step["uses"]):
            found.append(f"{path.name}: {step['uses']} is not pinned to a commit")
        for script in SCRIPT.findall(step.get("run", "")):
            if not (ROOT / script).exists():
                found.append(f"{path.name} runs {script}, which is not there")
    return found


def form(path, text):
    if not text.get("name") or not text.get("description") or not text.get("body"):
        return [f"{path.name}: wanted name, description and body"]
    ids = [part["id"] for part in text["body"] if part["type"] != "markdown"]
    return [] if len(set(ids)) == len(ids) else [f"{path.name}: an id stands twice"]


def main():
    found = []
    for path in sorted((ROOT / ".github").rglob("*.yml")):
        text = yaml.safe_load(path.read_text())
        if path.parent.name == "workflows":
            found += workflow(path, text)
        elif path.name != "config.yml":
            found += form(path, text)
    if found:
        sys.exit("docs: " + "\ndocs: ".join(found))
    print("docs: .github is in form")


if __name__ == "__main__":
    main()
