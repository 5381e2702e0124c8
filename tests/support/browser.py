"""A headless Chromium, driven by its DevTools protocol over two pipes; it needs nothing but Chromium.

As a program it takes a picture of a page with one part open, of a given height in pixels:

    python tests/support/browser.py page.html picture.png ladders 920
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--force-color-profile=srgb",
)
SECONDS = 30.0  # for any answer
KEYS = {
    "ArrowRight": 39,
    "ArrowLeft": 37,
    "Home": 36,
    "End": 35,
    "Tab": 9,
    " ": 32,
    "ArrowUp": 38,
    "ArrowDown": 40,
    "Escape": 27,
}


class Chromium:
    """One process with one page. `events` holds all events, in order."""

    def __init__(self, profile):
        down_read, self._down = os.pipe()
        self._up, up_write = os.pipe()
        # Chromium reads commands from descriptor 3 and writes to 4; what they were here may be in each other's way.
        script = f'exec "$0" "$@" 3<&{down_read} 4>&{up_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(down_read, up_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(down_read)
        os.close(up_write)
        self.events, self._rest, self._count, self._session = [], b"", 0, None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self(f"{domain}.enable")

    def __call__(self, method, **params):
        """Send a command, and return its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._down, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _next(self, seconds=SECONDS):
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._up], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"Chromium sent nothing for {seconds} s")
            read = os.read(self._up, 1 << 20)
            assert read, "Chromium ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def wait(self, method, seconds=SECONDS):
        """Return the next event of that name."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.events.append(self._next(end - time.monotonic()))
            if self.events[-1].get("method") == method:
                return self.events[-1]["params"]
        raise TimeoutError(method)

    def open(self, path, *, width=1280, height=900, dark=False):
        """Load a file, and wait for its load event."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.media(dark=dark)
        self.events.clear()
        self("Page.navigate", url=f"file://{path}")
        if not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.wait("Page.loadEventFired")

    def media(self, *, dark):
        """Set the system's preference to light or dark."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[feature])

    def js(self, expression):
        """Return the value of an expression in the page; await a promise."""
        found = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression, seconds=60.0):  # a loaded machine takes long
        """Wait for an expression to be true, and return its value."""
        end = time.monotonic() + seconds
        while not (value := self.js(expression)):
            assert time.monotonic() < end, f"never came true: {expression}"
            time.sleep(0.03)
        return value

    def box(self, selector):
        """Scroll an element into view, and return its middle."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.js(f"{element}.scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.js(f"(b => [b.x, b.y, b.width, b.height])({element}.getBoundingClientRect())")
        return x + width / 2, y + height / 2

    def move(self, x, y):
        """Move the mouse there, and on by a pixel."""
        for to in (x - 1, x):
            self("Input.dispatchMouseEvent", type="mouseMoved", x=to, y=y)

    def click(self, selector):
        """Click the middle of an element with the mouse."""
        x, y = self.box(selector)
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name):
        """Press a key and let it go."""
        code = KEYS[name]
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def complaints(self):
        """Return the console's errors and warnings, exceptions, and what the policy refused, in words."""
        self.js("0")  # events that are on their way arrive before this answer
        lines = []
        for event in self.events:
            name, about = event.get("method"), event.get("params", {})
            if name == "Runtime.exceptionThrown":
                lines.append(about["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif name == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
                lines.append(str([arg.get("value") or arg.get("description") for arg in about["args"]]))
            elif name == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                lines.append(about["entry"]["text"])
        return lines

    def requests(self):
        """Return the addresses that the page loaded."""
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]

    def shot(self, path):
        """Write a picture of the visible part."""
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png")["data"]))

    def pdf(self, path):
        """Write the page as it prints on A4."""
        printed = self(
            "Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True, printBackground=False
        )
        path.write_bytes(base64.b64decode(printed["data"]))

    def close(self):
        """End the process."""
        os.close(self._down)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._up)


def picture(page, path, part, height):
    """Write a picture of a page with a part of its first kernel open."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        chromium = Chromium(profile)
        try:
            chromium.open(Path(page).resolve(), width=960, height=int(height))
            chromium.js(f"document.getElementById('run-1-{part}-tab').click()")
            chromium.shot(Path(path))
        finally:
            chromium.close()


if __name__ == "__main__":
    picture(*sys.argv[1:5])
