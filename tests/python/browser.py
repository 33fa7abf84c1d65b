# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium by chromedriver's plain HTTP protocol: what the page's test needs of it."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

PROGRAMS = ("chromium", "chromedriver")
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def missing():
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Browser:
    def __init__(self, width=1280, height=900, dark=False):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._driver = subprocess.Popen(
            [shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE, text=True
        )
        try:
            self._url = self._address()
            # --no-sandbox: CI runs as root; the page is ours.
            flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                     "--disable-dev-shm-usage", "--force-device-scale-factor=1",
                     f"--window-size={width},{height}",
                     f"--user-data-dir={self._folder.name}"]  # fmt: skip
            flags += ["--blink-settings=preferredColorScheme=0"] if dark else []
            wanted = {
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
                "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": flags},
            }
            answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._url += f"/session/{answer['sessionId']}"
        except BaseException:
            self.close()
            raise

    def _address(self):
        for line in self._driver.stdout:
            if "successfully on port" in line:
                port = line.rstrip(".\n").rpartition(" ")[2]
                return f"http://127.0.0.1:{port}"
        raise RuntimeError("chromedriver did not start")

    def _call(self, method, path, body=None):
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with _direct.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as why:
            raise RuntimeError(json.load(why)["value"]["message"]) from None

    def close(self):
        try:
            if self._driver.poll() is None and "/session/" in getattr(self, "_url", ""):
                self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(30)
            self._driver.stdout.close()
            self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def open(self, url):
        self._call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """The value of a function's body in the page."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {expression}")):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} is still {value!r} after {seconds} s")
            time.sleep(0.05)
        return value

    def log(self, kind):
        """Entries since the last call; kind: "browser" (console) or "performance" (events)."""
        return self._call("POST", "/se/log", {"type": kind})

    def act(self, kind, *actions, **fields):
        source = {"type": kind, "id": kind, "actions": list(actions), **fields}
        self._call("POST", "/actions", {"actions": [source]})

    def click(self, x, y):
        self.act("pointer", {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)},
                 {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0},
                 parameters={"pointerType": "mouse"})  # fmt: skip

    def drag(self, x, y, dx, dy):
        self.act("pointer", {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)},
                 {"type": "pointerDown", "button": 0},
                 {"type": "pointerMove", "duration": 100, "x": round(x + dx), "y": round(y + dy)},
                 {"type": "pointerUp", "button": 0},
                 parameters={"pointerType": "mouse"})  # fmt: skip

    def wheel(self, x, y, delta):
        self.act("wheel", {"type": "scroll", "x": round(x), "y": round(y), "deltaX": 0,
                           "deltaY": delta, "duration": 0})  # fmt: skip

    def keys(self, words):
        """Types characters where the focus is."""
        self.act(
            "key", *({"type": kind, "value": c} for c in words for kind in ("keyDown", "keyUp"))
        )

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._call("GET", "/screenshot")))
